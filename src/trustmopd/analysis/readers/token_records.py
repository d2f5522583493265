"""Token records, read back as arrays: one `Rollout` for each recorded response."""

import json
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import shorten
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from trustmopd.runs import RunDirectory, columns
from trustmopd.runs.columns import METADATA, REFERENCE, STUDENT

UNLABELLED = "unlabelled"


@dataclass(frozen=True)
class Candidates:
    """The student's likeliest candidates at each token, T × c. `logp` and `rest` (the probability of all other
    candidates) are by policy: student, reference where it was asked, and each teacher."""

    ids: np.ndarray
    logp: dict[str, np.ndarray]
    rest: dict[str, np.ndarray]


@dataclass(frozen=True)
class Rollout:
    """One recorded response of T tokens; `weights` and `scores` (raw; None if the rule has none) are K × T."""

    step: int
    row: int
    prompt_id: str
    needs: tuple[str, ...]
    positions: np.ndarray
    token_ids: np.ndarray
    texts: list[str]
    entropy: np.ndarray
    mass: np.ndarray
    weights: np.ndarray
    scores: np.ndarray | None
    candidates: Candidates | None = None

    @property
    def finite(self) -> bool:
        return bool(np.isfinite(self.weights).all() and (self.scores is None or np.isfinite(self.scores).all()))

    @property
    def group(self) -> str:
        return group_name(self.needs)


def group_name(needs: Sequence[str]) -> str:
    """What a prompt needs, as `math` or `math+if`. Two sets never share a name: what could be read as several labels,
    or as none, is quoted."""
    plain = re.compile(r"(?!['\"])[^+]+")
    quoted = (name if plain.fullmatch(name) and name != UNLABELLED else repr(name) for name in needs)
    return "+".join(quoted) or UNLABELLED


@dataclass
class TokenRecords:
    """All recorded responses of a run. `texts` gives candidates' texts, `prompts` the prompts; runs recorded before
    these were kept have none."""

    teachers: list[str]
    rollouts: list[Rollout] = field(default_factory=list)
    texts: dict[int, str] = field(default_factory=dict)
    prompts: dict[str, str] = field(default_factory=dict)
    files: int = 0
    damaged: list[str] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        return sum(len(rollout.texts) for rollout in self.rollouts)

    @property
    def labelled(self) -> bool:
        return any(rollout.needs for rollout in self.rollouts)

    @property
    def scored(self) -> bool:
        return any(rollout.scores is not None for rollout in self.rollouts)

    def by_group(self) -> dict[str, list[Rollout]]:
        """Rollouts by what their prompts need: single domains in the order of the teachers, then mixtures."""
        groups: dict[str, list[Rollout]] = {}
        for rollout in self.rollouts:
            groups.setdefault(rollout.group, []).append(rollout)
        order = {name: place for place, name in enumerate(self.teachers)}

        def key(group: str) -> tuple[Any, ...]:
            needs = groups[group][0].needs
            return (not needs, len(needs), [order.get(name, len(order)) for name in needs], group)

        return {group: groups[group] for group in sorted(groups, key=key)}


def read_records(run: Path, teachers: Sequence[str] = (), *, candidates: bool = False) -> TokenRecords:
    """Every readable file; a damaged one is named in `damaged` and skipped. Candidates are most of the bytes, and
    only the token viewer shows them."""
    files = list(RunDirectory(run).recorded().values())
    found = TokenRecords(list(teachers), files=len(files))
    for file in files:
        try:
            table = pq.read_table(file, page_checksum_verification=True)
            spoken = _metadata(table)
            asked = _teachers(table, teachers)
            rollouts = list(_rollouts(table, asked, candidates))
        except (OSError, pa.ArrowException, KeyError, ValueError, zlib.error) as error:
            said = str(error).strip().splitlines() or [type(error).__name__]
            reason = said[0].rsplit(f"'{file}': ")[-1].rstrip(".")  # the path is named once
            found.damaged.append(
                f"{file} is damaged and was skipped ({shorten(reason, 120)}). Restore it from a copy, or delete it."
            )
            continue
        found.teachers = found.teachers if teachers else asked
        numbers = [rollout for rollout in rollouts if rollout.finite]
        if len(numbers) < len(rollouts):
            found.damaged.append(
                f"{file}: weights or scores of {len(rollouts) - len(numbers)} of {len(rollouts)} responses are not "
                "numbers, and these were skipped. Its training is not to be trusted from that step on."
            )
        found.rollouts += numbers
        found.texts |= {int(token): text for token, text in spoken.get("texts", {}).items()}
        found.prompts |= {name: _spoken(prompt) for name, prompt in spoken.get("prompts", {}).items()}
    return found


