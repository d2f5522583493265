"""The rows of the paper's comparison that one recipe names: initial student, teachers, their average, the student."""

from dataclasses import dataclass
from pathlib import Path

from trustmopd.recipe import Recipe
from trustmopd.recipe.teacher_source import TeacherSource
from trustmopd.runs import newest_checkpoint
from trustmopd.runs.layout import AVERAGE, INITIAL, TEACHER, student_folder


@dataclass(frozen=True)
class Method:
    """One checkpoint to evaluate, and the folder of its responses, below the evaluation's. `base` is the model of an
    adapter that names none. `mean_of`: what an average was made from; this identifies it wherever it is."""

    name: str
    source: TeacherSource
    folder: str
    seed: int = 0
    base: str | None = None
    mean_of: tuple[TeacherSource, ...] = ()


def methods_of(recipe: Recipe, only: list[str] | None = None) -> tuple[list[Method], list[str]]:
    """What can be evaluated now, and a sentence about each thing that cannot. `routed-teachers` is not a checkpoint:
    its scores are the teachers'."""
    base = recipe.reference or recipe.student
    found = [Method(INITIAL, TeacherSource(model=recipe.student), INITIAL)]
    for name, teacher in recipe.teachers.items():
        found.append(Method(TEACHER + name, teacher, TEACHER + name, base=None if teacher.model else base))
    notes = []
    teachers = tuple(recipe.teachers.values())
    if bases := several_bases(recipe):
        notes.append(f"{AVERAGE}: left out, because {bases}, and models of different bases cannot be averaged.")
    else:
        found.append(Method(AVERAGE, TeacherSource(model=str(recipe.average)), AVERAGE, base=base, mean_of=teachers))
    for seed in recipe.seeds:
        checkpoint = newest_checkpoint(recipe.run_directory(seed))
        if checkpoint is None:
            notes.append(
                f"{recipe.name}, seed {seed}: left out, because {recipe.run_directory(seed)} has no whole checkpoint. "
                "Train it first with `trustmopd train`."
            )
            continue
        found.append(Method(recipe.name, _student(recipe, checkpoint), student_folder(recipe.name, seed), seed))
    if not only:
        return found, notes
    known = list(dict.fromkeys([*(method.name for method in found), recipe.name]))
    if unknown := [name for name in only if name not in known]:
        raise ValueError(f"--only {unknown[0]}: the recipe has no such row. Choose from {', '.join(known)}.")
    chosen = [method for method in found if method.name in only]
    return chosen, [note for note in notes if note.startswith(tuple(only))]


def several_bases(recipe: Recipe) -> str:
    """Which teachers grew from which reference, if there are several, so that their parameters have no mean. `student`
    stands for a base that is lost."""
    grown: dict[str, list[str]] = {}
    for name, teacher in recipe.teachers.items():
        own = teacher.reference or TeacherSource(model=recipe.reference or recipe.student)
        grown.setdefault(f"{own.model}@{own.revision}" if own.revision else str(own.model), []).append(name)
    told = [f"{' and '.join(names)} from {base}" for base, names in grown.items()]
    return f"teachers grew from several models ({', '.join(told)})" if len(grown) > 1 else ""


def make_average(recipe: Recipe) -> None:
    """The teachers' mean, where `trustmopd merge` puts it, unless it is there."""
    from trustmopd.checkpoints.merge import merge_checkpoints

    folder = recipe.average
    if not folder.exists():
        merge_checkpoints(list(recipe.teachers.values()), folder, base=recipe.reference or recipe.student)


def _student(recipe: Recipe, checkpoint: Path) -> TeacherSource:
    if (checkpoint / "adapter_config.json").exists():
        return TeacherSource(model=recipe.student, adapter=str(checkpoint))
    return TeacherSource(model=str(checkpoint))
