"""What a user may get wrong with Ray installed, from the command line."""

import time
from pathlib import Path

import driving
import pytest
from processes import free_port
from typer.testing import CliRunner

from trustmopd.cli import app

pytestmark = [pytest.mark.distributed, pytest.mark.slow]


@pytest.mark.parametrize("address", ["127.0.0.1:PORT", "nowhere", "ray://127.0.0.1:PORT", "127.0.0.1:99999"])
def test_an_address_without_a_cluster_is_refused_at_once(tmp_path: Path, address: str) -> None:
    """Before any model is loaded; Ray itself tries for eight minutes."""
    recipe = driving.write_recipe(tmp_path)
    address = address.replace("PORT", str(free_port()))
    began = time.monotonic()
    said = CliRunner().invoke(
        app, ["train", str(recipe), f"training.ray_address={address}", f"output={tmp_path / 'run'}"]
    )
    assert said.exit_code == 1 and "ray_address" in said.output and address in said.output
    assert time.monotonic() - began < 60
