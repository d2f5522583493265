"""The student's tensors on their way into an engine, and whether they arrived."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from peft.tuners.lora import LoraLayer
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from trustmopd.engines import EngineError

_BITS = {2: torch.int16, 4: torch.int32}


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
        plain = name.removeprefix("base_model.model.").replace(".base_layer", "")
        yield plain.replace("modules_to_save.default.", ""), tensor


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


def kept_as_they_are(theirs: Mapping[str, Tensor], names: Mapping[str, torch.Size]) -> dict[str, Tensor]:
    """Of the engine's tensors those that it neither fuses, shards, repacks nor quantises, by the student's names:
    norms, o_proj, down_proj, embeddings; on a CPU norms and embeddings alone. Rows that pad a vocabulary are cut."""
    found = {}
    for name, shape in names.items():
        kept = theirs.get(name)
        if kept is None or kept.dtype not in (torch.float32, torch.bfloat16, torch.float16):
            continue
        if "embed" in name or "lm_head" in name:
            kept = kept[: shape[0]]
        if kept.shape == shape:
            found[name] = kept
    return found


def repack_tied(engine_model: Any) -> None:
    """A head that is tied to the embedding gets no weights of its own, so `reload_weights` leaves what was packed of it
    (on a CPU) as it was: the engine would keep using the first step's head."""
    seen: set[int] = set()
    for module in engine_model.modules():
        weight = module._parameters.get("weight")
        if weight is not None and id(weight) in seen:
            module.quant_method.process_weights_after_loading(module)
        seen.add(id(weight))


def check_equal(kept: Mapping[str, Tensor], student: Iterable[tuple[str, Tensor]]) -> None:
    """Bit for bit, in the engine's dtype. Waits for the device once, not once per tensor."""
    differ = {
        name: (_bits(kept[name]) != _bits(tensor.to(kept[name]))).any() for name, tensor in student if name in kept
    }
    wrong = [name for name, bad in zip(differ, torch.stack([*differ.values()]).tolist(), strict=True) if bad]
    if wrong:
        raise StaleWeights(
            f"after the sync, {len(wrong)} of {len(differ)} compared tensors of the vLLM engine are not the student's "
            f"(the first is {wrong[0]}): it would sample from another policy. Training stopped before the optimiser's "
            "step, and the last checkpoint is whole. Resume; if this comes back, set use_vllm = False."
        )


def _is_lora(module: Any) -> bool:
    return isinstance(module, LoraLayer)


def _bits(tensor: Tensor) -> Tensor:
    return tensor.detach().contiguous().view(_BITS[tensor.element_size()])
