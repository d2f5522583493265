"""A checkpoint before it is loaded: its parts, whether they are there, and which files of weights they have."""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from trustmopd.recipe.teacher_source import TeacherSource
from trustmopd.runs.layout import CHECKPOINT, CHECKPOINTS
from trustmopd.util.files import file_sha256
from trustmopd.util.messages import first_line

_CONFIGURATIONS = ("config.json", "adapter_config.json")
_WEIGHTS = ("*.safetensors", "pytorch_model*.bin", "adapter_model*.bin")
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.*", "spiece.model", "*.tiktoken")


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
