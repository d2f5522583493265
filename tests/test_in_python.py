"""A run that a script made, without a recipe: evaluated, reported, shown in a notebook, and ready to be published."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import small_runs
import tiny
import yaml
from peft import LoraConfig
from typer.testing import CliRunner

import trustmopd
from trustmopd import TrustMOPDConfig, TrustMOPDTrainer
from trustmopd.checkpoints.merge import merge_adapter
from trustmopd.cli import app

SETTINGS = {**small_runs.TRAINING, "max_steps": 2, "record_allocation_every": 1, "report_to": "none"}
pytestmark = pytest.mark.filterwarnings("ignore:.*names no teacher")


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("python")
    small_runs.checkpoints(folder)
    rows = [{"prompt": f"{n} + 1", "answer": n + 1} for n in range(3)]
    (folder / "q.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.fixture(scope="module")
def trainer(here: Path) -> TrustMOPDTrainer:
    args = TrustMOPDConfig(output_dir=str(here / "run"), **SETTINGS)
    teachers = {"math": str(here / "math"), "code": str(here / "code")}
    made = TrustMOPDTrainer(str(here / "base"), teachers, args=args, train_dataset=tiny.prompts(24))
    made.train()
    return made


def test_advice_names_nothing_that_the_run_cannot_do(trainer: TrustMOPDTrainer, here: Path) -> None:
    run, card = here / "run", (here / "run" / "README.md").read_text()
    said = card + trustmopd.report(run).path.read_text().rpartition("What is not here")[2].partition("<details>")[0]
    assert "RECIPE" not in said and said.count(f"trustmopd evaluate {run} --benchmarks FILE") == 2
    copy = shutil.copytree(run, here / "copy")
    words = ["evaluate", str(copy), "--benchmarks", str(here / "q.jsonl"), "--max-new-tokens", "2"]
    assert CliRunner().invoke(app, words).exit_code == 0 and (copy / "evaluation" / "scores.json").is_file()


def test_the_run_of_a_trainer_gets_scores_and_its_report_shows_them(trainer: TrustMOPDTrainer, here: Path) -> None:
    found = trustmopd.evaluate(trainer, str(here / "q.jsonl"), sampling={"max_new_tokens": 2})
    in_order = ["initial", "teacher-math", "teacher-code", "routed-teachers", "run"]
    assert [*found.scores] == in_order, "that of the trainer"
    page = trustmopd.report(trainer)
    assert page.path == here / "run" / "report.html" and "--benchmarks FILE" not in page.path.read_text()
    assert trustmopd.report(here / "run").path == page.path, "also once modules of the package are imported"
    assert "Not evaluated" not in (here / "run" / "checkpoint-2" / "README.md").read_text()


def test_a_notebook_shows_the_viewer_of_a_run(trainer: TrustMOPDTrainer, here: Path) -> None:
    shown = trustmopd.viewer(here / "run", responses=2)._repr_html_()
    assert "<iframe srcdoc=" in shown and "viewer-data" in shown and "<script>" not in shown
    empty = shutil.copytree(here / "run", here / "empty", ignore=shutil.ignore_patterns("allocation"))
    with pytest.raises(ValueError, match="record_allocation_every"):
        trustmopd.viewer(empty)


@pytest.mark.parametrize("bar", [True, False])
def test_progress_is_one_short_line(here: Path, bar: bool, capfd: pytest.CaptureFixture[str]) -> None:
    small_runs.trainer(here / f"bar-{bar}", max_steps=2, disable_tqdm=not bar).train()
    out, err = capfd.readouterr()
    lines = [line for line in (err if bar else out).replace("\r", "\n").splitlines() if "loss" in line]
    assert lines and max(map(len, lines)) < 150 and "student_mass" not in out + err
    assert re.search(r"math.*code.*if", lines[-1]), "in the order of the pool"


def test_every_checkpoint_and_what_is_merged_has_a_card_whose_snippet_runs(here: Path) -> None:
    lora = LoraConfig(r=4, target_modules=["q_proj"], task_type="CAUSAL_LM")
    args, base = TrustMOPDConfig(output_dir=str(here / "lora"), **{**SETTINGS, "save_steps": 1}), str(here / "base")
    teachers = {"math": str(here / "math")}
    TrustMOPDTrainer(base, teachers, args=args, train_dataset=tiny.prompts(24), peft_config=lora).train()
    merged = merge_adapter(here / "lora" / "checkpoint-1", here / "merged")
    for folder, library in {here / "lora" / "checkpoint-2": "peft", merged: "transformers"}.items():
        card = (folder / "README.md").read_text()
        front = yaml.safe_load(card.split("---\n")[1])
        assert (front["library_name"], front["pipeline_tag"]) == (library, "text-generation")
        assert f"# base_model: the Hub id of {base}" in card and "[More Information Needed]" not in card
        (snippet,) = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
        code = snippet.replace("256", "2")
        ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert ended.returncode == 0 and folder.name in snippet, ended.stderr
    assert "lora/checkpoint-1" in (here / "lora" / "checkpoint-1" / "README.md").read_text()
