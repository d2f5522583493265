"""The checkpoints that ship with the package. Their card says how they were made."""

from pathlib import Path

SHIPPED = Path(__file__).parent / "checkpoints"
MODELS = ("reference", "math", "code", "if")


def checkpoint(name: str) -> Path:
    """The folder of `reference`, `math`, `code` or `if`."""
    if name not in MODELS:
        raise ValueError(f"the small world has no checkpoint {name!r}: choose one of {', '.join(MODELS)}.")
    return SHIPPED / name
