"""Case studies, drawn from the JSON that `training/case_study.py` computed: the paper's two tables for one position."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from trustmopd.report.readers.run import Run
from trustmopd.report.readers.token_records import Rollout, TokenRecords, rollout_name
from trustmopd.report.tables import write_tables
from trustmopd.report.tables.titled import NONE, Titled, titled
from trustmopd.runs.layout import CASES
from trustmopd.runs.schemas import CaseStudy, read_file, write_file
from trustmopd.util.files import write_text


@dataclass(frozen=True)
class Case:
    title: str
    prefix: str
    tables: list[Titled]


def find_token(records: TokenRecords, place: str) -> tuple[Rollout, int]:
    """The recorded response, and the index in it of the token at `place`: STEP/ROLLOUT:POSITION, or ROLLOUT:POSITION at
    the first step that recorded the rollout."""
    parts = re.fullmatch(r"(?:(\d+)/)?(\d+(?:\.\d+)?):(\d+)", place.strip())
    if parts is None:
        raise ValueError(
            f"--case {place!r} is not a position. Write ROLLOUT:POSITION, as 214:37, or STEP/ROLLOUT:POSITION, as"
            " 1/214:37. The table of sharpest changes lists positions."
        )
    if not records.rollouts:
        raise ValueError(
            "the run has no readable token records, so there is no rollout to look at. Set "
            "training.record_allocation_every, 10 by default, to a number above 0 and train again."
        )
    name, position = parts[2], int(parts[3])
    step = None if parts[1] is None else int(parts[1])
    rollout = next((taken for taken in records.rollouts if taken.name == name and step in (None, taken.step)), None)
    if rollout is None:
        first = [f"{taken.step}/{taken.name}" for taken in records.rollouts[:5]]
        at_step = "" if step is None else f" at step {step}"
        raise ValueError(
            f"rollout {name} was not recorded{at_step}. Take one of {len(records.rollouts)} that were, such as "
            f"{', '.join(first)} (step/rollout)."
        )
    indices = np.flatnonzero(rollout.positions == position)
    if not len(indices):
        raise ValueError(
            f"rollout {name} at step {rollout.step} has no scored token at position {position}; its positions are "
            f"{rollout.positions[0]} to {rollout.positions[-1]}."
        )
    if len(rollout.positions) <= rollout.positions[-1]:
        raise ValueError(
            f"rollout {name} at step {rollout.step} has tokens that tools wrote. They are neither scored nor recorded, "
            "so the rollout cannot be asked again. Take another."
        )
    return rollout, int(indices[0])


def case_view(case: Mapping[str, Any]) -> Case:
    """The prefix, what each policy says about the named tokens, and the target under both allocations."""
    sets = list(case["sets"])
    digits = {"r": 2, "w": 3, "w_response": 3}
    policies = [
        [
            name,
            repr(policy["top"]),
            *(f"{policy['mass'][tokens]:.3f}" for tokens in sets),
            *(f"{policy[key]:.{count}f}" if key in policy else NONE for key, count in digits.items()),
        ]
        for name, policy in case["policies"].items()
    ]
    header = ("", "top-1", *(f"P({tokens})" for tokens in sets), "r", "w", "mean w")
    members = "; ".join(f"{name}: {', '.join(map(repr, tokens))}" for name, tokens in case["sets"].items())
    note = (
        f"Probabilities within the {case['num_candidates']} candidates. {members}. The student sampled "
        f"{case['sampled']!r}. γ = {case['gamma']:g}; mean w is the response's."
    )
    token, response = case["target"]["token"], case["target"]["response"]
    target = [[f"P({tokens})", f"{token[tokens]:.3f}", f"{response[tokens]:.3f}"] for tokens in sets]
    difference = f"Recomputed weights differ from the recorded ones by at most {case['difference']:.1g}."
    rollout = rollout_name(case["rollout"], case.get("sample", 0))
    name = f"case-{case['step']}-{rollout}-{case['position']}"
    both = ("", "token-level", "response-level")
    return Case(
        f"Step {case['step']}, rollout {rollout}, position {case['position']}",
        f"{case['prompt']}\n\n…{case['prefix']}▮",
        [
            titled(name, "Who prefers what", note, header, policies),
            titled(f"{name}-target", "Distilled target at this position", difference, both, target),
        ],
    )


def write_case(case: Mapping[str, Any], run: Path) -> tuple[Case, Path]:
    """The record, its tables and text, in the run's folder."""
    view = case_view(case)
    stem = run / CASES / view.tables[0].name
    write_file(stem.with_name(f"{stem.name}.json"), case, CaseStudy)
    write_tables(view.tables, stem.parent)
    body = "\n".join(f"## {table.title}\n\n{table.table.to_markdown()}\n{table.note}\n" for table in view.tables)
    quoted = "\n".join(f"    {line}" for line in view.prefix.splitlines())
    write_text(stem.with_name(f"{stem.name}-text.md"), f"# {view.title}\n\n{quoted}\n\n{body}")
    return view, stem


def read_cases(runs: Sequence[Run]) -> list[Case]:
    """The cases that were computed for these runs, with the run's name if there are several."""
    cases, remedy = [], "Compute it again with --case, or remove it."
    for run in runs:
        for path in sorted((run.path / CASES).glob("case-*.json")):
            try:
                view = case_view(read_file(path, what="case", remedy=remedy, schema=CaseStudy))
            except KeyError as error:
                raise ValueError(f"{path} has no {error}. {remedy}") from None
            cases.append(replace(view, title=f"{run.path}: {view.title}") if len(runs) > 1 else view)
    return cases
