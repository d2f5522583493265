"""The whole build, cut down to seconds, through the code that made the shipped checkpoints."""

import json
import shutil
from dataclasses import replace

import pytest
import torch
from small_world import CUT_DOWN
from transformers import AutoModelForCausalLM, AutoTokenizer
from typer.testing import CliRunner

from studies.small_world import build_world as building
from studies.small_world.build_world import build_specialist, build_world
from trustmopd.cli import app
from trustmopd.quickstart import DOMAINS, MIXTURES
from trustmopd.quickstart.shipped import MODELS, SHIPPED, checkpoint


@pytest.fixture
def copied(world, tmp_path):
    return shutil.copytree(world, tmp_path / "world")


def made_again(*args, **kwargs):
    pytest.fail("a stage was run that should not have been")


def test_the_build_writes_four_checkpoints_their_card_and_its_prose(world):
    card = json.loads((world / "card.json").read_text())
    assert sorted(path.name for path in world.iterdir()) == sorted([*MODELS, "card.json", "README.md"])
    for name in MODELS:
        assert sorted(path.name for path in (world / name).iterdir()) == [
            "chat_template.jinja",
            "config.json",
            "generation_config.json",
            "model.safetensors",
            "tokenizer.json",
            "tokenizer_config.json",
        ]
    assert card["schema_version"] == 1 and card["settings"]["seed"] == 0
    losses = card["stages"]["reference"]["losses"]
    assert losses[-1]["loss"] < losses[0]["loss"]
    for domain in DOMAINS:
        stage = card["stages"][domain]
        assert len(stage["rewards"]) == len(stage["kl"]) == stage["steps"] == 2
    assert set(card["scores"]) == set(MODELS)
    assert all(set(row) == {*DOMAINS, *MIXTURES} for row in card["scores"].values())
    prose = (world / "README.md").read_text()
    assert all(name in prose for name in MODELS)


def test_checkpoints_reload_as_any_other_and_share_one_tokenizer(world):
    files = {name: (world / name / "tokenizer_config.json").read_text() for name in MODELS}
    assert len(set(files.values())) == 1
    for name in MODELS:
        model = AutoModelForCausalLM.from_pretrained(world / name)
        assert model.config.use_cache and model.dtype == torch.float32
        assert len(AutoTokenizer.from_pretrained(world / name)) == model.config.vocab_size


def test_the_same_seed_makes_the_same_world(world, tmp_path):
    first = json.loads((world / "card.json").read_text())
    again = build_world(tmp_path, 0, **CUT_DOWN)
    for name in MODELS:
        assert again["stages"][name]["sha256"] == first["stages"][name]["sha256"]
    assert again["scores"] == first["scores"]


def test_a_finished_build_is_not_made_again(copied, monkeypatch):
    for stage in ("build_reference", "build_specialist", "evaluate"):
        monkeypatch.setattr(building, stage, made_again)
    before = (copied / "card.json").read_text()
    build_world(copied, 0, **CUT_DOWN)
    assert (copied / "card.json").read_text() == before


def test_a_build_goes_on_with_the_stage_it_lost(copied, monkeypatch):
    before = json.loads((copied / "card.json").read_text())
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


def test_other_settings_do_not_go_into_the_same_folder(copied):
    with pytest.raises(ValueError, match=r"seed = 0\b.*\b1\b"):
        build_world(copied, 1, **CUT_DOWN)
    with pytest.raises(ValueError, match="supervision"):
        build_world(copied, 0, **CUT_DOWN | {"supervision": replace(CUT_DOWN["supervision"], steps=31)})


