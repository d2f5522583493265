"""Specialists of your own with LoRA: three adapters over one base, distilled into a fourth, merged into full weights.

Base, adapters and student share one set of weights: K teachers cost K adapters of memory, not K models. Replace `base`,
`lessons` and the prompts by yours. With adapters that you already have, start at "Distil".

python examples/lora_specialists.py [steps]     60 steps: 95 s of one core, offline
"""

import random
import sys
from pathlib import Path

import torch
from datasets import Dataset
from peft import LoraConfig
from trl import SFTConfig, SFTTrainer

from trustmopd import Teacher, TrustMOPDConfig, TrustMOPDTrainer
from trustmopd.checkpoints.merge import merge_adapter
from trustmopd.quickstart import DOMAINS, prompt_set
from trustmopd.quickstart.prompts import draw_distinct
from trustmopd.quickstart.shipped import checkpoint

torch.set_num_threads(1)  # for models this small, more threads only slow each other down
steps = int(sys.argv[1]) if len(sys.argv) > 1 else 60
out = Path("runs/examples/lora")
base = str(checkpoint("reference"))
lora = LoraConfig(r=8, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM")
shared = {"max_steps": steps, "save_steps": steps, "learning_rate": 1e-3, "bf16": False}


def lessons(domain: str) -> Dataset:
    """Prompts of one domain with their right answers."""
    tasks = draw_distinct(domain, 32 * steps, random.Random(0), "train")
    return Dataset.from_list(
        [
            {
                "prompt": [{"role": "user", "content": task.prompt}],
                "completion": [{"role": "assistant", "content": task.answer()}],
            }
            for task in tasks
        ]
    )


# Train one adapter for each domain.
for domain in DOMAINS:
    settings = SFTConfig(output_dir=str(out / domain), per_device_train_batch_size=32, report_to="none", **shared)
    specialist = SFTTrainer(base, args=settings, train_dataset=lessons(domain), peft_config=lora)
    specialist.train()
    specialist.save_model(str(out / domain))

# Distil: each teacher is an adapter over the student's base, and the bare base is the reference.
trainer = TrustMOPDTrainer(
    model=base,
    teachers={domain: Teacher(adapter=out / domain) for domain in DOMAINS},
    args=TrustMOPDConfig(
        output_dir=str(out / "student"),
        per_device_train_batch_size=64,
        num_candidates=32,
        max_completion_length=16,
        **shared,
    ),
    train_dataset=prompt_set("multicap", 64 * steps, seed=0),
    peft_config=lora,
)
trainer.train()

# Full weights, for tools that take no adapters.
merge_adapter(out / "student" / f"checkpoint-{steps}", out / "merged", overwrite=True)
print(f"mu: {', '.join(f'{name} {value:.3g}' for name, value in trainer.calibration.mu.items())}")
print(f"The student as full weights: {out / 'merged'}")
