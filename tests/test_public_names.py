"""What `import trustmopd` shows, at the cost of nothing."""

import subprocess
import sys

SCRIPT = """
import sys, trustmopd
assert set(trustmopd.__all__) <= set(dir(trustmopd)), dir(trustmopd)
assert "torch" not in sys.modules, "to list the names loads nothing"
assert [name for name in trustmopd.__all__ if getattr(trustmopd, name).__name__ != name] == []
"""


def test_the_public_names_are_listed_and_each_is_found() -> None:
    result = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr[-2000:]
