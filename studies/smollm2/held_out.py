"""What is for evaluation alone: the three tenths whose names have the lowest hashes. No list of them is kept."""

from collections.abc import Sequence
from hashlib import sha256

HELD_OUT = 0.3


def part(names: Sequence[str], held_out: bool) -> list[str]:
    """The names for evaluation, or all others, in the order of their SHA-256."""
    ranked = sorted(names, key=lambda name: sha256(name.encode()).digest())
    cut = round(HELD_OUT * len(ranked))
    return ranked[:cut] if held_out else ranked[cut:]


def is_held_out(name: str) -> bool:
    """As `part`, for names that are too many to list."""
    return int.from_bytes(sha256(name.encode()).digest()[:8]) < HELD_OUT * 2**64
