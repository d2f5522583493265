"""Checkpoints with full weights from others: the mean of several, the paper's "parameter-averaged teacher"; their base
with all their changes (task arithmetic, arXiv 2212.04089); a LoRA adapter merged into its base.

Works on the files, tensor by tensor: memory holds one output shard and one tensor, however many checkpoints there are
and however large; of adapters, all their small matrices.
"""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

import torch
from huggingface_hub import split_state_dict_into_shards_factory
from safetensors.torch import save_file
from torch import Tensor
from tqdm.auto import tqdm

from trustmopd.checkpoints.files import FLOATS, INDEX, Checkpoint, Located, locate, open_checkpoint
from trustmopd.runs.card_results import MODEL_CARD, merged_card
from trustmopd.runs.layout import CHECKPOINT, CHECKPOINTS
from trustmopd.util.files import check_free, whole_folder, write_text

MAX_SHARD_BYTES = 5 * 10**9


#: A `Teacher`, or a recipe's entry for one: a model, an adapter, or an adapter on a model of its own.
Specialist: TypeAlias = Any


def merge_checkpoints(
    checkpoints: Sequence[str | Path | Specialist],
    output: str | Path,
    *,
    base: str | Path | None = None,
    factor: float | None = None,
    overwrite: bool = False,
) -> Path:
    """Write the arithmetic mean of `checkpoints` (directories, Hub ids, `id@revision`, or `Teacher`s) to the directory
    `output`; with a `factor` λ task arithmetic, base + λ Σ (checkpoint − base). An adapter is first merged into its own
    model, or else `base`, or else the model that it names.

    Sums are in float32 (float64 for float64). Dtype, configuration, tokenizer and chat template are the first
    checkpoint's; an adapter's tokenizer comes before that of its base. The result appears under its name when it is
    whole; an error leaves nothing behind.
    """
    if isinstance(checkpoints, str | Path) or not checkpoints:
        raise ValueError(
            f"checkpoints = {checkpoints!r} is not a list of checkpoints. Give a list of one or more to average."
        )
    if factor is not None and base is None:
        raise ValueError(f"factor = {factor} multiplies changes from a base, but base is None. Give the common base.")
    output = Path(output).expanduser().resolve()
    check_free(output, overwrite=overwrite)
    found = [_find(source, base) for source in checkpoints]
    for place in [place for pair in found for place in pair if place is not None]:
        if place.folder.is_relative_to(output):
            raise FileExistsError(
                f"output {output} holds the checkpoint {place.folder}, which would be lost. Choose another directory."
            )
    models = [_open(model, adapter) for model, adapter in found]
    start = _open(*_find(base, None)) if factor is not None and base else None
    for other in [*models[1:], *filter(None, [start])]:
        _check_same_layout(models[0], other)
    with whole_folder(output, overwrite=overwrite) as partial:
        _write_mean(models, partial, start, factor)
        for name, file in models[0].companions.items():
            (partial / name).parent.mkdir(exist_ok=True)
            shutil.copyfile(file, partial / name)
        sources = [str(base)] * bool(start) + [place.source for pair in found for place in pair if place]
        adapter = found[0][1] if len(found) == 1 else None
        write_text(partial / MODEL_CARD, merged_card(output, sources, adapter.folder if adapter else None))
    return output


def merge_adapter(
    adapter: str | Path, output: str | Path, base: str | Path | None = None, *, overwrite: bool = False
) -> Path:
    """Turn a LoRA adapter, such as a checkpoint of a student trained with `peft`, into a checkpoint with full weights:
    in the base's dtype, with the adapter's tokenizer and chat template where it has them. `base` is by default the
    model that the adapter names."""
    if not (place := locate(adapter)).is_adapter:
        full = (place.folder / "config.json").is_file()
        example = f"Give a folder such as RUN/{CHECKPOINTS}/{CHECKPOINT}116."
        remedy = "It has full weights already." if full else example
        raise ValueError(f"{adapter} is not an adapter: it has no adapter_config.json. {remedy}")
    return merge_checkpoints([adapter], output, base=base, overwrite=overwrite)


