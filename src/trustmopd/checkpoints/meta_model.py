"""A model's modules without weights: what can be checked before a checkpoint is loaded."""

import copy
import warnings
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from peft import PeftConfig, PeftModel, get_peft_model, get_peft_model_state_dict
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from trustmopd.checkpoints.files import Located, open_checkpoint, same_weights, tensors_of
from trustmopd.checkpoints.loading import MissingWeights, load_complete, silent, whole_loading
from trustmopd.heads import Head
from trustmopd.util.messages import first_line


def skeleton(model: Any, *, revision: str | None = None, trust_remote_code: bool = False) -> nn.Module | None:
    """The modules of a checkpoint (path, Hub id or loaded model) on the meta device, which has only shapes. None if it
    cannot be built there or is not a model; preflight reports why."""
    try:
        if isinstance(model, (str, Path)):
            config = AutoConfig.from_pretrained(model, revision=revision, trust_remote_code=trust_remote_code)
        else:
            config = (model.get_base_model() if isinstance(model, PeftModel) else model).config
        with whole_loading(), torch.device("meta"):
            return AutoModelForCausalLM.from_config(config, trust_remote_code=trust_remote_code)
    except Exception:  # a model's own code may raise anything; it is reported when the model is loaded
        return None


def check_complete(role: str, source: str, *, revision: str | None = None, trust_remote_code: bool = False) -> None:
    """Refuse a checkpoint on this machine that lacks some of its model's weights. Only names and shapes are read: the
    headers of its safetensors."""
    try:
        here = Path(source).is_dir()
        folder = Path(source) if here else Path(snapshot_download(source, revision=revision, local_files_only=True))
        stored = open_checkpoint(Located(source, folder)).tensors
        bare = skeleton(folder, trust_remote_code=trust_remote_code)
        if bare is None or getattr(bare.config, "quantization_config", None):
            return
        empty = {name: torch.empty(each.shape, device="meta") for name, each in stored.items()}
        with whole_loading(), silent():
            load_complete(None, by=type(bare), config=bare.config, state_dict=empty, device_map="meta")
    except MissingWeights as error:
        raise ValueError(f"{role}: {source!r} is not complete: {error}. Save or download it again.") from error
    except Exception:  # whatever it is, it is reported when the model is loaded
        return


def check_lora(role: str, config: PeftConfig, model: Any, *, trust_remote_code: bool = False) -> nn.Module | None:
    """The skeleton with such an adapter; refuses a configuration that does not fit the model."""
    bare = skeleton(model, trust_remote_code=trust_remote_code)
    if bare is None:
        return None
    # Some initialisations read the weights, and the base is compared elsewhere, by content.
    settings = copy.deepcopy(config)
    settings.init_lora_weights, settings.base_model_name_or_path = False, None
    try:
        with torch.random.fork_rng(devices=[]):  # PEFT draws the adapter's weights
            return get_peft_model(bare, settings)
    except (ValueError, TypeError) as error:  # TypeError: a number given as text
        raise ValueError(
            f"{role}: the LoRA settings do not fit the model ({first_line(error)}). Check target_modules, and "
            "that this is the right base."
        ) from error


def check_student_lora(config: PeftConfig, model: Any, *, trust_remote_code: bool = False) -> nn.Module | None:
    """Like `check_lora`, but every target module must exist (PEFT only needs one), and the output head must not have an
    adapter, because it could not be trained here."""
    targets: Any = getattr(config, "target_modules", None)
    adapted = check_lora("the student", config, model, trust_remote_code=trust_remote_code)
    if adapted is None:
        return None
    Head.of(adapted)
    modules = [name.removeprefix("base_model.model.") for name, _ in adapted.named_modules()]
    for target in () if targets is None or isinstance(targets, str) else sorted(targets):
        if not any(f".{name}".endswith(f".{target}") for name in modules):
            raise ValueError(
                f"the student: peft.target_modules has {target!r}, but {model} has no module of that name. Correct it, "
                "or remove it."
            )
    return adapted


def check_adapter_fits(role: str, adapter: Path, base: Any, *, trust_remote_code: bool = False) -> None:
    """Refuse an adapter whose tensors do not fit `base`. PEFT would load an adapter of another model only in part, or
    not at all."""
    model = check_lora(role, PeftConfig.from_pretrained(adapter), base, trust_remote_code=trust_remote_code)
    found = {name: tensor.shape for name, tensor in tensors_of(adapter).items()}
    if model is None or not found:
        return
    with torch.device("meta"):
        state = get_peft_model_state_dict(model, save_embedding_layers=False)
    expected = {name: tuple(tensor.shape) for name, tensor in state.items()}
    for name in sorted(expected.keys() | {name for name in found if ".lora_" in name}):
        if found.get(name) != expected.get(name):
            raise ValueError(
                f"{role}: the adapter {adapter} was made for another model: {name} is {_shape(found.get(name))} in the "
                f"adapter and {_shape(expected.get(name))} on the base it is put on. Give the base it was trained on "
                "as `model` beside `adapter`, or an adapter of this base."
            )


def check_trained_on(
    role: str,
    adapter: str,
    trained_on: str | None,
    base: str,
    remedy: str = "Give that base as `model` beside `adapter`, or make it the reference.",
) -> None:
    """Check that an adapter is put on the weights it was trained on, if both are on this machine."""
    if not trained_on or not base or trained_on == base:
        return
    if Path(trained_on).is_dir() and Path(base).is_dir():
        if not same_weights(trained_on, base):
            raise ValueError(
                f"{role}: the adapter {adapter} was trained on {trained_on}, whose weights are not those of {base}, "
                f"which it is put on here. {remedy}"
            )
        return
    warnings.warn(
        f"{role}: the adapter {adapter} was trained on {trained_on!r}, which is not on this machine, so it cannot be "
        f"compared with {base!r}, which it is put on. Make sure that these are the same weights.",
        stacklevel=2,
    )


def local_adapter(adapter: str | Path, revision: str | None = None) -> Path:
    """The folder of an adapter. One on the Hub is downloaded; it has only a few megabytes."""
    if Path(adapter).is_dir():
        return Path(adapter)
    return Path(snapshot_download(str(adapter), revision=revision, allow_patterns=["adapter_*", "*.json"]))


def _shape(shape: tuple[int, ...] | None) -> str:
    return "absent" if shape is None else " × ".join(map(str, shape))
