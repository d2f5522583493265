"""Commands side by side: each is made when it begins, none begins too late, failures are named."""

import time

import pytest
import torch

from studies.smollm2 import side_by_side as side_by_side_module
from studies.smollm2.side_by_side import share_machine, side_by_side


def test_each_command_is_made_when_it_begins():
    begun = []

    def command(name):
        begun.append((name, time.monotonic()))
        return ["--version"]

    side_by_side(["first", "second"], command, jobs=1)
    (first, one), (second, other) = begun
    assert (first, second) == ("first", "second")
    assert other - one > 0.1  # the first was run in between


def test_none_begins_after_the_deadline():
    side_by_side(["late"], lambda name: pytest.fail("begun"), jobs=1, deadline=time.monotonic() - 1)


def test_what_failed_is_named_and_the_others_are_run():
    begun = []
    commands = {"wrong": ["no-such-command"], "right": ["--version"]}
    with pytest.raises(ChildProcessError, match="wrong"):
        side_by_side(list(commands), lambda name: begun.append(name) or commands[name], jobs=1)
    assert begun == ["wrong", "right"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="processes on a GPU share its memory instead")
def test_processes_on_a_cpu_share_its_cores(monkeypatch):
    monkeypatch.setattr(side_by_side_module, "_THREADS", 6)
    before = torch.get_num_threads()
    try:
        for jobs, threads in ((2, 3), (4, 1), (9, 1)):
            share_machine(jobs)
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
