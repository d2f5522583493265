"""Weights as they lie on disk: compared tensor by tensor, without building a model."""

from dataclasses import dataclass
from math import prod
from pathlib import Path

import torch
from safetensors import safe_open

_WIDTH = {"F64": 8, "F32": 4, "BF16": 2, "F16": 2}


@dataclass(frozen=True)
class StoredTensor:
    """One tensor, as the header of its file describes it."""

    file: Path
    shape: tuple[int, ...]
    dtype: str


def stored_tensors(folder: str | Path) -> dict[str, StoredTensor]:
    """The tensors of all safetensors files of a folder, by name; only headers are read."""
    found = {}
    for path in sorted(Path(folder).glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 (not a dict: it cannot be iterated)
                header = file.get_slice(name)
                found[name] = StoredTensor(path, tuple(header.get_shape()), header.get_dtype())
    return found


def weight_bytes(folder: str | Path) -> int:
    return sum(file.stat().st_size for file in Path(folder).glob("*.safetensors"))


def same_weights(first: str | Path, second: str | Path) -> bool:
    """Whether two folders hold one model, however it is cut into files; where precisions differ, in the coarser of the
    two. Ends at the first difference, and small tensors come first: different models cost almost nothing."""
    if Path(first).resolve() == Path(second).resolve():
        return True
    ours, theirs = stored_tensors(first), stored_tensors(second)
    if not ours or {n: t.shape for n, t in ours.items()} != {n: t.shape for n, t in theirs.items()}:
        return False
    return all(_equal(name, ours[name], theirs[name]) for name in sorted(ours, key=lambda name: prod(ours[name].shape)))


def _equal(name: str, ours: StoredTensor, theirs: StoredTensor) -> bool:
    tensors = []
    for stored in (ours, theirs):
        with safe_open(stored.file, framework="pt") as file:
            tensors.append(file.get_tensor(name))
    if ours.dtype != theirs.dtype:
        if not {ours.dtype, theirs.dtype} <= _WIDTH.keys():
            return False
        coarser = min(tensors, key=lambda tensor: tensor.element_size()).dtype
        tensors = [tensor.to(coarser) for tensor in tensors]
    return torch.equal(*tensors)
