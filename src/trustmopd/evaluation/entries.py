"""What is scored: the entries that a recipe names (initial student, teachers, their average, the student of each seed),
and their checkpoints before they are loaded: are all their parts there, and which weights have they?"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from trustmopd.recipe import Recipe
from trustmopd.recipe.teacher_source import TeacherSource
from trustmopd.runs import newest_checkpoint
from trustmopd.runs.checkpoints import read_manifest
from trustmopd.runs.layout import AVERAGE, CHECKPOINT, CHECKPOINTS, INITIAL, TEACHER, student_folder
from trustmopd.util.files import file_sha256
from trustmopd.util.messages import first_line

_CONFIGURATIONS = ("config.json", "adapter_config.json")
_WEIGHTS = ("*.safetensors", "pytorch_model*.bin", "adapter_model*.bin")
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.*", "spiece.model", "*.tiktoken")


@dataclass(frozen=True)
class Entry:
    """One checkpoint to evaluate, and the folder of its responses, below the evaluation's. `base` is the model of an
    adapter that names none. `mean_of`: what an average was made from; this identifies it wherever it is."""

    name: str
    source: TeacherSource
    folder: str
    seed: int = 0
    base: str | None = None
    mean_of: tuple[TeacherSource, ...] = ()


def entries_of(recipe: Recipe, only: list[str] | None = None) -> tuple[list[Entry], list[str]]:
    """What can be evaluated now, and a sentence about each thing that cannot. `routed-teachers` is not a checkpoint:
    its scores are the teachers'."""
    base = recipe.reference or recipe.student
    found = [Entry(INITIAL, TeacherSource(model=recipe.student), INITIAL)]
    for name, teacher in recipe.teachers.items():
        found.append(Entry(TEACHER + name, teacher, TEACHER + name, base=None if teacher.model else base))
    notes = []
    teachers = tuple(recipe.teachers.values())
    if bases := several_bases(recipe):
        notes.append(f"{AVERAGE}: left out, because {bases}, and models of different bases cannot be averaged.")
    else:
        found.append(Entry(AVERAGE, TeacherSource(model=str(recipe.average)), AVERAGE, base=base, mean_of=teachers))
    for seed in recipe.seeds:
        checkpoint = newest_checkpoint(recipe.run_directory(seed))
        if checkpoint is None:
            notes.append(
                f"{recipe.name}, seed {seed}: left out, because {recipe.run_directory(seed)} has no whole checkpoint. "
                "Train it first with `trustmopd train`."
            )
            continue
        found.append(Entry(recipe.name, _student(recipe, checkpoint), student_folder(recipe.name, seed), seed))
    if not only:
        return found, notes
    known = list(dict.fromkeys([*(entry.name for entry in found), recipe.name]))
    if unknown := [name for name in only if name not in known]:
        raise ValueError(f"--only {unknown[0]}: the recipe has no such row. Choose from {', '.join(known)}.")
    chosen = [entry for entry in found if entry.name in only]
    return chosen, [note for note in notes if note.startswith(tuple(only))]


def several_bases(recipe: Recipe) -> str:
    """Which teachers grew from which reference, if there are several, so that their parameters have no mean. `student`
    stands for a base that is lost."""
    grown: dict[str, list[str]] = {}
    for name, teacher in recipe.teachers.items():
        common = TeacherSource(model=recipe.reference or recipe.student)
        own = teacher.reference if teacher.reference and teacher.reference.model else common
        grown.setdefault(f"{own.model}@{own.revision}" if own.revision else str(own.model), []).append(name)
    told = [f"{' and '.join(names)} from {base}" for base, names in grown.items()]
    return f"teachers grew from several models ({', '.join(told)})" if len(grown) > 1 else ""


def make_average(recipe: Recipe) -> None:
    """The teachers' mean, where `trustmopd merge` puts it, unless it is there."""
    from trustmopd.checkpoints.merge import merge_checkpoints

    if not recipe.average.exists():
        merge_checkpoints(list(recipe.teachers.values()), recipe.average, base=recipe.reference or recipe.student)


def _student(recipe: Recipe, checkpoint: Path) -> TeacherSource:
    if (checkpoint / "adapter_config.json").exists():
        return TeacherSource(model=recipe.student, adapter=str(checkpoint))
    return TeacherSource(model=str(checkpoint))


def trained_with(checkpoint: Path) -> dict[str, Any]:
    """The system prompt and the arguments of the chat template of its run; empty if it does not say."""
    try:
        manifest = read_manifest(checkpoint)
    except (OSError, ValueError):
        return {}
    system, options = manifest["prompts"].get("system"), manifest["config"].get("chat_template_kwargs")
    return {"system": system, "chat_template_kwargs": options}


class Part(NamedTuple):
    """A folder or a Hub id, and which revision of it."""

    place: str
    revision: str | None


def parts(source: TeacherSource, base: str | None = None) -> list[Part]:
    """What is loaded in turn: the model, and the adapter on it. `base` is the model of an adapter that names none; the
    revision is then the adapter's alone, as it is in training."""
    model = [Part(source.model, source.revision)] if source.model else [Part(base, None)] if base else []
    return [*model, *([Part(source.adapter, source.revision)] if source.adapter else [])]


def is_adapter(place: str) -> bool:
    """Whether a folder holds an adapter. A Hub id is not looked up."""
    return not Path(place, "config.json").is_file() and Path(place, "adapter_config.json").is_file()


def check_checkpoint(source: TeacherSource, base: str | None = None) -> None:
    """Report a slip in a path or a Hub id at once, before data are fetched or a folder is made."""
    for number, part in enumerate(parts(source, base)):
        if Path(part.place).exists():
            _check_folder(Path(part.place), with_tokenizer=number == 0)
        else:
            _check_hub(*part)


def _check_folder(folder: Path, with_tokenizer: bool) -> None:
    needs = [("configuration", _CONFIGURATIONS), ("weights", _WEIGHTS)]
    needs += [("tokenizer", _TOKENIZERS)] if with_tokenizer else []
    for what, patterns in needs:
        if not any(_files(folder, patterns)):
            raise ValueError(
                f"{folder} is not a whole checkpoint: it has no {what} ({', '.join(patterns)}). Give a folder in which "
                f"model and tokenizer were saved. In a run, that is {CHECKPOINTS}/{CHECKPOINT}*."
            )


def _check_hub(place: str, revision: str | None) -> None:
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HFValidationError

    reason = ""
    for name in _CONFIGURATIONS:
        try:
            hf_hub_download(place, name, revision=revision)
            return
        except HFValidationError:
            break  # a path, then
        except Exception as error:  # the Hub's client raises a class for each way to fail
            reason = reason or first_line(error).rstrip(".")
    where = f"and the Hub does not have it ({reason})" if reason else "and is not a Hub id"
    raise FileNotFoundError(f"the checkpoint {place!r} is not a folder here {where}. Check the path or the Hub id.")


def weight_files(source: TeacherSource, base: str | None = None) -> list[list[Any]]:
    """By content: a retrained checkpoint is not taken for the old one, and a copy is."""
    return [
        [file.name, file.stat().st_size, _sha256(file, file.stat().st_mtime_ns)]
        for part in parts(source, base)
        if Path(part.place).is_dir()
        for file in sorted(_files(Path(part.place), _WEIGHTS))
    ]


@lru_cache
def _sha256(file: Path, written: int) -> str:
    """Read once, unless the file is written again."""
    return file_sha256(file)


def _files(folder: Path, patterns: Sequence[str]) -> Iterator[Path]:
    return (file for pattern in patterns for file in folder.glob(pattern))
