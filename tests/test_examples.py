"""The scripts and the notebook of examples/ run, each in a folder of its own, with few steps."""

import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

EXAMPLES = Path(__file__).parents[1] / "examples"
#: What a script leaves behind.
LEFT = {
    "small_world": "runs/examples/small-world/checkpoint-2/model.safetensors",
    "lora_specialists": "runs/examples/lora/merged/model.safetensors",
    "own_score": "runs/examples/own-score/calibration.json",
}


def test_every_example_is_run() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(LEFT)


@pytest.mark.parametrize("name", LEFT)
def test_a_script_runs_away_from_the_checkout(name: str, tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLES / f"{name}.py"), "2"]
    for _ in range(2 if name == "lora_specialists" else 1):  # the second time over all kinds of files that there are
        result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stderr[-2000:]
    assert (tmp_path / LEFT[name]).stat().st_size > 0
    said = result.stdout.splitlines()
    assert {"small_world": "after: ", "lora_specialists": "mu: ", "own_score": "math: "}[name] in "\n".join(said)


def test_the_notebook_runs_and_shows_the_viewer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPS", "2")
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")
    notebook = nbformat.read(EXAMPLES / "small_world.ipynb", as_version=4)
    assert not [cell for cell in notebook.cells if cell.get("outputs")], "outputs stay out of the repository"
    NotebookClient(notebook, timeout=240, resources={"metadata": {"path": str(tmp_path)}}).execute()
    codes = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert set(eval(codes[-2].outputs[-1].data["text/plain"])) == {"before", "after"}
    shown = codes[-1].outputs[-1].data["text/html"]
    assert "<iframe" in shown and "class=&quot;tokens&quot;" in shown
    if keep := os.environ.get("KEEP_NOTEBOOK"):  # to look at it
        nbformat.write(notebook, keep)
