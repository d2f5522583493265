"""Small real models and a small real tokenizer, through the loaders that users' checkpoints go through."""

import copy
import shutil
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

CHARACTERS = "".join(chr(code) for code in range(32, 127)) + "\n"
SPECIAL = ["<pad>", "<bos>", "<eos>", "<unk>"]
VOCAB = len(SPECIAL) + len(CHARACTERS)
TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def tokenizer(template: str | None = TEMPLATE, characters: str = CHARACTERS) -> PreTrainedTokenizerFast:
    vocab = {token: index for index, token in enumerate([*SPECIAL, *characters])}
    core = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    core.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token="<pad>",
        bos_token="<bos>",
        eos_token="<eos>",
        unk_token="<unk>",
        padding_side="left",
        chat_template=template,
    )


def model(
    seed: int = 0,
    *,
    vocab: int = VOCAB,
    tied: bool = True,
    layers: int = 2,
    hidden: int = 32,
    spread: float = 0.3,
    family: Any = LlamaConfig,
) -> LlamaForCausalLM:
    """A random Llama, or one of another `family`. Other seeds are other models; `specialist` makes a relative."""
    torch.manual_seed(seed)
    config = family(
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        tie_word_embeddings=tied,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
        initializer_range=spread,
    )
    return AutoModelForCausalLM.from_config(config).eval()


def specialist(base: LlamaForCausalLM, seed: int, scale: float = 0.05) -> LlamaForCausalLM:
    """`base` moved a little, as fine-tuning would."""
    moved = copy.deepcopy(base)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in moved.parameters():
            parameter += scale * torch.randn(parameter.shape, generator=generator)
    return moved


def incomplete(folder: Path, out: Path) -> Path:
    """A copy of a checkpoint without the weights of one layer's MLP."""
    shutil.copytree(folder, out)
    file = out / "model.safetensors"
    save_file({name: each for name, each in load_file(file).items() if ".0.mlp." not in name}, file, {"format": "pt"})
    return out


def adapter(base: LlamaForCausalLM, folder: Path, seed: int) -> Path:
    """A trained-looking LoRA adapter over `base`, saved in `folder`."""
    torch.manual_seed(seed)
    config = LoraConfig(
        r=4, target_modules=["q_proj", "v_proj", "down_proj"], init_lora_weights=False, task_type="CAUSAL_LM"
    )
    get_peft_model(copy.deepcopy(base), config).save_pretrained(folder)
    return folder


def save(checkpoint: LlamaForCausalLM, folder: Path, with_tokenizer: PreTrainedTokenizerFast | None = None) -> str:
    checkpoint.save_pretrained(folder)
    (with_tokenizer or tokenizer()).save_pretrained(folder)
    return str(folder)


def prompts(count: int = 32) -> Dataset:
    domains = ["math", "code", "if"]
    return Dataset.from_list(
        [
            {
                "id": f"p{index}",
                "prompt": [{"role": "user", "content": f"{'say ' * (index % 4)}{index} + {index % 7}"}],
                "domain": domains[index % 3],
                "capabilities": [domains[index % 3]],
            }
            for index in range(count)
        ]
    )
