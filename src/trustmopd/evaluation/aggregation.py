"""From graded responses to the paper's numbers: benchmarks, domains, overall, spread, recovery, with intervals."""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

from trustmopd.evaluation.read_graded import ByBenchmark, Graded
from trustmopd.evaluation.run_record import differing
from trustmopd.runs.layout import AVERAGE, INITIAL, ROUTED, SCORES, TABLES, TEACHER, is_reference_row
from trustmopd.runs.schemas import ASKED_WITH, write_file
from trustmopd.util.stats import Spread, bootstrap_means, paired_difference, recovery, spread
from trustmopd.util.text_tables import TextTable, text_table

DRAWS, CONFIDENCE = 2000, 0.95
_ASKED = (*ASKED_WITH, "graders")


def score_entries(entries: Mapping[str, Mapping[int, ByBenchmark]], against: str | None = None) -> dict[str, Any]:
    """The rows of scores (`ScoreRow` in `runs/schemas.py`). `entries`: name → seed → checkpoint. `against`: the
    row that differences are taken from, by default the initial student. Recovery is None without initial student and
    teachers. Routed teachers are added: in each domain the teacher of that name.

    Intervals come from resampling prompts, the same ones for every entry, so chance affects an entry and its baseline
    equally. Seeds are averaged, not resampled.
    """
    benchmarks = _same_benchmarks(entries)
    domains = list(dict.fromkeys(benchmarks.values()))
    routed = _routed(entries, domains)
    references = {name: entries[name] for name in entries if name == INITIAL or name.startswith(TEACHER)}
    average = {name: entries[name] for name in entries if name == AVERAGE}
    every = {**references, **({ROUTED: routed} if routed else {}), **average, **entries}
    if against is not None and against not in every:
        raise ValueError(f"there is no row {against!r} to compare with. Choose from {', '.join(every)}.")
    other = against or (INITIAL if INITIAL in every else None)
    by_seed = _draw(every, benchmarks)
    drawn = {
        name: {column: np.mean([draws[column] for draws in seeds.values()], axis=0) for column in (*domains, "overall")}
        for name, seeds in by_seed.items()
    }
    points = {
        name: {seed: _means(checkpoint, domains) for seed, checkpoint in seeds.items()} for name, seeds in every.items()
    }
    spreads = {name: _over_seeds(seeds) for name, seeds in points.items()}
    intervals = {name: {column: _interval(draws[column]) for column in draws} for name, draws in drawn.items()}
    if routed and INITIAL in every:
        ends = [spreads[name]["overall"].mean for name in (INITIAL, ROUTED)]
        low, high = drawn[INITIAL]["overall"], drawn[ROUTED]["overall"]
        for name in every if ends[0] < ends[1] else ():  # teachers that are no better leave no gap
            spreads[name]["recovery"] = spread([recovery(point["overall"], *ends) for point in points[name].values()])
            with np.errstate(divide="ignore", invalid="ignore"):
                intervals[name]["recovery"] = _interval((drawn[name]["overall"] - low) / (high - low))
    summary: dict[str, Any] = {}
    for name, columns in spreads.items():
        summary[name] = {
            **dict.fromkeys((*domains, "overall", "recovery")),
            **{column: values.mean for column, values in columns.items()},
            "sd": {column: values.sd for column, values in columns.items()},
            "interval": intervals[name],
            "seeds": sorted(every[name]),
            "benchmarks": _benchmark_facts(every[name], benchmarks),
        }
        if other is not None and name != other:
            summary[name]["difference"] = {"against": other, **_difference(points, by_seed, name, other)}
    return summary


def without_routed(summary: Mapping[str, Any]) -> str | None:
    """Why there are teachers and no row of routed teachers, and so no recovery; None where there is one, or none."""
    teachers = [name.removeprefix(TEACHER) for name in summary if name.startswith(TEACHER)]
    if ROUTED in summary or not teachers:
        return None
    domains = dict.fromkeys(facts["domain"] for row in summary.values() for facts in row["benchmarks"].values())
    alone = [domain for domain in domains if domain not in teachers]
    return (
        f"No routed teachers, and so no recovery: a benchmark has the domain '{alone[0]}', and no teacher has that "
        f"name. The teachers are {', '.join(teachers)}. In a set of your own, `domain` can name one of them."
    )


