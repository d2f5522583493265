"""Which checkpoint a run is resumed from: the one that is named, or the newest that has all it needs."""

import warnings
from pathlib import Path

from trustmopd.recipe import Recipe
from trustmopd.runs import RunDirectory, whole_checkpoints
from trustmopd.runs.checkpoints import all_checkpoints, check_whole, read_manifest, run_id
from trustmopd.training.run.resuming import check_checkpoint

#: Whether to resume, or the checkpoint to resume from.
Resumed = bool | str | Path


def checkpoints_of_seeds(recipe: Recipe, resume: Resumed) -> dict[int, Path | None]:
    """The checkpoint that each seed begins from; None if it has none. A checkpoint that is named belongs to the seed it
    was trained with; the other seeds go on from their newest."""
    named: dict[int, Path] = {}
    if not isinstance(resume, bool):
        check_whole(Path(resume))
        seed = read_manifest(Path(resume))["config"].get("seed")
        if seed not in recipe.seeds:
            raise ValueError(
                f"{resume} was trained with seed {seed}, which is not among seeds = {recipe.seeds}. Write "
                f"seeds=[{seed}], or name a checkpoint of one of these."
            )
        check_checkpoint(Path(resume))
        named[seed] = Path(resume)
    found: dict[int, Path | None] = {}
    for seed in recipe.seeds:
        run = RunDirectory(recipe.run_directory(seed))
        begun = resume and seed not in named and whole_checkpoints(run.checkpoints)
        found[seed] = newest_resumable(run.checkpoints, run.path) if begun else named.get(seed)
    return found


def newest_resumable(folder: Path, run_dir: Path) -> Path:
    """The newest checkpoint in `folder` of the run in `run_dir` that can be resumed from. Warns of a newer one that
    cannot; checkpoints that another run left there are passed over."""
    skipped = []
    for checkpoint in reversed(all_checkpoints(folder)):
        try:
            check_whole(checkpoint)
            if run_id(run_dir) not in (None, run_id(checkpoint)):
                continue
            check_checkpoint(checkpoint)
        except (ValueError, OSError) as error:
            skipped.append(str(error))
            continue
        for reason in skipped:
            why = reason.split(". ")[0]  # without the remedy, which is not needed
            warnings.warn(f"{checkpoint} is resumed, and not a newer one: {why}.", stacklevel=2)
        return checkpoint
    if skipped:
        raise ValueError("\n".join(skipped))
    raise ValueError(
        f"there is no whole checkpoint of this run in {folder} to resume from. Start without resuming, in another "
        "output folder if this one has checkpoints of another run."
    )
