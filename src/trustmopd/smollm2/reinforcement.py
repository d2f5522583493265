"""The specialists: TRL's GRPO with a LoRA adapter over the base, on one domain's prompts, rewarded by its checks."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from transformers.trainer_callback import PrinterCallback
from trl import GRPOConfig, GRPOTrainer

from trustmopd.smollm2.lora import lora_config, save_adapter
from trustmopd.smollm2.settings import Settings, Specialist
from trustmopd.smollm2.tasks import Task, passes

_PRINT_EVERY = 10


def train_specialist(
    domain: str, base: Path, tasks: Sequence[Task], settings: Settings, out: Path, scratch: Path, deadline: float | None
) -> dict[str, Any]:
    """Train on `tasks` until the rule of `settings.specialist` or `deadline` (of time.monotonic) ends it; save the
    adapter in `out`. Checkpoints are in `scratch`, and the last is gone on from."""
    how = settings.specialist
    on_gpu = torch.cuda.is_available()
    tokenizer = AutoTokenizer.from_pretrained(base, padding_side="left")
    watch = _Watch(domain, how, deadline)
    samples = how.prompts_per_step * how.generations
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(base, dtype=torch.bfloat16 if on_gpu else torch.float32),
        reward_funcs=_rewards(tasks),
        train_dataset=Dataset.from_list([{"prompt": task.messages, "task": i} for i, task in enumerate(tasks)]),
        processing_class=tokenizer,
        peft_config=lora_config(settings.lora),
        callbacks=[watch],
        args=GRPOConfig(
            output_dir=str(scratch),
            seed=settings.seed,
            max_steps=how.max_steps,
            learning_rate=how.learning_rate,
            lr_scheduler_type="constant_with_warmup",  # where it stops must not depend on how long it might go on
            warmup_steps=5,
            beta=how.beta,
            temperature=1.0,
            num_generations=how.generations,
            per_device_train_batch_size=samples // how.micro_batches,
            gradient_accumulation_steps=how.micro_batches,
            steps_per_generation=how.micro_batches,
            max_completion_length=settings.max_new_tokens,
            cache_implementation="static" if on_gpu else None,
            scale_rewards="group",
            loss_type="dapo",
            bf16=on_gpu,
            use_cpu=not on_gpu,
            gradient_checkpointing=False,
            logging_steps=1,
            save_strategy="steps",
            save_steps=how.save_every,
            save_total_limit=1,
            report_to="none",
            disable_tqdm=True,
        ),
    )
    trainer.remove_callback(PrinterCallback)
    if on_gpu:
        compile_generation(trainer, tasks)
    trainer.train(resume_from_checkpoint=_last_checkpoint(scratch))
    save_adapter(trainer.accelerator.unwrap_model(trainer.model), out)
    logs = [log for log in trainer.state.log_history if "reward" in log]
    return {
        "domain": domain,
        "steps": trainer.state.global_step,
        "reached_target": reached([log["reward"] for log in logs], how),
        "finished": watch.finished(trainer.state),
        "rewards": [round(log["reward"], 4) for log in logs],
        "kl": [round(log.get("kl", 0.0), 5) for log in logs],
        "lengths": [round(log["completions/mean_length"], 1) for log in logs],
        "seconds": [round(log.get("step_time", 0.0), 2) for log in logs],
    }


def compile_generation(trainer: Any, tasks: Sequence[Task]) -> None:
    """A cache of fixed size is there to be compiled, which TRL forbids; sized once, it is compiled once."""
    lengths = (
        len(
            trainer.processing_class.apply_chat_template(task.messages, add_generation_prompt=True, return_dict=True)[
                "input_ids"
            ]
        )
        for task in tasks
    )
    trainer.generation_config.disable_compile = False
    trainer.generation_config.max_cache_len = max(lengths) + trainer.max_completion_length


def _last_checkpoint(scratch: Path) -> str | None:
    """The last whole one: the trainer writes its state last, and a kill may have come before."""
    whole = [path.parent for path in scratch.glob("checkpoint-*/trainer_state.json")]
    return str(max(whole, key=lambda path: int(path.name.rpartition("-")[2]))) if whole else None


def reached(rewards: Sequence[float], how: Specialist) -> bool:
    """Whether the mean of the last rewards is far enough above that of the first."""
    if len(rewards) < 2 * how.window:
        return False
    gained = sum(rewards[-how.window :]) - sum(rewards[: how.window])
    return gained / how.window >= how.target_gain


def _rewards(tasks: Sequence[Task]) -> Any:
    def verified(completions: list, task: list[int], **_: Any) -> list[float]:
        return [
            float(passes(tasks[number], completion[0]["content"]))
            for number, completion in zip(task, completions, strict=True)
        ]

    return verified


class _Watch(TrainerCallback):
    """Ends the training at the target or at the deadline, with a checkpoint, and tells of its progress."""

    def __init__(self, domain: str, how: Specialist, deadline: float | None) -> None:
        self.domain, self.how, self.deadline = domain, how, deadline

    def finished(self, state: Any) -> bool:
        return state.global_step >= self.how.max_steps or reached(_all_rewards(state), self.how)

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **_: Any) -> Any:
        if logs is None or "reward" not in logs:  # the summary at the end of training
            return control
        if state.global_step % _PRINT_EVERY == 0 or state.global_step == 1:
            recent = _all_rewards(state)[-self.how.window :]
            print(
                f"{self.domain}: step {state.global_step}, reward {sum(recent) / len(recent):.3f}, "
                f"KL {logs.get('kl', 0.0):.4f}, {logs['completions/mean_length']:.0f} tokens, "
                f"{logs.get('step_time', 0.0):.1f} s",
                flush=True,
            )
        late = self.deadline is not None and time.monotonic() > self.deadline
        if late or self.finished(state):
            control.should_save = control.should_training_stop = True
        return control


def _all_rewards(state: Any) -> list[float]:
    return [log["reward"] for log in state.log_history if "reward" in log]
