"""Training with colocated vLLM: from the student's own weights, at every step, and the same draws however it runs."""

import json
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tiny
import torch
from peft import LoraConfig
from transformers import LlamaForCausalLM, SmolLM3Model, TrainerCallback

from trustmopd.rollouts import EngineError, Params
from trustmopd.rollouts.weights import StaleWeights
from trustmopd.training.step.rollout_gap import MAX, MEAN

LORA = LoraConfig(r=4, target_modules=["q_proj", "o_proj", "down_proj"], task_type="CAUSAL_LM")
#: float32 on both sides: rounding alone. A head that is a step old differs by 5e-3 here.
ROUNDING = 1e-4


def steps_of(folder: Path) -> list[dict[str, float]]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if "loss" in line]


@pytest.mark.parametrize("case", ["tied", "untied", "lora", "smollm3", "smollm3 lora"])
def test_the_engine_samples_from_the_students_weights_at_every_step(
    case: str, build: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VLLM_ENABLE_V1_MULTIPROCESSING", raising=False)
    lora = LORA if "lora" in case else None
    student = case.removesuffix("lora").strip() or "tied"
    trainer = build(student, peft_config=lora)
    before = {name: each.clone() for name, each in trainer.model.named_parameters()}
    trainer.train()
    steps = steps_of(tmp_path / "run")
    assert len(steps) == 3
    for step in steps:
        assert 0 < step[MEAN] <= step[MAX] < ROUNDING
    moved = {name for name, each in trainer.model.named_parameters() if not torch.equal(each, before[name])}
    assert moved and (lora is None or all("lora_" in name for name in moved))
    compared = set(trainer.rollout_engine._kept)
    layer = {f"model.layers.1.{name}.weight" for name in ("self_attn.o_proj", "mlp.down_proj", "input_layernorm")}
    assert {"model.norm.weight", "model.embed_tokens.weight", *layer} <= compared
    assert trainer.calibration.engine.startswith("vllm 0.")
    engine = type(trainer.rollout_engine._runner.get_model().model)
    assert "__call__" in vars(engine) and "__call__" not in vars(SmolLM3Model)
    assert "VLLM_ENABLE_V1_MULTIPROCESSING" not in os.environ, "a later engine would share this process too"


def test_mixed_precision_keeps_student_and_engine_together(build: Any, world: Path, tmp_path: Path) -> None:
    """Updates that bfloat16 rounds away are in neither. A student that is read in float32 leaves the engine behind."""
    base = tiny.model(0, hidden=128, layers=4, spread=0.02)
    for name, model in (
        ("calm", base),
        ("calm-math", tiny.specialist(base, 1)),
        ("calm-code", tiny.specialist(base, 2)),
    ):
        tiny.save(model.bfloat16(), world / name)
    build("calm", bf16=True, learning_rate=1e-5, max_steps=4, max_completion_length=64, calibrated=False).train()
    gaps = [step[MEAN] for step in steps_of(tmp_path / "run")]
    assert len(gaps) == 4 and max(gaps) < 0.005


@pytest.mark.parametrize("lora", [None, LORA], ids=["all weights", "lora"])
def test_a_skipped_sync_stops_the_run_before_the_optimizer_at_a_learning_rate_of_1e_6(lora: Any, build: Any) -> None:
    trainer = build(peft_config=lora, learning_rate=1e-6, calibrated=False)
    push, after = trainer.rollout_engine.push, []

    def only_the_first() -> None:
        if not after:
            push()
        after.append([parameter.clone() for parameter in trainer.model.parameters()])

    trainer.rollout_engine.push = only_the_first
    with pytest.raises(StaleWeights):
        trainer.train()
    assert trainer.state.global_step == 1 and len(after) == 2
    for now, then in zip(trainer.model.parameters(), after[1], strict=True):
        assert torch.equal(now, then)


@pytest.mark.parametrize("check", ["exact", "log-probs"])
def test_a_tied_head_that_is_not_packed_again_stops_the_run_at_its_second_step(
    check: str, build: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each check by itself; the first at a learning rate where the second sees nothing."""
    monkeypatch.setattr("trustmopd.rollouts.vllm_rollouts.repack_tied", lambda engine_model: None)
    trainer = build(calibrated=False, learning_rate=1e-6 if check == "exact" else 1e-4)
    if check == "log-probs":
        trainer.rollout_engine.check_weights = lambda: None
    with pytest.raises(EngineError) as stopped:
        trainer.train()
    assert isinstance(stopped.value, StaleWeights) == (check == "exact")
    assert trainer.state.global_step == 1


def test_an_adapter_that_no_compared_tensor_shows_is_told_of(build: Any, caplog: pytest.LogCaptureFixture) -> None:
    lora = LoraConfig(r=4, target_modules=["q_proj", "up_proj"], task_type="CAUSAL_LM")
    build(peft_config=lora, calibrated=False, max_steps=2).train()
    told = [each for each in caplog.records if each.name == "trustmopd.rollouts.vllm_rollouts"]
    assert len(told) == 1 and MEAN in told[0].message


def test_resume_and_calibration_leave_the_draws_as_they_were(build: Any, tmp_path: Path) -> None:
    settings = {"max_steps": 4, "save_strategy": "steps", "save_steps": 2, "learning_rate": 1e-3}
    build(folder="whole", **settings).train()
    whole = steps_of(tmp_path / "whole")
    cut = build(folder="cut", **settings | {"calibration_path": str(tmp_path / "whole" / "calibration.json")})
    cut.add_callback(_stop_after(2))
    cut.train()
    resumed = build(folder="cut", **settings)
    resumed.train(resume_from_checkpoint=True)
    again = steps_of(tmp_path / "cut")
    assert [line["step"] for line in again] == [1, 2, 3, 4]
    for name in ("loss", "completions/mean_length"):
        assert [line[name] for line in again] == pytest.approx([line[name] for line in whole], rel=1e-4)
    assert resumed.step_log.gap.first == pytest.approx(again[0][MEAN])
    by_transformers = build(folder="cut", **settings | {"max_steps": 5, "use_vllm": False})
    by_transformers.train(resume_from_checkpoint=True)
    manifest = json.loads((tmp_path / "cut" / "manifest.json").read_text())
    assert manifest["resumed"][-1]["changed"]["use_vllm"] == [True, False]

    # The same requests in another order and in smaller batches.
    prompts = [tiny.tokenizer()(f"say {number}")["input_ids"] for number in range(6)]
    params = Params(max_new_tokens=12, draws=[f"0/7/{number}" for number in range(6)], logprobs=True)
    together = resumed.rollout_engine.sample(prompts, params)
    order = [4, 0, 5, 2]
    apart = resumed.rollout_engine.sample(
        [prompts[place] for place in order], replace(params, draws=[params.draws[place] for place in order])
    )
    assert [each.ids for each in apart] == [together[place].ids for place in order]
    other = resumed.rollout_engine.sample(prompts, replace(params, draws=[f"1/7/{number}" for number in range(6)]))
    assert [each.ids for each in other] != [each.ids for each in together]


def _stop_after(steps: int) -> Any:
    class Stop(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
            control.should_training_stop = state.global_step >= steps

    return Stop()


def test_what_vllm_cannot_do_is_told_before_a_model_is_loaded(
    build: Any, world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match="vllm_max_model_length = 16"):
        build(vllm_max_model_length=16)
    monkeypatch.setattr("vllm.ModelRegistry", SimpleNamespace(get_supported_archs=lambda: ["OtherForCausalLM"]))
    with pytest.raises(ValueError, match="LlamaForCausalLM.*vllm_model_impl"):
        build()
    monkeypatch.setattr(LlamaForCausalLM, "_supports_attention_backend", False)  # as CodeGen's, and other old code
    for model_impl in ("vllm", "transformers", "auto"):
        with pytest.raises(ValueError, match="LlamaForCausalLM.*Set rollouts.engine = transformers"):
            build(vllm_model_impl=model_impl)


@pytest.mark.parametrize(
    ("reason", "about_memory"),
    [("No available memory for the cache blocks.", True), ("gpu_memory_utilization and x do not fit.", False)],
)
def test_memory_is_advised_on_only_where_it_was_the_reason(
    reason: str, about_memory: bool, build: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(**settings: Any) -> None:
        raise ValueError(reason)

    monkeypatch.setattr("trl.generation.vllm_generation.LLM", fail)
    with pytest.raises(ValueError, match=reason) as refused:
        build()
    assert ("max_completion_length" in str(refused.value)) == about_memory
