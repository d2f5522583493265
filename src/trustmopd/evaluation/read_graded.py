"""Graded responses, read back from every evaluation below some folders: exactly what was asked, and no more."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from trustmopd.evaluation.journal import GRADED, by_key, read_lines
from trustmopd.evaluation.run_record import differing, read_record
from trustmopd.runs import EntryDirectory
from trustmopd.runs.layout import ASKED, INITIAL, TEACHER
from trustmopd.runs.schemas import ASKED_WITH

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
ByBenchmark = dict[str, Graded]


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
    """Entry → seed → checkpoint of every evaluation below `folders`, and a sentence on each thing that is left out: an
    evaluation without a finished benchmark, or a benchmark that some evaluation has not finished. `benchmarks` are
    those to read; None reads all."""
    evaluations: dict[tuple[str, int], _Evaluation] = {}
    records = {record.resolve(): record for folder in folders for record in sorted(folder.rglob(ASKED))}
    for record in sorted(records.values(), key=_order):
        evaluation = _read(record.parent, benchmarks)
        if evaluation.asked:
            key = (evaluation.about["method"], evaluation.about["seed"])
            evaluations[key] = _merged(evaluations[key], evaluation) if key in evaluations else evaluation
    entries: dict[str, dict[int, ByBenchmark]] = {}
    notes = []
    short: dict[str, Path] = {}
    for (name, seed), evaluation in evaluations.items():
        unfinished = [benchmark for benchmark in evaluation.asked if benchmark not in evaluation.finished]
        if evaluation.finished:
            entries.setdefault(name, {})[seed] = evaluation.finished
            short |= dict.fromkeys(unfinished, evaluation.folder)
        else:
            notes.append(f"{evaluation.folder} is left out: it is not finished ({', '.join(unfinished)}).")
    notes += [f"{name} is left out of every row: {folder} has not finished it." for name, folder in short.items()]
    for checkpoint in (checkpoint for seeds in entries.values() for checkpoint in seeds.values()):
        for benchmark in short:
            checkpoint.pop(benchmark, None)
    return entries, notes


def finished_entries(folder: Path, names: Iterable[str], benchmarks: Collection[str] | None = None) -> list[str]:
    """Those that are finished, by their folders. One that is not would leave its benchmarks out of all the others."""
    read = {name: collect([folder / name], benchmarks) for name in names}
    return [name for name, (entries, unfinished) in read.items() if entries and not unfinished]


def read_graded(path: Path, asked: Mapping[str, Any]) -> Graded | None:
    """None until everything that was asked is graded. Other lines are from an earlier call that asked for more."""
    graded = by_key(read_lines(path, GRADED)[0])
    wanted = [(prompt, sample) for prompt in asked["ids"] for sample in range(asked["samples"])]
    if not all(key in graded for key in wanted):
        return None
    responses = [graded[key] for key in wanted]
    by_prompt: dict[str, list[float]] = {}
    for response in responses:
        by_prompt.setdefault(response["id"], []).append(response["score"])
    facts = {
        "prompts": len(by_prompt),
        "responses": len(responses),
        "truncated": sum(response["truncated"] for response in responses),
        "overlong": sum(response.get("overlong", False) for response in responses),
        "grader_errors": sum("error" in response["details"] for response in responses),
        "no_answer": sum(line.get("extracted", "") is None and "error" not in line["details"] for line in responses),
        "mean_tokens": mean(response["tokens"] for response in responses),
    }
    for name in _DETAILS:
        if any(name in response["details"] for response in responses):
            details = [response["details"].get(name, False) for response in responses]  # overlong or raised: not passed
            facts[name] = mean(verdict for each in details for verdict in (each if isinstance(each, list) else [each]))
    return Graded(asked["domain"], {prompt: mean(scores) for prompt, scores in by_prompt.items()}, facts)


def _read(folder: Path, benchmarks: Collection[str] | None) -> _Evaluation:
    about = read_record(folder)
    asked = {name: what for name, what in about.pop("benchmarks").items() if benchmarks is None or name in benchmarks}
    graded = {name: read_graded(EntryDirectory(folder).graded(name), what) for name, what in asked.items()}
    finished = {name: found for name, found in graded.items() if found is not None}
    for name, found in finished.items():
        found.facts.update(graders=asked[name].get("graders"), **{field: about.get(field) for field in ASKED_WITH})
    return _Evaluation(folder, about, asked, finished)


def _merged(first: _Evaluation, second: _Evaluation) -> _Evaluation:
    """Two folders of one checkpoint, sampled in one way, make one entry. If both have a benchmark, the first counts."""
    entry = f"{first.about['method']!r}, seed {first.about['seed']}"
    both = f"{first.folder} and {second.folder} both hold {entry}, but with"
    if field := differing(first.about, second.about):
        raise ValueError(
            f"{both} {field} {first.about.get(field)!r:.80} and {second.about.get(field)!r:.80}. Leave one out, or "
            "give the two recipes different names and evaluate again."
        )
    for name in first.asked.keys() & second.asked.keys():
        if any(first.asked[name][field] != second.asked[name][field] for field in ("ids", "samples")):
            raise ValueError(f"{both} different prompts or samples of {name}. Leave one out.")
    return _Evaluation(
        first.folder,
        {**second.about, **first.about},
        {**second.asked, **first.asked},
        {**second.finished, **first.finished},
    )


def _order(record: Path) -> tuple[bool, bool]:
    """The initial student first, then teachers, then the rest; each as the folders come."""
    name = record.parent.name
    return name != INITIAL, not name.startswith(TEACHER)
