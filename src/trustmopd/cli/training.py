"""The verbs of one recipe: train, calibrate, diagnose, merge."""

import shlex
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from trustmopd.cli.common import app, console, errors, plain, say, show_table
from trustmopd.runs import newest_checkpoint
from trustmopd.runs.layout import CHECKPOINT, CHECKPOINTS, MERGED
from trustmopd.runs.watched import described
from trustmopd.util.text_tables import text_table

if TYPE_CHECKING:
    from trustmopd.recipe import Recipe
    from trustmopd.runs.schemas import Diagnosis, DomainDiagnosis
    from trustmopd.training.run.which_checkpoint import Resumed
    from trustmopd.training.stages import SeedRun
    from trustmopd.training.trainer import TrustMOPDTrainer

RecipePath = Annotated[Path, typer.Argument(help="The recipe, a YAML file.", show_default=False)]
Overrides = Annotated[
    list[str] | None, typer.Argument(help="Fields to change, as training.max_steps=10.", show_default=False)
]
#: The value of `--resume` that stands alone.
_NEWEST = "newest"
#: Rows of a dry run that do not apply to calibrating or diagnosing.
_OF_TRAINING = ("training", "seeds", "disk")
DryRun = Annotated[bool, typer.Option("--dry-run", help="Check everything, load no weights, print what would happen.")]


class _Train(TyperCommand):
    """`--resume` may stand alone: then its value is NEWEST."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        for place, (argument, following) in enumerate(zip(args, [*args[1:], "--"], strict=True)):
            if argument == "--resume" and not _is_checkpoint(following):
                args[place] = f"--resume={_NEWEST}"
        return super().parse_args(ctx, args)


def _is_checkpoint(argument: str) -> bool:
    """Not an option, an override or the recipe."""
    is_other = argument.startswith("-") or "=" in argument or argument.endswith((".yaml", ".yml"))
    return Path(argument).is_dir() or not is_other


@app.command(cls=_Train, epilog="Example: trustmopd train recipes/smollm3-3b/singlecap-trust.yaml seeds=[0]")
def train(
    recipe: RecipePath,
    overrides: Overrides = None,
    checkpoint: Annotated[
        str | None,
        typer.Option(
            "--resume",
            metavar="[CHECKPOINT]",
            help="Continue each seed from its newest checkpoint that can be resumed from, or one seed from this one.",
        ),
    ] = None,
    dry_run: DryRun = False,
) -> None:
    """Distil: calibrate if needed, train every seed of the recipe, leave a run directory for each."""
    resume = checkpoint is not None and (checkpoint == _NEWEST or checkpoint)
    with errors():
        loaded = load(recipe, overrides)
    again = shlex.join(["trustmopd", "train", str(recipe), *(overrides or []), "--resume"])
    with errors(again, "the checkpoints saved so far", lambda: _has_checkpoint(loaded)):
        from trustmopd.training.stages import check_runs, train_recipe

        if dry_run:
            check_runs(loaded, resume=resume)
            _explain(loaded, resume=resume)
            return

        def start(run: "SeedRun") -> None:
            console.rule(plain(f"{loaded.name}, seed {run.seed}"))
            if run.checkpoint is not None:
                say(f"Resuming from {run.checkpoint}, step {run.began_at}.")
            elif resume:
                say(f"There is no checkpoint in {run.run.checkpoints} to resume from: training starts at step 0.")

        def ready(trainer: "TrustMOPDTrainer") -> None:
            say(f"Engine: {trainer.parallelism}")

        train_recipe(loaded, resume=resume, on_start=start, on_ready=ready, on_end=_show_trained)


@app.command(epilog="Example: trustmopd calibrate recipes/smollm3-3b/singlecap-trust.yaml")
def calibrate(recipe: RecipePath, overrides: Overrides = None, dry_run: DryRun = False) -> None:
    """Measure mu, each teacher's habit, on rollouts of the initial student. `train` does it when needed."""
    with errors():
        loaded = load(recipe, overrides)
        from trustmopd.training.stages import calibrate_recipe, check_calibration

        run = check_calibration(loaded)
        if dry_run:
            _explain(loaded, calibrate=True, leave_out=_OF_TRAINING)
            return
        found = calibrate_recipe(loaded)
        if found is None:
            say(f"Nothing to calibrate: allocation {loaded.allocation.rule} uses no calibrated scores.")
            return
        rows = [(name, f"{found.mu[name]:.4g}", f"{found.spread[name]:.4g}") for name in found.mu]
        show_table(text_table(("teacher", "mu", "spread over tokens"), rows), f"Calibration on {found.tokens} tokens")
        say(f"Saved: {run.calibration}")


