"""Graded responses, read back from every evaluation below some folders: exactly what was asked, and no more."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from trustmopd.evaluation.journal import GRADED, by_key, read_entries
from trustmopd.evaluation.run_record import differing, read_record
from trustmopd.runs import RowDirectory
from trustmopd.runs.layout import ASKED, INITIAL, TEACHER

#: What graders report of a response besides its score. Lists, as of instructions, are averaged over their members.
_DETAILS = ("prompt_strict", "prompt_loose", "instruction_strict", "instruction_loose", "strict_match", "understood")


@dataclass(frozen=True)
class Graded:
    """One checkpoint's graded responses to one benchmark: each prompt's mean over its samples, and what to know."""

    domain: str
    by_prompt: dict[str, float]
    facts: dict[str, Any]

    @property
    def score(self) -> float:
        return mean(self.by_prompt.values())


#: Of one checkpoint: benchmark → its graded responses.
ByBenchmark = Mapping[str, Graded]


@dataclass(frozen=True)
class _Evaluation:
    """One folder's record (`about`: checkpoint and sampling) and its finished benchmarks."""

    folder: Path
    about: dict[str, Any]
    asked: dict[str, Any]
    finished: dict[str, Graded]


def collect(
    folders: Sequence[Path], benchmarks: Collection[str] | None = None
) -> tuple[dict[str, dict[int, ByBenchmark]], list[str]]:
    """Method → seed → checkpoint of every evaluation below `folders`, and a sentence on each thing that is left out: an
    evaluation without a finished benchmark, or a benchmark that some evaluation has not finished. `benchmarks` are
    those to read; None reads all."""
    found: dict[tuple[str, int], _Evaluation] = {}
    notes = []
    short: dict[str, str] = {}
    records = {record.resolve(): record for folder in folders for record in folder.rglob(ASKED)}
    for record in sorted(records.values(), key=_row_order):
        evaluation = _read(record.parent, benchmarks)
        if not evaluation.asked:
            continue
        key = (evaluation.about["method"], evaluation.about["seed"])
        found[key] = _merged(found[key], evaluation) if key in found else evaluation
    for key, evaluation in list(found.items()):
        unfinished = [name for name in evaluation.asked if name not in evaluation.finished]
        if not evaluation.finished:
            notes.append(f"{evaluation.folder} is left out: it is not finished ({', '.join(unfinished)}).")
            del found[key]
            continue
        short |= {name: str(evaluation.folder) for name in unfinished}
    notes += [f"{name} is left out of every row: {folder} has not finished it." for name, folder in short.items()]
    methods: dict[str, dict[int, ByBenchmark]] = {}
    for (method, seed), evaluation in found.items():
        checkpoint = {name: graded for name, graded in evaluation.finished.items() if name not in short}
        methods.setdefault(method, {})[seed] = checkpoint
    return methods, notes


def whole_rows(folder: Path, rows: Iterable[str], benchmarks: Collection[str] | None = None) -> list[str]:
    """Those of `rows` that are finished. One that is not would leave its benchmarks out of all the others."""
    found = {row: collect([folder / row], benchmarks) for row in rows}
    return [row for row, (methods, unfinished) in found.items() if methods and not unfinished]


def read_graded(path: Path, asked: Mapping[str, Any]) -> Graded | None:
    """None until everything that was asked is graded. Other lines are from an earlier call that asked for more."""
    graded = by_key(read_entries(path, GRADED)[0])
    wanted = [(prompt, sample) for prompt in asked["ids"] for sample in range(asked["samples"])]
    if not all(key in graded for key in wanted):
        return None
    entries = [graded[key] for key in wanted]
    by_prompt: dict[str, list[float]] = {}
    for entry in entries:
        by_prompt.setdefault(entry["id"], []).append(entry["score"])
    facts = {
        "prompts": len(by_prompt),
        "responses": len(entries),
        "truncated": sum(entry["truncated"] for entry in entries),
        "overlong": sum(entry.get("overlong", False) for entry in entries),
        "grader_errors": sum("error" in entry["details"] for entry in entries),
        "mean_tokens": mean(entry["tokens"] for entry in entries),
    }
    for name in _DETAILS:
        if any(name in entry["details"] for entry in entries):
            found = [entry["details"].get(name, False) for entry in entries]  # overlong or raised: not passed
            facts[name] = mean(verdict for each in found for verdict in (each if isinstance(each, list) else [each]))
    return Graded(asked["domain"], {key: mean(scores) for key, scores in by_prompt.items()}, facts)


def _read(folder: Path, benchmarks: Collection[str] | None) -> _Evaluation:
    about = read_record(folder)
    asked = {name: each for name, each in about.pop("benchmarks").items() if benchmarks is None or name in benchmarks}
    found = {name: read_graded(RowDirectory(folder).graded(name), each) for name, each in asked.items()}
    return _Evaluation(folder, about, asked, {name: each for name, each in found.items() if each is not None})


def _merged(first: _Evaluation, second: _Evaluation) -> _Evaluation:
    """Two folders of one checkpoint, sampled in one way, make one row. If both have a benchmark, the first counts."""
    row = f"{first.about['method']!r}, seed {first.about['seed']}"
    if field := differing(first.about, second.about):
        raise ValueError(
            f"{first.folder} and {second.folder} both hold {row}, but with {field} {first.about.get(field)!r:.80} and "
            f"{second.about.get(field)!r:.80}. Leave one out, or give the two recipes different names and evaluate "
            "again."
        )
    for name in first.asked.keys() & second.asked.keys():
        if any(first.asked[name][field] != second.asked[name][field] for field in ("ids", "samples")):
            raise ValueError(
                f"{first.folder} and {second.folder} both hold {row}, but with different prompts or samples of {name}. "
                "Leave one out."
            )
    return _Evaluation(
        first.folder,
        {**second.about, **first.about},
        {**second.asked, **first.asked},
        {**second.finished, **first.finished},
    )


def _row_order(record: Path) -> tuple[bool, bool, str]:
    """The initial student first, then teachers, then the rest."""
    name = record.parent.name
    return name != INITIAL, not name.startswith(TEACHER), str(record)
