"""Case studies, drawn from the JSON that `training/case_study.py` computed: the paper's two tables for one position."""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from trustmopd.report.figures.drawing import Picture, figure, grouped_bars, legend, styles
from trustmopd.report.readers.contents import Missing
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
    picture: Picture | None = None


@dataclass(frozen=True)
class Position:
    """Where to look: STEP/ROLLOUT:POSITION, or the first step that recorded the rollout."""

    rollout: str
    position: int
    step: int | None = None


def parse_position(text: str) -> Position:
    found = re.fullmatch(r"(?:(\d+)/)?(\d+(?:\.\d+)?):(\d+)", text.strip())
    if found is None:
        raise ValueError(
            f"--case {text!r} is not a position. Write ROLLOUT:POSITION, as 214:37, or STEP/ROLLOUT:POSITION, as"
            " 1/214:37. The table of sharpest changes lists positions."
        )
    step, rollout, position = found.groups()
    return Position(rollout, int(position), None if step is None else int(step))


def find_rollout(records: TokenRecords, place: Position) -> tuple[Rollout, int]:
    """The recorded response, and where in it the position is."""
    if not records.rollouts:
        raise ValueError(
            "the run has no readable token records, so there is no rollout to look at. Set "
            "training.record_allocation_every, 10 by default, to a number above 0 and train again."
        )
    known = [each for each in records.rollouts if each.name == place.rollout and place.step in (None, each.step)]
    if not known:
        first = [f"{each.step}/{each.name}" for each in records.rollouts[:5]]
        step = "" if place.step is None else f" at step {place.step}"
        raise ValueError(
            f"rollout {place.rollout} was not recorded{step}. Take one of {len(records.rollouts)} that were, such as "
            f"{', '.join(first)} (step/rollout)."
        )
    rollout = known[0]
    at = np.flatnonzero(rollout.positions == place.position)
    if not len(at):
        raise ValueError(
            f"rollout {place.rollout} at step {rollout.step} has no scored token at position {place.position}; its "
            f"positions are {rollout.positions[0]} to {rollout.positions[-1]}."
        )
    if len(rollout.positions) <= rollout.positions[-1]:
        raise ValueError(
            f"rollout {place.rollout} at step {rollout.step} has tokens that tools wrote. They are neither scored "
            "nor recorded, so the rollout cannot be asked again. Take another."
        )
    return rollout, int(at[0])


def case_view(case: Mapping[str, Any]) -> Case:
    """The prefix, what each policy says about the named tokens, and the target under both allocations."""
    sets = list(case["sets"])
    digits = {"r": 2, "w": 3, "w_response": 3}
    people = [
        [
            name,
            repr(who["top"]),
            *(f"{who['mass'][each]:.3f}" for each in sets),
            *(f"{who[key]:.{count}f}" if key in who else NONE for key, count in digits.items()),
        ]
        for name, who in case["policies"].items()
    ]
    header = ("", "top-1", *(f"P({each})" for each in sets), "r", "w", "mean w")
    members = "; ".join(f"{name}: {', '.join(map(repr, case['sets'][name]))}" for name in sets)
    note = (
        f"Probabilities within the {case['num_candidates']} candidates. {members}. The student sampled "
        f"{case['sampled']!r}. γ = {case['gamma']:g}; mean w is the response's."
    )
    target = [
        [f"P({each})", f"{case['target']['token'][each]:.3f}", f"{case['target']['response'][each]:.3f}"]
        for each in sets
    ]
    difference = f"Recomputed weights differ from the recorded ones by at most {case['difference']:.1g}."
    rollout = rollout_name(case["rollout"], case.get("sample", 0))
    name = f"case-{case['step']}-{rollout}-{case['position']}"
    both = ("", "token-level", "response-level")
    return Case(
        f"Step {case['step']}, rollout {rollout}, position {case['position']}",
        f"{case['prompt']}\n\n…{case['prefix']}▮",
        [
            titled(name, "Who prefers what", note, header, people),
            titled(f"{name}-target", "Distilled target at this position", difference, both, target),
        ],
    )


def write_case(case: Mapping[str, Any], run: Path) -> tuple[Case, Path]:
    """The record, its tables, text and figure, in the run's folder."""
    view = case_view(case)
    place = run / CASES / view.tables[0].name
    write_file(place.with_name(f"{place.name}.json"), case, CaseStudy)
    write_tables(view.tables, place.parent)
    body = "\n".join(f"## {each.title}\n\n{each.table.to_markdown()}\n{each.note}\n" for each in view.tables)
    quoted = "\n".join(f"    {line}" for line in view.prefix.splitlines())
    write_text(place.with_name(f"{place.name}-text.md"), f"# {view.title}\n\n{quoted}\n\n{body}")
    draw_case(case, place)
    return view, place


def draw_case(case: Mapping[str, Any], path: Path) -> None:
    """Probability of each named set: under each policy, and under the target of both allocations."""
    sets = list(case["sets"])
    series = {name: [who["mass"][each] for each in sets] for name, who in case["policies"].items()}
    series |= {f"target, {kind}-level": [case["target"][kind][each] for each in sets] for kind in ("token", "response")}
    with figure(path, 0.8 + 0.14 * len(sets) * len(series)) as ((axes,),):
        grouped_bars(axes, sets, series, styles(list(series)), "%.2f")
        axes.set_xlabel("probability in the candidate set")
        legend(axes)


def read_cases(runs: Sequence[Run]) -> tuple[list[Case], dict[str, list[Missing]]]:
    """The cases that were computed for these runs, with the run's name if there are several; and what cannot be shown
    of them, by the path of the run: a damaged file is skipped."""
    found, skipped, remedy = [], defaultdict(list), "Compute it again with --case."
    for run in runs:
        for path in sorted((run.path / CASES).glob("case-*.json")):
            try:
                view = case_view(read_file(path, what="case", remedy=remedy, schema=CaseStudy))
            except (ValueError, OSError, KeyError) as error:
                said = f"{path} has no {error}. {remedy}" if isinstance(error, KeyError) else str(error)
                skipped[str(run.path)].append(Missing(said, "It was skipped."))
                continue
            title = f"{run.path}: {view.title}" if len(runs) > 1 else view.title
            picture: Picture | None = Picture(path.with_suffix(""), title, "Probability of each set of tokens.")
            if not (drawn := path.with_suffix(".svg")).is_file():
                skipped[str(run.path)].append(Missing(f"There is no {drawn}.", remedy))
                picture = None
            found.append(replace(view, title=title, picture=picture))
    return found, skipped
