"""The whole build, cut down to seconds, through the code that made the shipped checkpoints."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from typer.testing import CliRunner

from studies.small_world import build_world as building
from studies.small_world.__main__ import app
from studies.small_world.build_world import build_specialist, build_world
from studies.small_world.supervised import build_reference
from studies.small_world.tests.sizes import CUT_DOWN
from studies.small_world.worlds import checkpoint
from trustmopd.quickstart import DOMAINS, MIXTURES
from trustmopd.quickstart.shipped import MODELS, SHIPPED


@pytest.fixture
def copied(world: Path, tmp_path: Path) -> Path:
    return shutil.copytree(world, tmp_path / "world")


def made_again(*args, **kwargs):
    pytest.fail("a stage was run that should not have been")


def test_the_build_writes_four_checkpoints_their_card_and_its_prose(world):
    card = json.loads((world / "card.json").read_text())
    assert sorted(path.name for path in world.iterdir()) == sorted([*MODELS, "card.json", "README.md"])
    assert len({(world / name / "tokenizer_config.json").read_text() for name in MODELS}) == 1
    for name in MODELS:
        model = AutoModelForCausalLM.from_pretrained(checkpoint(name, world))
        assert model.config.use_cache and model.dtype == torch.float32
        assert len(AutoTokenizer.from_pretrained(world / name)) == model.config.vocab_size
    assert card["schema_version"] == 1 and card["settings"]["seed"] == 0
    losses = card["stages"]["reference"]["losses"]
    assert losses[-1]["loss"] < losses[0]["loss"]
    for domain in DOMAINS:
        stage = card["stages"][domain]
        assert len(stage["rewards"]) == len(stage["kl"]) == stage["steps"] == 2 and not stage["reached_target"]
    assert set(card["scores"]) == set(MODELS)
    assert all(set(row) == {*DOMAINS, *MIXTURES} for row in card["scores"].values())
    prose = (world / "README.md").read_text()
    assert all(name in prose for name in MODELS)


def test_a_build_goes_on_with_the_stage_it_lost_and_the_same_seed_makes_the_same_weights(copied, tmp_path, monkeypatch):
    before = json.loads((copied / "card.json").read_text())
    build_reference(tmp_path / "again", 0, CUT_DOWN["supervision"])
    assert building.digests(tmp_path / "again") == before["stages"]["reference"]["sha256"]
    (copied / "code" / "model.safetensors").write_bytes(b"half a fi")
    monkeypatch.setattr(building, "build_reference", made_again)
    made = []
    monkeypatch.setattr(
        building,
        "build_specialist",
        lambda domain, *rest, **how: made.append(domain) or build_specialist(domain, *rest, **how),
    )
    after = build_world(copied, 0, **CUT_DOWN)
    assert made == ["code"]
    assert after["stages"]["code"]["sha256"] == before["stages"]["code"]["sha256"]
    assert after["scores"] == before["scores"]


def test_other_settings_do_not_go_into_the_same_folder(copied):
    with pytest.raises(ValueError, match=r"seed = 0\b.*\b1\b"):
        build_world(copied, 1, **CUT_DOWN)
    with pytest.raises(ValueError, match="supervision"):
        build_world(copied, 0, **CUT_DOWN | {"supervision": replace(CUT_DOWN["supervision"], steps=31)})


def test_another_regime_takes_over_a_reference_with_its_record(world, tmp_path, monkeypatch):
    def copy_reference(domain, reference, out, *rest, **how):
        shutil.copytree(reference, out)
        return {"steps": 1, "reached_target": False, "rewards": [0.0], "kl": [0.0]}

    monkeypatch.setattr(building, "build_reference", made_again)
    monkeypatch.setattr(building, "build_specialist", copy_reference)
    monkeypatch.setattr(building, "evaluate", lambda *args: {"scores": {}, "understood": {}})
    first = json.loads((world / "card.json").read_text())
    drifting = CUT_DOWN | {"reinforcement": replace(CUT_DOWN["reinforcement"], target_reward=None)}
    second = build_world(tmp_path / "drifting", 1, **drifting, reference_of=world)
    assert second["stages"]["reference"] == first["stages"]["reference"]
    assert checkpoint("reference", tmp_path / "drifting")
    for domain in DOMAINS:
        assert second["stages"][domain]["made_from"] == first["stages"][domain]["made_from"]
    other = CUT_DOWN | {"supervision": replace(CUT_DOWN["supervision"], steps=31)}
    with pytest.raises(ValueError, match=r"'steps': 30\b.*'steps': 31\b"):
        build_world(tmp_path / "other", 0, **other, reference_of=world)


def test_a_specialist_learns_and_stops_when_its_own_reward_says_so(tmp_path):
    easy = replace(CUT_DOWN["reinforcement"], max_steps=5, target_reward=0.0, reward_window=3)
    measured = [build_specialist("if", SHIPPED / "reference", tmp_path / name, 0, easy) for name in ("one", "two")]
    assert measured[0]["steps"] == 3 and measured[0]["reached_target"]
    one, two, reference = (
        building.digests(folder)["model.safetensors"]
        for folder in (tmp_path / "one", tmp_path / "two", SHIPPED / "reference")
    )
    assert one == two != reference


def test_the_shipped_world_is_what_the_command_builds(tmp_path, monkeypatch):
    """A copy of it counts as finished: settings, digests and scores are those of the code as it is."""
    for stage in ("build_reference", "build_specialist", "evaluate"):
        monkeypatch.setattr(building, stage, made_again)
    copy = shutil.copytree(SHIPPED, tmp_path / "world")
    result = CliRunner().invoke(app, ["build", "--out", str(copy)])
    assert result.exit_code == 0, result.output
    for file in ("card.json", "README.md"):
        assert (copy / file).read_text() == (SHIPPED / file).read_text()


def test_a_folder_that_cannot_be_written_to_or_has_something_else_in_it_is_left_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(building, "build_reference", made_again)
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=str(tmp_path / "file")):
        build_world(tmp_path / "file" / "world", 0, **CUT_DOWN)
    with pytest.raises(ValueError, match=f"{tmp_path}.*--out"):
        build_world(tmp_path, 0)
    assert (tmp_path / "file").exists()
