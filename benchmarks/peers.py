"""What others do with hidden states and output heads, called as they publish it: one reverse KL over the whole
vocabulary for each teacher, forward and backward. And the product that nobody can avoid."""

from collections.abc import Callable, Sequence
from typing import Any

import torch


def trl(student: Any, teachers: Sequence[Any]) -> float:
    """TRL's DistillationTrainer loss, once per teacher."""
    from trl.trainer.distillation_trainer import _chunked_divergence_loss

    mask = torch.ones(1, len(student.hidden), device=student.hidden.device)
    total = 0.0
    for teacher in teachers:
        loss, *_ = _chunked_divergence_loss(
            student.hidden.unsqueeze(0), teacher.hidden.unsqueeze(0), student.weight, teacher.weight, mask, beta=1.0
        )
        loss.backward()
        total += loss.item()
    return total


def liger(student: Any, teachers: Sequence[Any]) -> float:
    """Liger's fused linear JSD at beta 1, once per teacher."""
    from liger_kernel.transformers.fused_linear_jsd import LigerFusedLinearJSD

    total, labels = 0.0, torch.zeros(len(student.hidden), dtype=torch.long, device=student.hidden.device)
    for teacher in teachers:
        divergence = LigerFusedLinearJSD(jsd_beta=1.0)
        loss = divergence(student.hidden, student.weight, teacher.hidden, teacher.weight, labels)
        loss.backward()
        total += loss.item()
    return total


def gemm(student: Any, teachers: Sequence[Any]) -> float:
    """The student's output projection, forward, 1024 tokens at a time into one buffer."""
    hidden, weight = student.hidden.detach(), student.weight.detach()
    out = hidden.new_empty(min(1024, len(hidden)), len(weight))
    for start in range(0, len(hidden), len(out)):
        states = hidden[start : start + len(out)]
        torch.mm(states, weight.T, out=out[: len(states)])
    return out[0, 0].item()


PEERS: dict[str, Callable[[Any, Sequence[Any]], float]] = {"trl": trl, "liger": liger, "gemm": gemm}
