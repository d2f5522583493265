"""Real processes that find each other, and never outlive the test."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path


def launch(
    arguments: Sequence[str],
    *,
    processes: int,
    logs: Path,
    timeout: float = 400,
    kill_when: Callable[[], bool] | None = None,
    settings: Mapping[str, str] | None = None,
) -> None:
    """Run Python with these arguments in processes told of each other as by `torchrun`, with `settings` in their
    environment. When one fails or time is up, all end; once `kill_when` says so they are killed, and that is no
    failure."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    started = []
    for rank in range(processes):
        place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": processes, "LOCAL_WORLD_SIZE": processes}
        place |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": 1}
        place |= {"GLOO_SOCKET_IFNAME": "lo"} if sys.platform == "linux" else {}
        environment = os.environ | dict(settings or {}) | {name: str(value) for name, value in place.items()}
        environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
        with (logs / f"rank-{rank}.log").open("w") as log:
            command = [sys.executable, *arguments]
            started.append(subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT))
    end = time.monotonic() + timeout
    try:
        while any(process.poll() is None for process in started) and time.monotonic() < end:
            if any(process.poll() for process in started):
                break
            if kill_when is not None and kill_when():
                return
            time.sleep(0.02)
        ended = [process.poll() for process in started]
    finally:
        for process in started:
            process.kill()
            process.wait()
    if kill_when is not None or any(code != 0 for code in ended):
        said = "\n".join(
            f"rank {rank}: …{(logs / f'rank-{rank}.log').read_text()[-3000:]}" for rank in range(processes)
        )
        raise RuntimeError(
            f"processes ended with {ended}; None was stopped, after {timeout:.0f} s or when another failed.\n{said}"
        )
