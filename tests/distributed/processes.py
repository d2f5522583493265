"""Real processes that find each other, and never outlive the test."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@contextmanager
def started(
    arguments: Sequence[str], *, processes: int, logs: Path, settings: Mapping[str, str] | None = None
) -> Iterator[list[subprocess.Popen]]:
    """Python with these arguments, in processes told of each other as by `torchrun`; all are killed in the end."""
    port, running = free_port(), []
    for rank in range(processes):
        place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": processes, "LOCAL_WORLD_SIZE": processes}
        place |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        environment = of_a_node("lo") | dict(settings or {}) | {name: str(value) for name, value in place.items()}
        with (logs / f"rank-{rank}.log").open("w") as log:
            command = [sys.executable, *arguments]
            running.append(subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT))
    try:
        yield running
    finally:
        for process in running:
            process.kill()
            process.wait()


def of_a_node(interface: str) -> dict[str, str]:
    """The environment of a launcher, or of what it launches."""
    own = {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    return os.environ | own | ({"GLOO_SOCKET_IFNAME": interface} if sys.platform == "linux" else {})


def launch(
    arguments: Sequence[str],
    *,
    processes: int,
    logs: Path,
    timeout: float = 400,
    kill_when: Callable[[], bool] | None = None,
    settings: Mapping[str, str] | None = None,
) -> None:
    """Run it to the end. When one process fails or time is up, all end; once `kill_when` says so they are killed, and
    that is no failure."""
    end = time.monotonic() + timeout
    with started(arguments, processes=processes, logs=logs, settings=settings) as running:
        while any(process.poll() is None for process in running) and time.monotonic() < end:
            if any(process.poll() for process in running):
                break
            if kill_when is not None and kill_when():
                return
            time.sleep(0.02)
        ended = [process.poll() for process in running]
    if kill_when is not None or any(code != 0 for code in ended):
        said = "\n".join(
            f"rank {rank}: …{(logs / f'rank-{rank}.log').read_text()[-3000:]}" for rank in range(processes)
        )
        raise RuntimeError(
            f"processes ended with {ended}; None was stopped, after {timeout:.0f} s or when another failed.\n{said}"
        )


def refused(
    arguments: Sequence[str], *, processes: int, logs: Path, settings: Mapping[str, str] | None = None
) -> list[str]:
    """What each process says when all of them refuse. Each is left to say it: `launch` stops them at the first."""
    with started(arguments, processes=processes, logs=logs, settings=settings) as running:
        for process in running:
            process.wait(300)
    said = [(logs / f"rank-{rank}.log").read_text() for rank in range(processes)]
    assert [process.returncode for process in running] == [1] * processes, said
    assert not any("Traceback" in each for each in said)
    return said


def ends(process: subprocess.Popen, timeout: float) -> float:
    """Seconds until a process ends."""
    began = time.monotonic()
    process.wait(timeout)
    return time.monotonic() - began
