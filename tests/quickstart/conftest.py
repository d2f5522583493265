"""One quickstart, run once for all tests."""

import warnings
from pathlib import Path

import pytest
from small_world import SMALL
from typer.testing import CliRunner

from trustmopd.cli import app
from trustmopd.quickstart import quickstart as quickstarting


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
