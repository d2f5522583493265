"""The verbs of one recipe: train, calibrate, diagnose."""

import shlex
import warnings
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Column, Table

from trustmopd.cli.common import app, console, errors, plain, say

if TYPE_CHECKING:
    from trustmopd.recipe import Recipe
    from trustmopd.training.diagnosis import Diagnosis

RecipePath = Annotated[Path, typer.Argument(help="The recipe, a YAML file.", show_default=False)]
Overrides = Annotated[
    list[str] | None, typer.Argument(help="Fields to change, as training.max_steps=10.", show_default=False)
]
#: Rows of a dry run that say nothing about calibrating or diagnosing.
_OF_TRAINING = ("training", "seeds")
DryRun = Annotated[bool, typer.Option("--dry-run", help="Check everything, load no weights, say what would happen.")]


@app.command(epilog="Example: trustmopd train recipes/smollm3-3b/singlecap-trust.yaml seeds=[0]")
def train(
    recipe: RecipePath,
    overrides: Overrides = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue each seed from its newest whole checkpoint.")
    ] = False,
    dry_run: DryRun = False,
) -> None:
    """Distil: calibrate if needed, train every seed of the recipe, leave a run directory for each."""
    with errors(again=shlex.join(["trustmopd", "train", str(recipe), *(overrides or []), "--resume"])):
        from trustmopd.runs import RunDirectory, resumable_checkpoint, step_of

        loaded = load(recipe, overrides)
        runs = {seed: RunDirectory(loaded.run_directory(seed)) for seed in loaded.seeds}
        from trustmopd.training.agreement import first_decides
        from trustmopd.training.environment import check_writable
        from trustmopd.training.from_recipe import config_of, trainer_of
        from trustmopd.training.progress import show_progress
        from trustmopd.training.resuming import check_same_settings

        # A slip in the recipe is told before anything is loaded. From here on the processes know each other.
        configs = {seed: config_of(loaded, seed) for seed in loaded.seeds}
        checkpoints = first_decides(lambda: _begun(loaded, resume=resume))
        if "no" in [config.save_strategy for config in configs.values()]:
            warnings.warn("save_strategy = no: the trained student is not saved anywhere.", stacklevel=1)
        if dry_run:
            _explain(loaded, resume=resume)
            return

        def check_runs() -> None:
            for seed, config in configs.items():
                check_writable(runs[seed].path)
                if checkpoints[seed]:
                    newest = resumable_checkpoint(True, str(config.output_dir), runs[seed].path)
                    check_same_settings(newest, config.to_dict())

        first_decides(check_runs)
        calibration: dict[str, str] = {}
        for seed in loaded.seeds:
            console.rule(plain(f"{loaded.name}, seed {seed}"))
            if resume and not checkpoints[seed]:
                say(f"There is no checkpoint in {runs[seed].checkpoints} to resume from: training starts at step 0.")
            trainer = trainer_of(loaded, seed, **calibration)
            say(f"Engine: {trainer.engine}")
            show_progress(trainer, "Distilling")
            trainer.files.recipe = loaded.to_yaml()
            trainer.train(resume_from_checkpoint=bool(checkpoints[seed]))
            if trainer.args.calibrates:  # it does not depend on the seed: measured once, used by all
                calibration = {"calibration_path": trainer.args.calibration_path or str(runs[seed].calibration)}
            loss = next((line["loss"] for line in reversed(trainer.state.log_history) if "loss" in line), float("nan"))
            step = trainer.state.global_step
            if checkpoints[seed] and step_of(checkpoints[seed][-1]) == step:
                say(f"Nothing to train: step {step} is the last. Raise training.max_steps to go on.")
            else:
                say(f" to step {step}; last loss {loss:.4g}.", lead="Trained")
            student = runs[seed].checkpoint(step)
            kept = student if student.is_dir() else f"not kept: save_strategy = {trainer.args.save_strategy.value}"
            say(f"Student: {kept}")
            say(f"Metrics: {runs[seed].metrics}")


