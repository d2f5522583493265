"""The checkpoints that ship with the package, checked against the digests of their card."""

from pathlib import Path

from trustmopd.runs.layout import CARD
from trustmopd.util.files import file_sha256, read_json

SHIPPED = Path(__file__).parent / "checkpoints"
MODELS = ("reference", "math", "code", "if")
_REMEDY = "Reinstall the package; a world of your own: build it again."


def checkpoint(name: str, root: str | Path = SHIPPED) -> Path:
    """The folder of `reference`, `math`, `code` or `if`, its files compared with the digests in the card."""
    if name not in MODELS:
        raise ValueError(f"the small world has no checkpoint {name!r}: choose one of {', '.join(MODELS)}.")
    root = Path(root)
    for file, expected in expected_digests(name, root).items():
        path = root / name / file
        found = file_sha256(path) if path.is_file() else None
        if found != expected:
            state = "is missing" if found is None else f"was altered: its sha256 is {found}"
            raise ValueError(f"the checkpoint file {path} {state}; the card expects {expected}. {_REMEDY}")
    return root / name


def expected_digests(name: str, root: Path) -> dict[str, str]:
    """File → sha256 of a checkpoint, as the world's card has them."""
    card = read_json(root / CARD, what="the small world's card", remedy=_REMEDY)
    try:
        files = dict(card["stages"][name]["sha256"])
    except (KeyError, TypeError, ValueError):
        files = {}
    if "model.safetensors" not in files:
        raise ValueError(
            f"{root / CARD} has no digest for the weights of {name!r}: the build was cut short, or the card edited. "
            f"{_REMEDY}"
        )
    return files
