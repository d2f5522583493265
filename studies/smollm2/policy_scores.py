"""Scores of several policies on one set of weights: base and adapters take turns in one model."""

import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from peft import get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict
from safetensors.torch import load_file
from tqdm.auto import tqdm
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from studies.smollm2.lora import ADAPTER, lora_config
from studies.smollm2.settings import Settings
from studies.smollm2.tasks import Task, prompt_tokens, verdicts
from studies.smollm2.weights import cpu_has_bfloat16
from trustmopd.rollouts import Params
from trustmopd.rollouts.transformers_engine import TransformersEngine


class Sampler:
    """`policy` puts other weights into one model, in place. On a GPU it is compiled once, for batches of one shape."""

    def __init__(self, base: Path, settings: Settings, tasks: Sequence[Task]) -> None:
        self.compiled = torch.cuda.is_available()
        device = "cuda" if self.compiled else "cpu"
        self.tokenizer = AutoTokenizer.from_pretrained(base)
        exact = not (self.compiled or cpu_has_bfloat16())
        model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32 if exact else torch.bfloat16)
        # An adapter as it is stored, in bfloat16: in float32 it would be slower and no more exact.
        wrapped = get_peft_model(model, lora_config(settings.lora), autocast_adapter_dtype=False)
        self.model = wrapped.to(device).eval()
        self._blank = {name: torch.zeros_like(each) for name, each in get_peft_model_state_dict(self.model).items()}
        longest = max((len(prompt_tokens(self.tokenizer, task)) for task in tasks), default=0)
        width = max(settings.max_prompt_tokens, longest)
        static = {"cache_implementation": "static", "max_cache_len": width + settings.max_new_tokens}
        self.size = settings.scoring.batch_size
        self.params = Params(settings.max_new_tokens, settings.scoring.temperature)
        self.engine = TransformersEngine(
            lambda: nullcontext(self.model),
            device,
            ends=[self.tokenizer.eos_token_id],
            pad_token_id=self.tokenizer.pad_token_id,
            config=GenerationConfig(**static if self.compiled else {}),
            pad_to_multiple_of=width if self.compiled else None,
        )

    def policy(self, adapter: Path | None) -> None:
        """The base itself is an adapter of zeros."""
        set_peft_model_state_dict(self.model, load_file(adapter / ADAPTER) if adapter else self._blank)

    def sample(self, tasks: Sequence[Task], seed: int) -> list[str]:
        """A response to each task. The same seed gives the same responses on the same machine."""
        torch.manual_seed(seed)
        responses: list[str] = []
        for start in range(0, len(tasks), self.size):
            batch = [prompt_tokens(self.tokenizer, task) for task in tasks[start : start + self.size]]
            # a batch of another size would be compiled again
            full = (batch * self.size)[: self.size] if self.compiled else batch
            made = self.engine.sample(full, self.params)[: len(batch)]
            responses += [self.tokenizer.decode(each.ids, skip_special_tokens=True) for each in made]
        return responses


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
