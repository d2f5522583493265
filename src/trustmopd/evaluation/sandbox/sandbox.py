"""Runs untrusted Python under bubblewrap: no network, none of the user's files, hard limits on everything.

The program sees the interpreter, its libraries and a small private /tmp. It gets its input as a file and leaves its
output in another, so nothing can block. What it ought to print never enters: compare outside.
"""

import itertools
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Literal, NamedTuple

from trustmopd.evaluation.benchmark import Unavailable
from trustmopd.evaluation.sandbox.seccomp import system_call_filter

Status = Literal["ok", "error", "timeout", "memory", "killed", "output_limit"]

#: Bytes a program may write to any one file, and to stdout and stderr.
OUTPUT_LIMIT = 16 * 2**20
TMP_BYTES = 64 * 2**20
#: Threads count too. Few, because each process may use the whole memory limit.
PROCESSES = 8
#: Set to 1, programs run without bubblewrap: with limits, but with your network and your files.
UNSANDBOXED = "TRUSTMOPD_ALLOW_UNSANDBOXED_CODE"

_RUNNER = Path(__file__).with_name("runner.py")
_OUT_OF_MEMORY = int(getattr(signal, "SIGRTMAX", 0))  # the runner ends the program by it; Linux alone has it
_PROGRAM, _PYTHON, _PACKAGES = "/program.py", "/python", "/packages"
_ENVIRONMENT = {
    "PATH": "/usr/bin:/bin",
    "HOME": "/tmp",
    "LC_ALL": "C.UTF-8",
    "LD_LIBRARY_PATH": f"{_PYTHON}/lib",
    "OMP_NUM_THREADS": "1",
}
# Under root, every program gets its own user id: the kernel counts processes by user, and does not count root's.
_turn = itertools.count(os.getpid() * 64)


class Result(NamedTuple):
    status: Status
    stdout: str
    stderr: str
    seconds: float


def run_python(code: str, stdin: str = "", *, timeout: float = 6.0, memory_mb: int = 1024) -> Result:
    """Run `code` as a separate program. `timeout` is wall time, start included (about 50 ms); `memory_mb` is the
    address space of each process. Safe to call from many threads."""
    prefix, uid = ([], -1) if _unsandboxed() else _locked_away()
    with ExitStack() as stack:
        texts = (code, stdin, "", "", "", "")
        program, given, out, err, report, begun = (stack.enter_context(_file(_bytes(text))) for text in texts)
        inherited = [program, report]
        if prefix:
            where, folder, python = _PROGRAM, None, _inside()
            calls = stack.enter_context(_file(system_call_filter()))
            inherited += [calls, begun]
            bind = ["--perms", "0444", "--ro-bind-data", str(program.fileno()), _PROGRAM, "--remount-ro", "/"]
            bind += ["--seccomp", str(calls.fileno()), "--json-status-fd", str(begun.fileno())]
        else:
            where, bind, python = f"/proc/self/fd/{program.fileno()}", [], sys.executable
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="trustmopd-"))
        limits = (memory_mb * 2**20, int(timeout) + 2, PROCESSES if prefix else 0, OUTPUT_LIMIT)
        numbers = map(str, (*limits, uid, report.fileno(), _OUT_OF_MEMORY))
        runner = [python, "-I", "-S", "-c", _runner(), where, _PACKAGES, *numbers]
        began = time.monotonic()
        process = subprocess.Popen(
            [*prefix, *bind, *runner],
            stdin=given,
            stdout=out,
            stderr=err,
            pass_fds=[file.fileno() for file in inherited],
            cwd=folder or "/",
            env=None if prefix else {"LC_ALL": "C.UTF-8"},
            start_new_session=True,
        )
        timed_out = not _wait(process, timeout)
        seconds = time.monotonic() - began
        sizes = [os.fstat(file.fileno()).st_size for file in (out, err)]
        stdout, stderr, said, started = (_text(file) for file in (out, err, report, begun))
    # bubblewrap reports an exit only if the program was started.
    if prefix and not timed_out and "exit-code" not in started:
        raise OSError(f"bubblewrap could not start the program ({stderr.strip():.300})")
    status: Status
    ended = int(said) if re.fullmatch(r"-?\d{1,3}", said) else None
    if max(sizes) >= OUTPUT_LIMIT:
        status = "output_limit"
    elif timed_out:
        status = "timeout"
    elif ended == -_OUT_OF_MEMORY:
        status = "memory"
    elif ended is None or ended < 0:  # by a signal
        status = "killed"
    else:
        status = "error" if ended else "ok"
    return Result(status, stdout, stderr, seconds)


def check_sandbox() -> None:
    """Raise Unavailable, with what to do, before any untrusted code is run."""
    if sys.platform != "linux":
        raise Unavailable(
            f"generated code runs only on Linux, and this is {sys.platform}: its limits need Linux, with or without "
            "the sandbox. Evaluate on Linux (a container or WSL will do), or leave out the code benchmarks."
        )
    if not _unsandboxed():
        _locked_away()


