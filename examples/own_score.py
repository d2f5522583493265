"""A score rule of your own: trust a teacher by how much probability it moved, instead of by displacement.

A score is a function from `CandidateState` (log-probabilities on the student's candidates) to one non-negative number
for each teacher and token, [K, B, T]. Calibration, gamma, metrics and token records work as they do for the paper's.

python examples/own_score.py [steps]     20 steps: 24 s of one core, offline
"""

import sys

import torch
from torch import Tensor

from trustmopd import TrustMOPDConfig, TrustMOPDTrainer
from trustmopd.method import CandidateState
from trustmopd.quickstart import prompt_set
from trustmopd.quickstart.shipped import checkpoint

torch.set_num_threads(1)  # for models this small, more threads only slow each other down
steps = int(sys.argv[1]) if len(sys.argv) > 1 else 20


def total_variation(at: CandidateState) -> Tensor:
    """Half the L1 distance between teacher and reference: 0 where RL changed nothing, at most 1."""
    assert at.reference_logp is not None  # a rule of your own gets the reference
    return (at.teacher_logp.exp() - at.reference_logp.exp()).abs().sum(dim=-1) / 2


trainer = TrustMOPDTrainer(
    model=str(checkpoint("reference")),
    teachers={name: str(checkpoint(name)) for name in ("math", "code", "if")},
    args=TrustMOPDConfig(
        output_dir="runs/examples/own-score",
        score=total_variation,
        gamma=7.0,
        max_steps=steps,
        learning_rate=1e-4,
        per_device_train_batch_size=64,
        num_candidates=32,
        max_completion_length=16,
        bf16=False,
    ),
    train_dataset=prompt_set("singlecap", 64 * steps, seed=0),
)
trainer.train()

last = next(line for line in reversed(trainer.state.log_history) if "loss" in line)
for name, mu in trainer.calibration.mu.items():
    print(f"{name}: moves {mu:.1%} of the probability at an average token; weight {last[f'weight/{name}']:.2f}")
