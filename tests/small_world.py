"""The small world's comparison, cut down to seconds."""

from trustmopd.testbed.experiment import Scale

SMALL = Scale(steps=3, batch_size=16, calibration_batches=2, evaluation_prompts=40, diagnosis_rollouts=8)
