"""Two nodes: with a launcher and a disk each, one is killed, and the run goes on."""

import json
import os
import signal
import sys
from pathlib import Path

import engines
import nodes
import pytest
from processes import ends, launch

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
]

STEPS = ("training.max_steps=8",)
CHECKPOINT = Path("run", "checkpoints", "checkpoint-4")


def train(recipe: Path, *options: str) -> list[str]:
    return ["-m", "trustmopd", "train", str(recipe), "output=run", "training.use_cpu=true", *options]


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recipe")
    engines.write_recipes(folder)
    return folder / "tied.yaml"


@pytest.fixture(scope="module")
def whole(recipe: Path) -> list[float]:
    """The losses of two processes on one node that nothing happened to."""
    output = recipe.parent / "whole"
    arguments = ["-m", "trustmopd", "train", str(recipe), f"output={output}", "training.use_cpu=true", *STEPS]
    launch(arguments, processes=2, logs=recipe.parent)
    return engines.losses(output)


@pytest.mark.parametrize("shared_disk", [True, False], ids=["shared disk", "a disk each"])
def test_a_run_on_two_nodes_survives_the_loss_of_one(
    shared_disk: bool, recipe: Path, whole: list[float], tmp_path: Path
) -> None:
    with nodes.two_nodes(tmp_path, shared_disk=shared_disk) as (both, address):
        with nodes.torchrun(both, address, train(recipe, "training.max_steps=200")) as running:
            nodes.wait_for(both[0].folder / "run" / "metrics.jsonl", '"step": 5,')
            os.kill(nodes.worker_of(running[1]), signal.SIGKILL)
            seconds = ends(running[0], 120)
            assert running[0].returncode != 0
        print(f"\nthe other node ended after {seconds:.1f} s; {both[0].prefix or 'loopback'}")
        said = both[0].log.read_text()
        assert "error (rank 0" in said and "another process" in said
        manifest = json.loads((both[0].folder / CHECKPOINT / "manifest.json").read_text())
        assert (manifest["engine"]["processes"], manifest["engine"]["nodes"]) == (2, 2)
        if not shared_disk:
            assert not (both[1].folder / CHECKPOINT / "manifest.json").exists()  # the first process alone writes it
            with nodes.torchrun(both, address, train(recipe, *STEPS, "--resume")) as running:
                assert [ends(process, 120) > 0 and process.returncode != 0 for process in running] == [True, True]
            for node in both:
                said = node.log.read_text()
                assert "rank 1" in said and str(CHECKPOINT) in said and "same path on each" in said
            nodes.copy(CHECKPOINT, both[0], both[1])
        with nodes.torchrun(both, address, train(recipe, *STEPS, "--resume")) as running:
            assert [ends(process, 300) > 0 and process.returncode for process in running] == [0, 0]
    found = engines.losses(both[0].folder / "run")
    print(f"largest difference of a loss: {max(abs(a - b) for a, b in zip(whole, found, strict=True)):.2g}")
    assert found == pytest.approx(whole, abs=1e-6) and len(found) == 8


def test_several_seeds_run_one_after_the_other_on_two_nodes(recipe: Path, tmp_path: Path) -> None:
    with nodes.two_nodes(tmp_path, shared_disk=True) as (both, address):
        arguments = train(recipe, "seeds=[3, 5]", "training.max_steps=2")
        with nodes.torchrun(both, address, arguments) as running:
            assert [ends(process, 300) > 0 and process.returncode for process in running] == [0, 0]
    runs = [both[0].folder / "run" / f"seed-{seed}" for seed in (3, 5)]
    manifests = [json.loads((run / "manifest.json").read_text()) for run in runs]
    assert [(each["config"]["seed"], each["engine"]["nodes"]) for each in manifests] == [(3, 2), (5, 2)]
    assert manifests[1]["config"]["calibration_path"].endswith("seed-3/calibration.json")  # all seeds share it
    losses = [engines.losses(run) for run in runs]
    assert [len(each) for each in losses] == [2, 2] and losses[0] != losses[1]
