"""One run with colocated vLLM, in sleep mode or with a skipped sync; prints what happened as JSON. A process of its
own: vLLM allows one sleeping engine in each."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import tiny
import torch
from peft import LoraConfig

from trustmopd import TrustMOPDConfig, TrustMOPDTrainer
from trustmopd.rollouts import EngineError
from trustmopd.rollouts.weights import StaleWeights
from trustmopd.training.step.rollout_gap import MEAN


def in_use() -> int:
    free, total = torch.cuda.mem_get_info()
    return total - free


def build(case: str, folder: Path, **settings: Any) -> TrustMOPDTrainer:
    base = tiny.model(0, hidden=256).to(torch.bfloat16)  # saved, then loaded as users load it
    for name, model in {
        "base": base,
        **{name: tiny.specialist(base, i) for i, name in enumerate(("math", "code"))},
    }.items():
        tiny.save(model, folder / name)
    return TrustMOPDTrainer(
        str(folder / "base"),
        {name: str(folder / name) for name in ("math", "code")},
        args=TrustMOPDConfig(
            output_dir=str(folder / "run"),
            model_init_kwargs={"dtype": "bfloat16"},
            use_vllm=True,
            vllm_gpu_memory_utilization=0.1,
            num_candidates=16,
            max_completion_length=64,
            global_batch_size=8,
            per_device_train_batch_size=4,
            calibration_batches=1,
            max_steps=3,
            warmup_steps=0,
            save_strategy="no",
            record_allocation_every=0,
            report_to="none",
            disable_tqdm=True,
            **settings,
        ),
        train_dataset=tiny.prompts(32),
        peft_config=LoraConfig(r=4, target_modules=["q_proj", "o_proj", "down_proj"], task_type="CAUSAL_LM")
        if case == "lora"
        else None,
    )


def skipped(case: str, folder: Path) -> dict[str, Any]:
    """An engine that stays awake gets the weights of the first step, and no others."""
    trainer = build(case, folder, vllm_enable_sleep_mode=False, learning_rate=1e-6, calibrated=False)
    push, done = trainer.rollout_engine.push, []
    trainer.rollout_engine.push = lambda: done.append(push()) if not done else None
    try:
        trainer.train()
    except EngineError as error:
        return {"stopped": type(error).__name__, "step": trainer.state.global_step}
    return {"stopped": "", "step": trainer.state.global_step}


def sleeping(case: str, folder: Path) -> dict[str, Any]:
    trainer = build(case, folder, vllm_enable_sleep_mode=True, learning_rate=1e-4)
    engine, step, awake, asleep = trainer.rollout_engine, trainer.training_step, [], []
    generate = engine.llm.generate

    def sampling(*args, **options):
        awake.append(in_use())
        return generate(*args, **options)

    def training(*args, **options):
        asleep.append(in_use())
        return step(*args, **options)

    engine.llm.generate, trainer.training_step = sampling, training
    trainer.train()
    lines = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    found = {"gaps": [line[MEAN] for line in lines if "loss" in line], "compared": sorted(engine._kept)}
    found |= {"awake": min(awake), "asleep": max(asleep)}

    engine.push = lambda: None  # the weights of a sleeping engine are gone: without a sync it has none
    found["skipped_sync"] = _kind(trainer)
    del engine.push
    engine.llm.wake_up(tags=["kv_cache"])
    engine.llm.sleep(level=2)

    def fail(*args, **options):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    engine.llm.generate = fail
    found["failing_engine"] = _kind(trainer)
    return found


def _kind(trainer: TrustMOPDTrainer) -> str:
    from trustmopd.rollouts import Params

    try:
        trainer.rollout_engine.sample([[4, 5, 6]], Params(max_new_tokens=4, draws=["0"]))
    except (StaleWeights, EngineError) as error:
        return type(error).__name__
    return ""


if __name__ == "__main__":
    run = {"sleeping": sleeping, "skipped": skipped}[sys.argv[1]]
    print("\nFOUND " + json.dumps(run(sys.argv[2], Path(sys.argv[3]))), flush=True)
    os._exit(0)  # vLLM's threads may not end by themselves
