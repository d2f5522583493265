"""The specialists: TRL's GRPO with a LoRA adapter over the base, on one domain's prompts, rewarded by its checks."""

import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from peft import set_peft_model_state_dict
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_callback import PrinterCallback
from trl import GRPOConfig, GRPOTrainer

from studies.smollm2.lora import ADAPTER, lora_config, save_adapter
from studies.smollm2.settings import Settings, Specialist
from studies.smollm2.tasks import Task, prompt_tokens, verdicts
from trustmopd.rollouts.finite import finite_logits
from trustmopd.runs.checkpoints import all_checkpoints
from trustmopd.util.files import read_json, write_json

_PRINT_EVERY = 10
_EARLIER = "earlier.json"
#: What is kept of each step: its name in the record, in TRL's log, and decimals.
_MEASURED = {
    "rewards": ("reward", 4),
    "kl": ("kl", 5),
    "lengths": ("completions/mean_length", 1),
    "seconds": ("step_time", 2),
    "no_variance": ("frac_reward_zero_std", 3),  # the share of prompts whose samples all got one reward
}


def train_specialist(
    domain: str,
    base: Path,
    tasks: Sequence[Task],
    settings: Settings,
    out: Path,
    scratch: Path,
    deadline: float | None,
    earlier: Mapping[str, list[float]] | None = None,
    *,
    compiled: bool = True,
) -> dict[str, Any]:
    """Train on `tasks` until the rule of `settings.specialist` or `deadline` (of time.monotonic) ends it; save the
    adapter in `out`. It continues from the last checkpoint in `scratch`. If there is none and `out` has an adapter, it
    continues from that with a new optimizer; `earlier` is what was measured in the steps before, and is kept beside
    the new checkpoints, which do not have it. `compiled`: on a GPU, sampling is compiled."""
    how = settings.of_specialist(domain)
    on_gpu = torch.cuda.is_available()
    tokenizer = AutoTokenizer.from_pretrained(base, padding_side="left")
    checkpoint = _last_checkpoint(scratch)
    if checkpoint is None:
        write_json(scratch / _EARLIER, {name: list((earlier or {}).get(name, ())) for name in _MEASURED})
    before = read_json(scratch / _EARLIER, what="record", remedy=f"Remove {scratch}, to continue from the adapter.")
    done = len(before["rewards"])
    watch = _Watch(domain, how, deadline, before["rewards"])
    asked = [task for task in tasks if len(prompt_tokens(tokenizer, task)) <= settings.max_prompt_tokens]
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(base, dtype=torch.bfloat16 if on_gpu else torch.float32),
        reward_funcs=_rewards(asked),
        train_dataset=Dataset.from_list([{"prompt": task.messages, "task": i} for i, task in enumerate(asked)]),
        processing_class=tokenizer,
        peft_config=lora_config(settings.lora),
        callbacks=[watch],
        args=GRPOConfig(
            output_dir=str(scratch),
            seed=settings.seed + done,  # else the prompts of the first steps would be asked again
            max_steps=how.max_steps - done,
            learning_rate=how.learning_rate,
            lr_scheduler_type="constant_with_warmup",  # where it stops must not depend on max_steps
            warmup_steps=how.warmup_steps,
            beta=how.beta,
            temperature=1.0,
            num_generations=how.generations,
            per_device_train_batch_size=how.prompts_per_step * how.generations // how.micro_batches,
            gradient_accumulation_steps=how.micro_batches,
            steps_per_generation=how.micro_batches,
            max_completion_length=how.max_new_tokens,
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
    if on_gpu:  # a cache of fixed size is there to be compiled, which TRL forbids; of one size, it is compiled once
        trainer.generation_config.disable_compile = not compiled
        trainer.generation_config.max_cache_len = settings.max_prompt_tokens + how.max_new_tokens
    student = trainer.accelerator.unwrap_model(trainer.model)
    student.generate = partial(student.generate, logits_processor=finite_logits(student))
    if done and checkpoint is None:
        set_peft_model_state_dict(student, load_file(out / ADAPTER))
    trainer.train(resume_from_checkpoint=checkpoint)
    save_adapter(student, out)
    logs = [log for log in trainer.state.log_history if "reward" in log]
    measured = {
        name: [*before[name], *(round(log.get(key, 0.0), digits) for log in logs)]
        for name, (key, digits) in _MEASURED.items()
    }
    return {"domain": domain, "steps": len(measured["rewards"]), **measured}


def _last_checkpoint(scratch: Path) -> str | None:
    """The last whole one: the trainer writes its state last, and a kill may have come before."""
    whole = [path for path in all_checkpoints(scratch) if (path / TRAINER_STATE_NAME).is_file()]
    return str(whole[-1]) if whole else None


def finished(rewards: Sequence[float], how: Specialist) -> bool:
    return len(rewards) >= how.max_steps or reached(rewards, how)


def reached(rewards: Sequence[float], how: Specialist) -> bool:
    """Whether the mean of the last rewards is far enough above that of the first."""
    if len(rewards) < 2 * how.window:
        return False
    gained = sum(rewards[-how.window :]) - sum(rewards[: how.window])
    return gained / how.window >= how.target_gain


def _rewards(tasks: Sequence[Task]) -> Any:
    def verified(completions: list, task: list[int], **_: Any) -> list[float]:
        responses = [completion[0]["content"] for completion in completions]
        return [float(passed) for passed in verdicts([tasks[number] for number in task], responses)]

    return verified


class _Watch(TrainerCallback):
    """Ends the training at the target or at the deadline, with a checkpoint, and reports progress."""

    def __init__(self, domain: str, how: Specialist, deadline: float | None, earlier: Sequence[float]) -> None:
        self.domain, self.how, self.deadline, self.earlier = domain, how, deadline, earlier

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **_: Any) -> Any:
        if logs is None or "reward" not in logs:  # the summary at the end of training
            return control
        rewards = [*self.earlier, *(log["reward"] for log in state.log_history if "reward" in log)]
        if len(rewards) % _PRINT_EVERY == 0 or state.global_step == 1:
            recent = rewards[-self.how.window :]
            print(
                f"{self.domain}: step {len(rewards)}, reward {sum(recent) / len(recent):.3f}, "
                f"KL {logs.get('kl', 0.0):.4f}, {logs['completions/mean_length']:.0f} tokens, "
                f"{logs.get('step_time', 0.0):.1f} s",
                flush=True,
            )
        late = self.deadline is not None and time.monotonic() > self.deadline
        if late or finished(rewards, self.how):
            control.should_save = control.should_training_stop = True
        return control