def for_seed(entries: Mapping[str, Mapping[int, ByBenchmark]], name: str, seed: int) -> dict[str, Any]:
    """The rows of one student alone: `score_entries` of the reference rows and of this seed, without other students."""
    references = {row: seeds for row, seeds in entries.items() if is_reference_row(row)}
    return score_entries({**references, name: {seed: entries[name][seed]}})


def write_scores(out: Path, summary: Mapping[str, Any]) -> Path:
    """The scores as JSON, and their table as Markdown, CSV and LaTeX."""
    score_table(summary).write(out / TABLES / "scores")
    return write_file(out / SCORES, dict(summary))


def score_table(summary: Mapping[str, Any]) -> TextTable:
    """Percent, ± standard deviation over seeds; in brackets the intervals of the overall score, the recovery
    and the difference. Means of domains, where they say more than their benchmarks and the overall score."""
    first = next(iter(summary.values()))
    columns = [column for column, value in first.items() if isinstance(value, float) and column != "recovery"]
    if len(columns) - 1 in (1, len(first["benchmarks"])):  # one domain, or one benchmark of each
        columns = ["overall"]
    recovered = ["recovery"] if any(row["recovery"] is not None for row in summary.values()) else []

    def cells(name: str, row: Mapping[str, Any]) -> Iterator[str]:
        seeds = len(row["seeds"])
        yield name
        for benchmark in first["benchmarks"]:
            facts = row["benchmarks"][benchmark]
            yield Spread(facts["score"], facts["sd"], seeds).percent()
        for column in (*columns, *recovered):
            interval = row["interval"].get(column) if column in ("overall", "recovery") else None
            yield "–" if row[column] is None else _bracketed(row[column], row["sd"][column], seeds, interval)
        if others:
            ahead = row.get("difference") or {"overall": None}
            known = ahead["overall"] is not None
            text = _bracketed(ahead["overall"], ahead["sd"], ahead["n"], ahead["interval"]) if known else "–"
            yield text if text.startswith(("-", "–")) else f"+{text}"

    others = sorted({row["difference"]["against"] for row in summary.values() if "difference" in row})
    means = (column if column == "overall" else f"{column}, mean" for column in columns)
    header = ("", *first["benchmarks"], *means, *recovered, *(f"vs {other}" for other in others))
    return text_table(header, (cells(name, row) for name, row in summary.items()))


def _bracketed(mean: float, sd: float, n: int, interval: Sequence[float] | None) -> str:
    text = Spread(mean, sd, n).percent()
    return text if interval is None else f"{text} [{100 * interval[0]:.1f}, {100 * interval[1]:.1f}]"


def _same_benchmarks(entries: Mapping[str, Mapping[int, ByBenchmark]]) -> dict[str, str]:
    """Benchmark → domain. All checkpoints must have the same benchmarks, or their means would not be comparable."""
    if not any(checkpoint for seeds in entries.values() for checkpoint in seeds.values()):
        raise ValueError(
            "there is nothing to score: no benchmark is finished in every row. Run `trustmopd evaluate` again: it "
            "continues where it stopped."
        )
    (first, reference), *others = [
        (f"{name}, seed {seed}", checkpoint) for name, seeds in entries.items() for seed, checkpoint in seeds.items()
    ]
    for label, checkpoint in others:
        for benchmark in {*reference, *checkpoint}:
            prompts, other = (set(c[benchmark].by_prompt) if benchmark in c else set() for c in (reference, checkpoint))
            if prompts != other:
                raise ValueError(
                    f"{first} has {len(prompts)} prompts of {benchmark}, and {label} has {len(other)}, not the same "
                    "ones: scores cannot be compared. Evaluate both on the same prompts, or score them separately."
                )
            asked = [{name: c[benchmark].facts.get(name) for name in _ASKED} for c in (reference, checkpoint)]
            if field := differing(*asked):
                raise ValueError(
                    f"{first} has {benchmark} with {field} = {asked[0][field]!r:.80}, and {label} with "
                    f"{asked[1][field]!r:.80}: scores cannot be compared. Evaluate both in one way."
                )
    return {name: answers.domain for name, answers in reference.items()}


