"""What a user may get wrong with Ray installed, from the command line, and what the guide tells her to do."""

import os
import re
import subprocess
import sys
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

pytestmark = [pytest.mark.distributed]


ADDRESSES = ["127.0.0.1:PORT", "nowhere", "ray://127.0.0.1:PORT", "127.0.0.1:99999", "a..b:6379"]


@pytest.mark.parametrize("address", ADDRESSES)
def test_an_address_without_a_cluster_is_refused_at_once(tmp_path: Path, address: str) -> None:
    """Ray itself tries for eight minutes."""
    began = time.monotonic()
    assert address.partition("PORT")[0] in refused(tmp_path, address.replace("PORT", str(free_port())))
    assert time.monotonic() - began < 60


def refused(folder: Path, address: str) -> str:
    """What is said of an address, in a dry run and before any model is loaded."""
    recipe = driving.write_recipe(folder)
    (folder / "base" / "model.safetensors").write_bytes(b"")  # loading it would be another error
    command = ["train", str(recipe), f"training.ray_address={address}", f"output={folder / 'run'}"]
    for options in ([], ["--dry-run"]):
        said = CliRunner().invoke(app, [*command, *options])
        assert said.exit_code == 1 and "ray_address" in said.output, said.output
        assert not (folder / "run").exists()
    return said.output


@pytest.mark.parametrize("found", ["127.0.0.1:PORT", "local"])
def test_auto_without_a_cluster_is_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: str) -> None:
    """Ray finds no cluster, or one that has ended. By RAY_ADDRESS: others may have a cluster on this machine."""
    monkeypatch.setenv("RAY_ADDRESS", found.replace("PORT", str(free_port())))
    said = refused(tmp_path, "auto")
    assert "auto" in said and (os.environ["RAY_ADDRESS"] in said or found == "local")


def test_a_cluster_with_another_token_is_refused_before_anything_is_loaded(tmp_path: Path, cluster: Any) -> None:
    recipe = driving.write_recipe(tmp_path)
    command = [sys.executable, "-m", "trustmopd", "train", str(recipe), f"training.ray_address={cluster.address}"]
    for token, code in ((os.environ["RAY_AUTH_TOKEN"], 0), ("0" * 64, 1)):
        environment = os.environ | {"RAY_AUTH_TOKEN": token}
        said = subprocess.run([*command, "--dry-run"], env=environment, capture_output=True, text=True, check=False)
        assert said.returncode == code, said.stderr
    assert cluster.address in said.stderr and "token" in said.stderr


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
