"""The checkpoints that ship: whole, as their card says, and specialists of one domain each."""

import json
import shutil

import pytest

from trustmopd.quickstart import DOMAINS
from trustmopd.quickstart.shipped import MODELS, SHIPPED, checkpoint

pytestmark = pytest.mark.unit


@pytest.fixture
def copied(tmp_path):
    return shutil.copytree(SHIPPED, tmp_path / "world")


@pytest.mark.parametrize("name", MODELS)
def test_a_whole_checkpoint_is_found(name):
    assert checkpoint(name) == SHIPPED / name


def test_an_altered_or_missing_checkpoint_is_named_with_its_digest(copied):
    expected = json.loads((copied / "card.json").read_text())["stages"]["math"]["sha256"]
    model = copied / "math" / "model.safetensors"
    content = bytearray(model.read_bytes())
    content[-1] ^= 1
    model.write_bytes(content)
    with pytest.raises(ValueError, match=f"math/model.safetensors.*{expected['model.safetensors']}"):
        checkpoint("math", copied)
    model.unlink()
    with pytest.raises(ValueError, match=f"math/model.safetensors.*{expected['model.safetensors']}"):
        checkpoint("math", copied)
    checkpoint("code", copied)
    with pytest.raises(ValueError, match="poetry.*reference, math, code, if"):
        checkpoint("poetry", copied)


@pytest.mark.parametrize(
    "card",
    ['{"schema_version": 1}', '{"schema_version": 1, "stages": {"reference": 3}}', "[]", '{"schema_ver', None],
    ids=["no stages", "no digests", "no object", "half", "no card"],
)
def test_a_wrong_card_is_named(copied, card):
    (copied / "card.json").unlink()
    if card is not None:
        (copied / "card.json").write_text(card)
    with pytest.raises((ValueError, FileNotFoundError), match=str(copied / "card.json")):
        checkpoint("reference", copied)


def test_specialists_gained_at_home_and_lost_nothing_elsewhere():
    card = json.loads((SHIPPED / "card.json").read_text())
    assert card["settings"]["evaluation"]["prompts"] >= 1000
    for own in DOMAINS:
        for domain in DOMAINS:
            gain = card["scores"][own][domain] - card["scores"]["reference"][domain]
            assert gain >= (0.20 if domain == own else -0.05)
    assert sum(path.stat().st_size for path in SHIPPED.rglob("*") if path.is_file()) < 16 * 10**6
