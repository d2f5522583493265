"""One small comparison, one quickstart and one built world, made once for all tests."""

import shutil
from pathlib import Path

import pytest
from small_world import CUT_DOWN, ONLY, SMALL

from studies.small_world.build_world import build_world
from studies.small_world.reproduce import reproduce


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Trust and uniform on mixed prompts, seeds 0 and 1."""
    out = tmp_path_factory.mktemp("reproduce")
    reproduce(out, [0, 1], only=ONLY, scale=SMALL)
    return out


@pytest.fixture
def study(finished: Path, tmp_path: Path) -> Path:
    """A copy of it, to change."""
    return shutil.copytree(finished, tmp_path / "study")


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("world")
    build_world(out, 0, **CUT_DOWN)
    return out
