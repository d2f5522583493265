"""Training on TRL: the configuration, the trainer, and what a run leaves behind."""

from trustmopd.training.trl_version import check_trl

check_trl()

from trustmopd.training.config import TrustMOPDConfig  # noqa: E402
from trustmopd.training.trainer import TrustMOPDTrainer  # noqa: E402

__all__ = ["TrustMOPDConfig", "TrustMOPDTrainer"]
