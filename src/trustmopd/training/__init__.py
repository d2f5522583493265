"""Training on TRL: the configuration, the trainer, and what a run leaves behind."""

from trustmopd.training.config import TrustMOPDConfig
from trustmopd.training.trainer import TrustMOPDTrainer

__all__ = ["TrustMOPDConfig", "TrustMOPDTrainer"]
