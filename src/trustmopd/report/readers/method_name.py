"""From a configuration: the method's name, as in the paper's tables, and the other settings that count."""

from collections.abc import Iterable, Mapping
from typing import Any

from trustmopd.recipe.rules import DEFAULTS, FLAT, PARTS, RULES, part_of


def method_name(config: Mapping[str, Any]) -> str:
    """The rule's title and what differs from the paper's settings; for trust itself, only what differs."""
    if "allocation" not in config:
        return "unknown rule"
    rule, *others = (part_of(config, part) for part in PARTS)
    own = rule.rule not in RULES  # its parameters are the user's matter
    differing = [other.label() for other in others if other.rule not in DEFAULTS.values() or other.changed()]
    return ", ".join([rule.rule if own else rule.label(), *differing])


def settings_that_count(config: Mapping[str, Any], listed: Iterable[str]) -> dict[str, Any]:
    """Of the settings that training `listed`: those that the rule uses and that are not part of the method's name."""
    rule = part_of(config, "allocation")
    aside = {*PARTS, *FLAT.values(), *(() if rule.rule == "routed" else ("domain_column",))}
    if not getattr(rule, "calibrated", False):
        aside.add("calibration_batches")
    # The name of a user's own rule says nothing of its settings.
    own = {} if rule.rule in RULES else {name: value for name, value in rule.model_dump().items() if name != "rule"}
    return {name: config[name] for name in listed if name in config and name not in aside} | own
