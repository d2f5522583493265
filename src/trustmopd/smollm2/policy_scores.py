"""Scores of several policies on one set of weights: base and adapters take turns in one compiled model."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from peft import get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict
from safetensors.torch import load_file
from tqdm.auto import tqdm
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from trustmopd.engines.cpu_sampling import faster_on_cpu
from trustmopd.engines.finite import finite_logits
from trustmopd.smollm2.lora import ADAPTER, lora_config
from trustmopd.smollm2.settings import Settings
from trustmopd.smollm2.tasks import Task, prompt_tokens, verdicts


class Sampler:
    """Batches of one shape: the model is compiled once. `policy` puts other weights into it, in place."""

    def __init__(self, base: Path, settings: Settings, tasks: Sequence[Task]) -> None:
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.scoring = settings.scoring
        self.tokenizer = AutoTokenizer.from_pretrained(base, padding_side="left")
        model = AutoModelForCausalLM.from_pretrained(
            base, dtype=torch.bfloat16 if self.device == "cuda" else torch.float32
        )
        # An adapter as it is stored, in bfloat16: in float32 it would be slower and no more exact.
        wrapped = get_peft_model(model, lora_config(settings.lora), autocast_adapter_dtype=False)
        self.model = wrapped.to(self.device).eval()
        self._blank = {name: torch.zeros_like(each) for name, each in self._adapter().items()}
        longest = max((len(prompt_tokens(self.tokenizer, task)) for task in tasks), default=0)
        self.width = max(settings.max_prompt_tokens, longest)
        compiled = {"cache_implementation": "static", "max_cache_len": self.width + settings.max_new_tokens}
        self.config = GenerationConfig(
            max_new_tokens=settings.max_new_tokens,
            do_sample=True,
            temperature=settings.scoring.temperature,
            top_k=0,
            top_p=1.0,
            pad_token_id=self.tokenizer.pad_token_id,
            eos_token_id=self.tokenizer.eos_token_id,
            **(compiled if self.device == "cuda" else {}),
        )

    def policy(self, adapter: Path | None) -> None:
        """The base itself is an adapter of zeros."""
        set_peft_model_state_dict(self.model, load_file(adapter / ADAPTER) if adapter else self._blank)

    def sample(self, tasks: Sequence[Task], seed: int) -> list[str]:
        """A response to each task. The same seed gives the same responses on the same machine."""
        torch.manual_seed(seed)
        size = self.scoring.batch_size
        responses: list[str] = []
        for start in range(0, len(tasks), size):
            batch = list(tasks[start : start + size])
            full = (batch * size)[:size]  # a batch of another size would be compiled again
            inputs = self.tokenizer.pad(
                {"input_ids": [prompt_tokens(self.tokenizer, task) for task in full]},
                padding="max_length",
                max_length=self.width,
                return_tensors="pt",
            ).to(self.device)
            with torch.inference_mode(), faster_on_cpu(self.model):
                output = self._generate(inputs)[:, self.width :]
            responses += self.tokenizer.batch_decode(output[: len(batch)], skip_special_tokens=True)
        return responses

    def _generate(self, inputs: Mapping[str, Any]) -> Any:
        return self.model.generate(**inputs, generation_config=self.config, logits_processor=finite_logits(self.model))

    def _adapter(self) -> Mapping[str, Any]:
        return get_peft_model_state_dict(self.model)


def score(
    base: Path, adapters: Mapping[str, Path | None], tasks: Mapping[str, Sequence[Task]], settings: Settings
) -> tuple[dict[str, dict[str, float]], list[dict[str, Any]]]:
    """Policy → domain → share of right responses; and every response, with its verdict."""
    sampler = Sampler(base, settings, [task for some in tasks.values() for task in some])
    matrix: dict[str, dict[str, float]] = {}
    responses: list[dict[str, Any]] = []
    with tqdm(total=len(adapters) * len(tasks), desc="evaluation", unit="cell") as bar:
        for name, adapter in adapters.items():
            sampler.policy(adapter)
            matrix[name] = {}
            for domain, asked in tasks.items():
                began = time.perf_counter()
                repeated = [task for task in asked for _ in range(settings.scoring.samples)]
                drawn = sampler.sample(repeated, seed=0)
                passed = verdicts(repeated, drawn)
                matrix[name][domain] = round(sum(passed) / len(passed), 4)
                responses += [
                    {"policy": name, "id": task.id, "domain": domain, "response": response, "passed": right}
                    for task, response, right in zip(repeated, drawn, passed, strict=True)
                ]
                bar.set_postfix_str(
                    f"{name} on {domain}: {matrix[name][domain]:.1%}, {time.perf_counter() - began:.0f} s"
                )
                bar.update()
    return matrix, responses
