"""trustmopd: distil several RL specialists of one base model into one student, trusting each where it has something
to say."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trustmopd.evaluation import Benchmark as Benchmark
    from trustmopd.evaluation.of_recipe import evaluate as evaluate
    from trustmopd.evaluation.of_recipe import evaluate_recipe as evaluate_recipe
    from trustmopd.policies import Teacher as Teacher
    from trustmopd.recipe import load_recipe as load_recipe
    from trustmopd.report.page.report import report as report
    from trustmopd.report.page.report import viewer as viewer
    from trustmopd.training import TrustMOPDConfig as TrustMOPDConfig
    from trustmopd.training import TrustMOPDTrainer as TrustMOPDTrainer
    from trustmopd.training.calibration import Calibration as Calibration
    from trustmopd.training.stages import calibrate_recipe as calibrate_recipe
    from trustmopd.training.stages import diagnose_recipe as diagnose_recipe
    from trustmopd.training.stages import train_recipe as train_recipe

__version__ = "0.1.0"

_HOME = {
    "Benchmark": "trustmopd.evaluation",
    "Calibration": "trustmopd.training.calibration",
    "Teacher": "trustmopd.policies",
    "TrustMOPDConfig": "trustmopd.training",
    "TrustMOPDTrainer": "trustmopd.training",
    "calibrate_recipe": "trustmopd.training.stages",
    "diagnose_recipe": "trustmopd.training.stages",
    "evaluate": "trustmopd.evaluation.of_recipe",
    "evaluate_recipe": "trustmopd.evaluation.of_recipe",
    "load_recipe": "trustmopd.recipe.recipe",
    "report": "trustmopd.report.page.report",
    "train_recipe": "trustmopd.training.stages",
    "viewer": "trustmopd.report.page.report",
}
__all__ = list(_HOME)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    """Import on first use: `trustmopd --help` and reading a recipe need no torch."""
    if name not in _HOME:
        raise AttributeError(f"module 'trustmopd' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
