"""The prompts as each policy reads them: rows rendered under the student's view, and under those of other policies."""

import hashlib
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from datasets import Dataset
from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from trustmopd.policies.answers import Swap
from trustmopd.policies.graph import STUDENTS, PolicyGraph, role_of
from trustmopd.policies.preflight.model_facts import ModelFacts
from trustmopd.prompts.prompt_set import check_prompts
from trustmopd.prompts.reading.messages import user_text
from trustmopd.prompts.reading.sources import named
from trustmopd.recipe.teacher_source import View
from trustmopd.util.messages import choose_from

_ANSWER = "An answer."


class Rendered(NamedTuple):
    """What a view makes of a prompt set: the prompts' lengths in tokens, and a hash of their ids."""

    lengths: list[int]
    mark: str


@dataclass(frozen=True, eq=False)
class PromptView:
    """One view, and what renders it; policies that read alike share it. `options` go to the chat template, and the ids
    of `swap` change places in what is asked."""

    role: str
    tokenizer: PreTrainedTokenizerBase
    options: Mapping[str, Any]
    view: View = STUDENTS
    swap: Swap | None = None

    def prompt(self, row: Mapping[str, Any]) -> Any:
        """The conversation, or plain text where the student's prompts are."""
        prompt, system = row[self.view.prompt or "prompt"], self.view.system
        if isinstance(prompt, str) and not isinstance(row["prompt"], str):
            prompt = [{"role": "user", "content": prompt}]
        if system is None or isinstance(prompt, str):
            return prompt
        start = [{"role": "system", "content": system}] if system else []
        return [*start, *(prompt[1:] if prompt[0]["role"] == "system" else prompt)]

    def render(self, row: Mapping[str, Any]) -> list[int]:
        return self._ids([row])[0]

    def _ids(self, rows: Sequence[Mapping[str, Any]], start: int = 0) -> list[list[int]]:
        """As TRL renders them; `start` is the number of the first row."""
        texts = []
        for number, prompt in enumerate(map(self.prompt, rows), start):
            try:
                options = {"tokenize": False, "add_generation_prompt": True, **self.options}
                text = prompt if isinstance(prompt, str) else self.tokenizer.apply_chat_template(prompt, **options)
                texts.append(text)
            except TemplateError as error:
                raise ValueError(
                    f"row {number} of the prompt set cannot be rendered as {self.role} reads it: {error}. The prompt "
                    f"is {str(prompt)[:120]!r}. Change its roles or the view, or drop it."
                ) from error
        return self.tokenizer(text=texts, add_special_tokens=isinstance(prompt, str))["input_ids"]

    def text(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(ids, clean_up_tokenization_spaces=False))

    def of_all(self, prompts: Dataset) -> Rendered:
        """Every prompt, rendered; refused if a row cannot be, or is not the question that the student answers."""
        column, digest, lengths = self.view.prompt, hashlib.sha256(repr(self.swap).encode()), list[int]()
        first, alike = dict[int, tuple[int, Any]](), list[tuple[int, int]]()
        if column is not None:
            names = prompts.column_names
            if column not in names:
                raise ValueError(
                    f"{self.role} has the view.prompt {column!r}, but the prompt set has no such column. "
                    f"{choose_from(names, column)}."
                )
            with named(f"{self.role}, which reads the column {column!r}"):
                shown = prompts.remove_columns([*({"prompt"} & {*names} - {column})])
                check_prompts(shown.rename_columns({column: "prompt"}))
        blocks = (prompts.select(range(n, min(n + 512, len(prompts)))) for n in range(0, len(prompts), 512))
        rendered = chain.from_iterable(self._ids(block, 512 * n) for n, block in enumerate(blocks))
        for number, (row, ids) in enumerate(zip(prompts, rendered, strict=True)):
            if not ids:
                raise ValueError(f"row {number} of the prompt set is nothing as {self.role} reads it. Drop it.")
            if number == 0 and str(self.view):
                self._check_turns(row, ids)
            lengths.append(len(ids))
            digest.update(written := np.asarray(ids, np.int64).tobytes() + b"\n")
            before, same = first.setdefault(hash(written), (number, self.prompt(row)))
            alike += [(before, number)] if same != self.prompt(row) else []
        if alike:
            warnings.warn(
                f"{len(alike)} of {len(lengths)} prompts are rendered as a different one is, for {self.role}: rows "
                f"{alike[0][0]} and {alike[0][1]}, for example. Does the chat template, or the tokenizer, leave "
                "something out?",
                stacklevel=4,
            )
        return Rendered(lengths, digest.hexdigest()[:16])

    def _check_turns(self, row: Mapping[str, Any], ids: list[int]) -> None:
        """The template shows the user's turn, and ends where the response begins."""
        prompt, text, problem = self.prompt(row), self.text(ids), ""
        asked = [] if isinstance(prompt, str) else [user_text([each]) for each in prompt if each["role"] == "user"]
        if isinstance(prompt, str) and {*self.view.model_dump(exclude_defaults=True)} - {"prompt"}:
            problem = "but the prompts are plain text, which no template renders. Give them as conversations"
        elif asked and "".join(asked[-1].split()) not in "".join(text.split()):
            problem = f"which drops the user's turn ({asked[-1]!r:.80}). Use a template that shows it"
        elif ids[-1] == self.tokenizer.eos_token_id:
            problem = "which ends with the end of a response. Use a template that knows add_generation_prompt"
        if problem:
            raise ValueError(f"{self.role} reads {text[-80:]!r} ({self.view}), {problem}, or leave that part out.")


