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
    candidates) are by policy: student, the references that were asked (`reference`, or `reference:<teacher>` for each
    teacher), and teachers."""

    ids: np.ndarray
    logp: dict[str, np.ndarray]
    rest: dict[str, np.ndarray]

    def __getitem__(self, span: slice) -> "Candidates":
        logp, rest = ({who: values[span] for who, values in by.items()} for by in (self.logp, self.rest))
        return Candidates(self.ids[span], logp, rest)


@dataclass(frozen=True)
class Rollout:
    """One recorded response of T tokens; `weights` and `scores` (raw; None if the rule has none) are K × T. `sample`
    numbers the responses to one prompt."""

    step: int
    row: int
    prompt_id: str
    needs: tuple[str, ...]
    positions: np.ndarray
    token_ids: np.ndarray
    texts: list[str]
    entropy: np.ndarray
    weights: np.ndarray
    scores: np.ndarray | None
    candidates: Candidates | None = None
    sample: int = 0

    @property
    def name(self) -> str:
        return rollout_name(self.row, self.sample)

    @property
    def finite(self) -> bool:
        return bool(np.isfinite(self.weights).all() and (self.scores is None or np.isfinite(self.scores).all()))

    @property
    def group(self) -> str:
        return group_name(self.needs)


def rollout_name(row: int, sample: int) -> str:
    """`214`, and `214.1` for a second response to the same prompt."""
    return f"{row}.{sample}" if sample else str(row)


def group_name(needs: Sequence[str]) -> str:
    """What a prompt needs, such as `math` or `math+if`. Names are unique: a label that could be read as several labels,
    or as none, is quoted."""
    plain = re.compile(r"(?!['\"])[^+]+")
    quoted = (name if plain.fullmatch(name) and name != UNLABELLED else repr(name) for name in needs)
    return "+".join(quoted) or UNLABELLED


@dataclass
class TokenRecords:
    """All recorded responses of a run. `texts` has the candidates' texts by token id, `prompts` the prompts by row:
    ids may repeat. `views` are what policies with a view of their own read in their place, by row and policy."""

    teachers: list[str]
    rollouts: list[Rollout] = field(default_factory=list)
    texts: dict[int, str] = field(default_factory=dict)
    prompts: dict[int, str] = field(default_factory=dict)
    views: dict[int, dict[str, str]] = field(default_factory=dict)
    damaged: list[str] = field(default_factory=list)

    def by_group(self) -> dict[str, list[Rollout]]:
        """Rollouts by what their prompts need: single domains in the order of the teachers, then mixtures."""
        groups: dict[str, list[Rollout]] = {}
        for rollout in self.rollouts:
            groups.setdefault(rollout.group, []).append(rollout)

        def key(group: str) -> tuple[Any, ...]:
            needs = groups[group][0].needs
            return (not needs, len(needs), [_place(name, self.teachers) for name in needs], group)

        return {group: groups[group] for group in sorted(groups, key=key)}


def read_records(run: Path, teachers: Sequence[str] = (), *, candidates: bool = False) -> TokenRecords:
    """Reads every file. Damaged files are skipped and named in `damaged`. Without `teachers`, the files' own are used.
    Candidates are most of the bytes, and only the token viewer needs them."""
    records = TokenRecords(list(teachers))
    for file in RunDirectory(run).recorded().values():
        try:
            table = pq.read_table(file, page_checksum_verification=True)
            metadata = json.loads(zlib.decompress((table.schema.metadata or {})[METADATA]))
            asked = list(teachers) or _teachers(table)
            rollouts = list(_rollouts(table, asked, candidates))
        except (OSError, pa.ArrowException, KeyError, ValueError, zlib.error) as error:
            message = str(error).strip().splitlines() or [type(error).__name__]
            reason = message[0].rsplit(f"'{file}': ")[-1].rstrip(".")  # the path is named once
            records.damaged.append(
                f"{file} is damaged and was skipped ({shorten(reason, 120)}). Restore it from a copy, or delete it."
            )
            continue
        records.teachers = asked
        finite = [rollout for rollout in rollouts if rollout.finite]
        if len(finite) < len(rollouts):
            records.damaged.append(
                f"{file}: weights or scores of {len(rollouts) - len(finite)} of {len(rollouts)} responses are not "
                "numbers, and these were skipped. Do not trust the training from that step on."
            )
        records.rollouts += finite
        records.texts |= {int(token): text for token, text in metadata["texts"].items()}
        prompts = metadata.get("prompts_by_row")
        if prompts is None:  # earlier releases had one prompt an id
            prompts = {each.row: metadata["prompts"][each.prompt_id] for each in rollouts}
        records.prompts |= {int(row): _as_text(prompt) for row, prompt in prompts.items()}
        records.views |= {int(row): shown for row, shown in metadata.get("views", {}).items()}
    return records


def _teachers(table: pa.Table) -> list[str]:
    prefix = columns.weight("")
    return [name.removeprefix(prefix) for name in table.column_names if name.startswith(prefix)]


def _rollouts(table: pa.Table, teachers: list[str], candidates: bool) -> Iterator[Rollout]:
    count = table.num_rows

    def by_teacher(name_of: Any) -> np.ndarray:
        """K × tokens. Teachers that the rule did not ask have weight 0."""
        names = map(name_of, teachers)
        zeros = np.zeros(count, np.float32)
        return np.stack([table[name].to_numpy() if name in table.column_names else zeros for name in names])

    weights = by_teacher(columns.weight)
    if not any(columns.weight(name) in table.column_names for name in teachers):
        raise ValueError("it has no weights of the run's teachers")
    scored = any(columns.score(name) in table.column_names for name in teachers)
    scores = by_teacher(columns.score) if scored else None
    numbers = ("rollout", "step", "position", "token_id", "student_entropy")
    rows, steps, positions, token_ids, entropy = (table[name].to_numpy() for name in numbers)
    words = ("token_text", "prompt_id", "domain", "capabilities")
    texts, prompt_ids, domains, needs = (table[name].to_pylist() for name in words)
    opinions = _opinions(table, teachers) if candidates else None
    several = "sample" in table.column_names
    samples = table["sample"].to_numpy() if several else np.zeros_like(rows)
    changes = [values[1:] != values[:-1] for values in (rows, samples, steps)]
    starts = np.flatnonzero(np.r_[True, np.logical_or.reduce(changes)])[:count].tolist()
    for first, end in zip(starts, [*starts[1:], count], strict=False):
        span = slice(first, end)
        needed = {name for name in needs[first] or [domains[first]] if name is not None}
        yield Rollout(
            step=int(steps[first]),
            row=int(rows[first]),
            prompt_id=prompt_ids[first],
            # A set, in any order in the file. Here teachers come first, in their own order.
            needs=tuple(sorted(needed, key=lambda name: (_place(name, teachers), name))),
            positions=positions[span],
            token_ids=token_ids[span],
            texts=texts[span],
            entropy=entropy[span],
            weights=weights[:, span],
            scores=None if scores is None else scores[:, span],
            candidates=None if opinions is None else opinions[span],
            sample=int(samples[first]),
        )


def _place(name: str, teachers: Sequence[str]) -> int:
    return teachers.index(name) if name in teachers else len(teachers)


def _opinions(table: pa.Table, teachers: list[str]) -> Candidates:
    names = {policy: columns.opinion(policy) for policy in (STUDENT, REFERENCE)}
    names |= {own_reference(teacher): columns.own_reference(teacher) for teacher in teachers}
    names |= {teacher: columns.opinion(teacher) for teacher in teachers}
    present = {who: pair for who, pair in names.items() if pair[0] in table.column_names}

    def matrix(name: str) -> np.ndarray:
        flat = table[name].combine_chunks().flatten().to_numpy(zero_copy_only=False)
        return flat.reshape(table.num_rows, -1)

    return Candidates(
        matrix("top_ids"),
        {who: matrix(logp) for who, (logp, _) in present.items()},
        {who: table[rest].to_numpy() for who, (_, rest) in present.items()},
    )


def own_reference(teacher: str) -> str:
    """The policy that a teacher of its own reference is measured from; no teacher can have such a name."""
    return f"{REFERENCE}:{teacher}"


def _as_text(prompt: str | list[dict[str, Any]]) -> str:
    """A prompt as readable text: its own, or that of its messages, with their roles if there are several."""
    if isinstance(prompt, str):
        return prompt
    if len(prompt) == 1:
        return str(prompt[0].get("content"))
    return "\n\n".join(f"{message.get('role')}: {message.get('content')}" for message in prompt)
