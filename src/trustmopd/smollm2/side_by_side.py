"""Several of our own commands at a time, on one GPU."""

import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence

#: The command of a stage that works only on what is named: the stage, and the names.
Again = Callable[[str, Sequence[str]], list[str]]


def side_by_side(commands: Mapping[str, Sequence[str]], jobs: int) -> None:
    """Run `trustmopd` with each command's arguments, `jobs` at a time. All are tried; those that failed are named at
    the end."""
    waiting, running, failed = list(commands), dict[str, subprocess.Popen[bytes]](), []
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                name = waiting.pop(0)
                running[name] = subprocess.Popen([sys.executable, "-m", "trustmopd", *commands[name]])
            for name, process in list(running.items()):
                if process.poll() is not None:
                    failed += [name] if process.returncode else []
                    del running[name]
            time.sleep(0.2)
    finally:
        for process in running.values():
            process.terminate()
    if failed:
        raise ChildProcessError(f"{', '.join(failed)} failed; see above. Checkpoints and responses are kept.")
