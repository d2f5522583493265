"""`bf16` with a float32 student, as TRL loads it: layers compute in bfloat16, weights and gradients stay in float32."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from peft import LoraConfig

from trustmopd import TrustMOPDConfig, TrustMOPDTrainer
from trustmopd.training.probe import probe


def build(folder: Path, student: Any = None, peft_config: Any = None, **config: Any) -> TrustMOPDTrainer:
    base = tiny.model(0, hidden=64, layers=4, spread=0.05)
    settings = {
        "output_dir": str(folder),
        "use_cpu": True,
        "calibrated": False,
        "num_candidates": 16,
        "max_completion_length": 16,
        "global_batch_size": 8,
        "per_device_train_batch_size": 4,
        "max_steps": 2,
        "save_strategy": "no",
        "disable_tqdm": True,
    }
    return TrustMOPDTrainer(
        student or base,
        {name: tiny.specialist(base, seed, 0.02) for seed, name in enumerate(("math", "code"), 1)},
        args=TrustMOPDConfig(**settings | config),
        train_dataset=tiny.prompts(16),
        processing_class=tiny.tokenizer(),
        peft_config=peft_config,
    )


@pytest.mark.parametrize("budget", [None, 64])
def test_every_forward_of_the_student_computes_in_bfloat16(tmp_path: Path, budget: int | None) -> None:
    trainer = build(tmp_path, bf16=True, max_tokens_per_micro_batch=budget)
    layer, seen = trainer.model.model.layers[-1].mlp.down_proj, set()
    layer.register_forward_hook(lambda module, inputs, output: seen.add(output.dtype))
    trainer.train()
    assert seen == {torch.bfloat16}
    assert layer.weight.dtype == torch.float32


def test_a_lora_student_over_a_bfloat16_base_samples_and_learns_in_bfloat16_and_keeps_a_float32_adapter(
    tmp_path: Path,
) -> None:
    base = tiny.save(tiny.model(0, hidden=64, layers=4), tmp_path / "base")
    trainer = build(
        tmp_path / "run",
        student=base,
        peft_config=LoraConfig(r=2, target_modules="all-linear"),
        bf16=True,
        model_init_kwargs={"dtype": "bfloat16"},
    )
    layer, seen = trainer.model.base_model.model.model.layers[-1].mlp.down_proj, set()
    layer.register_forward_hook(lambda module, inputs, output: seen.add(output.dtype))
    trainer.train()
    assert seen == {torch.bfloat16}
    dtypes = {parameter.requires_grad: parameter.dtype for parameter in trainer.model.parameters()}
    assert dtypes == {True: torch.float32, False: torch.bfloat16}


def test_gradients_are_those_of_float32_up_to_rounding_with_and_without_checkpointing(tmp_path: Path) -> None:
    batch, _, _ = next(probe(build(tmp_path / "rollouts", bf16=False), range(4), seed=0, description=""))

    def gradient(**config: Any) -> torch.Tensor:
        trainer = build(tmp_path / "".join(map(str, config.values())), **config)
        trainer.model.train()
        scored, result = trainer.objective(replace(batch, answers=None))
        result.token_loss[scored.at.mask != 0].mean().backward()
        return torch.cat([parameter.grad.double().flatten() for parameter in trainer.model.parameters()])

    exact = gradient(bf16=False, gradient_checkpointing=False)
    rounded = gradient(bf16=True, gradient_checkpointing=False)
    assert not torch.equal(rounded, exact)
    assert torch.nn.functional.cosine_similarity(rounded, exact, dim=0) > 0.998
    assert 0.98 < rounded.norm() / exact.norm() < 1.02
    torch.testing.assert_close(gradient(bf16=True, gradient_checkpointing=True), rounded)
