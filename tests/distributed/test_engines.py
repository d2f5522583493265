"""Every engine, from a recipe: it starts, takes the steps that one process takes, leaves a checkpoint that transformers
loads, and goes on from it. docs/scale.md has the table that this file fills."""

import json
import shutil
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import engines
import pytest
import replay
import torch
from engines import ENGINES, MIDDLE, STEPS
from peft import AutoPeftModelForCausalLM
from processes import launch, refused
from transformers import AutoModelForCausalLM

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(1800)]


@dataclass(frozen=True)
class Ran:
    name: str
    folder: Path
    recipe: Path
    baselines: dict[str, Path]

    @property
    def engine(self) -> engines.Engine:
        return ENGINES[self.name]

    @property
    def baseline(self) -> Path:
        return self.baselines[self.engine.recipe]

    @property
    def checkpoint(self) -> Path:
        return self.folder / "whole" / "checkpoints" / f"checkpoint-{STEPS}"


@pytest.fixture(scope="module")
def recipes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recipes")
    engines.write_recipes(folder)
    return folder


@pytest.fixture(scope="module")
def baselines(recipes: Path) -> dict[str, Path]:
    """What one process leaves, by recipe."""
    done = {}
    for name in (*{engine.recipe for engine in ENGINES.values()}, "own"):
        done[name] = recipes / f"one-{name}"
        done[name].mkdir()
        engines.start_and_resume(recipes / f"{name}.yaml", done[name])
    return done


@pytest.fixture(scope="module", params=ENGINES)
def ran(
    request: pytest.FixtureRequest, recipes: Path, baselines: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Ran:
    """Two processes of one engine, launched once."""
    engine = ENGINES[request.param]
    if engine.name.startswith("ZeRO") and find_spec("deepspeed") is None:
        pytest.skip("DeepSpeed is not installed: make test-distributed installs it")
    folder, recipe = tmp_path_factory.mktemp(request.param), recipes / f"{engine.recipe}.yaml"
    arguments = [engines.__file__, "start_and_resume", str(recipe), str(folder), json.dumps(engine.combined)]
    arguments += engine.overrides
    launch(arguments, processes=2, logs=folder, settings=engine.settings)
    return Ran(request.param, folder, recipe, baselines)


def test_the_manifest_and_the_terminal_name_the_engine_that_runs(ran: Ran) -> None:
    for manifest in (ran.folder / "whole", ran.checkpoint):
        found = json.loads((manifest / "manifest.json").read_text())["engine"]
        assert (found["name"], found["processes"], found["nodes"]) == (ran.engine.name, 2, 1)
    assert f"{ran.engine.name}, 2 processes" in (ran.folder / "rank-0.log").read_text()


def test_the_first_gradient_is_that_of_one_process(ran: Ran) -> None:
    one, two = (torch.load(folder / "whole" / "gradients.pt") for folder in (ran.baseline, ran.folder))
    assert len(one) == len(two) == STEPS
    assert replay.difference(one[0], two[0]) < 2e-5


def test_token_budgets_own_references_and_placements_take_the_same_steps(ran: Ran) -> None:
    for name in ran.engine.combined:
        recipe, _ = engines.COMBINED[name]
        folders = ran.baselines[recipe] / "whole", ran.folder / name
        one, two = (torch.load(folder / "gradients.pt") for folder in folders)
        assert len(two) == 2 and replay.difference(one[0], two[0]) < 2e-5, name
        expected, found = (engines.losses(folder)[:2] for folder in folders)
        assert found == pytest.approx(expected, rel=1e-4), name
        models = json.loads((ran.folder / name / "manifest.json").read_text())["models"]
        assert [*models["own_references"]] == ([replay.TEACHERS[0]] if recipe == "own" else [])


def test_a_dry_run_of_the_resume_knows_the_engine(ran: Ran) -> None:
    said = " ".join((ran.folder / "rank-0.log").read_text().replace("│", " ").split())
    assert "all checks passed" in said and f"at the peak of a step with {ran.engine.name}" in said
    if offloaded := [name for name in ran.engine.combined if name.startswith("offloaded")]:
        assert len(offloaded) == 1 and "'offload' pins" in said and "5 models of" in said


def test_the_losses_and_norms_are_those_of_one_process(ran: Ran) -> None:
    one, two = (engines.metrics(folder / "whole") for folder in (ran.baseline, ran.folder))
    for name in ("loss", "grad_norm", *(f"weight/{teacher}" for teacher in replay.TEACHERS)):
        expected, found = ([line[name] for line in lines] for lines in (one, two))
        assert len(found) == STEPS and found == pytest.approx(expected, rel=1e-4), name


def test_the_checkpoint_loads_in_transformers_with_the_weights_of_one_process(ran: Ran) -> None:
    kind = AutoPeftModelForCausalLM if ran.engine.recipe == "lora" else AutoModelForCausalLM
    theirs = kind.from_pretrained(ran.baseline / "whole" / "checkpoints" / f"checkpoint-{STEPS}").state_dict()
    ours = kind.from_pretrained(ran.checkpoint).state_dict()
    assert ours.keys() == theirs.keys()
    for name, weight in ours.items():
        torch.testing.assert_close(weight, theirs[name], rtol=1e-3, atol=1e-4, msg=name)


def test_a_resumed_run_ends_where_the_whole_one_does(ran: Ran) -> None:
    whole, resumed = (engines.losses(ran.folder / name) for name in ("whole", "resumed"))
    assert resumed == pytest.approx(whole, abs=1e-6) and len(whole) == STEPS
    history = json.loads((ran.folder / "resumed" / "manifest.json").read_text())["resumed"]
    assert [resume["step"] for resume in history] == [MIDDLE]


def test_it_samples_its_own_rollouts(ran: Ran) -> None:
    (loss,) = engines.losses(ran.folder / "sampled")
    assert 0 < loss < 10


def test_deepspeed_with_vllm_is_refused(ran: Ran) -> None:
    said = " ".join((ran.folder / "rank-0.log").read_text().split())
    assert ("rollouts.engine = vllm is not supported" in said) == ran.engine.name.startswith("ZeRO")


def test_four_processes_go_on_or_say_why_not(ran: Ran, tmp_path: Path) -> None:
    run = engines.keep_until(ran.folder / "whole", MIDDLE, tmp_path / "four")
    arguments = [engines.__file__, "train", str(ran.recipe), str(run), "--resume", *ran.engine.overrides]
    if ran.engine.changes_processes:
        launch(arguments, processes=4, logs=tmp_path, settings=ran.engine.settings)
        assert engines.losses(run) == pytest.approx(engines.losses(ran.folder / "whole"), rel=1e-4)
        return
    untouched = shutil.copytree(run, tmp_path / "untouched")
    for said in refused(arguments, processes=4, logs=tmp_path, settings=ran.engine.settings):
        assert "error" in said and "was written by 2 processes" in said
    assert engines.losses(run) == engines.losses(untouched)


def test_an_engine_that_accelerate_would_replace_is_refused(recipes: Path, tmp_path: Path) -> None:
    arguments = ["-m", "trustmopd", "train", str(recipes / "tied.yaml"), f"output={tmp_path / 'run'}"]
    arguments += ["training.use_cpu=true"]
    for said in refused(arguments, processes=2, logs=tmp_path, settings=ENGINES["fsdp2"].settings):
        assert "FSDP2 was asked for" in said and "DDP, 2 processes" in said


def test_sharded_teachers_need_several_processes(recipes: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert engines.train(recipes / "tied.yaml", tmp_path / "run", "training.teacher_placement=sharded") == 1
    assert "several processes" in capsys.readouterr().err
