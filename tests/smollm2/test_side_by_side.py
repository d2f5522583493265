"""Commands side by side: each is made when it begins, none begins too late, failures are named."""

import time

import pytest

from trustmopd.smollm2.side_by_side import side_by_side


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