def _metadata(table: pa.Table) -> dict[str, Any]:
    """Texts and prompts, once the columns are what was written. Files of earlier releases have none of it."""
    metadata = table.schema.metadata or {}
    if metadata and METADATA not in metadata:
        raise ValueError("its metadata are not what training writes")
    spoken = json.loads(zlib.decompress(metadata[METADATA])) if metadata else {}
    found = {column.name: str(column.type) for column in table.schema}
    if changed := set(found.items()) ^ set(spoken.get("columns", found).items()):
        raise ValueError(f"its column {min(changed)[0]!r} is not as it was written")
    return spoken


def _teachers(table: pa.Table, expected: Sequence[str]) -> list[str]:
    present = [n.removeprefix(columns.weight("")) for n in table.column_names if n.startswith(columns.weight(""))]
    if not present:
        raise ValueError("it has no weight_<teacher> column")
    return list(expected) or present


def _rollouts(table: pa.Table, teachers: list[str], candidates: bool) -> Iterator[Rollout]:
    # A rule may leave teachers out; their weight is 0, and they were not asked.
    count = table.num_rows
    zeros = np.zeros(count, np.float32)
    weights = np.stack([_column(table, columns.weight(t), zeros) for t in teachers])
    scored = [t for t in teachers if columns.score(t) in table.column_names]
    scores = np.stack([_column(table, columns.score(t), zeros) for t in teachers]) if scored else None
    plain = {name: _column(table, name) for name in ("position", "token_id", "student_entropy", "student_mass")}
    rows, steps = _column(table, "rollout"), _column(table, "step")
    texts, prompt_ids = table["token_text"].to_pylist(), table["prompt_id"].to_pylist()
    domains, needs = table["domain"].to_pylist(), table["capabilities"].to_pylist()
    opinions = _opinions(table, teachers) if candidates else None
    starts = np.flatnonzero(np.r_[True, (rows[1:] != rows[:-1]) | (steps[1:] != steps[:-1])])[:count].tolist()
    for first, end in zip(starts, [*starts[1:], count], strict=False):
        span = slice(first, end)
        yield Rollout(
            step=int(steps[first]),
            row=int(rows[first]),
            prompt_id=prompt_ids[first],
            needs=_ordered(needs[first] or [domains[first]], teachers),
            positions=plain["position"][span],
            token_ids=plain["token_id"][span],
            texts=texts[span],
            entropy=plain["student_entropy"][span],
            mass=plain["student_mass"][span],
            weights=weights[:, span],
            scores=None if scores is None else scores[:, span],
            candidates=None if opinions is None else _cut(opinions, span),
        )


def _ordered(needs: Sequence[str | None], teachers: list[str]) -> tuple[str, ...]:
    """Each once, teachers first and in their order: what a prompt needs is a set, however its list was written."""
    order = {name: place for place, name in enumerate(teachers)}
    known = {name for name in needs if name is not None}
    return tuple(sorted(known, key=lambda name: (order.get(name, len(order)), name)))


def _column(table: pa.Table, name: str, default: np.ndarray | None = None) -> np.ndarray:
    if default is not None and name not in table.column_names:
        return default
    return table[name].to_numpy()


def _opinions(table: pa.Table, teachers: list[str]) -> Candidates:
    names = {policy: columns.opinion(policy) for policy in (STUDENT, REFERENCE, *teachers)}
    present = {who: pair for who, pair in names.items() if pair[0] in table.column_names}

    def matrix(name: str) -> np.ndarray:
        flat = table[name].combine_chunks().flatten().to_numpy(zero_copy_only=False)
        return flat.reshape(table.num_rows, -1)

    return Candidates(
        matrix("top_ids"),
        {who: matrix(logp) for who, (logp, _) in present.items()},
        {who: _column(table, rest) for who, (_, rest) in present.items()},
    )


def _cut(opinions: Candidates, span: slice) -> Candidates:
    return Candidates(
        opinions.ids[span],
        {who: values[span] for who, values in opinions.logp.items()},
        {who: values[span] for who, values in opinions.rest.items()},
    )


def _spoken(prompt: Any) -> str:
    """A prompt as a person reads it: its text, or its messages' texts with their roles."""
    if isinstance(prompt, str):
        return prompt
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], dict):
        return str(prompt[0].get("content"))
    messages = [message for message in prompt if isinstance(message, dict)] if isinstance(prompt, list) else []
    return "\n\n".join(f"{message.get('role')}: {message.get('content')}" for message in messages) or str(prompt)
