"""One small comparison and one built world, made once for all tests."""

import shutil
from pathlib import Path

import pytest

from studies.small_world.build_world import build_world
from studies.small_world.cells import METHODS, all_cells
from studies.small_world.comparison import Comparison
from studies.small_world.pools import one_base
from studies.small_world.tests.sizes import CUT_DOWN, ROLLOUTS, SMALL


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    """Trust and uniform on mixed prompts, seeds 0 and 1."""
    comparison = Comparison(tmp_path_factory.mktemp("comparison"), one_base(), SMALL, ROLLOUTS)
    cells = all_cells(range(2), METHODS, ["multicap", "trust", "uniform"])
    comparison.prepare(cells)
    for cell in cells:
        comparison.run(cell)
    return comparison


@pytest.fixture
def study(finished: Comparison, tmp_path: Path) -> Comparison:
    """A copy of it, to change."""
    return Comparison(shutil.copytree(finished.out, tmp_path / "study"), finished.pool, SMALL, ROLLOUTS)


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("world")
    build_world(out, 0, **CUT_DOWN)
    return out
