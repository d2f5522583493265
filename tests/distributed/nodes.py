"""Two nodes on one machine: a launcher each, in network namespaces of their own where those are to be had."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from processes import free_port, of_a_node


@dataclass(frozen=True)
class Node:
    """`prefix` runs a command on it; `interface` is its network, `folder` its disk."""

    number: int
    prefix: tuple[str, ...]
    interface: str
    folder: Path

    @property
    def log(self) -> Path:
        return self.folder / f"node-{self.number}.log"


@contextmanager
def two_nodes(folder: Path, *, shared_disk: bool) -> Iterator[tuple[list[Node], str]]:
    """The nodes, and the address of the first."""
    disks = [folder / ("disk" if shared_disk else f"disk-{number}") for number in range(2)]
    for disk in disks:
        disk.mkdir(exist_ok=True)
    names = [f"trustmopd-{os.getpid()}-{number}" for number in range(2)]
    try:
        try:
            found = _in_namespaces(names, disks)
        except (OSError, subprocess.CalledProcessError):
            found = [Node(number, (), "lo", disk) for number, disk in enumerate(disks)], "127.0.0.1"
        yield found
    finally:
        for name in names:
            with suppress(OSError):
                subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)


def _in_namespaces(names: list[str], disks: list[Path]) -> tuple[list[Node], str]:
    def ip(*arguments: str) -> None:
        subprocess.run(["ip", *arguments], check=True, capture_output=True)

    ends = [f"tm{os.getpid() % 100000}n{number}" for number in range(2)]  # at most 15 letters
    for name in names:
        ip("netns", "add", name)
    ip("link", "add", ends[0], "type", "veth", "peer", "name", ends[1])
    for number, (name, end) in enumerate(zip(names, ends, strict=True)):
        ip("link", "set", end, "netns", name)
        ip("-n", name, "address", "add", f"10.77.0.{number + 1}/24", "dev", end)
        ip("-n", name, "link", "set", end, "up")
        ip("-n", name, "link", "set", "lo", "up")
    nodes = [
        Node(number, ("ip", "netns", "exec", name), end, disk)
        for number, (name, end, disk) in enumerate(zip(names, ends, disks, strict=True))
    ]
    return nodes, "10.77.0.1"


@contextmanager
def torchrun(nodes: list[Node], address: str, arguments: list[str]) -> Iterator[list[subprocess.Popen]]:
    """One launcher per node, each with one process, in the node's folder."""
    port, running = free_port(), []
    for node in nodes:
        launcher = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1"]
        launcher += ["--node-rank", str(node.number), "--master-addr", address, "--master-port", str(port)]
        with node.log.open("w") as log:
            running.append(
                subprocess.Popen(
                    [*node.prefix, *launcher, *arguments],
                    cwd=node.folder,
                    env=of_a_node(node.interface),
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
            )
    try:
        yield running
    except subprocess.TimeoutExpired as error:
        said = (f"node {node.number}: …{node.log.read_text()[-3000:]}" for node in nodes)
        codes = [process.poll() for process in running]
        raise RuntimeError("\n".join([f"{error}. Exit codes until then: {codes}.", *said])) from None
    finally:
        for process in running:
            process.terminate()  # torchrun ends what it started
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def worker_of(launcher: subprocess.Popen) -> int:
    """The process id of what a launcher started."""
    return int(Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split()[0])


def wait_for(file: Path, text: str, timeout: float = 300) -> None:
    end = time.monotonic() + timeout
    while not (file.is_file() and text in file.read_text()):
        if time.monotonic() > end:
            raise TimeoutError(f"{file} has no {text} after {timeout:.0f} s")
        time.sleep(0.05)


def copy(folder: Path, node: Node, other: Node) -> None:
    shutil.copytree(node.folder / folder, other.folder / folder, dirs_exist_ok=True)
