"""One small comparison, one quickstart and one built world, made once for all tests."""

import shutil
import warnings
from pathlib import Path

import pytest
from small_world import CUT_DOWN, ONLY, SMALL
from typer.testing import CliRunner

from studies.small_world.build_world import build_world
from studies.small_world.reproduce import reproduce
from trustmopd.cli import app
from trustmopd.quickstart import quickstart as quickstarting


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
def watched(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """What `trustmopd quickstart` printed, and its folder."""
    out = tmp_path_factory.mktemp("watched") / "quickstart"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quickstarting, "Scale", lambda: SMALL)
        with warnings.catch_warnings(record=True) as loud:
            warnings.simplefilter("default")
            result = CliRunner().invoke(app, ["quickstart", "--out", str(out)])
    assert result.exit_code == 0, result.output
    assert not loud, [str(warning.message) for warning in loud]
    return result.output, out


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("world")
    build_world(out, 0, **CUT_DOWN)
    return out
