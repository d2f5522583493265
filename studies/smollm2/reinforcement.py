"""The specialists: TRL's GRPO with a LoRA adapter over the base, on one domain's prompts, rewarded by its checks."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_callback import PrinterCallback
from trl import GRPOConfig, GRPOTrainer

from studies.smollm2.lora import lora_config, save_adapter
from studies.smollm2.settings import SEED, Specialist
from studies.smollm2.tasks import Task, prompt_tokens, verdicts
from trustmopd.rollouts.transformers_engine import finite_logits
from trustmopd.runs.checkpoints import all_checkpoints

_PRINT_EVERY = 10
#: What is kept of each step: its name in the record, in TRL's log, and decimals.
_MEASURED = {
    "rewards": ("reward", 4),
    "kl": ("kl", 5),
    "lengths": ("completions/mean_length", 1),
    "seconds": ("step_time", 2),
    "no_variance": ("frac_reward_zero_std", 3),  # the share of prompts whose samples all got one reward
}


def train_specialist(
    base: Path, tasks: Sequence[Task], settings: Specialist, out: Path, scratch: Path
) -> dict[str, Any]:
    """Train on `tasks` as `settings` say, from the last checkpoint in `scratch` if there is one; save the adapter in
    `out`, and return what was measured."""
    on_gpu = torch.cuda.is_available()
    tokenizer = AutoTokenizer.from_pretrained(base, padding_side="left")
    asked = [task for task in tasks if len(prompt_tokens(tokenizer, task)) <= settings.max_prompt_tokens]
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(base, dtype=torch.bfloat16 if on_gpu else torch.float32),
        reward_funcs=_rewards(asked),
        train_dataset=Dataset.from_list([{"prompt": task.messages, "task": i} for i, task in enumerate(asked)]),
        processing_class=tokenizer,
        peft_config=lora_config(),
        callbacks=[_Watch(settings)],
        args=_config(settings, scratch, on_gpu),
    )
    trainer.remove_callback(PrinterCallback)
    if on_gpu:  # a cache of fixed size is there to be compiled, which TRL forbids; of one size, it is compiled once
        trainer.generation_config.disable_compile = False
        trainer.generation_config.max_cache_len = settings.max_prompt_tokens + settings.max_new_tokens
    student = trainer.accelerator.unwrap_model(trainer.model)
    student.generate = partial(student.generate, logits_processor=finite_logits(student))
    trainer.train(resume_from_checkpoint=_last_checkpoint(scratch))
    save_adapter(student, out, settings.scale)
    logs = [log for log in trainer.state.log_history if "reward" in log]
    return {
        "steps": len(logs),
        "scale": settings.scale,
        **{name: [round(log.get(key, 0.0), digits) for log in logs] for name, (key, digits) in _MEASURED.items()},
    }


def _config(settings: Specialist, scratch: Path, on_gpu: bool) -> GRPOConfig:
    return GRPOConfig(
        output_dir=str(scratch),
        seed=SEED,
        max_steps=settings.max_steps,
        learning_rate=settings.learning_rate,
        lr_scheduler_type="constant_with_warmup",  # where it stops must not depend on max_steps
        warmup_steps=settings.warmup_steps,
        beta=settings.beta,
        temperature=1.0,
        num_generations=settings.generations,
        per_device_train_batch_size=settings.prompts_per_step * settings.generations // settings.micro_batches,
        gradient_accumulation_steps=settings.micro_batches,
        steps_per_generation=settings.micro_batches,
        max_completion_length=settings.max_new_tokens,
        cache_implementation="static" if on_gpu else None,
        scale_rewards="group",
        loss_type="dapo",
        bf16=on_gpu,
        use_cpu=not on_gpu,
        gradient_checkpointing=False,
        logging_steps=1,
        save_strategy="steps",
        save_steps=settings.save_every,
        save_total_limit=1,
        report_to="none",
        disable_tqdm=True,
    )


def _last_checkpoint(scratch: Path) -> str | None:
    """The last whole one: the trainer writes its state last, and a kill may have come before."""
    whole = [path for path in all_checkpoints(scratch) if (path / TRAINER_STATE_NAME).is_file()]
    return str(whole[-1]) if whole else None


def reached(rewards: Sequence[float], settings: Specialist) -> bool:
    """Whether the mean of the last rewards is far enough above that of the first."""
    if len(rewards) < 2 * settings.window:
        return False
    gained = sum(rewards[-settings.window :]) - sum(rewards[: settings.window])
    return gained / settings.window >= settings.target_gain


def _rewards(tasks: Sequence[Task]) -> Any:
    def verified(completions: list, task: list[int], **_: Any) -> list[float]:
        responses = [completion[0]["content"] for completion in completions]
        return [float(passed) for passed in verdicts([tasks[number] for number in task], responses)]

    return verified


class _Watch(TrainerCallback):
    """Ends the training at the target, with a checkpoint, and reports progress."""

    def __init__(self, settings: Specialist) -> None:
        self.settings = settings

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **_: Any) -> Any:
        if logs is None or "reward" not in logs:  # the summary at the end of training
            return control
        rewards = [log["reward"] for log in state.log_history if "reward" in log]
        if len(rewards) % _PRINT_EVERY == 0 or len(rewards) == 1:
            recent = rewards[-self.settings.window :]
            print(
                f"step {len(rewards)}: reward {sum(recent) / len(recent):.3f}, KL {logs.get('kl', 0.0):.4f}, "
                f"{logs['completions/mean_length']:.0f} tokens, {logs.get('step_time', 0.0):.1f} s",
                flush=True,
            )
        if reached(rewards, self.settings):
            control.should_save = control.should_training_stop = True
        return control
