"""Dropout of the student. Rollouts are sampled without it, so with it the loss would pull another policy than wrote
them: it is off unless the configuration keeps it."""

import logging
from typing import Any

from torch import nn
from torch.nn.modules.dropout import _DropoutNd

logger = logging.getLogger(__name__)


def settle_dropout(student: nn.Module, *, disable: bool) -> bool:
    """Switch dropout off, or leave it on, and tell which. False if the student has none."""
    rates = _rates(student)
    if not rates:
        return False
    largest = f"The student has dropout (up to {max(rate for _, _, rate in rates):g})"
    if disable:
        for module, name, _ in rates:
            setattr(module, name, 0.0)
        logger.warning("%s, which is off: rollouts have none. To train with it, set disable_dropout = False.", largest)
    else:
        logger.warning(
            "%s, and disable_dropout = False. Rollouts have none, so the loss is that of another policy than the one "
            "that wrote them.",
            largest,
        )
    return True


def _rates(student: nn.Module) -> list[tuple[nn.Module, str, Any]]:
    """Every probability above 0: of torch's modules, and the numbers that attention, for one, passes to a function."""
    return [
        (module, name, value)
        for module in student.modules()
        for name, value in vars(module).items()
        if "drop" in name or (name == "p" and isinstance(module, _DropoutNd))
        if isinstance(value, int | float) and not isinstance(value, bool) and value > 0
    ]
