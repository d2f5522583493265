"""From a configuration: the method's name, as in the paper's tables, and the other settings that count."""

from collections.abc import Iterable, Mapping
from typing import Any

from trustmopd.recipe.rules import DISPLACEMENT, RULES, SCORED, SCORES, TRUST, UNSCORED

#: Settings that are part of a method's name.
_IN_THE_NAME = {"allocation", "single_teacher", "score", "gamma", "granularity", "calibrated"}


def method_name(config: Mapping[str, Any]) -> str:
    """The rule's title and what differs from the paper's settings; for trust itself, only what differs."""
    rule = str(config.get("allocation", "unknown rule"))
    title = RULES[rule].title.format(teacher=config.get("single_teacher")) if rule in RULES else rule
    if rule not in SCORED:
        return title
    parts = [] if rule == TRUST else [title]
    if (score := config.get("score", DISPLACEMENT)) != DISPLACEMENT:
        parts.append(SCORES[score].title if score in SCORES else str(score))
    if not config.get("calibrated", True):
        parts.append("without μ")
    if config.get("granularity", "token") != "token":
        parts.append("response-level")
    if (gamma := float(config.get("gamma", 7.0))) != 7.0:
        parts.append(f"γ = {gamma:.12g}")
    return ", ".join(parts) or title


def settings_that_count(config: Mapping[str, Any], listed: Iterable[str]) -> dict[str, Any]:
    """Of the settings that training `listed`: those that the rule uses and that are not part of the method's name."""
    rule = config.get("allocation")
    aside = set() if rule == "routed" else {"domain_column"}
    # The name of a user's own rule says nothing of its settings.
    aside |= _IN_THE_NAME if rule in RULES else {"allocation"}
    if rule in UNSCORED or not config.get("calibrated", True):
        aside.add("calibration_batches")
    return {name: config[name] for name in listed if name in config and name not in aside}
