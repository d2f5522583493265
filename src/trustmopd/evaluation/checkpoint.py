"""A checkpoint before it is loaded: whether it is there, and which files of weights it has."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trustmopd.recipe import TeacherSource

_CONFIGURATIONS = ("config.json", "adapter_config.json")


def check_checkpoint(source: TeacherSource) -> None:
    """A slip in a path or a Hub id is told at once: before data are fetched, a folder is claimed, or an hour spent."""
    for place in (source.model, source.adapter):
        if place is not None:
            _check(place, source.revision)


def _check(place: str, revision: str | None) -> None:
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HFValidationError

    if Path(place).exists():
        if not any(Path(place, name).is_file() for name in _CONFIGURATIONS):
            raise ValueError(
                f"{place} is no checkpoint: it has no {' and no '.join(_CONFIGURATIONS)}. Give the folder that "
                "save_pretrained wrote."
            )
        return
    reason = ""
    for name in _CONFIGURATIONS:
        try:
            hf_hub_download(place, name, revision=revision)
            return
        except HFValidationError:
            break  # a path, then
        except Exception as error:  # the Hub's client raises a class for each way to fail
            reason = reason or str(error).strip().partition("\n")[0].rstrip(".")
    where = f"and cannot be had from the Hub ({reason})" if reason else "and is no Hub id"
    raise FileNotFoundError(f"the checkpoint {place!r} is no folder here {where}. Check the path or the Hub id.")


def weight_files(source: TeacherSource) -> list[list[Any]]:
    """By size and time of writing, so that a retrained checkpoint is not taken for the old one."""
    folders = [Path(place) for place in (source.model, source.adapter) if place is not None]
    return [
        [file.name, file.stat().st_size, file.stat().st_mtime_ns]
        for folder in folders
        if folder.is_dir()
        for file in sorted(_weights(folder))
    ]


def _weights(folder: Path) -> Iterator[Path]:
    for pattern in ("*.safetensors", "*.bin", "*.gguf"):
        yield from folder.glob(pattern)