@app.command(epilog="Example: trustmopd sft recipes/smollm3-3b/singlecap-trust.yaml")
def sft(recipe: RecipePath, overrides: Overrides = None) -> None:
    """Train the student on responses that the teachers write, as many as distillation would use: a warm start, or the
    baseline. What is done stays: the same command goes on."""
    with errors("the same command", "the responses and checkpoints so far"):
        from trustmopd.training.supervised import sft_recipe

        loaded = load(recipe, overrides)
        student = sft_recipe(loaded)
        again = shlex.join(["trustmopd", "train", str(recipe), *(overrides or [])])
        base = loaded.reference or loaded.student
        say(f"Student: {student}\nDistil from it: {again} student={student} reference={base} output=FOLDER")


@app.command(epilog="Example: trustmopd diagnose recipes/smollm3-3b/singlecap-trust.yaml --rollouts 64")
def diagnose(
    recipe: RecipePath,
    overrides: Overrides = None,
    rollouts: Annotated[int, typer.Option(min=1, help="Rollouts of the initial student per prompt domain.")] = 256,
    dry_run: DryRun = False,
) -> None:
    """Before training: does displacement tell these teachers apart on these prompts?"""
    with errors():
        loaded = load(recipe, overrides)
        if dry_run:
            _explain(loaded, leave_out=_OF_TRAINING)
            return
        from trustmopd.training.stages import diagnose_recipe

        found, paths = diagnose_recipe(loaded, rollouts)
        _show(found)
        say(f"Saved: {', '.join(map(str, paths))}")


@app.command(
    epilog="Examples: trustmopd merge recipes/smollm3-3b/singlecap-trust.yaml --out runs/soup; "
    f"trustmopd merge runs/mine/{CHECKPOINTS}/{CHECKPOINT}116 --out student"
)
def merge(
    what: Annotated[
        str, typer.Argument(metavar="RECIPE|ADAPTER", help="A recipe, or a LoRA adapter: its folder or Hub id.")
    ],
    overrides: Overrides = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the new checkpoint.", show_default=f"<output>/{MERGED}, of a recipe")
    ] = None,
    base: Annotated[
        str | None, typer.Option(help="The model that the adapter is for.", show_default="the one it names")
    ] = None,
    factor: Annotated[
        float | None, typer.Option(help="Task arithmetic: the reference and all changes, so many times.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a checkpoint that is there already.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print what would happen.")] = False,
) -> None:
    """Average the parameters of a recipe's teachers: the merging reference, with no training; with --factor, task
    arithmetic. Or turn a LoRA adapter, such as a student's checkpoint, into full weights."""
    with errors():
        from trustmopd.checkpoints.merge import merge_adapter, merge_checkpoints
        from trustmopd.evaluation.entries import several_bases

        if Path(what).suffix in (".yaml", ".yml") or Path(what).is_file():
            if base:
                raise ValueError(f"--base {base}: a recipe names its models itself. Leave it out.")
            recipe = load(Path(what), overrides)
            if bases := several_bases(recipe):
                raise ValueError(
                    f"{bases}, and models of different bases cannot be averaged. Keep those of one base: "
                    "teachers.NAME=null drops the others."
                )
            folder = out or (recipe.average if factor is None else recipe.average.with_name(f"{MERGED}-x{factor:g}"))
            teachers = list(recipe.teachers.values())
            sources = [" + ".join(filter(None, (teacher.model, teacher.adapter))) for teacher in teachers]
            task, done = f"average {len(sources)} checkpoints", f"Averaged {len(sources)} checkpoints"
            if factor is not None:
                task, done = f"add {len(sources)} changes × {factor:g}", f"Added {len(sources)} changes × {factor:g}"
        else:
            if factor is not None:
                raise ValueError(f"--factor {factor}: task arithmetic is of a recipe's teachers. Give a recipe.")
            if overrides:
                raise ValueError(f"{what} is an adapter: overrides ({overrides[0]}) are for recipes. Leave them out.")
            if out is None:
                raise ValueError(f"{what} is an adapter: choose the folder of its full weights with --out FOLDER.")
            folder, sources, teachers = out, [what], []
            task, done = "merge an adapter into its base", "Merged the adapter into its base"
        if overwrite and folder.is_dir() and any(folder.iterdir()) and not (folder / "config.json").is_file():
            raise ValueError(f"{folder} holds no checkpoint, so --overwrite does not delete it. Choose another --out.")
        if dry_run:
            say("\n".join([f"Would {task}, into {folder}:", *(f"  {source}" for source in sources)]))
            return
        if teachers:
            base = recipe.reference or recipe.student
            merge_checkpoints(teachers, folder, base=base, factor=factor, overwrite=overwrite)
        else:
            merge_adapter(what, folder, base, overwrite=overwrite)
        say(f"{done}.\nCheckpoint: {folder}")


