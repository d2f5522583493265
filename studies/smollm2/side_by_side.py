"""Several of our own commands at a time, on one machine."""

import subprocess
import sys
import time
from collections.abc import Callable, Sequence

import torch

#: The command of a stage that works only on what is named: the stage, and the names.
Again = Callable[[str, Sequence[str]], list[str]]
#: As many as torch or OMP_NUM_THREADS chose.
_THREADS = torch.get_num_threads()


def side_by_side(
    names: Sequence[str], command: Callable[[str], Sequence[str]], jobs: int, deadline: float | None = None
) -> None:
    """Run `trustmopd` with the command of each name, `jobs` at a time. None is begun after the deadline (of
    time.monotonic), and a command is asked for only when it begins: it may say how much time is left. Those that failed
    are named at the end."""
    waiting, running, failed = list(names), dict[str, subprocess.Popen[bytes]](), []
    try:
        while waiting or running:
            if deadline is not None and time.monotonic() > deadline:
                waiting.clear()
            while waiting and len(running) < jobs:
                name = waiting.pop(0)
                running[name] = subprocess.Popen([sys.executable, "-m", "trustmopd", *command(name)])
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


def share_machine(jobs: int) -> None:
    """For each of `jobs` processes. On a GPU, torch keeps freed memory for itself, and here the others need it: a
    process at its share gives that back before it asks for more. On a CPU, each has its share of torch's threads."""
    if jobs > 1 and torch.cuda.is_available():
        torch.cuda.set_per_process_memory_fraction(0.95 / jobs)
    elif jobs > 1:
        torch.set_num_threads(max(1, _THREADS // jobs))
