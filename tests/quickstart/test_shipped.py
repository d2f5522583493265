"""The checkpoints that ship: whole, as their card says, and specialists of one domain each."""

import json

import pytest

from trustmopd.quickstart import DOMAINS
from trustmopd.quickstart.shipped import MODELS, SHIPPED, checkpoint
from trustmopd.util.files import file_sha256

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("name", MODELS)
def test_the_checkpoints_that_ship_are_those_of_their_card(name):
    expected = json.loads((SHIPPED / "card.json").read_text())["stages"][name]["sha256"]
    assert "model.safetensors" in expected
    assert {file: file_sha256(checkpoint(name) / file) for file in expected} == expected


def test_a_name_that_is_no_checkpoint_is_refused():
    with pytest.raises(ValueError, match="poetry.*reference, math, code, if"):
        checkpoint("poetry")


def test_specialists_gained_at_home_and_lost_nothing_elsewhere():
    card = json.loads((SHIPPED / "card.json").read_text())
    assert card["settings"]["evaluation"]["prompts"] >= 1000
    for own in DOMAINS:
        for domain in DOMAINS:
            gain = card["scores"][own][domain] - card["scores"]["reference"][domain]
            assert gain >= (0.20 if domain == own else -0.05)
    assert sum(path.stat().st_size for path in SHIPPED.rglob("*") if path.is_file()) < 16 * 10**6
