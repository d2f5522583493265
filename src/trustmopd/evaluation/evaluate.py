"""One checkpoint on some benchmarks: sample, grade, and write both as they come. A second call continues the first."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from time import monotonic
from typing import Any

from tqdm.auto import tqdm

from trustmopd.evaluation.benchmark import Benchmark, Grade
from trustmopd.evaluation.benchmarks import Loaded
from trustmopd.evaluation.journal import GRADED, SAMPLED, Journal, Key, by_key
from trustmopd.evaluation.questions import Row
from trustmopd.evaluation.rows_to_score import Method
from trustmopd.evaluation.run_record import run_folder
from trustmopd.evaluation.sampling import Request, Sampler, Sampling
from trustmopd.runs import RowDirectory
from trustmopd.util.files import locked


def evaluate_checkpoint(
    method: Method,
    folder: Path,
    benchmarks: Sequence[Loaded],
    sampling: Sampling,
    make_sampler: Callable[[], Sampler],
    *,
    jobs: int = 2,
    quiet: bool = False,
    grading: bool = True,
) -> None:
    """Writes what was sampled, how it was graded, and a record of both into `folder`. The sampler is made only if
    something is left to sample. Without `grading`, responses are only sampled; `grade_responses` grades them later."""
    samplers: list[Sampler] = []

    def sampler() -> Sampler:
        if not samplers:
            samplers.append(make_sampler())
        return samplers[0]

    with run_folder(folder, method, sampling, benchmarks):
        for loaded in benchmarks:
            label = None if quiet else method.folder
            _evaluate(loaded, RowDirectory(folder), sampling, sampler, jobs, label, grading)


def grade_responses(folder: Path, loaded: Loaded, *, jobs: int = 2) -> None:
    """Grade what was sampled into `folder` and is not graded yet. The checkpoint need not be there."""
    benchmark, rows, files = loaded.benchmark, {row["id"]: row for row in loaded.rows}, RowDirectory(folder)
    with (
        locked(folder, "Wait for it, or choose another --out."),
        Journal(files.responses(benchmark.name), SAMPLED) as responses,
        Journal(files.graded(benchmark.name), GRADED) as graded,
        _Graders(benchmark, rows, graded, jobs) as graders,
    ):
        done = _by_key(graded, rows, benchmark)
        sampled = _by_key(responses, rows, benchmark)
        todo = [entry for key, entry in sampled.items() if key not in done and key[0] in rows]
        with tqdm(total=len(todo), desc=f"{folder.name} {benchmark.name}", unit="response") as graders.bar:
            for entry in todo:
                graders.take(entry)
            graders.collect(everything=True)


def _evaluate(
    loaded: Loaded,
    folder: RowDirectory,
    sampling: Sampling,
    sampler: Callable[[], Sampler],
    jobs: int,
    label: str | None,
    grading: bool,
) -> None:
    """`label` names the progress bar; None for no bar."""
    benchmark, rows = loaded.benchmark, {row["id"]: row for row in loaded.rows}
    wanted = [(key, sample) for key in rows for sample in range(sampling.samples or benchmark.samples)]
    with (
        Journal(folder.responses(benchmark.name), SAMPLED) as responses,
        Journal(folder.graded(benchmark.name), GRADED) as graded,
        _Graders(benchmark, rows, graded, jobs) as graders,
    ):
        sampled = _by_key(responses, rows, benchmark)
        done = _by_key(graded, rows, benchmark)
        lacking = [key for key in wanted if key not in sampled and key not in done]
        missing = [Request(*key, benchmark.prompt(rows[key[0]])) for key in lacking]
        model = sampler() if missing else None  # before our bar: loading has a bar of its own
        with tqdm(total=len(wanted), desc=f"{label} {benchmark.name}", unit="response", disable=label is None) as bar:
            for key in wanted:
                if key in done:
                    graders.count(done[key])
                elif key in sampled and grading:
                    graders.take(sampled[key])
            bar.initial = bar.n = graders.counted  # the ETA starts here
            graders.bar = bar
            for reply in model.sample(missing, sampling) if model else ():
                entry = {
                    "id": reply.request.id,
                    "sample": reply.request.sample,
                    "prompt_hash": _prompt_hash(benchmark, rows[reply.request.id]),
                    "response": reply.response,
                    "tokens": reply.tokens,
                    "truncated": reply.truncated,
                    **({"overlong": True} if reply.overlong else {}),
                    "seconds": round(reply.seconds, 3),
                }
                responses.append(entry)
                if grading:
                    graders.take(entry)
                    graders.collect()
                else:
                    bar.update()
            graders.collect(everything=True)


class _Graders:
    """Threads that grade while the model samples; what they find is written by the main thread."""

    def __init__(self, benchmark: Benchmark, rows: Mapping[str, Row], graded: Journal, jobs: int) -> None:
        self.benchmark, self.rows, self.graded = benchmark, rows, graded
        self.pool = ThreadPoolExecutor(jobs, thread_name_prefix="grade")
        self.pending: set[Future[dict[str, Any]]] = set()
        self.bar: Any = None
        self.score, self.counted, self.cut = 0.0, 0, 0

    def take(self, entry: Mapping[str, Any]) -> None:
        self.pending.add(self.pool.submit(self._grade, entry))

    def collect(self, everything: bool = False) -> None:
        while self.pending:
            timeout = None if everything else 0
            finished, self.pending = wait(self.pending, timeout, FIRST_COMPLETED)
            if not finished:
                return
            for future in finished:
                entry = future.result()
                self.graded.append(entry)
                self.count(entry)
            self.bar.set_postfix_str(f"score {100 * self.score / self.counted:.1f}, {self.cut} cut short", False)
            self.bar.update(self.counted - self.bar.n)

    def count(self, entry: Mapping[str, Any]) -> None:
        self.score += entry["score"]
        self.cut += entry["truncated"]
        self.counted += 1

    def _grade(self, entry: Mapping[str, Any]) -> dict[str, Any]:
        began = monotonic()
        unasked = entry.get("overlong", False)
        grade = Grade(0.0) if unasked else self.benchmark.grade(self.rows[entry["id"]], entry["response"])
        details = dict(grade.details)
        return {
            **entry,
            "extracted": details.pop("extracted", None),
            "score": grade.score,
            "details": details,
            "grading_seconds": round(monotonic() - began, 3),
        }

    def __enter__(self) -> "_Graders":
        return self

    def __exit__(self, *_: object) -> None:
        self.pool.shutdown(wait=False, cancel_futures=True)


def _by_key(journal: Journal, rows: Mapping[str, Row], benchmark: Benchmark) -> dict[Key, dict[str, Any]]:
    for entry in journal.entries:
        row = rows.get(entry["id"])
        if row is not None and entry["prompt_hash"] != _prompt_hash(benchmark, row):
            raise ValueError(
                f"{journal.path}: prompt {entry['id']!r} has changed since it was sampled. Use the same data as "
                "before, or choose another --out."
            )
    return by_key(journal.entries)


def _prompt_hash(benchmark: Benchmark, row: Row) -> str:
    return hashlib.sha256(json.dumps(benchmark.prompt(row)).encode()).hexdigest()[:16]
