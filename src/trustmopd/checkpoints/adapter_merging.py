"""A model with a LoRA adapter merged into it, tensor by tensor: the base stays in its files, and PEFT's own merge runs
on one layer at a time."""

import copy
from dataclasses import dataclass
from typing import Any

import torch
from peft import LoraConfig, PeftConfig, PeftModel, get_peft_model_state_dict, load_peft_weights
from peft.tuners.lora import LoraLayer
from peft.utils import ModulesToSaveWrapper
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM

from trustmopd.checkpoints.files import TOKENIZER, Checkpoint, Located, open_checkpoint
from trustmopd.checkpoints.meta_model import check_trained_on

#: Those that leave the base as it is. Others (PiSSA, OLoRA, …) change it when the adapter is loaded.
_PLAIN_INITIALISATIONS = (True, False, "gaussian", "eva", "orthogonal")
_REMEDY = "Merge it with PEFT (merge_and_unload), save_pretrained the result, and give that."


@dataclass(frozen=True)
class Adapted(Checkpoint):
    """The base's tensors, with the adapter's `layers` (by the name of the module) merged into them when they are
    read."""

    layers: dict[str, LoraLayer | ModulesToSaveWrapper]

    def read(self, name: str) -> Tensor:
        """In float32 or better where the adapter changes it."""
        owner, _, part = name.rpartition(".")
        while owner and owner not in self.layers:  # a module that was trained whole may have others inside
            owner, _, inner = owner.rpartition(".")
            part = f"{inner}.{part}"
        layer = self.layers.get(owner)
        if layer is None:
            return super().read(name)
        if isinstance(layer, ModulesToSaveWrapper):
            return layer.modules_to_save[layer.active_adapters[0]].get_parameter(part).detach()
        layer = copy.deepcopy(layer)  # no weights of the base are in it yet: this copies the small matrices alone
        base = layer.get_base_layer()
        for own in [own for own, _ in base.named_parameters()]:
            tensor = super().read(f"{owner}.{own}")
            wide = torch.float64 if tensor.dtype == torch.float64 else torch.float32
            setattr(base, own, nn.Parameter(tensor.to(wide, copy=True), requires_grad=False))
        layer.to(wide).merge(safe_merge=True)
        return layer.get_base_layer().get_parameter(part).detach()


def open_adapted(adapter: Located, base: Located) -> Adapted:
    stored = open_checkpoint(base)
    config = _config(adapter)
    trained_on = config.base_model_name_or_path
    remedy = f"Merge it into that base (--base {trained_on}; in a recipe, `model` next to `adapter`)."
    check_trained_on("merge", adapter.source, trained_on, base.source, remedy)
    with torch.device("meta"):  # the shape of the model alone
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(base.folder))
    tied = model.config.get_text_config().tie_word_embeddings
    shared = [model.get_input_embeddings(), model.get_output_embeddings()] if tied else []
    try:
        adapted = PeftModel.from_pretrained(model, adapter.folder, config=config, low_cpu_mem_usage=True)
        _fill(adapted, load_peft_weights(str(adapter.folder), device="cpu"))
    except (OSError, ValueError, RuntimeError, KeyError, SafetensorError) as error:
        raise ValueError(
            f"the adapter {adapter.source} does not fit the model {base.source} ({str(error).strip():.300}). Give the "
            "base that it was trained on."
        ) from error
    layers = {
        name.removeprefix("base_model.model."): module
        for name, module in adapted.named_modules()
        if isinstance(module, LoraLayer | ModulesToSaveWrapper)
    }
    for name, layer in layers.items():
        inner = layer.get_base_layer() if isinstance(layer, LoraLayer) else layer.original_module
        if any(inner is each for each in shared):
            raise ValueError(
                f"the adapter {adapter.source} changes {name}, whose weights serve {base.source} as embeddings and as "
                "output head: merged, both would change. Untie them in the base and train on that."
            )
        names = [f"{name}.{part}" for part, _ in inner.named_parameters()]
        if lacking := [each for each in names if each not in stored.tensors]:
            raise ValueError(
                f"the adapter {adapter.source} changes {lacking[0]}, which the files of {base.source} do not have "
                f"under this name. {_REMEDY}"
            )
    companions = stored.companions
    if own := adapter.files(TOKENIZER):
        theirs = base.files(TOKENIZER)
        companions = {name: file for name, file in companions.items() if name not in theirs} | own
    return Adapted(f"{base.source} + {adapter.source}", stored.tensors, companions, layers)


def trained_on(adapter: Located) -> str | None:
    """The model that an adapter names as its base."""
    return _config(adapter).base_model_name_or_path


def _config(adapter: Located) -> LoraConfig:
    try:
        config: Any = PeftConfig.from_pretrained(str(adapter.folder))
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ValueError(
            f"cannot read {adapter.source} as a PEFT adapter ({str(error).strip():.200}). Save it again."
        ) from error
    if not isinstance(config, LoraConfig):
        raise ValueError(f"the adapter {adapter.source} is of type {config.peft_type}, not LoRA. {_REMEDY}")
    odd = {field: getattr(config, field, None) for field in ("target_parameters", "trainable_token_indices")}
    odd |= {"bias": config.bias} if config.bias != "none" else {}
    odd |= (
        {"init_lora_weights": config.init_lora_weights}
        if config.init_lora_weights not in _PLAIN_INITIALISATIONS
        else {}
    )
    for field, value in odd.items():
        if value:
            raise ValueError(
                f"the adapter {adapter.source} has {field} = {value!r:.80}, which is not merged here. {_REMEDY}"
            )
    config.inference_mode = True
    return config


def _fill(adapted: PeftModel, weights: dict[str, Tensor]) -> None:
    """PEFT loads an adapter onto its base's device, and this base has none: its tensors are assigned by name."""
    # Where embeddings are adapted, PEFT also saves the base's own with the adapter.
    weights = {key: tensor for key, tensor in weights.items() if not key.endswith(".base_layer.weight")}
    parameters = dict(adapted.named_parameters())
    names = {id(parameter): name for name, parameter in parameters.items()}
    places = get_peft_model_state_dict(adapted, state_dict=parameters, save_embedding_layers=False)
    if unknown := sorted(weights.keys() ^ places.keys()):
        where = "it has" if unknown[0] in weights else "it lacks"
        raise ValueError(f"{where} {unknown[0]}, {len(unknown)} such names in all")
    adapted.load_state_dict(
        {names[id(places[key])]: tensor for key, tensor in weights.items()}, strict=False, assign=True
    )
