"""A real Ray cluster of two nodes on this machine, for 127.0.0.1 alone; everything it starts ends with it."""

import os
import secrets
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "distributed")]

# For this process and every one that it starts, before Ray is imported. Nothing is written to the home folder.
os.environ |= {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # as on macOS, Ray then listens on 127.0.0.1
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": secrets.token_hex(32),
    "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
}
ray = pytest.importorskip("ray", reason="make test-ray installs it")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two nodes with three CPUs each: room for six actors, three of them elsewhere."""
    from ray.cluster_utils import Cluster

    small = {"num_cpus": 3, "object_store_memory": 80 * 2**20, "include_dashboard": False}
    found = Cluster(initialize_head=True, head_node_args=small)
    found.add_node(**{name: value for name, value in small.items() if name != "include_dashboard"})
    try:
        yield found
    finally:
        ray.shutdown()
        found.shutdown()