def test_another_regime_takes_over_a_reference_with_its_record(world, tmp_path, monkeypatch):
    monkeypatch.setattr(building, "build_reference", made_again)
    monkeypatch.setattr(building, "evaluate", lambda *args, **how: {"scores": {}, "understood": {}})
    first = json.loads((world / "card.json").read_text())
    drifting = replace(CUT_DOWN["reinforcement"], learning_rate=1e-3, target_reward=None)
    second = build_world(tmp_path / "drifting", 0, **CUT_DOWN | {"reinforcement": drifting}, reference_of=world)
    assert second["stages"]["reference"] == first["stages"]["reference"]
    assert checkpoint("reference", tmp_path / "drifting")
    for domain in DOMAINS:
        assert second["stages"][domain]["made_from"] == first["stages"][domain]["made_from"]
    with pytest.raises(ValueError, match=r"seed = 0\b.*\b1\b"):
        build_world(tmp_path / "other", 1, **CUT_DOWN, reference_of=world)


def test_a_specialist_stops_when_its_own_reward_says_so(world, tmp_path):
    easy = replace(CUT_DOWN["reinforcement"], max_steps=5, target_reward=0.0, reward_window=3)
    measured = build_specialist("if", world / "reference", tmp_path / "easy", 0, easy, quiet=True)
    assert measured["steps"] == 3 and measured["reached_target"]
    endless = replace(easy, target_reward=None, max_steps=4, learning_rate=1e-3)
    measured = build_specialist("if", world / "reference", tmp_path / "endless", 0, endless, quiet=True)
    assert measured["steps"] == 4 and not measured["reached_target"]


@pytest.mark.parametrize("name", MODELS)
def test_a_whole_checkpoint_is_found(world, name):
    assert checkpoint(name, world) == world / name


def test_an_altered_or_missing_checkpoint_is_named_with_its_digest(copied):
    expected = json.loads((copied / "card.json").read_text())["stages"]["math"]["sha256"]
    model = copied / "math" / "model.safetensors"
    content = bytearray(model.read_bytes())
    content[-1] ^= 1
    model.write_bytes(content)
    with pytest.raises(ValueError, match="math/model.safetensors") as error:
        checkpoint("math", copied)
    assert expected["model.safetensors"] in str(error.value) and "trustmopd testbed build" in str(error.value)
    model.unlink()
    with pytest.raises(ValueError, match="math/model.safetensors") as error:
        checkpoint("math", copied)
    assert expected["model.safetensors"] in str(error.value)
    checkpoint("code", copied)
    (copied / "card.json").unlink()
    with pytest.raises(FileNotFoundError, match="card.json"):
        checkpoint("code", copied)
    with pytest.raises(ValueError, match="poetry.*reference, math, code, if"):
        checkpoint("poetry", copied)


def test_the_shipped_world_is_what_the_command_builds(tmp_path, monkeypatch):
    """A copy of it counts as finished: settings, digests and scores are those of the code as it is."""
    for stage in ("build_reference", "build_specialist", "evaluate"):
        monkeypatch.setattr(building, stage, made_again)
    shutil.copytree(SHIPPED, tmp_path / "world")
    result = CliRunner().invoke(app, ["testbed", "build", "--out", str(tmp_path / "world")])
    assert result.exit_code == 0, result.output
    assert (tmp_path / "world" / "README.md").read_text() == (SHIPPED / "README.md").read_text()


def test_shipped_specialists_gained_at_home_and_lost_nothing_elsewhere():
    card = json.loads((SHIPPED / "card.json").read_text())
    assert card["settings"]["evaluation"]["prompts"] >= 1000
    for own in DOMAINS:
        for domain in DOMAINS:
            gain = card["scores"][own][domain] - card["scores"]["reference"][domain]
            assert gain >= (0.20 if domain == own else -0.05)
    assert sum(path.stat().st_size for path in SHIPPED.rglob("*") if path.is_file()) < 16 * 10**6


def test_a_folder_that_cannot_be_written_to_fails_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(building, "build_reference", made_again)
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=str(tmp_path / "file")):
        build_world(tmp_path / "file" / "world", 0, **CUT_DOWN)


def test_a_folder_with_something_else_in_it_is_left_alone(tmp_path):
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "thesis.py").write_text("")
    with pytest.raises(ValueError, match=f"{tmp_path}.*--out"):
        build_world(tmp_path, 0)
    assert (tmp_path / "code" / "thesis.py").exists()
