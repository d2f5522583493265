"""The base: supervised training of the instruction model on solutions, with TRL's SFTTrainer, and the merge."""

import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers.trainer_callback import PrinterCallback
from trl import SFTConfig, SFTTrainer

from studies.smollm2.lora import ADAPTER, lora_config, save_adapter
from studies.smollm2.settings import SEED, Base
from studies.smollm2.tasks import Task, prompt_tokens
from studies.smollm2.weights import save_base
from trustmopd.runs.layout import CARD
from trustmopd.util.files import file_sha256, read_json, write_json


def make_base(
    out: Path, load: Callable[[], tuple[Any, Any]], shown: Callable[[], Sequence[Task]], settings: Base
) -> None:
    """`out/base`, of the instruction model and tokenizer that `load` gives. Where the adapter is there already, only
    the merge, which must come to the fingerprint that the card has."""
    folder, adapter, card = out / "base", out / "adapters" / "base", out / CARD
    if (folder / "model.safetensors").is_file():
        return
    record = read_json(card, what="card", remedy="Choose another --out.")["stages"]["base"] if card.is_file() else {}
    if not (adapter / ADAPTER).is_file():
        record = train_adapter(*load(), shown(), settings, adapter)
        card.unlink(missing_ok=True)  # of another adapter
    name = save_base(*load(), adapter, folder)
    if (expected := record.setdefault("fingerprint", name)) != name:
        shutil.rmtree(folder)
        raise ValueError(
            f"the merged base has fingerprint {name}, and {card} says {expected}: the adapter, or the weights below "
            "it, are others. Put those back, or choose another --out."
        )
    if not card.is_file():
        write_json(card, {"stages": {"base": {**record, "sha256": file_sha256(adapter / ADAPTER)}}})


def train_adapter(model: Any, tokenizer: Any, tasks: Sequence[Task], settings: Base, out: Path) -> dict[str, Any]:
    """Train an adapter of `model`, which is in float32, save it in `out`, and return what was measured."""
    rows = [
        {
            "prompt": tokenizer.apply_chat_template(task.messages, tokenize=False, add_generation_prompt=True),
            "completion": f"{task.solution}{tokenizer.eos_token}",
        }
        for task in tasks
        if len(prompt_tokens(tokenizer, task)) <= settings.max_prompt_tokens
        and len(tokenizer(task.solution)["input_ids"]) < settings.max_new_tokens
    ]
    on_gpu = torch.cuda.is_available()
    with tempfile.TemporaryDirectory() as scratch:
        trainer = SFTTrainer(
            model=model,
            processing_class=tokenizer,
            train_dataset=Dataset.from_list(rows),
            peft_config=lora_config(),
            args=SFTConfig(
                output_dir=scratch,
                seed=SEED,
                num_train_epochs=settings.epochs,
                per_device_train_batch_size=settings.batch_size,
                learning_rate=settings.learning_rate,
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
