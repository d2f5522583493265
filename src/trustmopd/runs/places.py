"""Where the files are that a run names: its manifest and recipe name them as they were when it was trained."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def located(path: str | Path, run: Path, manifest: Mapping[str, Any]) -> Path | None:
    """`path`, of the run in folder `run`, from here: as it lay beside the run, wherever the two were moved together;
    or else where it was; or else in the working directory; None if it is nowhere, as a Hub id is."""
    tries = [run.resolve() / beside] if (beside := _beside(path, manifest)) else []
    tries += [Path(manifest.get("directory") or "", path), Path(path)]
    # `Path.exists` would raise where a folder of somebody else's is closed to us.
    return next((Path(os.path.normpath(each)) for each in tries if os.path.exists(each)), None)


def searched(manifest: Mapping[str, Any]) -> str:
    """For an error: where `located` looked."""
    trained = f", in {manifest['directory']}, where it was trained" if manifest.get("directory") else ""
    return f"It was looked for beside the run{trained}, and here, in {Path.cwd()}."


def _beside(path: str | Path, manifest: Mapping[str, Any]) -> str | None:
    """The way from the run's folder, as it was called, to `path`. Earlier releases did not record the directory of
    training: their way is known if both were called from it."""
    config = manifest.get("config") or {}
    folder, directory = config.get("run_dir") or config.get("output_dir"), manifest.get("directory")
    if not folder or (directory is None and Path(folder).is_absolute() != Path(path).is_absolute()):
        return None
    return os.path.relpath(Path(directory or "/", path), Path(directory or "/", folder))