def _has_checkpoint(recipe: "Recipe") -> bool:
    return any(newest_checkpoint(recipe.run_directory(seed)) for seed in recipe.seeds)


def _show_trained(run: "SeedRun") -> None:
    if run.began_at == run.step:
        say(f"Nothing to train: step {run.step} is the last. Raise training.max_steps to continue.")
    else:
        say(f" to step {run.step}; last loss {run.loss:.4g}.", lead="Trained")
    for sentence in run.unsettled:
        say(sentence)
    say(f"Student: {run.student or 'not kept (see training.save_strategy)'}")
    if found := described(run.run):
        say(f"Watched: {found}")
    say(f"Metrics: {run.run.metrics}")


def load(path: Path, overrides: list[str] | None) -> "Recipe":
    from trustmopd.recipe import load_recipe

    return load_recipe(path, overrides or [])


def _explain(
    recipe: "Recipe", *, resume: "Resumed" = False, calibrate: bool = False, leave_out: Collection[str] = ()
) -> None:
    """Check what can be checked without weights, and print what would run."""
    from trustmopd.training.dry_run import dry_run
    from trustmopd.training.prepare import prepare

    told = dry_run(prepare(recipe), resume=resume, calibrate=calibrate)
    rows = [(what, how) for what, how in told.topics.items() if what not in leave_out]
    table = text_table(("", "what would run"), rows, left=("what would run",))
    but = {True: "", False: " except the memory estimate", None: "; the memory that it needs is not known"}
    show_table(table, f"{recipe.name}: all checks passed{but[told.fits]}")


def _show(found: "Diagnosis") -> None:
    header = ("teacher", *(f"{d.domain} ({d.rollouts})" for d in found.domains))

    def rows(cell: Callable[["DomainDiagnosis", str], str]) -> list[list[str]]:
        return [[teacher, *(cell(d, teacher) for d in found.domains)] for teacher in found.domains[0].score]

    scores = rows(lambda d, t: f"{d.score[t]:.3f} ± {d.spread[t]:.3f}")
    show_table(text_table(header, scores), "calibrated score, mean ± spread across prompts")
    show_table(text_table(header, rows(lambda d, t: f"{d.raw[t]:.3f}")), "raw score, mean")
    leads = ["own teacher leads on", *("–" if d.leads is None else f"{d.leads:.0%}" for d in found.domains)]
    show_table(text_table(header, [*rows(lambda d, t: f"{d.weight[t]:.3f}"), leads]), "weight, mean")
    if len(found.references) > 1:
        known = {True: "yes", False: "no", None: "not decided"}
        lines = [
            (each.source, ", ".join(each.teachers), f"{each.distance:.3f}", known[each.separates])
            for each in found.references
        ]
        header = ("reference", "its teachers", "nats from the student", "separates")
        show_table(text_table(header, lines, left=("its teachers",)), "by reference")
    kinds = ("overlap", "teacher_mass", "teacher_entropy")
    shared = [[t, *(f"{found.health[f'{kind}/{t}']:.3f}" for kind in kinds)] for t in found.domains[0].score]
    show_table(
        text_table(("teacher", "overlap", "mass on candidates", "entropy"), shared), "in common with the student"
    )
    if not found.held_out:
        say("Too few prompts: some were used for both calibration and diagnosis.")
    console.print(plain(found.verdict, "bold"))
    for warning in found.warnings:
        say(warning)
