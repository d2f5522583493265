"""The name of a run's method, as the paper's tables have it."""

from collections.abc import Mapping
from typing import Any

from trustmopd.rules import DISPLACEMENT, RULES, SCORES, TRUST


def method_name(config: Mapping[str, Any]) -> str:
    """`trust`, or what differs from it."""
    rule = str(config.get("allocation", "unknown rule"))
    if rule != TRUST:
        return RULES[rule].title.format(teacher=config.get("single_teacher")) if rule in RULES else rule
    parts = []
    if (score := config.get("score", DISPLACEMENT)) != DISPLACEMENT:
        parts.append(SCORES[score].title if score in SCORES else str(score))
    if not config.get("calibrated", True):
        parts.append("without μ")
    if config.get("granularity", "token") != "token":
        parts.append("response-level")
    if (gamma := float(config.get("gamma", 7.0))) != 7.0:
        parts.append(f"γ = {gamma:.12g}")
    return ", ".join(parts) or RULES[TRUST].title
