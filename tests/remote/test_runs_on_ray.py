"""Whole runs with all policies on Ray: what resident ones give; and what is left when something dies."""

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import driving
import psutil
import pytest
from processes import started

from trustmopd import load_recipe, train_recipe
from trustmopd.runs import whole_checkpoints

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(900)]

STEPS = 20
#: `ray_timeout` of runs that are to meet it, and how much longer their end may take on a busy machine.
LIMIT, GRACE = 20, 40
#: As messages call the policies.
NAMES = (*(f"teacher '{name}'" for name in driving.TEACHERS), "the reference")


def test_a_quickstart_on_two_nodes_has_the_losses_of_resident_teachers_though_an_actor_dies(
    cluster: Any, tmp_path: Path
) -> None:
    recipe = driving.quickstart(tmp_path, STEPS)
    remote = ("training.teacher_placement=ray", f"training.ray_address={cluster.address}", "training.use_cpu=true")
    with driving.driver(recipe, tmp_path / "ray", *remote) as run:
        run.until(5)
        found = driving.actors(os.getpid())
        assert len(found) == 4  # three teachers and the reference
        assert len({each.ppid() for each in found}) == 2  # on two nodes
        found[0].send_signal(signal.SIGKILL)
        run.ended(300)
        assert run.process.returncode == 0, run.said()
        driving.wait_for(lambda: not driving.actors(os.getpid()), 30)  # though the cluster goes on
    train_recipe(load_recipe(recipe, [f"output={tmp_path / 'resident'}", "training.use_cpu=true"]))
    found, expected = driving.metrics(tmp_path / "ray"), driving.metrics(tmp_path / "resident")
    assert len(found) == len(expected) == STEPS
    for name in ("loss", "weight/math", "score/code", "agreement/max_weight"):
        assert [each[name] for each in found] == pytest.approx([each[name] for each in expected], rel=0, abs=1e-6)
    assert max(each["seconds/waiting"] for each in found) > 1  # a restart
    for name in ("math", "code", "if", "reference"):
        assert found[-1][f"ray/bytes/{name}"] > 0 and found[-1][f"ray/seconds/{name}"] > 0
    cost = json.loads((tmp_path / "ray" / "cost.json").read_text())
    assert cost["devices"] == 5 and cost["elsewhere"] == dict.fromkeys(("reference", "math", "code", "if"), 1.0)
    assert cost["training"]["device_hours"] == pytest.approx(5 * cost["training"]["seconds"] / 3600)


def untouched(run: Path) -> dict[str, int]:
    """The newest whole checkpoint: its files, and when they were written."""
    newest = whole_checkpoints(run / "checkpoints")[-1]
    return {str(file): file.stat().st_mtime_ns for file in newest.rglob("*") if file.is_file()}


def test_a_hanging_actor_ends_the_run_and_the_cluster_that_it_started(tmp_path: Path) -> None:
    recipe = driving.write_recipe(tmp_path, ray_timeout=LIMIT)
    with driving.driver(recipe, tmp_path / "run") as run:
        run.until(12)
        started_here = psutil.Process(run.process.pid).children(recursive=True)
        assert any("raylet" in each.name() for each in started_here)
        ports = {
            each.laddr.ip for process in started_here for each in process.net_connections() if each.status == "LISTEN"
        }
        assert ports <= {"127.0.0.1", "::ffff:127.0.0.1"}
        driving.actors(run.process.pid)[0].send_signal(signal.SIGSTOP)
        time.sleep(0.5)
        kept = untouched(tmp_path / "run")
        assert run.ended(LIMIT + GRACE) > LIMIT - 5
        assert run.process.returncode == 1
        assert "ray_timeout" in run.said() and "--resume" in run.said()
        assert any(name in run.said() for name in NAMES)
        assert untouched(tmp_path / "run") == kept
        driving.wait_for(lambda: driving.gone(started_here), 30)


def test_memory_is_flat_over_fifty_steps_and_a_killed_driver_leaves_nothing_behind(tmp_path: Path) -> None:
    recipe = driving.write_recipe(tmp_path)
    with driving.driver(recipe, tmp_path / "run") as run:
        run.until(10)
        actors = driving.actors(run.process.pid)
        assert len(actors) == 4
        before = [each.memory_info().rss / 2**20 for each in actors]
        run.until(60)
        grown = [each.memory_info().rss / 2**20 - old for each, old in zip(actors, before, strict=True)]
        assert max(grown) < 25, (before, grown)  # MiB; a batch that is kept is 0.1, and Python's own memory moves by 10
        started_here = psutil.Process(run.process.pid).children(recursive=True)
        with driving.all_ended(started_here):
            run.process.kill()
            driving.wait_for(lambda: driving.gone(started_here), 60)


def test_two_processes_share_one_pool_which_ends_with_the_first(tmp_path: Path) -> None:
    """Nothing is loaded once a process: the second finds what the first has started."""
    recipe = driving.write_recipe(tmp_path)
    output = tmp_path / "two"
    command = ["-m", "trustmopd", "train", str(recipe), f"output={output}"]
    with started(command, processes=2, logs=tmp_path) as both:
        run = driving.Driver(both[0], output, tmp_path / "rank-0.log")
        run.until(11)  # the first checkpoint is at 10
        assert [len(driving.actors(each.pid)) for each in both] == [4, 0]
        for rank, told in enumerate((True, False)):  # what is started, once
            said = (tmp_path / f"rank-{rank}.log").read_text()
            assert [name in said for name in NAMES] == [told] * len(NAMES)
        cost = json.loads((output / "cost.json").read_text())
        assert (cost["devices"], cost["training"]["steps"] % 10) == (6, 0)
        started_here = psutil.Process(both[0].pid).children(recursive=True)
        with driving.all_ended(started_here):
            both[0].kill()
            driving.wait_for(lambda: driving.gone(started_here), 60)
            driving.wait_for(lambda: both[1].poll() is not None, 60)
        assert both[1].returncode != 0
    assert all(loss > 0 for loss in run.losses)


def test_a_node_that_goes_away_with_no_room_elsewhere_ends_the_run(cluster: Any, tmp_path: Path) -> None:
    """The last test of this file: the cluster has one node afterwards."""
    recipe = driving.write_recipe(tmp_path, ray_timeout=LIMIT, ray_address=cluster.address)
    with driving.driver(recipe, tmp_path / "run") as run:
        run.until(12)
        (node,) = cluster.worker_nodes
        cluster.remove_node(node, allow_graceful=False)
        run.ended(LIMIT + GRACE)
        assert run.process.returncode == 1
        assert "--resume" in run.said() and any(name in run.said() for name in NAMES)
        assert untouched(tmp_path / "run")
