"""The specialists: TRL's GRPO from the reference, on one domain's prompts, rewarded by its verifier alone."""

import random
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datasets import Dataset
from tqdm.auto import tqdm
from transformers import TrainerCallback
from transformers.trainer_callback import PrinterCallback
from trl import GRPOConfig, GRPOTrainer

from studies.small_world.models import make_tokenizer
from trustmopd.quickstart.prompts import MAX_NEW_TOKENS, draw_distinct, record
from trustmopd.quickstart.tasks import parse, verify


@dataclass(frozen=True)
class Reinforcement:
    """How a specialist is trained, and when it stops: once the mean reward of the last `reward_window` steps, sampled
    at temperature 1 on its own train prompts, reaches `target_reward`."""

    max_steps: int = 60
    target_reward: float | None = 0.58
    reward_window: int = 2
    learning_rate: float = 3e-5
    beta: float = 0.05
    temperature: float = 1.0
    prompts: int = 3840
    prompts_per_step: int = 64
    generations: int = 8
    scale_rewards: str = "group"
    loss_type: str = "dapo"
    lr_scheduler_type: str = "constant"  # where it stops must not depend on max_steps


REGIMES: Mapping[str, Reinforcement] = {
    "moderate": Reinforcement(),
    # Two regimes in which the method has less to win (docs/results/testbed.md).
    "overtrained": Reinforcement(max_steps=200, target_reward=0.97),
    "drifting": Reinforcement(max_steps=80, target_reward=None, learning_rate=1e-4, beta=0.02),
    # Ever more drift, until trust has something to lose (docs/results/rules.md): small batches, no KL term.
    **{
        f"adrift-{tenths}": Reinforcement(
            max_steps=120, target_reward=None, learning_rate=tenths * 1e-4, beta=0.0, prompts_per_step=16
        )
        for tenths in (2, 3, 4, 6, 8)
    },
}


def build_specialist(
    domain: str, reference: Path, out: Path, seed: int, settings: Reinforcement, *, device: str = "cpu"
) -> dict[str, Any]:
    """Train the specialist of `domain` from `reference`, save it with its tokenizer in `out`, return its rewards.

    Rewards are 0 or 1, scaled by their standard deviation within a group of answers to one prompt (GRPO as published;
    TRL's `group`), so `beta` weighs against advantages of unit size. The loss is a mean over all tokens of the step
    (TRL's `dapo`), so short answers do not count more. Each batch is used once, so no ratio is ever clipped.
    """
    tokenizer = make_tokenizer()
    tasks = draw_distinct(domain, settings.prompts, random.Random(f"specialist/{domain}/{seed}"), "train")
    progress = _StopAtReward(settings, domain)
    with tempfile.TemporaryDirectory() as scratch:
        trainer = GRPOTrainer(
            model=str(reference),
            reward_funcs=_reward,
            train_dataset=Dataset.from_list([record(task) for task in tasks]),
            processing_class=tokenizer,
            callbacks=[progress],
            args=GRPOConfig(
                output_dir=scratch,
                seed=seed,
                max_steps=settings.max_steps,
                learning_rate=settings.learning_rate,
                lr_scheduler_type=settings.lr_scheduler_type,
                beta=settings.beta,
                temperature=settings.temperature,
                num_generations=settings.generations,
                per_device_train_batch_size=settings.prompts_per_step * settings.generations,
                gradient_accumulation_steps=1,
                steps_per_generation=1,
                max_completion_length=MAX_NEW_TOKENS,
                scale_rewards=settings.scale_rewards,
                loss_type=settings.loss_type,
                logging_steps=1,
                model_init_kwargs={"dtype": "float32"},
                bf16=False,
                gradient_checkpointing=False,
                use_cpu=device == "cpu",
                save_strategy="no",
                report_to="none",
                disable_tqdm=True,
            ),
        )
        trainer.remove_callback(PrinterCallback)  # it prints forty numbers a step; the bar shows the one that matters
        trainer.train()
    model = trainer.accelerator.unwrap_model(trainer.model).eval()
    model.config.use_cache = True  # the trainer turns it off
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    return {
        "steps": len(progress.rewards),
        "reached_target": progress.reached,
        "rewards": [round(reward, 4) for reward in progress.rewards],
        "kl": [round(kl, 5) for kl in progress.kl],
    }


def _reward(prompts: list, completions: list, **_: Any) -> list[float]:
    return [
        float(verify(parse(prompt[-1]["content"]), completion[0]["content"]).right)
        for prompt, completion in zip(prompts, completions, strict=True)
    ]


class _StopAtReward(TrainerCallback):
    """The progress bar, the log, and the stopping rule."""

    def __init__(self, settings: Reinforcement, domain: str) -> None:
        self.settings = settings
        self.rewards: list[float] = []
        self.kl: list[float] = []
        self.bar = tqdm(total=settings.max_steps, desc=domain, unit="step")

    @property
    def reached(self) -> bool:
        window, target = self.settings.reward_window, self.settings.target_reward
        recent = self.rewards[-window:]
        return target is not None and len(recent) == window and sum(recent) / window >= target

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **_: Any) -> Any:
        if logs is None or "reward" not in logs:  # the summary at the end of training
            return control
        self.rewards.append(logs["reward"])
        self.kl.append(logs.get("kl", 0.0))
        self.bar.update()
        self.bar.set_postfix(reward=round(self.rewards[-1], 3), kl=round(self.kl[-1], 4))
        control.should_training_stop = control.should_training_stop or self.reached
        return control

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.bar.close()
