"""What `trustmopd train`, `calibrate` and `diagnose` do, as functions of a recipe."""

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from trustmopd.recipe import Recipe
from trustmopd.rollouts import adapter_refused
from trustmopd.runs import RunDirectory, whole_checkpoints
from trustmopd.runs.guard import unsettled
from trustmopd.runs.layout import SEED
from trustmopd.runs.schemas import Diagnosis, write_file
from trustmopd.training.calibration import Calibration
from trustmopd.training.diagnose import diagnose
from trustmopd.training.prepare import prepare
from trustmopd.training.run.across_ranks import first_decides
from trustmopd.training.run.resuming import read_state
from trustmopd.training.run.which_checkpoint import Resumed, checkpoints_of_seeds
from trustmopd.training.trainer import TrustMOPDTrainer


@dataclass(frozen=True)
class SeedRun:
    """One seed of a recipe. `began_at` is the step of the checkpoint that it is resumed from; None for a new run.
    `step`, `loss`, `unsettled` and `student` are set at its end; `student` is None if no checkpoint was kept."""

    seed: int
    run: RunDirectory
    checkpoint: Path | None = None
    began_at: int | None = None
    step: int = 0
    loss: float = math.nan
    unsettled: Sequence[str] = ()
    student: Path | None = None


def train_recipe(
    recipe: Recipe,
    *,
    resume: Resumed = False,
    on_start: Callable[[SeedRun], None] = lambda run: None,
    on_ready: Callable[[TrustMOPDTrainer], None] = lambda trainer: None,
    on_end: Callable[[SeedRun], None] = lambda run: None,
) -> list[SeedRun]:
    """Train every seed in its own run directory. `resume` continues each from its newest checkpoint that can be resumed
    from, or one of them from the checkpoint that is named. All seeds use the calibration of the first. The functions
    are called when a seed starts, when its models are loaded, and when it ends."""
    prepared = prepare(recipe)
    runs = first_decides(lambda: check_runs(recipe, resume=resume))
    prepared.check(resume=resume)
    calibration: dict[str, str] = {}
    ended = []
    for run in runs:
        on_start(run)
        trainer = prepared.trainer(run.seed, **calibration)
        on_ready(trainer)
        trainer.files.recipe = recipe.to_yaml()
        trainer.train(resume_from_checkpoint=None if run.checkpoint is None else str(run.checkpoint))
        if trainer.args.calibrates:  # which does not depend on the seed
            calibration = {"calibration_path": trainer.args.calibration_path or str(run.run.calibration)}
        loss = next((line["loss"] for line in reversed(trainer.state.log_history) if "loss" in line), math.nan)
        step = trainer.state.global_step
        student = run.run.checkpoint(step)
        kept = student if student.is_dir() else None
        ended.append(replace(run, step=step, loss=loss, unsettled=unsettled(trainer.state.log_history), student=kept))
        trainer.pool.close()  # the next seed needs its GPUs
        on_end(ended[-1])
    return ended


def check_runs(recipe: Recipe, *, resume: Resumed = False) -> list[SeedRun]:
    """Refuse folders that contain another run, before anything is loaded."""
    _check_one_layout(recipe)
    runs = []
    for seed, checkpoint in checkpoints_of_seeds(recipe, resume).items():
        run = RunDirectory(recipe.run_directory(seed))
        if not resume and whole_checkpoints(run.checkpoints):
            raise ValueError(
                f"{run.path} contains checkpoints of an earlier run. Continue it with --resume (in Python: "
                "resume=True), or choose another output=FOLDER."
            )
        step = None if checkpoint is None else read_state(checkpoint).global_step
        runs.append(SeedRun(seed, run, checkpoint, step))
    if recipe.training.get("save_strategy") in ("no", False):
        warnings.warn("save_strategy = no: the trained student is not saved anywhere.", stacklevel=2)
    engine = recipe.evaluation.engine
    if recipe.peft is not None and (problem := adapter_refused(engine, "the student that `peft` trains")):
        warnings.warn(f"`trustmopd evaluate` will refuse evaluation.engine = {engine}: {problem}", stacklevel=2)
    return runs


def check_calibration(recipe: Recipe) -> RunDirectory:
    """The run directory for a calibration. Refuses one whose run was trained with its own calibration."""
    run = RunDirectory(recipe.run_directory(recipe.seeds[0]))
    if whole_checkpoints(run.checkpoints):
        raise ValueError(
            f"{run.path} contains a run that was trained with its own {run.calibration.name}. Choose another "
            "output=FOLDER."
        )
    return run


def calibrate_recipe(recipe: Recipe) -> Calibration | None:
    """Measure mu and save it in the first seed's run directory. None if the rule uses no calibrated scores."""
    prepared = prepare(recipe)
    first_decides(lambda: check_calibration(recipe))
    trainer = prepared.trainer(recipe.seeds[0])
    found = trainer.calibrate()
    trainer.pool.close()
    return found


def diagnose_recipe(recipe: Recipe, rollouts: int = 256) -> tuple[Diagnosis, list[Path]]:
    """Whether displacement separates the teachers, measured on `rollouts` rollouts per domain of the initial student;
    and the files with the result, one in each seed's run directory."""
    run = RunDirectory(recipe.run_directory(recipe.seeds[0]))
    prepared = prepare(recipe, allocation="trust", calibrated=True)
    # A trained run keeps the calibration that it was trained with.
    trained = first_decides(lambda: run.calibration.is_file() and bool(whole_checkpoints(run.checkpoints)))
    trainer = prepared.trainer(recipe.seeds[0], **{"calibration_path": str(run.calibration)} if trained else {})
    found = diagnose(trainer, rollouts)
    trainer.pool.close()
    paths = [RunDirectory(recipe.run_directory(seed)).diagnosis for seed in recipe.seeds]
    if trainer.accelerator.is_main_process:
        for path in paths:  # the result is the same for all seeds, and each seed's report shows it
            write_file(path, found.model_dump())
    return found, paths


def _check_one_layout(recipe: Recipe) -> None:
    """A folder is one run, or contains one run per seed. If it were both, a report would miss runs, and their scores
    would share a file."""
    if len(recipe.seeds) > 1 and whole_checkpoints(RunDirectory(recipe.output).checkpoints):
        held = "is a run of one seed"
    elif len(recipe.seeds) == 1 and any(
        whole_checkpoints(RunDirectory(folder).checkpoints) for folder in recipe.output.glob(f"{SEED}*")
    ):
        held = "contains runs of several seeds"
    else:
        return
    raise ValueError(
        f"{recipe.output} {held}, so seeds = {recipe.seeds} cannot be put there. Choose another output=FOLDER; "
        "`trustmopd report` accepts both folders."
    )
