"""Where the files of a run are now: its manifest and recipe give the paths of the time when it was trained."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def located(path: str | Path, run: Path, manifest: Mapping[str, Any]) -> Path | None:
    """Where `path`, as the run in folder `run` names it, is now: next to the run, if both were moved together; else
    where it was; else in the working directory. None if it is in none of these, as a Hub id."""
    tries = [run.resolve() / beside] if (beside := _beside(path, manifest)) else []
    tries += [Path(manifest.get("directory") or "", path), Path(path)]
    # `Path.exists` would raise on a folder that we may not open.
    return next((Path(os.path.normpath(each)) for each in tries if os.path.exists(each)), None)


def searched(manifest: Mapping[str, Any]) -> str:
    """For an error: where `located` looked."""
    trained = f", in {manifest['directory']}, where it was trained" if manifest.get("directory") else ""
    return f"It was looked for next to the run{trained}, and in the current folder, {Path.cwd()}."


def _beside(path: str | Path, manifest: Mapping[str, Any]) -> str | None:
    """The path from the run's folder to `path`. Earlier releases did not record the directory of training: there, the
    two can be related only if both are absolute or both relative."""
    config = manifest.get("config") or {}
    folder, directory = config.get("run_dir") or config.get("output_dir"), manifest.get("directory")
    if not folder or (directory is None and Path(folder).is_absolute() != Path(path).is_absolute()):
        return None
    return os.path.relpath(Path(directory or "/", path), Path(directory or "/", folder))
