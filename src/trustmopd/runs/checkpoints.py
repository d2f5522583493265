"""Which checkpoints are whole: a checkpoint's manifest is written last, so one without it was cut short."""

from pathlib import Path
from typing import Any

from trustmopd.runs.layout import CHECKPOINT, MANIFEST, RunDirectory
from trustmopd.runs.schemas import read_file

#: How a checkpoint is named.
RESUME_FROM = "--resume CHECKPOINT; in Python: resume_from_checkpoint=CHECKPOINT"
_REMEDY = f"Restore the file, resume from another checkpoint ({RESUME_FROM}), or start the run again."


def step_of(checkpoint: Path) -> int:
    return int(checkpoint.name.removeprefix(CHECKPOINT))


def whole_checkpoints(folder: Path, run: str | None = None) -> list[Path]:
    """The whole checkpoints in a folder, oldest first; with `run`, those of this run's id alone."""
    found = [path.parent for path in folder.glob(f"{CHECKPOINT}*/{MANIFEST}") if _is_numbered(path.parent)]
    return sorted((path for path in found if run is None or _belongs_to(run, path)), key=step_of)


def all_checkpoints(folder: Path) -> list[Path]:
    """Whole or not, oldest first."""
    return sorted(filter(_is_numbered, folder.glob(f"{CHECKPOINT}*")), key=step_of)


def newest_checkpoint(run: Path) -> Path | None:
    """Of those in a run directory, or below it as the command line has them."""
    found = [*whole_checkpoints(run), *whole_checkpoints(RunDirectory(run).checkpoints)]
    return max(found, key=step_of, default=None)


def check_whole(checkpoint: Path) -> None:
    if not (checkpoint / MANIFEST).is_file():
        raise ValueError(
            f"checkpoint {checkpoint} {'was cut short: it has' if checkpoint.is_dir() else 'does not exist: there is'} "
            f"no {MANIFEST}, the last file to be written. Resume from another one, or from the newest whole one: "
            "--resume alone; in Python: resume_from_checkpoint=True."
        )


def read_manifest(folder: Path) -> dict[str, Any]:
    """Of a run, or of a checkpoint."""
    return read_file(folder / MANIFEST, what="manifest", remedy=_REMEDY)


def run_id(folder: Path) -> str | None:
    return read_manifest(folder).get("run") if (folder / MANIFEST).is_file() else None


def _belongs_to(run: str, checkpoint: Path) -> bool:
    """One with a damaged manifest belongs to no run."""
    try:
        return run_id(checkpoint) == run
    except (ValueError, OSError):
        return False


def _is_numbered(path: Path) -> bool:
    return path.name.removeprefix(CHECKPOINT).isdigit()
