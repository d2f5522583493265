"""From graded responses to the paper's numbers: benchmarks, domains, overall, spread, recovery, with intervals."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

from trustmopd.evaluation.journal import read_entries
from trustmopd.evaluation.methods import INITIAL, ROUTED, TEACHER
from trustmopd.evaluation.run_record import RECORD, read_record
from trustmopd.files import write_json
from trustmopd.statistics import Spread, bootstrap_means, paired_difference, recovery, spread
from trustmopd.tables import TextTable, text_table

DRAWS, CONFIDENCE = 2000, 0.95
#: Averages of an instruction benchmark beside its score: over prompts, and over instructions.
_DETAILS = ("prompt_strict", "prompt_loose", "instruction_strict", "instruction_loose")


@dataclass(frozen=True)
class Answers:
    """One checkpoint's graded responses to one benchmark: each prompt's mean over its samples, and what to know."""

    domain: str
    by_prompt: dict[str, float]
    facts: dict[str, Any]

    @property
    def score(self) -> float:
        return mean(self.by_prompt.values())


#: One checkpoint: benchmark → answers.
Checkpoint = Mapping[str, Answers]


def collect(folders: Sequence[Path]) -> tuple[dict[str, dict[int, Checkpoint]], list[str]]:
    """Every evaluation below `folders`, as `summarise` takes it, and a sentence on each that is not finished."""
    methods: dict[str, dict[int, Checkpoint]] = {}
    places: dict[tuple[str, int], Path] = {}
    notes = []
    for record in sorted((path for folder in folders for path in folder.rglob(RECORD)), key=_row_order):
        folder, run = record.parent, read_record(record.parent)
        asked = run["benchmarks"]
        checkpoint = {name: read_answers(folder / f"{name}.jsonl", asked[name]["domain"]) for name in asked}
        if short := [name for name in asked if checkpoint[name].facts["responses"] < asked[name]["responses"]]:
            notes.append(f"{folder} is not finished ({', '.join(short)}), and left out.")
            continue
        place = places.setdefault((run["method"], run["seed"]), folder)
        if place.resolve() != folder.resolve():
            if run["files"] != read_record(place)["files"]:
                raise ValueError(
                    f"{place} and {folder} both hold {run['method']!r}, seed {run['seed']}, of different checkpoints. "
                    "Leave one out."
                )
            continue  # the same checkpoint, evaluated for two recipes
        methods.setdefault(run["method"], {})[run["seed"]] = checkpoint
    return methods, notes


def _row_order(record: Path) -> tuple[bool, bool, str]:
    """The initial student first, then teachers, then the rest."""
    name = record.parent.name
    return name != INITIAL, not name.startswith(TEACHER), str(record)


def read_answers(path: Path, domain: str) -> Answers:
    entries, _ = read_entries(path)
    by_prompt: dict[str, list[float]] = {}
    for entry in entries:
        by_prompt.setdefault(entry["id"], []).append(entry["score"])
    facts = {
        "prompts": len(by_prompt),
        "responses": len(entries),
        "truncated": sum(entry["truncated"] for entry in entries),
        "grader_errors": sum("error" in entry["details"] for entry in entries),
        "mean_tokens": mean(entry["tokens"] for entry in entries) if entries else 0.0,
    }
    for name in _DETAILS:
        found = [entry["details"][name] for entry in entries if name in entry["details"]]
        flat = [verdict for each in found for verdict in (each if isinstance(each, list) else [each])]
        if flat:
            facts[name] = mean(flat)
    return Answers(domain, {key: mean(scores) for key, scores in by_prompt.items()}, facts)


def summarise(methods: Mapping[str, Mapping[int, Checkpoint]], against: str = INITIAL) -> dict[str, Any]:
    """`methods`: name → seed → checkpoint. Gives each method's domain scores, `overall` and `recovery` (a fraction;
    None without initial student and teachers), and mappings with the rest. Routed teachers are added: in each domain
    the teacher of that name.

    Intervals come from resampling prompts, the same ones for every method, so that a method and what it is compared
    with share their luck; seeds are averaged, not resampled.
    """
    benchmarks = _same_benchmarks(methods)
    domains = list(dict.fromkeys(benchmarks.values()))
    routed = _routed(methods, domains)
    references = {name: methods[name] for name in methods if name == INITIAL or name.startswith(TEACHER)}
    every = {**references, **({ROUTED: routed} if routed else {}), **methods}
    drawn = _draw(every, benchmarks)
    points = {
        name: {seed: _means(checkpoint, domains) for seed, checkpoint in seeds.items()} for name, seeds in every.items()
    }
    ends = (
        tuple(_over_seeds(points[name])["overall"].mean for name in (INITIAL, ROUTED))
        if routed and INITIAL in every
        else None
    )
    summary: dict[str, Any] = {}
    for name, seeds in points.items():
        scores = _over_seeds(seeds)
        draws = drawn[name]
        intervals = {column: _interval(draws[column]) for column in (*domains, "overall")}
        recovered = None
        if ends is not None and ends[0] != ends[1]:
            recovered = spread([recovery(point["overall"], *ends) for point in seeds.values()])
            low, high = drawn[INITIAL]["overall"], drawn[ROUTED]["overall"]
            with np.errstate(divide="ignore", invalid="ignore"):
                intervals["recovery"] = _interval((draws["overall"] - low) / (high - low))
        summary[name] = {
            **{column: scores[column].mean for column in (*domains, "overall")},
            "recovery": recovered.mean if recovered else None,
            "sd": {
                **{column: scores[column].sd for column in (*domains, "overall")},
                **({"recovery": recovered.sd} if recovered else {}),
            },
            "interval": intervals,
            "seeds": sorted(seeds),
            "benchmarks": _benchmark_facts(every[name], benchmarks),
        }
        if against in points and name != against:
            summary[name]["difference"] = _difference(points, drawn, name, against)
    return summary


def write_scores(out: Path, summary: Mapping[str, Any]) -> Path:
    """`scores.json`, and `tables/scores` as Markdown, CSV and LaTeX."""
    score_table(summary).write(out / "tables" / "scores")
    return write_json(out / "scores.json", dict(summary))


def score_table(summary: Mapping[str, Any]) -> TextTable:
    """Percent, ± standard deviation over seeds; in brackets the interval of the overall score and of the recovery."""
    first = next(iter(summary.values()))
    columns = [column for column, value in first.items() if isinstance(value, float) and column != "recovery"]

    def cells(name: str, row: Mapping[str, Any]) -> Iterator[str]:
        yield name
        for benchmark in first["benchmarks"]:
            found = row["benchmarks"][benchmark]
            yield Spread(found["score"], found["sd"], len(row["seeds"])).percent()
        for column in (*columns, "recovery"):
            if row[column] is None:
                yield "–"
                continue
            text = Spread(row[column], row["sd"][column], len(row["seeds"])).percent()
            interval = row["interval"].get(column) if column in ("overall", "recovery") else None
            yield text if interval is None else f"{text} [{100 * interval[0]:.1f}, {100 * interval[1]:.1f}]"

    header = ("", *first["benchmarks"], *columns, "recovery")
    return text_table(header, (cells(name, row) for name, row in summary.items()))


def _same_benchmarks(methods: Mapping[str, Mapping[int, Checkpoint]]) -> dict[str, str]:
    """Benchmark → domain. A mean over other benchmarks is another quantity, so all checkpoints must have the same."""
    if not methods:
        raise ValueError("there is nothing to score: no graded responses were found.")
    listed = [
        (f"{name}, seed {seed}", checkpoint) for name, seeds in methods.items() for seed, checkpoint in seeds.items()
    ]
    first, reference = listed[0]
    for label, checkpoint in listed[1:]:
        for benchmark in {*reference, *checkpoint}:
            ours, theirs = (set(c[benchmark].by_prompt) if benchmark in c else set() for c in (reference, checkpoint))
            if ours != theirs:
                raise ValueError(
                    f"{first} has {len(ours)} prompts of {benchmark} and {label} {len(theirs)}, not the same: their "
                    "scores cannot be compared. Evaluate both on the same, or score them apart."
                )
    return {name: answers.domain for name, answers in reference.items()}


def _routed(methods: Mapping[str, Mapping[int, Checkpoint]], domains: Sequence[str]) -> dict[int, Checkpoint] | None:
    teachers = {domain: methods.get(TEACHER + domain) for domain in domains}
    if not all(teachers.values()):
        return None
    matched: dict[str, Answers] = {}
    for domain, seeds in teachers.items():
        assert seeds is not None
        (teacher,) = seeds.values()
        matched |= {name: answers for name, answers in teacher.items() if answers.domain == domain}
    return {0: matched}


def _means(checkpoint: Checkpoint, domains: Sequence[str]) -> dict[str, float]:
    """A domain is the mean of its benchmarks, overall the mean of the domains: each counts alike, however large."""
    scores = {d: mean(a.score for a in checkpoint.values() if a.domain == d) for d in domains}
    return {**scores, "overall": mean(scores.values())}


def _over_seeds(points: Mapping[int, Mapping[str, float]]) -> dict[str, Spread]:
    return {column: spread([point[column] for point in points.values()]) for column in next(iter(points.values()))}


def _draw(methods: Mapping[str, Mapping[int, Checkpoint]], benchmarks: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """For each method, arrays of domain and overall scores over resampled prompts."""
    domains = list(dict.fromkeys(benchmarks.values()))
    drawn: dict[str, dict[str, Any]] = {name: {domain: [] for domain in domains} for name in methods}
    for number, (benchmark, domain) in enumerate(benchmarks.items()):
        prompts = list(next(iter(next(iter(methods.values())).values()))[benchmark].by_prompt)
        table = [
            [mean(checkpoint[benchmark].by_prompt[prompt] for checkpoint in seeds.values()) for prompt in prompts]
            for seeds in methods.values()
        ]
        for name, draws in zip(methods, bootstrap_means(table, draws=DRAWS, seed=number).T, strict=True):
            drawn[name][domain].append(draws)
    for columns in drawn.values():
        for domain in domains:
            columns[domain] = np.mean(columns[domain], axis=0)
        columns["overall"] = np.mean([columns[domain] for domain in domains], axis=0)
    return drawn


def _interval(draws: Any) -> list[float] | None:
    """None where some draws have no value: then neither have the quantiles."""
    low, high = np.quantile(draws, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return [float(low), float(high)] if math.isfinite(low) and math.isfinite(high) else None


def _difference(points: Mapping[str, Any], drawn: Mapping[str, Any], name: str, against: str) -> dict[str, Any]:
    """Overall, in the order method − other: by seed where both have several, otherwise of the means."""
    ours, theirs = ({seed: point["overall"] for seed, point in points[row].items()} for row in (name, against))
    if len(theirs) == 1:
        theirs = dict.fromkeys(ours, *theirs.values())
    paired = paired_difference(ours, theirs)
    return {
        "against": against,
        "overall": paired.mean if paired else None,
        "sd": paired.sd if paired else None,
        "n": paired.n if paired else 0,
        "interval": _interval(drawn[name]["overall"] - drawn[against]["overall"]),
    }


def _benchmark_facts(seeds: Mapping[int, Checkpoint], benchmarks: Mapping[str, str]) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    for name, domain in benchmarks.items():
        answers = [checkpoint[name] for checkpoint in seeds.values()]
        scores = spread([each.score for each in answers])
        common = {fact: mean(each.facts[fact] for each in answers) for fact in answers[0].facts}
        facts[name] = {"domain": domain, "score": scores.mean, "sd": scores.sd, **common}
    return facts
