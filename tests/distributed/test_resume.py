"""Two processes that are killed go on as if they had not been, from the command line."""

import shutil
from pathlib import Path

import pytest
import small_runs
from processes import launch
from small_runs import steps_of

pytestmark = [pytest.mark.distributed]


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """24 prompts are three steps: step 6 ends the second epoch, step 8 lies in the third."""
    folder = tmp_path_factory.mktemp("resume")
    training = {"max_steps": 12, "per_device_train_batch_size": 2, "save_total_limit": 20}
    return small_runs.recipe(folder, small_runs.checkpoints(folder), training)


def test_two_killed_processes_go_on_with_the_prompts_of_their_epoch(recipe: Path, tmp_path: Path) -> None:
    def train(output: Path, *options: str, processes: int = 2, kill_when: str | None = None) -> None:
        given = [f"output={output}", "training.save_steps=2", *options]
        metrics = output / "metrics.jsonl"
        seen = (lambda: metrics.is_file() and kill_when in metrics.read_text()) if kill_when else None
        launch(["-m", "trustmopd", "train", str(recipe), *given], processes=processes, logs=tmp_path, kill_when=seen)

    whole, killed = tmp_path / "whole", tmp_path / "killed"
    train(whole)
    train(killed, "training.max_steps=60", kill_when='"step": 9,')  # checkpoint-8 is whole once step 9 is logged
    for step, run in ((6, tmp_path / "at-the-end"), (8, tmp_path / "within")):
        shutil.copytree(killed, run)
        for checkpoint in (run / "checkpoints").glob("checkpoint-*"):
            if int(checkpoint.name.partition("-")[2]) > step:
                shutil.rmtree(checkpoint)
        assert (run / "checkpoints" / f"checkpoint-{step}" / "manifest.json").is_file()
        train(run, "--resume")
        expected, found = steps_of(whole), steps_of(run)
        assert [line["step"] for line in found] == list(range(1, 13))
        for name in ("loss", "weight/math", "epoch"):
            assert [line[name] for line in found] == pytest.approx([line[name] for line in expected], abs=1e-6), name
