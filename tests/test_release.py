"""What a release is made of agrees with itself, and the workflows are valid and call what exists."""

import json
import re
import shlex
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import pytest
import yaml

import trustmopd

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


@pytest.mark.parametrize(
    ("schema", "file"),
    [("citation-file-format", ROOT / "CITATION.cff"), *(("github-workflows", each) for each in WORKFLOWS)],
    ids=lambda value: value.name if isinstance(value, Path) else "",
)
def test_a_file_for_other_programs_fits_their_schema(schema: str, file: Path) -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}", str(file)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout


def test_the_citation_names_this_version_and_the_changelog_what_comes_next() -> None:
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == trustmopd.__version__
    assert re.findall(r"^## \[(.*?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[0] == "Unreleased"


def test_the_checks_run_on_every_python_that_the_package_names() -> None:
    checks = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())["jobs"]["checks"]
    named = re.findall(r":: Python :: (3\.\d+)", (ROOT / "pyproject.toml").read_text())
    assert checks["strategy"]["matrix"]["python"] == named == ["3.11", "3.12", "3.13"]


def test_every_step_calls_a_script_or_a_target_that_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    called = [
        shlex.split(step["run"])
        for path in WORKFLOWS
        for job in yaml.safe_load(path.read_text())["jobs"].values()
        for step in job["steps"]
        if "run" in step
    ]
    called += [shlex.split(line) for line in (ROOT / ".ci" / "run").read_text().splitlines() if line.startswith("make")]
    for program, *arguments in called:
        if program == "make":
            assert set(arguments) <= targets
        elif program.startswith(".ci/"):
            assert (ROOT / program).stat().st_mode & 0o100
        else:
            assert program in ("sudo", "cat")
    assert len(called) >= 8


def test_the_package_carries_what_it_needs_to_run_away_from_its_checkout() -> None:
    card = json.loads((files("trustmopd") / "quickstart" / "checkpoints" / "card.json").read_text())
    assert set(card["stages"]) == {"reference", "math", "code", "if"}
    assert (files("trustmopd") / "py.typed").is_file()
