"""What varies between runs, each as one value: the parts of the objective, and the engine of the rollouts.

A recipe has them as mappings; in Python their parameters may also be fields of the configuration. Both are resolved
here, once, so that nothing else has to look at both.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trustmopd.recipe.rollout_engines import ROLLOUTS, VLLM, Rollouts, config_field
from trustmopd.recipe.rules import FLAT, PARTS, Allocation, Emphasis, OwnRule, Target
from trustmopd.recipe.sections import Section, check_fields
from trustmopd.util.messages import choose_from

if TYPE_CHECKING:
    from trustmopd.training.config import TrustMOPDConfig


@dataclass(frozen=True)
class Variants:
    allocation: Allocation
    target: Target
    emphasis: Emphasis
    rollouts: Rollouts


def resolve_variants(args: "TrustMOPDConfig") -> Variants:
    parts = {part: _resolve(args, part, "rule", PARTS[part], FLAT.get) for part in PARTS}
    if args.rollouts is None:
        args.rollouts = VLLM if args.use_vllm else "transformers"
    engine = args.rollouts.get("engine") if isinstance(args.rollouts, Mapping) else args.rollouts
    rollouts = _resolve(args, "rollouts", "engine", ROLLOUTS, lambda parameter: config_field(str(engine), parameter))
    args.use_vllm = engine == VLLM
    return Variants(**parts, rollouts=rollouts)


def _resolve(
    args: "TrustMOPDConfig", field: str, tag: str, kinds: Mapping[str, type], field_of: Callable[[str], str | None]
) -> Any:
    """What a field names, with its parameters. `field_of` gives the field of a parameter that has one of its own, which
    is checked with all fields; here they are only made to agree."""
    given = getattr(args, field)
    kind: type[Section] = OwnRule
    if callable(given):
        given = {tag: rule_name(given)}
    else:
        name = str(given.get(tag) if isinstance(given, Mapping) else given)
        if name not in kinds:
            raise ValueError(f"{field} = {name!r} is unknown. {choose_from(kinds, name)}.")
        kind = kinds[name]
        if isinstance(given, Mapping):
            check_fields(kind, {key: value for key, value in given.items() if not callable(value)}, field)
    parameters = dict(given) if isinstance(given, Mapping) else {}
    for parameter in kind.model_fields:
        if (own := field_of(parameter)) is None or not hasattr(args, own):
            continue
        if parameter in parameters:
            _agree(args, own, parameters[parameter], f"{field}.{parameter}")
        parameters[parameter] = getattr(args, own)
    named: dict[str, Any] = {key: rule_name(value) if callable(value) else value for key, value in parameters.items()}
    return kind.model_construct(**named)


def _agree(args: "TrustMOPDConfig", own: str, value: Any, place: str) -> None:
    beside = getattr(args, own)
    if beside not in (value, type(args).__dataclass_fields__[own].default):
        raise ValueError(f"{own} = {beside!r}, but {place} = {value!r}. Give it in one place.")
    setattr(args, own, value)


def rule_name(rule: str | Callable) -> str:
    return rule if isinstance(rule, str) else f"{rule.__module__}.{getattr(rule, '__qualname__', type(rule).__name__)}"
