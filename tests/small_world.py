"""The small world's comparison and its build, cut down to seconds."""

from typing import Any

from trustmopd.testbed.experiment import Scale
from trustmopd.testbed.reinforcement import Reinforcement
from trustmopd.testbed.supervised import Supervision

SMALL = Scale(steps=3, batch_size=16, calibration_batches=2, evaluation_prompts=40, diagnosis_rollouts=8)
ONLY = ["multicap", "trust", "uniform"]
CUT_DOWN: dict[str, Any] = {
    "device": "cpu",
    "supervision": Supervision(steps=30, batch_size=48),
    "reinforcement": Reinforcement(max_steps=2, prompts=16, prompts_per_step=4, generations=4),
    "evaluation_prompts": 8,
    "quiet": True,
}