def _routed(entries: Mapping[str, Mapping[int, ByBenchmark]], domains: Sequence[str]) -> dict[int, ByBenchmark] | None:
    teachers = {domain: entries.get(TEACHER + domain) for domain in domains}
    if not all(teachers.values()):
        return None
    matched: dict[str, Graded] = {}
    for domain, seeds in teachers.items():
        assert seeds is not None
        (teacher,) = seeds.values()
        matched |= {name: answers for name, answers in teacher.items() if answers.domain == domain}
    return {0: matched}


def _means(checkpoint: ByBenchmark, domains: Sequence[str]) -> dict[str, float]:
    """A domain is the mean of its benchmarks, overall the mean of the domains: each counts equally, however large."""
    scores = {d: mean(a.score for a in checkpoint.values() if a.domain == d) for d in domains}
    return {**scores, "overall": mean(scores.values())}


def _over_seeds(points: Mapping[int, Mapping[str, float]]) -> dict[str, Spread]:
    return {column: spread([point[column] for point in points.values()]) for column in next(iter(points.values()))}


def _draw(
    entries: Mapping[str, Mapping[int, ByBenchmark]], benchmarks: Mapping[str, str]
) -> dict[str, dict[int, dict[str, Any]]]:
    """For each entry and seed, arrays of domain and overall scores over resampled prompts."""
    domains = list(dict.fromkeys(benchmarks.values()))
    keys = [(name, seed) for name, seeds in entries.items() for seed in seeds]
    of_domain: dict[tuple[str, int], dict[str, Any]] = {key: {domain: [] for domain in domains} for key in keys}
    for number, (benchmark, domain) in enumerate(benchmarks.items()):
        answers = [entries[name][seed][benchmark].by_prompt for name, seed in keys]
        table = [[by_prompt[prompt] for prompt in answers[0]] for by_prompt in answers]
        for key, draws in zip(keys, bootstrap_means(table, draws=DRAWS, seed=number).T, strict=True):
            of_domain[key][domain].append(draws)
    drawn: dict[str, dict[int, dict[str, Any]]] = {name: {} for name in entries}
    for (name, seed), columns in of_domain.items():
        means = {domain: np.mean(columns[domain], axis=0) for domain in domains}
        drawn[name][seed] = {**means, "overall": np.mean(list(means.values()), axis=0)}
    return drawn


def _interval(draws: Any) -> list[float] | None:
    """None where some draws have no value: the quantiles then have none either."""
    low, high = np.quantile(draws, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return [float(low), float(high)] if math.isfinite(low) and math.isfinite(high) else None


def _difference(points: Mapping[str, Any], drawn: Mapping[str, Any], name: str, other: str) -> dict[str, Any]:
    """Overall, entry − other, over the seeds that both have. A side with a single seed, as the initial student, is
    compared with every seed of the other. Without a common seed there is no difference."""

    def pair(values: Mapping[str, Any]) -> tuple[dict[int, Any], dict[int, Any]]:
        first, second = ({seed: value["overall"] for seed, value in values[entry].items()} for entry in (name, other))
        if len(second) == 1:
            second = dict.fromkeys(first, *second.values())
        elif len(first) == 1:
            first = dict.fromkeys(second, *first.values())
        return first, second

    paired = paired_difference(*pair(points))
    if paired is None:
        return {"overall": None, "sd": None, "n": 0, "interval": None}
    first, second = pair(drawn)
    draws = np.mean([first[seed] - second[seed] for seed in first if seed in second], axis=0)
    return {"overall": paired.mean, "sd": paired.sd, "n": paired.n, "interval": _interval(draws)}


def _benchmark_facts(seeds: Mapping[int, ByBenchmark], benchmarks: Mapping[str, str]) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    for name, domain in benchmarks.items():
        answers = [checkpoint[name] for checkpoint in seeds.values()]
        scores = spread([each.score for each in answers])
        shared = [fact for fact in answers[0].facts if all(fact in each.facts for each in answers)]
        common = {fact: mean(each.facts[fact] for each in answers) for fact in shared if fact not in _ASKED}
        common |= {fact: answers[0].facts[fact] for fact in shared if fact in _ASKED}
        facts[name] = {"domain": domain, "score": scores.mean, "sd": scores.sd, **common}
    return facts
