"""The small world in 30 lines: three specialists into one student, scored before and after.

python examples/small_world.py [steps]     116 steps: 95 s of one core, offline
"""

import shutil
import sys
from pathlib import Path

import torch

from trustmopd import TrustMOPDConfig, TrustMOPDTrainer, evaluate
from trustmopd.quickstart import prompt_set
from trustmopd.quickstart.shipped import checkpoint

torch.set_num_threads(1)  # for models this small, more threads only slow each other down
steps = int(sys.argv[1]) if len(sys.argv) > 1 else 116
out = Path("runs/examples/small-world")
student = str(checkpoint("reference"))
trainer = TrustMOPDTrainer(
    model=student,
    teachers={name: str(checkpoint(name)) for name in ("math", "code", "if")},
    args=TrustMOPDConfig(
        output_dir=str(out),
        max_steps=steps,
        save_steps=steps,
        learning_rate=1e-4,
        per_device_train_batch_size=64,
        num_candidates=32,
        max_completion_length=16,
        bf16=False,
    ),
    train_dataset=prompt_set("multicap", 64 * steps, seed=0),  # no labels are read
)
trainer.train()

shutil.rmtree(out / "evaluation", ignore_errors=True)  # of an earlier student
benchmarks = ["testbed_math", "testbed_code", "testbed_if"]
for name, model in {"before": student, "after": str(out / f"checkpoint-{steps}")}.items():
    (scores,) = evaluate(model, benchmarks, out / "evaluation" / name, limit=200, batch_size=200).scores.values()
    print(f"{name}: {scores['overall']:.1%} of the answers are right")
