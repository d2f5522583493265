"""Where trust went, from the files of finished runs. No model is loaded.

`readers/` read a run's files; `statistics/` compute numbers of one run (`summary.py`) and of several (`comparison.py`);
`tables/` and `figures/` show them; `page/` makes the report and the token viewer.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


class _Package(ModuleType):
    """`trustmopd.report` is this package, and a public function."""

    def __call__(self, *runs: Any, **options: Any) -> Any:
        return import_module("trustmopd.report.page.report").report(*runs, **options)


sys.modules[__name__].__class__ = _Package
