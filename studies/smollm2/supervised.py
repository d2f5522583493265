"""The base's adapter: supervised training of the instruction model on solutions, with TRL's SFTTrainer."""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers.trainer_callback import PrinterCallback
from trl import SFTConfig, SFTTrainer

from studies.smollm2.lora import lora_config, save_adapter
from studies.smollm2.settings import Settings
from studies.smollm2.tasks import Task, prompt_tokens


def train_adapter(model: Any, tokenizer: Any, tasks: Sequence[Task], settings: Settings, out: Path) -> dict[str, Any]:
    """Train an adapter of `model`, which is in float32, save it in `out`, and return what was measured."""
    base = settings.base
    rows = [
        {
            "prompt": tokenizer.apply_chat_template(task.messages, tokenize=False, add_generation_prompt=True),
            "completion": f"{task.solution}{tokenizer.eos_token}",
        }
        for task in tasks
        if len(prompt_tokens(tokenizer, task)) <= settings.max_prompt_tokens
        and len(tokenizer(task.solution)["input_ids"]) < settings.max_new_tokens
    ]
    if not rows:
        raise ValueError(
            f"none of the {len(tasks)} solutions to be shown fits into max_prompt_tokens={settings.max_prompt_tokens} "
            f"and max_new_tokens={settings.max_new_tokens}. Raise these settings."
        )
    on_gpu = torch.cuda.is_available()
    with tempfile.TemporaryDirectory() as scratch:
        trainer = SFTTrainer(
            model=model,
            processing_class=tokenizer,
            train_dataset=Dataset.from_list(rows),
            peft_config=lora_config(settings.lora),
            args=SFTConfig(
                output_dir=scratch,
                seed=settings.seed,
                num_train_epochs=base.epochs,
                per_device_train_batch_size=base.batch_size,
                learning_rate=base.learning_rate,
                lr_scheduler_type="cosine",
                warmup_steps=0.05,
                completion_only_loss=True,
                bf16=on_gpu,
                use_cpu=not on_gpu,
                gradient_checkpointing=False,
                logging_steps=5,
                save_strategy="no",
                report_to="none",
            ),
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    save_adapter(trainer.model, out)
    losses = [
        {"step": log["step"], "loss": round(log["loss"], 4)} for log in trainer.state.log_history if "loss" in log
    ]
    return {"examples": len(rows), "steps": trainer.state.global_step, "losses": losses}
