"""Sampling that breaks: it is noticed at once, and training continues from its last checkpoint, a few times."""

import random

import pytest
import tiny
import torch
from transformers import LlamaForCausalLM

from studies.smollm2 import stories
from studies.smollm2.reinforcement import train_specialist
from studies.smollm2.restarts import RESTARTS, with_restarts
from studies.smollm2.settings import Lora, Settings, Specialist
from studies.smollm2.weights import save_base
from trustmopd.rollouts.finite import NotFinite, finite_logits


def test_a_damaged_weight_is_named():
    model = tiny.model(0)
    with torch.no_grad():
        model.model.layers[1].mlp.down_proj.weight[0, 0] = float("inf")
    ids = torch.full((2, 3), 5)
    with pytest.raises(NotFinite, match=r"model\.layers\.1\.mlp\.down_proj\.weight"):
        model.generate(ids, max_new_tokens=2, do_sample=True, logits_processor=finite_logits(model))


def test_it_is_compiled_again_once_and_then_not_and_gives_up_after_three_restarts():
    tried = []

    def breaks(times):
        def train(compiled):
            tried.append(compiled)
            if len(tried) <= times:
                raise NotFinite("logits")
            return "made"

        return train

    assert with_restarts("math", breaks(2)) == ("made", ["logits", "logits"])
    assert tried == [True, True, False]
    tried.clear()
    with pytest.raises(NotFinite, match="math"):
        with_restarts("math", breaks(100))
    assert len(tried) == 1 + RESTARTS


@pytest.mark.slow
def test_a_fault_in_one_token_costs_only_the_steps_since_the_checkpoint(tmp_path, monkeypatch):
    forward, broken = LlamaForCausalLM.forward, []

    def flaky(self, *args, **kwargs):
        output = forward(self, *args, **kwargs)
        if not broken and (tmp_path / "scratch" / "checkpoint-1" / "trainer_state.json").is_file():
            broken.append(True)
            output.logits = output.logits * float("nan")
        return output

    monkeypatch.setattr(LlamaForCausalLM, "forward", flaky)
    how = Specialist(max_steps=3, prompts_per_step=2, generations=2, micro_batches=2, save_every=1, max_new_tokens=4)
    settings = Settings(max_prompt_tokens=1000, lora=Lora(rank=2), specialist=how)
    base, out, scratch = (tmp_path / name for name in ("base", "code", "scratch"))
    save_base(tiny.model(0), tiny.tokenizer(), None, base)
    given = ("code", base, stories.tasks(20, random.Random(0)), settings, out, scratch, None)
    made, faults = with_restarts("code", lambda compiled: train_specialist(*given, compiled=compiled))
    assert broken and len(faults) == 1
    assert made["steps"] == len(made["rewards"]) == 3
