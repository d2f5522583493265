"""Real benchmark files, where a checkout has them beside it (`../shared/data`); they are no part of this one."""

from pathlib import Path

import pytest

DATA = Path(__file__).parents[2] / "shared" / "data"


def real(path: str) -> Path:
    if not (DATA / path).exists():
        pytest.skip(f"{path} is not beside this checkout")
    return DATA / path
