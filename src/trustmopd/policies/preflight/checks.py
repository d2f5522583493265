"""Checks before any GPU time is spent: same vocabulary, same chat template, same EOS, complete files.

Prompts are rendered with the student's template, except for policies whose view has a template of their own, and every
model reads the student's token ids. A model that reads these ids differently would give nonsense and no error, so it is
refused here.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from trustmopd.method.candidates import check_candidate_count
from trustmopd.policies.graph import PolicyGraph
from trustmopd.policies.preflight.duplicates import check_distinct
from trustmopd.policies.preflight.model_facts import ModelFacts, facts_of, facts_of_adapter
from trustmopd.policies.teacher import Teacher
from trustmopd.recipe.teacher_source import RAY
from trustmopd.util.files import meant_here

_PROBE = "def f(x): return x ** 2  # Ünïcode 東京 ½, \\boxed{42}\n\n- item\tend"


#: By policy.
Known = dict[str, ModelFacts]


@dataclass(frozen=True)
class Checks:
    """What every model of a run is compared with: the student, and `longest`, the tokens of the longest sequence."""

    student: ModelFacts
    num_candidates: int
    longest: int = 0
    allow_template_mismatch: bool = False
    trust_remote_code: bool = False


def preflight(student: str | Path | PreTrainedModel, graph: PolicyGraph, checks: Checks) -> tuple[int, Known]:
    """Check every policy of a run; return the number of vocabulary rows that the tokenizer uses, and what is known of
    each policy."""
    facts: dict[str, list[ModelFacts]] = {}
    for policy in (*graph.references.values(), *graph.teachers.values()):
        given = policy.checkpoint
        if policy.template and checks.allow_template_mismatch:
            raise ValueError(
                f"allow_template_mismatch = True, but {policy.role} reads its own template, so there is no mismatch to "
                "allow. Set it to False, or leave the template out of its view."
            )
        places = [place for place in (given.model, given.adapter) if isinstance(place, (str, Path))] if given else []
        is_away = any(meant_here(str(place)) and not Path(place).exists() for place in places)
        if given is not None and not (policy.on == RAY and is_away):  # what is on another machine is read there
            under = facts.get(policy.base or "", [checks.student])[0]
            own = replace(given, model=None) if policy.base else given
            known = facts_of_checkpoint(policy.role, own, given.model, under, checks.trust_remote_code)
            facts[policy.name] = [
                replace(each, own_template=policy.template is not None)
                for each in known or [replace(under, role=policy.role)]
            ]
    vocab_size = check_facts(checks, [each for several in facts.values() for each in several])
    _check_grown(graph, {name: several[0] for name, several in facts.items()}, checks.student)
    check_distinct(graph, Teacher(model=student))
    initial = {name: checks.student for name, policy in graph.references.items() if policy.checkpoint is None}
    return vocab_size, {**initial, **{name: several[-1] for name, several in facts.items()}}


def facts_of_checkpoint(
    role: str, checkpoint: Teacher, base: Any, under: ModelFacts, trust_remote_code: bool
) -> list[ModelFacts]:
    """Of a model; of an adapter, on that model or on `base`, whose facts are those `under` it."""
    facts = []
    if checkpoint.model is not None:
        base = checkpoint.model
        under = facts_of(role, base, revision=checkpoint.revision, trust_remote_code=trust_remote_code)
        facts.append(under)
    if checkpoint.adapter is not None:
        facts.append(facts_of_adapter(role, checkpoint, base, under, trust_remote_code))
    return facts


def _check_grown(graph: PolicyGraph, facts: Mapping[str, ModelFacts], student: ModelFacts) -> None:
    """A teacher of another shape than the common reference did not grow from it: its own was forgotten."""
    for name, teacher in graph.teachers.items():
        given = teacher.checkpoint
        if teacher.reference is None or given is None or given.reference is not None or name not in facts:
            continue
        reference = graph.references[teacher.reference]
        began, grown = facts.get(reference.name) if reference.checkpoint else student, facts[name]
        if began is not None and grown.shape != began.shape:
            warnings.warn(
                f"{teacher.role} ({grown.shape}) does not match its reference {began.source} ({began.shape}). Set "
                f"reference (in a recipe: teachers.{name}.reference) to the checkpoint its RL started from, or to "
                "student if you no longer have it.",
                stacklevel=3,
            )


def check_facts(checks: Checks, others: Sequence[ModelFacts]) -> int:
    """Refuse models that cannot be compared; return the number of vocabulary rows that the tokenizer uses."""
    student, allowed = checks.student, checks.allow_template_mismatch
    assert student.tokenizer is not None
    needed = max(student.tokenizer.get_vocab().values()) + 1
    for other in (student, *others):
        if other.vocab_rows < needed:
            raise ValueError(
                f"{other.role} ({other.source}) has {other.vocab_rows} vocabulary rows, the student's tokenizer has "
                f"{needed} tokens, so it has no logits for the rest. Use models with the student's tokenizer."
            )
    for other in others:
        if other.tokenizer is not None and other.tokenizer is not student.tokenizer:
            _check_tokenizer(student, other, allowed)
        if not other.own_template:
            _check_end(student, other, allowed)
    check_candidate_count(checks.num_candidates, needed)  # rows after the tokenizer's last token are padding
    for each in (student, *others):
        check_positions(each, checks.longest)
    return needed


def check_positions(model: ModelFacts, longest: int) -> None:
    if model.positions is not None and longest > model.positions:
        raise ValueError(
            f"{model.role} ({model.source}) has {model.positions} positions, but the longest prompt and "
            f"max_completion_length make {longest} tokens. Beyond its positions a model fails or gives "
            "nonsense. Lower max_completion_length or max_prompt_length."
        )


def _check_tokenizer(student: ModelFacts, other: ModelFacts, allow_template_mismatch: bool) -> None:
    ours, theirs = student.tokenizer, other.tokenizer
    assert ours is not None and theirs is not None
    our_vocab, their_vocab = ours.get_vocab(), theirs.get_vocab()
    if our_vocab != their_vocab:
        token = min(
            (
                token
                for token in our_vocab.keys() | their_vocab.keys()
                if our_vocab.get(token) != their_vocab.get(token)
            ),
            key=lambda token: (our_vocab.get(token, their_vocab.get(token, 0)), token),
        )
        raise ValueError(
            f"{other.role} ({other.source}) has a different vocabulary from the student ({student.source}): token "
            f"{token!r} is id {their_vocab.get(token)} there and {our_vocab.get(token)} here. Distributions over "
            "different tokens cannot be compared. Use models with the student's tokenizer."
        )
    our_ids, their_ids = (tok(_PROBE, add_special_tokens=False)["input_ids"] for tok in (ours, theirs))
    if our_ids != their_ids:
        raise ValueError(
            f"{other.role} ({other.source}) splits text differently from the student ({student.source}): "
            f"{_first_split(ours, our_ids, their_ids)}. It was trained on other token sequences. Use models with the "
            "student's tokenizer."
        )
    our_template, their_template = (getattr(tok, "chat_template", None) for tok in (ours, theirs))
    if our_template != their_template and not other.own_template:
        _mismatch(
            f"{other.role} ({other.source}) has a different chat template from the student ({student.source}): "
            f"{_difference(their_template, our_template)}; it would see prompts in a format that it was not trained on",
            allow_template_mismatch,
        )


def _check_end(student: ModelFacts, other: ModelFacts, allow_template_mismatch: bool) -> None:
    # A model without its own tokenizer uses the student's.
    assert student.tokenizer is not None
    ends = other.eos_ids if other.tokenizer is not None else other.eos_ids | {student.tokenizer.eos_token_id}
    if student.eos_ids != ends:
        _mismatch(
            f"{other.role} ({other.source}) ends a response with token ids {sorted(ends)}, the student "
            f"({student.source}) with {sorted(student.eos_ids)}: a response may never end, or end for only one of them",
            allow_template_mismatch,
        )


def _mismatch(difference: str, allowed: bool) -> None:
    remedy = (
        "Let it read its own template (view: {template: own}), use the same template and EOS everywhere, or set "
        "allow_template_mismatch=True if the difference is harmless (in a recipe: "
        "training.allow_template_mismatch=true)."
    )
    if not allowed:
        raise ValueError(f"{difference}. {remedy}")
    warnings.warn(f"{difference}. Allowed by allow_template_mismatch.", stacklevel=3)


def _first_split(tokenizer: PreTrainedTokenizerBase, ours: list[int], theirs: list[int], around: int = 4) -> str:
    """The text before the first difference, and the tokens of both models there."""
    place = _agreeing(theirs, ours)
    before = tokenizer.decode(ours[max(0, place - 8) : place])
    tokens = [tokenizer.convert_ids_to_tokens(ids[place : place + around]) for ids in (theirs, ours)]
    return f"after {before!r} come {tokens[0]} there and {tokens[1]} here (token {place} of a probe)"


def _agreeing(one: Sequence, other: Sequence) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def _difference(theirs: str | None, ours: str | None, around: int = 30) -> str:
    """Both templates around their first difference."""
    if not isinstance(theirs, str) or not isinstance(ours, str):
        return " against ".join("none" if template is None else "one" for template in (theirs, ours))
    place = _agreeing(theirs, ours)
    start = max(0, place - around)
    parts = [f"{'…' if start else ''}{text[start : place + around]}" for text in (theirs, ours)]
    return f"{parts[0]!r} against {parts[1]!r} at character {place}"
