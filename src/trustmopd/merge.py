"""One checkpoint from K by averaging their parameters: the paper's "parameter-averaged teacher".

Works on the files, tensor by tensor, without building a model: memory holds one output shard and one tensor, however
many checkpoints there are and however large.
"""

import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from huggingface_hub import snapshot_download, split_state_dict_into_shards_factory
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from tqdm.auto import tqdm

from trustmopd.files import check_free

MAX_SHARD_BYTES = 5 * 10**9
_SINGLE, _INDEX = "model.safetensors", "model.safetensors.index.json"
# What makes the weights a model again. Not all of the folder: a model card or a trainer's state would describe one
# checkpoint and not the average.
_COMPANIONS = (
    *("config.json", "generation_config.json", "*.py"),
    *("tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab*", "merges.txt", "*.model", "*.tiktoken"),
    *("chat_template*", "additional_chat_templates/*.jinja", "processor_config.json", "preprocessor_config.json"),
)
_FLOATS = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
_BYTES = _FLOATS | {"I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8, "U32": 4, "U16": 2, "U8": 1, "BOOL": 1}


@dataclass(frozen=True)
class _Stored:
    """One tensor as the file's header tells it."""

    file: Path
    shape: tuple[int, ...]
    dtype: str

    @property
    def bytes(self) -> int:
        return torch.Size(self.shape).numel() * _BYTES[self.dtype]


@dataclass(frozen=True)
class _Checkpoint:
    source: str
    folder: Path
    tensors: dict[str, _Stored]

    def read(self, name: str) -> Tensor:
        # Opened anew for each tensor: a file left open maps every page it has read, and the K checkpoints would add up.
        with safe_open(self.tensors[name].file, framework="pt") as file:
            return file.get_tensor(name)


def merge_checkpoints(checkpoints: Sequence[str | Path], output: str | Path, *, overwrite: bool = False) -> Path:
    """Write the arithmetic mean of `checkpoints` (directories, Hub ids, or `id@revision`) to the directory `output`.

    Sums are in float32 (float64 for float64). Dtype, configuration, tokenizer and chat template are the first
    checkpoint's. The result appears under its name when it is whole; an error leaves nothing behind.
    """
    if isinstance(checkpoints, str | Path) or not checkpoints:
        raise ValueError(
            f"checkpoints = {checkpoints!r} is not a list of checkpoints. Give a list of one or more to average."
        )
    output = Path(output).expanduser().resolve()
    check_free(output, overwrite=overwrite)
    folders = [_folder(source) for source in checkpoints]
    for folder in folders:
        if folder.is_relative_to(output):
            raise FileExistsError(
                f"output {output} holds the checkpoint {folder}, which would be lost. Choose another directory."
            )
    models = [_open(str(source), folder) for source, folder in zip(checkpoints, folders, strict=True)]
    for other in models[1:]:
        _check_same_layout(models[0], other)

    partial = output.with_name(f".{output.name}.{os.getpid()}.partial")
    shutil.rmtree(partial, ignore_errors=True)  # of a killed run: in a container the same process id comes back
    partial.mkdir(parents=True)
    try:
        _write_mean(models, partial)
        for pattern in _COMPANIONS:
            for file in filter(Path.is_file, models[0].folder.glob(pattern)):
                copy = partial / file.relative_to(models[0].folder)
                copy.parent.mkdir(exist_ok=True)
                shutil.copyfile(file, copy)
        if output.exists():
            shutil.rmtree(output)
        partial.rename(output)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return output


def _folder(source: str | Path) -> Path:
    path = Path(source).expanduser()
    if path.is_dir():
        return path.resolve()
    if isinstance(source, Path) or path.exists():
        raise FileNotFoundError(
            f"checkpoint {source} is not a directory. Give the directory that save_pretrained wrote."
        )
    repository, _, revision = source.partition("@")
    try:
        return Path(
            snapshot_download(
                repository, revision=revision or None, allow_patterns=["model*.safetensors", _INDEX, *_COMPANIONS]
            )
        )
    except (OSError, ValueError) as error:  # no such id, no such revision, gated, offline, not even an id
        reason = str(error).strip().partition("\n")[0]
        raise FileNotFoundError(
            f"checkpoint '{source}' is neither a directory nor a model the Hub lets us have ({reason}). "
            "Check the path or the id; log in if the model is gated."
        ) from error


def _open(source: str, folder: Path) -> _Checkpoint:
    """Read headers alone: names, shapes, dtypes, and whether each file is as long as its header says."""
    tensors: dict[str, _Stored] = {}
    files = _weight_files(source, folder)
    if not (folder / "config.json").is_file():
        raise FileNotFoundError(
            f"checkpoint {source} has no config.json, so it is no model. Save it with save_pretrained."
        )
    for path in files:
        try:
            with safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118 (not a dict: it cannot be iterated)
                    header = file.get_slice(name)
                    tensors[name] = _Stored(path, tuple(header.get_shape()), header.get_dtype())
        except (SafetensorError, OSError) as error:
            raise ValueError(
                f"{path} ({path.stat().st_size} bytes) is not a whole safetensors file ({error}): it was cut short or "
                "is something else. Copy or download it again."
            ) from error
    for name, stored in tensors.items():
        if stored.dtype not in _BYTES:
            raise ValueError(
                f"{source} stores {name} as {stored.dtype}: quantised values share a scale, so their mean is not the "
                "mean of the weights. Dequantise the checkpoint and save it in bfloat16 first."
            )
    return _Checkpoint(source, folder, tensors)


def _weight_files(source: str, folder: Path) -> list[Path]:
    if (folder / _SINGLE).is_file():
        return [folder / _SINGLE]
    index = folder / _INDEX
    if not index.is_file():
        if (folder / "adapter_config.json").is_file():
            remedy = "It is an adapter: merge it into its base (merge_and_unload) and save_pretrained the result."
        else:
            remedy = "Load the model (from its .bin files, say) and save_pretrained it: that writes safetensors."
        raise FileNotFoundError(f"checkpoint {source} has neither {_SINGLE} nor {_INDEX}. {remedy}")
    try:
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise ValueError(f"{index} is not a whole index of shards ({error!r}). Copy or download it again.") from error
    if missing := [name for name in names if not (folder / name).is_file()]:
        raise FileNotFoundError(
            f"checkpoint {source} lacks {', '.join(missing)}, named by {_INDEX}. Copy or download it again."
        )
    return [folder / name for name in names]


def _check_same_layout(first: _Checkpoint, other: _Checkpoint) -> None:
    for here, there in ((first, other), (other, first)):
        if extra := sorted(here.tensors.keys() - there.tensors.keys()):
            raise ValueError(
                f"{here.source} has {', '.join(extra[:3])}{', …' * (len(extra) > 3)} ({len(extra)} in all), which "
                f"{there.source} lacks: there is nothing to average with. Give checkpoints of one architecture, with "
                "embeddings tied in all or in none."
            )
    for name, ours in first.tensors.items():
        theirs = other.tensors[name]
        if ours.shape != theirs.shape:
            raise ValueError(
                f"{name} is {list(ours.shape)} in {first.source} and {list(theirs.shape)} in {other.source}: only "
                "equal shapes have a mean. Give checkpoints grown from one base model."
            )
        if ours.dtype != theirs.dtype and not {ours.dtype, theirs.dtype} <= _FLOATS.keys():
            raise ValueError(
                f"{name} is {ours.dtype} in {first.source} and {theirs.dtype} in {other.source}: they are not "
                "the same quantity. Save all checkpoints the same way."
            )


def _write_mean(models: Sequence[_Checkpoint], folder: Path) -> None:
    plan = split_state_dict_into_shards_factory(
        models[0].tensors,
        get_storage_size=lambda stored: stored.bytes,
        filename_pattern="model{suffix}.safetensors",
        max_shard_size=MAX_SHARD_BYTES,
    )
    with tqdm(
        total=len(plan.tensor_to_filename), desc=f"Averaging {len(models)} checkpoints", unit="tensor"
    ) as progress:
        for shard, names in plan.filename_to_tensors.items():
            tensors = {}
            for name in names:
                tensors[name] = _mean(models, name)
                progress.update()
            # Without the format, from_pretrained does not know whose tensors these are and refuses the file.
            save_file(tensors, folder / shard, metadata={"format": "pt"})
    if plan.is_sharded:
        index = {"metadata": plan.metadata, "weight_map": plan.tensor_to_filename}
        (folder / _INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def _mean(models: Sequence[_Checkpoint], name: str) -> Tensor:
    first = models[0].read(name)
    if not first.is_floating_point():
        for model in models[1:]:
            if not torch.equal(first, model.read(name)):
                raise ValueError(
                    f"{name} ({first.dtype}) differs between {models[0].source} and {model.source}: whole numbers have "
                    "no mean of their kind. Give checkpoints grown from one base model, unquantised."
                )
        return first.clone()
    # A copy even in float32: what was read is the file itself, mapped, and nothing may be added into that.
    total = first.to(torch.float64 if first.dtype == torch.float64 else torch.float32, copy=True)
    for model in models[1:]:
        total += model.read(name)
    mean = total.div_(len(models)).to(first.dtype)
    if not bool(mean.isfinite().all()):
        broken = [model.source for model in models if not bool(model.read(name).isfinite().all())]
        if broken:
            cause = f"{', '.join(broken)} has them. Leave it out, or save it again."
        else:
            cause = f"it overflows {first.dtype}, the first checkpoint's dtype. Put a wider one first."
        raise ValueError(f"the mean of {name} has NaN or infinite values: {cause}")
    return mean