class PromptViews(dict[str, PromptView]):
    """Of the policies that do not read the prompts as the student does."""

    def read(self, row: Mapping[str, Any], limit: int | None, truncation: str) -> dict[str, list[int]]:
        """The prompt of a row as each policy reads it, under the same limit as the student's."""
        rendered = {view: truncate(view.render(row), limit, truncation) for view in {*self.values()}}
        return {name: rendered[view] for name, view in self.items()}


def truncate(prompt_ids: list[int], limit: int | None, truncation: str) -> list[int]:
    if limit is None or len(prompt_ids) <= limit:
        return prompt_ids
    return prompt_ids[:limit] if truncation == "right" else prompt_ids[-limit:]


def views_of(
    graph: PolicyGraph, student: ModelFacts, facts: Mapping[str, ModelFacts], options: Mapping[str, Any]
) -> PromptViews:
    """`facts` are those of the policies that can be read here; `options` are the student's, of its chat template."""
    views, made = PromptViews(), dict[Any, PromptView]()
    for name, policy in graph.policies.items():
        if policy.reading:
            own, given = policy.template, policy.view.chat_template_kwargs
            tokenizer, swap = (student.tokenizer, None) if own is None else _own_template(own, student, facts.get(own))
            shown = options if given is None else {"tools": options.get("tools"), **given}
            view = PromptView(policy.role, tokenizer, shown, policy.view, swap)
            views[name] = made.setdefault((str(policy.view), own), view)
    return views


def _own_template(
    name: str, student: ModelFacts, own: ModelFacts | None
) -> tuple[PreTrainedTokenizerBase | None, Swap | None]:
    """The tokenizer of a policy, and the ids that change places: the student's end of a response and its own."""
    if own is None or own.tokenizer is None or not own.tokenizer.chat_template:
        raise ValueError(
            f"{role_of(name)} has template: own, but no chat template of its own was found here. Save its tokenizer "
            "beside the checkpoint, where this machine can read it, or leave the template out."
        )
    pair = _end_of_turn(student, refuses=False), _end_of_turn(own, refuses=True)
    if missing := {dict([pair, pair[::-1]]).get(end, end) for end in student.eos_ids} - own.eos_ids:
        raise ValueError(
            f"{role_of(name)} ends a response with token ids {sorted(own.eos_ids)}, the student with "
            f"{sorted(student.eos_ids)}: with {pair[0]} for {pair[1]}, {sorted(missing)} would be no end. Give both as "
            "many end tokens (generation_config.json)."
        )
    if pair[0] == pair[1]:
        return own.tokenizer, None
    ends = own.tokenizer.convert_ids_to_tokens(list(pair))
    told = f"{role_of(name)} ends a response with {ends[1]!r}, the student with {ends[0]!r}"
    warnings.warn(f"{told}: the two are swapped in what is asked of it.", stacklevel=5)
    return own.tokenizer, pair


def _end_of_turn(facts: ModelFacts, *, refuses: bool) -> int:
    """The token that the template puts after an answer; that of the tokenizer if it puts none."""
    tokenizer = facts.tokenizer
    assert tokenizer is not None
    turns = [{"role": "user", "content": "A question."}, {"role": "assistant", "content": _ANSWER}]
    try:
        _, shown, after = tokenizer.apply_chat_template(turns, tokenize=False).rpartition(_ANSWER)
    except TemplateError:
        shown = after = ""
    ids = tokenizer(after.lstrip() if shown else "", add_special_tokens=False)["input_ids"]
    if ids and ids[0] in facts.eos_ids:
        return int(ids[0])
    if ids and refuses:
        raise ValueError(
            f"{facts.role}: its chat template adds {after!r:.60} after the response, which the student does not write, "
            "so it would find every end unlikely. Use another template, or leave template: own out."
        )
    return int(tokenizer.eos_token_id)  # without one, no response would ever end
