"""What is for evaluation alone: the three tenths whose names have the lowest hashes. No list of them is needed."""

from collections.abc import Sequence
from hashlib import sha256

HELD_OUT = 0.3


def part(names: Sequence[str], held_out: bool) -> list[str]:
    """The names for evaluation, or all others, in the order of their SHA-256."""
    ranked = sorted(names, key=lambda name: sha256(name.encode()).digest())
    cut = round(HELD_OUT * len(ranked))
    return ranked[:cut] if held_out else ranked[cut:]
