"""What a user may get wrong with Ray installed, from the command line, and what the guide tells her to do."""

import re
import time
from pathlib import Path
from typing import Any

import driving
import page_commands
import pytest
import torch
from processes import free_port
from ray.scripts import scripts
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


@pytest.mark.skipif(torch.cuda.device_count() > 3, reason="this machine has them")
def test_more_gpus_than_this_machine_has_are_refused_in_a_dry_run(tmp_path: Path) -> None:
    recipe = driving.write_recipe(tmp_path)
    overrides = [
        "training.ray_address=null",
        "teachers.math.on=ray",
        "teachers.math.gpus=2",
        "teachers.math.replicas=2",
    ]
    said = CliRunner().invoke(app, ["train", str(recipe), *overrides, "--dry-run"])
    assert said.exit_code == 1 and "math 4" in said.output


def test_the_guide_s_commands_are_those_of_ray_and_pass_a_dry_run(tmp_path: Path, cluster: Any) -> None:
    recipe = str(driving.write_recipe(tmp_path))
    began = []
    for fence in page_commands.fences("remote.md"):
        for words in page_commands.commands(fence.body) if fence.needs == "Ray" else ():
            if words[0] == "ray":
                scripts.cli.commands[words[1]].make_context(words[1], words[2:])  # raises where an option is not one
            elif arguments := page_commands.arguments(words):
                arguments = [re.sub("(?<=ray_address=).*", cluster.address, word) for word in arguments]
                arguments[arguments.index("recipe.yaml")] = recipe
                said = CliRunner().invoke(app, [*arguments, "--dry-run"])
                assert said.exit_code == 0, said.output
            began.append(words[0])
    assert {"ray", "trustmopd", "torchrun"} <= set(began)
