"""Systems other than Linux: everything can be imported on Windows, and memory is counted in each system's unit."""

import resource
import subprocess
import sys
from types import SimpleNamespace

import psutil
import pytest
import torch

from trustmopd.training.step.note import peak_memory_gib

# What POSIX alone, or Linux alone, has, and what is an extra. Other libraries on this machine may go on using theirs.
IMPORT_WITHOUT = """
import builtins, os, pkgutil, signal, sys
import datasets, peft, torch, transformers, trl

absent = {"fcntl", "grp", "pty", "pwd", "resource", "syslog", "termios", "tty", "triton", "ray"}
imported = builtins.__import__

def without(name, globals=None, *rest, **more):
    if name.partition(".")[0] in absent and (globals or {}).get("__name__", "").startswith("trustmopd"):
        raise ImportError(f"no {name} on this system", name=name)
    return imported(name, globals, *rest, **more)

builtins.__import__ = without
for module, names in {os: ("fork", "geteuid", "getuid", "killpg", "memfd_create", "pidfd_open", "setsid"),
                      signal: ("SIGKILL", "SIGRTMAX", "SIGHUP", "SIGALRM")}.items():
    for name in names:
        delattr(module, name)

import trustmopd
for found in pkgutil.walk_packages(trustmopd.__path__, "trustmopd."):
    if found.name.endswith(("__main__", "sandbox.runner", "mathematics_process")):  # programs of their own
        continue
    try:
        imported(found.name)
    except ImportError as error:
        if error.name != "triton":  # its kernels are not used without it
            raise
print(len([name for name in sys.modules if name.startswith("trustmopd.")]))
"""


def test_every_module_is_imported_without_what_windows_lacks() -> None:
    result = subprocess.run([sys.executable, "-c", IMPORT_WITHOUT], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr[-2000:]
    assert int(result.stdout) > 100


def test_peak_memory_is_at_least_what_the_process_holds_now() -> None:
    held = psutil.Process().memory_info().rss / 2**30
    assert 0.9 * held < peak_memory_gib(torch.device("cpu")) < 20 * held


def test_peak_memory_is_in_the_units_of_each_system(monkeypatch: pytest.MonkeyPatch) -> None:
    three_gib = {"linux": 3 * 2**20, "darwin": 3 * 2**30}  # ru_maxrss is in KiB here and in bytes there
    for system, value in three_gib.items():
        monkeypatch.setattr(sys, "platform", system)
        monkeypatch.setattr(resource, "getrusage", lambda _, value=value: SimpleNamespace(ru_maxrss=value))
        assert peak_memory_gib(torch.device("cpu")) == 3
    windows = SimpleNamespace(memory_info=lambda: SimpleNamespace(peak_wset=3 * 2**30))
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setitem(sys.modules, "resource", None)
    monkeypatch.setattr(psutil, "Process", lambda: windows)
    assert peak_memory_gib(torch.device("cpu")) == 3
