"""`trustmopd quickstart`, cut down to seconds, through the command line."""

import html
import json
import re
import shlex
import sys
import warnings
from pathlib import Path

import pytest
from typer.testing import CliRunner

from trustmopd.cli import app
from trustmopd.quickstart import quickstart as quickstarting
from trustmopd.quickstart.experiment import Scale
from trustmopd.quickstart.quickstart import STORY, quickstart
from trustmopd.runs.schemas import read_file

ROOT = Path(__file__).parents[2]
SMALL = Scale(steps=3, batch_size=16, calibration_batches=2, evaluation_prompts=40)


@pytest.fixture(scope="module")
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


def test_the_quickstart_prints_the_table_the_difference_and_where_to_look(watched: tuple[str, Path]) -> None:
    said, out = watched
    saved = json.loads((out / "evaluation" / "scores.json").read_text())
    lines = {line.split("│")[1].strip(): line for line in said.splitlines() if line.startswith("│")}
    for name, title in STORY.items():
        shown = [cell.strip() for cell in lines[title].split("│")[2:-1]]
        scores = [f"{100 * saved[name][column]:.1f}" for column in ("math", "code", "if", "overall")]
        assert shown == [*scores, f"{saved[name]['recovery']:.0%}"]
    ahead = 100 * (saved["trust"]["recovery"] - saved["uniform"]["recovery"])
    assert f"{abs(ahead):.0f} points {'more' if ahead >= 0 else 'less'}" in said
    assert f"{3 * SMALL.evaluation_prompts} prompts" in said
    for name in ("report.html", "evaluation/scores.json", "figures"):
        assert str(out / name) in said and (out / name).exists()
    for bar in ("Evaluating initial student", "Calibrating", *(f"Distilling, {m}" for m in ("uniform", "trust"))):
        assert bar in said
    assert "warning" not in said.lower()


@pytest.mark.filterwarnings("ignore")
def test_what_the_quickstart_advises_can_be_run_and_read(watched: tuple[str, Path]) -> None:
    said, out = watched
    (printed,) = [line.removeprefix("Next:").strip() for line in said.splitlines() if line.startswith("Next:")]
    program, *arguments = shlex.split(printed.removeprefix(f"{sys.executable} -m "))
    page = html.unescape((out / "report.html").read_text())
    result = CliRunner().invoke(app, arguments)
    assert program == "trustmopd" and result.exit_code == 0, result.output
    for seed in (1, 2):
        assert len((out / "trust-seeds" / f"seed-{seed}" / "metrics.jsonl").read_text().splitlines()) > SMALL.steps
    for text in (said, page):
        assert re.findall(r"docs/\S+\.md", text) and "python -m studies.small_world" in text
        assert all((ROOT / guide).is_file() for guide in re.findall(r"docs/\S+\.md", text))


def test_a_second_quickstart_goes_into_the_same_folder(watched: tuple[str, Path]) -> None:
    before = json.loads((watched[1] / "evaluation" / "scores.json").read_text())
    again = quickstart(watched[1], scale=SMALL)
    assert {name: row["overall"] for name, row in again.items()} == {
        name: row["overall"] for name, row in before.items() if name != "schema_version"
    }


def test_the_quickstart_says_at_once_that_its_folder_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = CliRunner().invoke(app, ["quickstart", "--out", str(tmp_path / "file")])
    assert result.exit_code == 1 and isinstance(result.exception, SystemExit)
    assert str(tmp_path / "file") in result.output


def test_the_quickstart_leaves_scores_figures_and_a_report_that_opens_from_disk(watched: tuple[str, Path]) -> None:
    _, out = watched
    saved = read_file(out / "evaluation" / "scores.json", what="", remedy="")
    for name in STORY:
        assert {each["prompts"] for each in saved[name]["benchmarks"].values()} == {SMALL.evaluation_prompts}
    assert saved["initial"]["recovery"] == 0 and saved["routed-teachers"]["recovery"] == 1
    cost = json.loads((out / "uniform" / "cost.json").read_text())
    assert cost["training"]["steps"] == SMALL.steps and cost["evaluation"]["seconds"] > 0
    for figure in ("scores", "allocation"):
        assert (out / "figures" / f"{figure}.png").is_file()
    report = (out / "report.html").read_text()
    assert f"{saved['trust']['recovery']:.0%}" in report
    assert "data:image/svg+xml" in report and 'class="tokens"' in report
    links = report.replace("http://www.w3.org", "").replace("http://purl.org", "")
    assert "http://" not in links.replace("http://creativecommons.org", "")


def test_a_run_of_the_quickstart_is_one_that_every_verb_takes(watched: tuple[str, Path], tmp_path: Path) -> None:
    """Its recipe names rows, benchmarks and checkpoints as any other does."""
    recipe = str(watched[1] / "trust" / "recipe.yaml")
    given = ["evaluate", recipe, "--only", "trust", "--limit", "8", "--out", str(tmp_path)]
    result = CliRunner().invoke(app, given)
    assert result.exit_code == 0, result.output
    row = json.loads((tmp_path / "scores.json").read_text())["trust"]
    assert list(row["benchmarks"]) == ["testbed_math", "testbed_code", "testbed_if"]
    assert quickstarting.PROMPTS in Path(recipe).read_text()
