"""The files of a checkpoint: where they are, which tensors they hold, and what else a model needs."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from huggingface_hub import snapshot_download
from safetensors import SafetensorError, safe_open
from torch import Tensor

from trustmopd.util.messages import first_line

WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"
TOKENIZER = (
    *("tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab*", "merges.txt", "*.model", "*.tiktoken"),
    *("chat_template*", "additional_chat_templates/*.jinja", "processor_config.json", "preprocessor_config.json"),
)
#: What makes the weights a model again. Not all of the folder: a model card or a trainer's state would describe one
#: checkpoint and not what is made of it.
COMPANIONS = ("config.json", "generation_config.json", "*.py", *TOKENIZER)
_ADAPTER = ("adapter_config.json", "adapter_model.safetensors")
FLOATS = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1}
_BYTES |= {"U64": 8, "U32": 4, "U16": 2, "U8": 1, "BOOL": 1}


class Located(NamedTuple):
    """Its name in messages, and the folder that holds it."""

    source: str
    folder: Path

    @property
    def is_adapter(self) -> bool:
        return (self.folder / "adapter_config.json").is_file() and not (self.folder / "config.json").is_file()

    def files(self, patterns: Sequence[str]) -> dict[Path, Path]:
        """By their place in the folder."""
        found = [file for pattern in patterns for file in self.folder.glob(pattern) if file.is_file()]
        return {file.relative_to(self.folder): file for file in found}


@dataclass(frozen=True)
class Stored:
    """One tensor as the file's header describes it."""

    file: Path
    shape: tuple[int, ...]
    dtype: str

    @property
    def bytes(self) -> int:
        return torch.Size(self.shape).numel() * _BYTES[self.dtype]

    def read(self, name: str) -> Tensor:
        # Opened for each tensor: a file left open maps every page it has read, and the K checkpoints would add up.
        with safe_open(self.file, framework="pt") as file:
            return file.get_tensor(name)


@dataclass(frozen=True)
class Checkpoint:
    source: str
    tensors: dict[str, Stored]
    companions: dict[Path, Path]

    def read(self, name: str) -> Tensor:
        return self.tensors[name].read(name)


def locate(source: str | Path, revision: str | None = None) -> Located:
    """A directory, or a model of the Hub, fetched; `source` may end in @revision."""
    path = Path(source).expanduser()
    if path.is_dir():
        return Located(str(source), path.resolve())
    if isinstance(source, Path) or path.exists():
        raise FileNotFoundError(
            f"checkpoint {source} is not a directory. Give the directory that save_pretrained wrote."
        )
    repository, _, at = source.partition("@")
    try:
        wanted = ["model*.safetensors", INDEX, *_ADAPTER, *COMPANIONS]
        folder = snapshot_download(repository, revision=revision or at or None, allow_patterns=wanted)
    except (OSError, ValueError) as error:  # no such id, no such revision, gated, offline, not even an id
        raise FileNotFoundError(
            f"checkpoint '{source}' is neither a directory nor a model that the Hub could give us "
            f"({first_line(error)}). Check the path or the id; log in if the model is gated."
        ) from error
    return Located(source, Path(folder))


def open_checkpoint(place: Located) -> Checkpoint:
    """Read headers alone: names, shapes, dtypes, and whether each file is as long as its header says."""
    tensors: dict[str, Stored] = {}
    files = _weight_files(place)
    if not (place.folder / "config.json").is_file():
        raise FileNotFoundError(
            f"checkpoint {place.source} has no config.json, so it is not a model. Save it with save_pretrained."
        )
    for path in files:
        tensors |= stored_tensors(path)
    for name, stored in tensors.items():
        if stored.dtype not in _BYTES:
            raise ValueError(
                f"{place.source} stores {name} as {stored.dtype}: quantised values share a scale, so their mean is not "
                "the mean of the weights. Dequantise the checkpoint and save it in bfloat16 first."
            )
    return Checkpoint(place.source, tensors, place.files(COMPANIONS))


def stored_tensors(path: Path) -> dict[str, Stored]:
    """The tensors of a safetensors file, by name."""
    found = {}
    try:
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 (not a dict: it cannot be iterated)
                header = file.get_slice(name)
                found[name] = Stored(path, tuple(header.get_shape()), header.get_dtype())
    except (SafetensorError, OSError) as error:
        raise ValueError(
            f"{path} ({path.stat().st_size} bytes) is not a whole safetensors file ({error}): it was cut short or is "
            "something else. Copy or download it again."
        ) from error
    return found


def tensors_of(folder: str | Path) -> dict[str, Stored]:
    """The tensors of every safetensors file of a folder: a model's, or an adapter's."""
    return {n: t for path in sorted(Path(folder).glob("*.safetensors")) for n, t in stored_tensors(path).items()}


def same_weights(first: str | Path, second: str | Path) -> bool:
    """Whether two folders hold one model, however it is cut into files; where precisions differ, in the coarser of the
    two. Ends at the first difference, and small tensors come first: different models cost almost nothing."""
    if Path(first).resolve() == Path(second).resolve():
        return True
    ours, theirs = tensors_of(first), tensors_of(second)
    if not ours or {n: t.shape for n, t in ours.items()} != {n: t.shape for n, t in theirs.items()}:
        return False
    by_size = sorted(ours, key=lambda name: torch.Size(ours[name].shape).numel())
    return all(_equal(ours[name].read(name), theirs[name].read(name)) for name in by_size)


def _equal(ours: Tensor, theirs: Tensor) -> bool:
    if ours.dtype != theirs.dtype:
        if not ours.is_floating_point() or not theirs.is_floating_point():
            return False
        coarser = min((ours, theirs), key=Tensor.element_size).dtype
        ours, theirs = ours.to(coarser), theirs.to(coarser)
    return torch.equal(ours, theirs)


def _weight_files(place: Located) -> list[Path]:
    folder = place.folder
    if (folder / WHOLE).is_file():
        return [folder / WHOLE]
    index = folder / INDEX
    if not index.is_file():
        raise FileNotFoundError(
            f"checkpoint {place.source} has neither {WHOLE} nor {INDEX}. Load the model (for example from its "
            ".bin files) and save it with save_pretrained, which writes safetensors."
        )
    return shards_of(index)


def shards_of(index: Path) -> list[Path]:
    """The files that an index names. All must be there."""
    try:
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise ValueError(f"{index} is not a whole index of shards ({error!r}). Copy or download it again.") from error
    shards = [index.parent / name for name in names]
    if missing := [shard.name for shard in shards if not shard.is_file()]:
        raise FileNotFoundError(
            f"{index.parent} lacks {', '.join(missing)}, named by {index.name}. Copy or download it again."
        )
    return shards
