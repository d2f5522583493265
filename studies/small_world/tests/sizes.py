"""The comparison and the build, cut down to seconds."""

from typing import Any

from studies.small_world.reinforcement import Reinforcement
from studies.small_world.supervised import Supervision
from trustmopd.quickstart.experiment import Scale

SMALL = Scale(steps=3, batch_size=16, calibration_batches=2, evaluation_prompts=40)
ROLLOUTS = 8
CUT_DOWN: dict[str, Any] = {
    "device": "cpu",
    "supervision": Supervision(steps=30, batch_size=48),
    "reinforcement": Reinforcement(max_steps=2, prompts=16, prompts_per_step=4, generations=4),
    "evaluation_prompts": 8,
}