def _unsandboxed() -> bool:
    """Only 1 counts: users who write 0, false or no want the sandbox."""
    return os.environ.get(UNSANDBOXED) == "1"


def _wait(process: subprocess.Popen, timeout: float) -> bool:
    """Whether it ended in time. In any case it and everything it started have ended afterwards."""
    pidfd = os.pidfd_open(process.pid)
    try:
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        in_time = bool(poll.poll(1000 * timeout))
    finally:
        os.close(pidfd)
        # Without a sandbox, a program that has ended may have left others in its session.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return in_time


def _locked_away() -> tuple[list[str], int]:
    """The command line that locks a program away, and the user id that it should take, −1 for none."""
    return _probed(), 20_000 + next(_turn) % 40_000 if os.geteuid() == 0 else -1


@cache
def _probed() -> list[str]:
    remedy = (
        f"Install it (Debian, Ubuntu: apt install bubblewrap), or, if you trust the model's code with your files and "
        f"network, set {UNSANDBOXED}=1 in the environment (`trustmopd evaluate` has --allow-unsandboxed-code)."
    )
    if shutil.which("bwrap") is None:
        raise Unavailable(f"generated code is run only under bubblewrap, and there is no `bwrap` here. {remedy}")
    command = _bubblewrap()
    with _file(system_call_filter()) as calls:
        probe = subprocess.run(
            [*command, "--seccomp", str(calls.fileno()), _inside(), "-I", "-S", "-c", "print('in')"],
            pass_fds=[calls.fileno()],
            capture_output=True,
            text=True,
            timeout=60,
        )
    if probe.stdout != "in\n":
        raise Unavailable(
            f"bubblewrap does not work here ({probe.stderr.strip() or 'no output'}): it needs unprivileged user "
            "namespaces, or root outside a restricted container. Allow these, or, if you trust the model's code with "
            f"your files and network, set {UNSANDBOXED}=1 in the environment (`trustmopd evaluate` has "
            "--allow-unsandboxed-code)."
        )
    return command


def _bubblewrap() -> list[str]:
    # As process 1: bubblewrap's own first process would be left as a zombie in the
    # many containers that have no init.
    command = ["bwrap", "--die-with-parent", "--new-session", "--as-pid-1", "--clearenv"]
    command += ["--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"]
    if os.geteuid() != 0:  # root sets up the mounts as root, so that the program owns none, and the runner drops it
        command += ["--unshare-user", "--uid", "65534", "--gid", "65534", "--cap-drop", "ALL"]
        if "--disable-userns" in subprocess.run(["bwrap", "--help"], capture_output=True, text=True).stdout:  # 0.8
            command += ["--disable-userns"]
    command += ["--dir", "/usr"]  # made by hand, because bubblewrap makes parents that only root may enter
    for folder in map(Path, ("/usr/lib", "/usr/lib64", "/lib", "/lib64")):
        if folder.is_symlink():
            command += ["--symlink", os.readlink(folder), str(folder)]
        elif folder.is_dir():
            command += ["--ro-bind", str(folder), str(folder)]
    # Not at its own path, which may be in a home folder. Python finds its library relative to itself.
    command += ["--dir", _PYTHON, "--dir", _PACKAGES]
    for folder in (Path(sys.base_prefix, "bin"), Path(sys.base_prefix, "lib")):
        command += ["--ro-bind", str(folder), f"{_PYTHON}/{folder.name}"]
    for package in _packages():
        command += ["--ro-bind", str(package), f"{_PACKAGES}/{package.name}"]
    command += ["--proc", "/proc", "--dev", "/dev", "--remount-ro", "/dev"]
    command += ["--perms", "1777", "--size", str(TMP_BYTES), "--tmpfs", "/tmp", "--chdir", "/tmp"]
    for name, value in _ENVIRONMENT.items():
        command += ["--setenv", name, value]
    return command


def _packages() -> list[Path]:
    """NumPy, which contest solutions expect, and nothing else of the environment."""
    spec = find_spec("numpy")
    if spec is None or spec.origin is None:
        return []
    numpy = Path(spec.origin).parent
    return [folder for folder in (numpy, numpy.with_name("numpy.libs")) if folder.is_dir()]


def _inside() -> str:
    """Where the interpreter is inside: the one under the virtual environment, which needs no more than its prefix."""
    return f"{_PYTHON}/bin/python{sys.version_info.major}.{sys.version_info.minor}"


@cache
def _runner() -> str:
    return _RUNNER.read_text(encoding="utf-8")


@contextmanager
def _file(content: bytes) -> Iterator[IO[bytes]]:
    """An anonymous file in memory."""
    with os.fdopen(os.memfd_create("trustmopd"), "w+b", buffering=0) as file:
        data = memoryview(content)
        while data:
            data = data[file.write(data) or 0 :]
        file.seek(0)
        yield file


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _text(file: IO[bytes]) -> str:
    return os.pread(file.fileno(), OUTPUT_LIMIT, 0).decode("utf-8", "replace")
