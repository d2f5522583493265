"""The checkpoints of a world, compared with the digests of its card: a world that was built may have been altered."""

from pathlib import Path

from trustmopd.quickstart.shipped import SHIPPED
from trustmopd.runs.layout import CARD
from trustmopd.util.files import file_sha256, read_json

_REMEDY = "Build it again."


def checkpoint(name: str, world: Path = SHIPPED) -> Path:
    """The folder of `reference`, `math`, `code` or `if`."""
    for file, expected in digests_of(name, world).items():
        path = world / name / file
        found = file_sha256(path) if path.is_file() else None
        if found != expected:
            state = "is missing" if found is None else f"was altered: its sha256 is {found}"
            raise ValueError(f"the checkpoint file {path} {state}; the card expects {expected}. {_REMEDY}")
    return world / name


def digests_of(name: str, world: Path) -> dict[str, str]:
    """File → sha256 of a checkpoint, as the world's card has them."""
    card = read_json(world / CARD, what="the small world's card", remedy=_REMEDY)
    if name not in card["stages"]:
        raise ValueError(f"{world / CARD} has no digests of {name!r}: the build was cut short. {_REMEDY}")
    return dict(card["stages"][name]["sha256"])