def _find(source: str | Path | Specialist, base: str | Path | None) -> tuple[Located, Located | None]:
    """A model, and the adapter that is merged into it."""
    if isinstance(source, str | Path):
        place = locate(source)
        return (_base_of(place, base), place) if place.is_adapter else (place, None)
    if not isinstance(source.model, str | Path | None):
        raise ValueError(
            f"a teacher is a loaded {type(source.model).__name__}, but only files are merged. Save it with "
            "save_pretrained and give its folder."
        )
    if source.adapter is None:
        return locate(source.model or "", source.revision), None
    adapter = locate(source.adapter, source.revision)
    # The revision is the base's too where the teacher names it, as when it is loaded to teach.
    return locate(source.model, source.revision) if source.model else _base_of(adapter, base), adapter


def _base_of(adapter: Located, given: str | Path | None) -> Located:
    from trustmopd.checkpoints.adapter_merging import trained_on

    base = given or trained_on(adapter)
    if not base:
        raise ValueError(f"the adapter {adapter.source} does not name its base. Give it: --base, in Python base=.")
    try:
        return locate(base)
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"the base of the adapter {adapter.source}: {error} If it was moved, give its new place: --base, in "
            "Python base=."
        ) from None


def _open(model: Located, adapter: Located | None) -> Checkpoint:
    if adapter is None:
        return open_checkpoint(model)
    from trustmopd.checkpoints.adapter_merging import (
        open_adapted,  # loads PEFT, which averages of full checkpoints do without
    )

    return open_adapted(adapter, model)


def _check_same_layout(first: Checkpoint, other: Checkpoint) -> None:
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
        if ours.dtype != theirs.dtype and not {ours.dtype, theirs.dtype} <= FLOATS.keys():
            raise ValueError(
                f"{name} is {ours.dtype} in {first.source} and {theirs.dtype} in {other.source}: they are not "
                "the same quantity. Save all checkpoints the same way."
            )


def _write_mean(models: Sequence[Checkpoint], folder: Path, start: Checkpoint | None, factor: float | None) -> None:
    plan = split_state_dict_into_shards_factory(
        models[0].tensors,
        get_storage_size=lambda stored: stored.bytes,
        filename_pattern="model{suffix}.safetensors",
        max_shard_size=MAX_SHARD_BYTES,
    )
    task = f"Averaging {len(models)} checkpoints" if len(models) > 1 else "Merging"
    with tqdm(total=len(plan.tensor_to_filename), desc=task, unit="tensor") as progress:
        for shard, names in plan.filename_to_tensors.items():
            tensors = {}
            for name in names:
                tensors[name] = _mean(models, name, start, factor or 0.0)
                progress.update()
            # Without the format, from_pretrained does not know whose tensors these are and refuses the file.
            save_file(tensors, folder / shard, metadata={"format": "pt"})
    if plan.is_sharded:
        index = {"metadata": plan.metadata, "weight_map": plan.tensor_to_filename}
        (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def _mean(models: Sequence[Checkpoint], name: str, start: Checkpoint | None, factor: float) -> Tensor:
    """In the dtype of the first checkpoint's file; from `start` that of all changes, `factor` times."""
    first = models[0].read(name)
    if not first.is_floating_point():
        for model in models[1:]:
            if not torch.equal(first, model.read(name)):
                raise ValueError(
                    f"{name} ({first.dtype}) differs between {models[0].source} and {model.source}: integers have no "
                    "mean of their type. Give checkpoints grown from one base model, unquantised."
                )
        return first.clone()
    # A copy even in float32: what was read is the file itself, mapped, and nothing may be added into that.
    total = first.to(torch.float64 if first.dtype == torch.float64 else torch.float32, copy=True)
    for model in models[1:]:
        total += model.read(name)
    dtype = FLOATS[models[0].tensors[name].dtype]
    total.div_(len(models))
    if start is not None:  # λ Σ (θ_k − θ₀) = λ K (mean − θ₀)
        total = start.read(name).to(total.dtype).lerp(total, factor * len(models))
    mean = total.to(dtype)
    if not bool(mean.isfinite().all()):
        broken = [model.source for model in models if not bool(model.read(name).isfinite().all())]
        if broken:
            cause = f"{', '.join(broken)} has them. Leave it out, or save it again."
        else:
            cause = f"it overflows {dtype}, the first checkpoint's dtype. Put a wider one first."
        raise ValueError(f"the mean of {name} has NaN or infinite values: {cause}")
    return mean