@app.command(epilog="Example: trustmopd calibrate recipes/smollm3-3b/singlecap-trust.yaml")
def calibrate(recipe: RecipePath, overrides: Overrides = None, dry_run: DryRun = False) -> None:
    """Measure mu, each teacher's habit, on rollouts of the initial student. `train` does it by itself when it must."""
    with errors():
        from trustmopd.runs import RunDirectory, whole_checkpoints

        loaded = load(recipe, overrides)
        run = RunDirectory(loaded.run_directory(loaded.seeds[0]))
        if whole_checkpoints(run.checkpoints):
            raise ValueError(
                f"{run.path} holds a run that was trained with its own {run.calibration.name}. Choose another "
                "output=FOLDER."
            )
        if dry_run:
            _explain(loaded, calibrate=True, leave_out=_OF_TRAINING)
            return
        from trustmopd.training.from_recipe import trainer_of

        trainer = trainer_of(loaded, loaded.seeds[0])
        found = trainer.calibrate()
        if found is None:
            say(f"Nothing to calibrate: allocation {trainer.args.allocation} uses no calibrated scores.")
            return
        table = Table("teacher", "mu", "spread over tokens", title=f"Calibration on {found.tokens} tokens")
        for name in found.mu:
            table.add_row(plain(name), f"{found.mu[name]:.4g}", f"{found.spread[name]:.4g}")
        console.print(table)
        say(f"Saved: {RunDirectory(trainer.run_dir).calibration}")


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
        from trustmopd.files import write_json
        from trustmopd.runs import RunDirectory, whole_checkpoints
        from trustmopd.training.diagnosis import diagnose as judge
        from trustmopd.training.from_recipe import trainer_of

        run = RunDirectory(loaded.run_directory(loaded.seeds[0]))
        trained = run.calibration.is_file() and whole_checkpoints(run.checkpoints)  # with that calibration, which stays
        given = {"calibration_path": str(run.calibration)} if trained else {}
        trainer = trainer_of(loaded, loaded.seeds[0], allocation="trust", calibrated=True, **given)
        found = judge(trainer, rollouts)
        if trainer.accelerator.is_main_process:
            # It depends on no seed, and each seed's report shows it.
            paths = [write_json(RunDirectory(loaded.run_directory(s)).diagnosis, found.to_dict()) for s in loaded.seeds]
            _show(found)
            say(f"Saved: {', '.join(map(str, paths))}")


def _begun(recipe: "Recipe", *, resume: bool) -> dict[int, list[Path]]:
    """The whole checkpoints of every seed; there are none, or they are to be resumed from."""
    from trustmopd.runs import RunDirectory, whole_checkpoints

    _check_one_layout(recipe)
    runs = {seed: recipe.run_directory(seed) for seed in recipe.seeds}
    found = {seed: whole_checkpoints(RunDirectory(run).checkpoints) for seed, run in runs.items()}
    if begun := [runs[seed] for seed in recipe.seeds if found[seed] and not resume]:
        raise ValueError(
            f"{begun[0]} holds checkpoints of an earlier run. Continue it with --resume, or choose another "
            "output=FOLDER."
        )
    return found


def _check_one_layout(recipe: "Recipe") -> None:
    """A folder is one run, or holds a run for each seed. In one that is both, a report would see the one and not the
    others, and their scores would share a file."""
    from trustmopd.runs import RunDirectory, whole_checkpoints

    if len(recipe.seeds) > 1 and whole_checkpoints(RunDirectory(recipe.output).checkpoints):
        held = "is a run of one seed"
    elif len(recipe.seeds) == 1 and any(
        whole_checkpoints(RunDirectory(folder).checkpoints) for folder in recipe.output.glob("seed-*")
    ):
        held = "holds runs of several seeds"
    else:
        return
    raise ValueError(
        f"{recipe.output} {held}, and seeds = {recipe.seeds} would be put inside it. Choose another output=FOLDER; "
        "`trustmopd report` takes both folders."
    )


def load(path: Path, overrides: list[str] | None) -> "Recipe":
    from trustmopd.recipe import load_recipe

    return load_recipe(path, overrides or [])


def _explain(
    recipe: "Recipe", *, resume: bool = False, calibrate: bool = False, leave_out: Collection[str] = ()
) -> None:
    """Check what can be checked without weights, and say what would run."""
    from trustmopd.training.dry_run import dry_run

    table = Table(title=plain(f"{recipe.name}: all checks passed; this is what would run"), show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")  # a path that is cut short cannot be copied
    for what, how in dry_run(recipe, resume=resume, calibrate=calibrate).items():
        if what not in leave_out:
            table.add_row(plain(what), plain(how))
    console.print(table)


def _show(found: "Diagnosis") -> None:
    teachers = list(found.domains[0].score)
    cells: dict[str, Callable] = {
        "calibrated score, mean ± spread across prompts": lambda d, t: f"{d.score[t]:.3f} ± {d.spread[t]:.3f}",
        "raw score, mean": lambda d, t: f"{d.raw[t]:.3f}",
        "weight, mean": lambda d, t: f"{d.weight[t]:.3f}",
    }
    for title, cell in cells.items():
        table = Table(
            "teacher",
            *(Column(plain(f"{d.domain} ({d.rollouts})")) for d in found.domains),
            title=title,
            title_justify="left",
        )
        for teacher in teachers:
            table.add_row(
                plain(teacher),
                *(plain(cell(d, teacher), "bold" if d.domain == teacher else "") for d in found.domains),
            )
        if title.startswith("weight"):
            table.add_section()
            table.add_row(
                "own teacher leads on", *("–" if d.leads is None else f"{d.leads:.0%}" for d in found.domains)
            )
        console.print(table)
    if not found.held_out:
        say("Too few prompts to hold enough out of calibration: some were used for both.")
    console.print(plain(found.verdict, "bold"))
