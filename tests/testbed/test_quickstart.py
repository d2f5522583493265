"""`trustmopd quickstart`, cut down to seconds, through the command line."""

import html
import json
import re
import shlex
import sys
import warnings
from pathlib import Path

import pytest
from small_world import SMALL
from typer.testing import CliRunner

from trustmopd.cli import app
from trustmopd.testbed import quickstart as quickstarting
from trustmopd.testbed import reproduce as reproducing
from trustmopd.testbed import results
from trustmopd.testbed.cells import load_cells
from trustmopd.testbed.experiment import STORY
from trustmopd.testbed.reproduce import all_cells, reproduce


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
    saved = json.loads((out / "scores.json").read_text())
    lines = {line.split("│")[1].strip(): line for line in said.splitlines() if line.startswith("│")}
    for name, title in STORY.items():
        shown = [cell.strip() for cell in lines[title].split("│")[2:-1]]
        scores = [f"{100 * saved[name][column]:.1f}" for column in ("math", "code", "if", "overall")]
        assert shown == [*scores, f"{saved[name]['recovery']:.0%}"]
    ahead = 100 * (saved["trust"]["recovery"] - saved["uniform"]["recovery"])
    assert f"{abs(ahead):.0f} points {'more' if ahead >= 0 else 'less'} of the gap than uniform weights" in said
    assert f"{3 * SMALL.evaluation_prompts} prompts" in said
    for name in ("report.html", "scores.json", "figures"):
        assert str(out / name) in said and (out / name).exists()
    for bar in (
        "Evaluating, uniform",
        "Evaluating initial student",
        "Calibrating",
        "Distilling, uniform",
        "Distilling, trust",
        "Evaluating, trust",
    ):
        assert bar in said
    assert "warning" not in said.lower()


def test_what_the_quickstart_advises_can_be_run(watched: tuple[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    said, out = watched
    page = html.unescape((out / "report.html").read_text())
    commands = re.findall("<code>(.*?)</code>", page)
    (printed,) = [line.removeprefix("Next:").strip() for line in said.splitlines() if line.startswith("Next:")]
    assert printed in commands
    asked = []
    monkeypatch.setattr(reproducing, "reproduce", lambda out, seeds, only, **_: asked.append((seeds, only)))
    monkeypatch.setattr(results, "write_results", lambda out: out)
    for command in commands:
        program, *arguments = shlex.split(command.removeprefix(f"{sys.executable} -m "))
        assert program == "trustmopd"
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 0, result.output
    cells = all_cells(*asked[0])
    assert {(cell.prompts, cell.method) for cell in cells} == {("multicap", "uniform"), ("multicap", "trust")}
    assert {cell.seed for cell in cells} == {0, 1, 2}
    assert json.loads((out / "uniform" / "cost.json").read_text())["training"]["steps"] == SMALL.steps


def test_the_quickstart_is_seed_0_of_the_comparison(watched: tuple[str, Path], tmp_path: Path) -> None:
    reproduce(tmp_path, [0], only=["multicap", "trust"], scale=SMALL)
    (cell,) = load_cells(tmp_path)
    lines = map(json.loads, (watched[1] / "trust" / "metrics.jsonl").read_text().splitlines())
    assert [line["loss"] for line in lines if "loss" in line] == cell["loss"]
    saved = json.loads((watched[1] / "scores.json").read_text())["trust"]
    assert {domain: saved[domain] for domain in cell["scores"] if domain in saved} == {
        domain: score for domain, score in cell["scores"].items() if domain in saved
    }


def test_the_quickstart_says_at_once_that_its_folder_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = CliRunner().invoke(app, ["quickstart", "--out", str(tmp_path / "file")])
    assert result.exit_code == 1 and isinstance(result.exception, SystemExit)
    assert f"error: cannot write into {tmp_path / 'file'}" in result.output and "--out" in result.output


def test_the_quickstart_leaves_scores_figures_and_a_report_that_opens_from_disk(watched: tuple[str, Path]) -> None:
    _, out = watched
    saved = json.loads((out / "scores.json").read_text())
    assert saved["schema_version"] == 1
    for name in STORY:
        assert set(saved[name]) == {"math", "code", "if", "overall", "recovery", "benchmarks"}
        assert {asked["prompts"] for asked in saved[name]["benchmarks"].values()} == {SMALL.evaluation_prompts}
    assert saved["initial"]["recovery"] == 0 and saved["routed-teachers"]["recovery"] == 1
    for figure in ("scores", "allocation"):
        assert (out / "figures" / f"{figure}.png").stat().st_size > 5000
    report = (out / "report.html").read_text()
    assert f"({3 * SMALL.evaluation_prompts} prompts)" in report
    assert "http://" not in report.replace("http://www.w3.org", "").replace("http://purl.org", "").replace(
        "http://creativecommons.org", ""
    )
    assert (
        f"{saved['trust']['recovery']:.0%}" in report and "data:image/svg+xml" in report and 'class="tokens"' in report
    )
