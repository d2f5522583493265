"""Whether generated code can be run here."""

import os
import shutil

import pytest

from trustmopd.evaluation.benchmark import Unavailable
from trustmopd.evaluation.sandbox.sandbox import run_python


def _missing() -> str:
    """Why not. In CI a bubblewrap that is installed must work."""
    if shutil.which("bwrap") is None:
        return "bubblewrap is not installed"
    if not os.environ.get("CI"):
        try:
            run_python("")
        except Unavailable as error:
            return str(error)
    return ""


_reason = _missing()
needs_sandbox = pytest.mark.skipif(bool(_reason), reason=_reason)
