"""Another TRL is refused at import, with the range that pip takes."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from trustmopd.training.trl_version import NEEDED

ROOT = Path(__file__).parents[2]
RANGE = next(
    each for each in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"] if "trl" in each
)


def test_the_range_is_the_one_that_pip_installs() -> None:
    assert NEEDED == RANGE


@pytest.mark.parametrize("version", ["1.15.0", "1.17.0", "2.0.0"])
@pytest.mark.parametrize(
    "command", [["-c", "from trustmopd import TrustMOPDTrainer"], ["-m", "trustmopd", "train", "mine.yaml"]]
)
def test_another_trl_is_refused_before_it_is_imported(version: str, command: list[str], tmp_path: Path) -> None:
    """A package of that version comes first on the path; importing it would raise another error."""
    (tmp_path / f"trl-{version}.dist-info").mkdir()
    (tmp_path / f"trl-{version}.dist-info" / "METADATA").write_text(f"Name: trl\nVersion: {version}\n")
    (tmp_path / "trl.py").write_text("raise RuntimeError('imported')")
    (tmp_path / "mine.yaml").write_text("{name: n, student: s, teachers: {math: m}, prompts: {path: p}}")
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    result = subprocess.run(
        [sys.executable, *command],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path, "TRUSTMOPD_ANY_TRL": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 1
    assert all(fact in result.stderr for fact in (version, RANGE, "pip install"))
    assert ("Traceback" in result.stderr) == (command[0] == "-c"), result.stderr
