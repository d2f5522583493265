"""What a configuration says of the experiment: the name of the method, as the paper's tables have it, and the rest."""

from collections.abc import Iterable, Mapping
from typing import Any

from trustmopd.rules import DISPLACEMENT, RULES, SCORES, TRUST, UNSCORED

#: Settings that the name of a method says.
_IN_THE_NAME = {"allocation", "single_teacher", "score", "gamma", "granularity", "calibrated"}


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


def settings_that_count(config: Mapping[str, Any], listed: Iterable[str]) -> dict[str, Any]:
    """Of the settings that training `listed`, those that the rule uses and its name does not say."""
    rule = config.get("allocation")
    aside = set() if rule == "routed" else {"domain_column"}
    aside |= _IN_THE_NAME if rule in RULES else {"allocation"}  # a rule of the user's own is no more than a name
    if rule in UNSCORED or not config.get("calibrated", True):
        aside.add("calibration_batches")
    return {name: config[name] for name in listed if name in config and name not in aside}
