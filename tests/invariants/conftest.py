"""One calibration for all runs of this folder."""

import pytest
import replay


@pytest.fixture(scope="session")
def calibration(tmp_path_factory: pytest.TempPathFactory) -> str:
    return replay.calibration_file(tmp_path_factory.mktemp("calibration"))
