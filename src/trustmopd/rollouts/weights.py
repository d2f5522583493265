"""The student's tensors on their way into an engine, and whether they arrived."""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from peft.tuners.lora import LoraLayer
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from trustmopd.rollouts import RESUME, EngineError

_BITS = {2: torch.int16, 4: torch.int32}
#: Columns to read of a packed matrix. An optimizer's step changes all of them.
_COLUMNS = 64
Read = Callable[[], Tensor]


class StaleWeights(EngineError):
    """The engine would sample from other weights than the student's."""


def merged(model: Any) -> Iterator[tuple[str, Tensor]]:
    """A LoRA student's tensors as one model's, under the base's names; those that FSDP2 has sharded are gathered one at
    a time, by all processes. Nothing of the student is touched: PEFT's merge and unmerge would leave rounding behind in
    the base, and the base may be the frozen reference."""
    layers = {f"{name}.base_layer.weight": layer for name, layer in model.named_modules() if _is_lora(layer)}
    for name, parameter in model.named_parameters():
        if model.prefix in name or "original_module" in name:
            continue
        tensor = _whole(parameter.data)
        if (layer := layers.get(name)) is not None:
            for adapter in layer.active_adapters:
                tensor = tensor + _whole(layer.get_delta_weight(adapter)).to(tensor.dtype)
        yield _plain(name), tensor


def _plain(name: str) -> str:
    """PEFT's name for a tensor, as the base's."""
    return name.removeprefix("base_model.model.").replace(".base_layer", "").replace("modules_to_save.default.", "")


def _whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def reshard(model: nn.Module) -> None:
    """After a pass without gradients, FSDP2 leaves the tensors of the outermost module gathered, as plain tensors. TRL
    expects all of them sharded."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def can_be_merged_apart(model: Any) -> bool:
    """DoRA and its like are more than a sum."""
    return not any(layer.lora_variant for layer in model.modules() if _is_lora(layer))


def kept_as_they_are(engine_model: nn.Module, names: Mapping[str, torch.Size]) -> dict[str, list[Read]]:
    """Of the engine's tensors those that it neither fuses, shards nor quantises, by the student's names: norms, o_proj,
    down_proj, embeddings and head. Rows that pad a vocabulary are cut. A CPU packs linear layers, and a tied head is
    packed apart from its embedding: what is packed is read too, in part."""
    theirs = dict(engine_model.named_parameters())
    found: dict[str, list[Read]] = defaultdict(list)
    for name, shape in names.items():
        kept: Tensor | None = theirs.get(name)
        if kept is None or kept.dtype not in (torch.float32, torch.bfloat16, torch.float16):
            continue
        if "embed" in name or "lm_head" in name:
            kept = kept[: shape[0]]
        if kept.shape == shape:
            found[name].append(partial(torch.Tensor.detach, kept))
    name_of = {id(parameter): name for name, parameter in theirs.items()}
    for module in engine_model.modules():
        if hasattr(module, "cpu_linear") and getattr(module, "tp_size", 1) == 1:
            name = name_of[id(module.weight)]
            if name in names:
                found[name].append(partial(_first_columns, module, names[name]))
    return dict(found)


def _first_columns(module: Any, shape: torch.Size) -> Tensor:
    """Of a matrix that vLLM has packed: its product with the first unit vectors. Only ones and zeros are multiplied, so
    nothing is rounded."""
    unit = torch.eye(min(_COLUMNS, shape[1]), shape[1], dtype=module.weight.dtype)
    return module.cpu_linear(unit, module.weight, None).T[: shape[0]]


def trained_names(model: nn.Module) -> set[str]:
    """The tensors that training changes, under the names that an engine gets them by; an adapter changes the weights it
    is merged into."""
    trained = (name for name, parameter in model.named_parameters() if parameter.requires_grad)
    return {re.sub(r"\.lora_.*", ".weight", _plain(name)) for name in trained}


def repack_tied(engine_model: Any) -> None:
    """A head that is tied to the embedding gets no weights of its own, so `reload_weights` leaves what was packed of it
    (on a CPU) as it was: the engine would keep using the first step's head."""
    seen: set[int] = set()
    for module in engine_model.modules():
        weight = module._parameters.get("weight")
        if weight is not None and id(weight) in seen:
            module.quant_method.process_weights_after_loading(module)
        seen.add(id(weight))


def check_equal(kept: Mapping[str, Sequence[Read]], student: Iterable[tuple[str, Tensor]]) -> None:
    """Bit for bit, in the engine's dtype. Waits for the device once, not once per tensor."""
    differ = {
        name: torch.stack([_differs(read(), tensor) for read in kept[name]]).any()
        for name, tensor in student
        if name in kept
    }
    wrong = [name for name, bad in zip(differ, torch.stack([*differ.values()]).tolist(), strict=True) if bad]
    if wrong:
        raise StaleWeights(
            f"after the sync, {len(wrong)} of {len(differ)} compared tensors of the vLLM engine are not the student's "
            f"(the first is {wrong[0]}): it would sample from another policy. {RESUME} If this comes back, set "
            "rollouts.engine = transformers."
        )


def _is_lora(module: Any) -> bool:
    return isinstance(module, LoraLayer)


def _differs(theirs: Tensor, ours: Tensor) -> Tensor:
    """Where theirs is only a part, it is the first one. Zeros may differ in sign: a product forgets it."""
    ours = ours[tuple(slice(size) for size in theirs.shape)].to(theirs)
    return ((_bits(theirs) != _bits(ours)) & (theirs != ours)).any()


def _bits(tensor: Tensor) -> Tensor:
    return tensor.detach().contiguous().view(_BITS[tensor.element_size()])
