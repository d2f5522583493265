"""One checkpoint on some benchmarks: sample, grade, and write both as they come. A second call continues the first."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from functools import cache
from pathlib import Path
from time import monotonic
from typing import Any

from tqdm.auto import tqdm

from trustmopd.evaluation.benchmark import Grade
from trustmopd.evaluation.benchmarks import Questions
from trustmopd.evaluation.entries import Entry
from trustmopd.evaluation.journal import GRADED, SAMPLED, Journal, Key, by_key
from trustmopd.evaluation.run_record import run_folder
from trustmopd.evaluation.sampling import Request, Response, Sampler, Sampling, put
from trustmopd.runs import EntryDirectory


def evaluate_checkpoint(
    entry: Entry,
    folder: Path,
    benchmarks: Sequence[Questions],
    sampling: Sampling,
    make_sampler: Callable[[], Sampler],
    *,
    jobs: int = 2,
    quiet: bool = False,
) -> None:
    """Writes what was sampled, how it was graded, and a record of both into `folder`. The sampler is made only if
    something is left to sample."""
    sampler = cache(make_sampler)
    with run_folder(folder, entry, sampling, benchmarks):
        for loaded in benchmarks:
            _Answers(folder, loaded, jobs, None if quiet else entry.folder).complete(sampling, sampler)


class _Answers:
    """The responses to one benchmark: those that were sampled, and those of them that are graded. Threads grade while
    the model samples; what they find is written by the main thread. `label` names the progress bar; None for no bar."""

    def __init__(self, folder: Path, loaded: Questions, jobs: int, label: str | None) -> None:
        self.benchmark, self.rows = loaded.benchmark, {row["id"]: row for row in loaded.rows}
        self.name, self.label = loaded.benchmark.name, label
        self.responses = Journal(EntryDirectory(folder).responses(self.name), SAMPLED)
        self.grades = Journal(EntryDirectory(folder).graded(self.name), GRADED)
        self.sampled, graded = self._by_key(self.responses), self._by_key(self.grades)
        self.graded = {key: line for key, line in graded.items() if line.get("grading") == self._grading(key[0])}
        self.pool = ThreadPoolExecutor(jobs, thread_name_prefix="grade")
        self.pending: set[Future[dict[str, Any]]] = set()
        self.score, self.counted, self.cut = 0.0, 0, 0

    def complete(self, sampling: Sampling, sampler: Callable[[], Sampler]) -> None:
        """Sample what is asked and not there, and grade it."""
        wanted = [(name, sample) for name in self.rows for sample in range(sampling.samples or self.benchmark.samples)]
        missing = [key for key in wanted if key not in self.sampled and key not in self.graded]
        requests = [Request(*key, *put(self.benchmark, self.rows[key[0]], sampling)) for key in missing]
        model = sampler() if requests else None  # before our bar: loading has a bar of its own
        name = f"{self.label} {self.name}"
        try:
            with tqdm(total=len(wanted), desc=name, unit="response", disable=self.label is None) as bar:
                for key in wanted:
                    if key in self.graded:
                        self._count(self.graded[key])
                    elif key in self.sampled:
                        self._submit(self.sampled[key])
                bar.initial = bar.n = self.counted  # the ETA starts here
                for reply in model.sample(requests, sampling) if model else ():
                    record = self._record(reply)
                    self.responses.append(record)
                    self._submit(record)
                    self._collect(bar)
                self._collect(bar, everything=True)
        finally:
            self.pool.shutdown(wait=False, cancel_futures=True)

    def _record(self, reply: Response) -> dict[str, Any]:
        return {
            "id": reply.request.id,
            "sample": reply.request.sample,
            "prompt_hash": self._prompt_hash(reply.request.id),
            "response": reply.response,
            "tokens": reply.tokens,
            "truncated": reply.truncated,
            **({"overlong": True} if reply.overlong else {}),
            "seconds": round(reply.seconds, 3),
        }

    def _submit(self, response: Mapping[str, Any]) -> None:
        self.pending.add(self.pool.submit(self._grade, response))

    def _collect(self, bar: Any, everything: bool = False) -> None:
        while self.pending:
            finished, self.pending = wait(self.pending, None if everything else 0, FIRST_COMPLETED)
            if not finished:
                return
            for future in finished:
                response = future.result()
                self.grades.append(response)
                self._count(response)
            bar.set_postfix_str(f"score {100 * self.score / self.counted:.1f}, {self.cut} cut short", False)
            bar.update(self.counted - bar.n)

    def _count(self, response: Mapping[str, Any]) -> None:
        self.score += response["score"]
        self.cut += response["truncated"]
        self.counted += 1

    def _grade(self, response: Mapping[str, Any]) -> dict[str, Any]:
        began = monotonic()
        row = self.rows[response["id"]]
        grade = Grade(0.0) if response.get("overlong") else self.benchmark.grade(row, response["response"])
        details = dict(grade.details)
        return {
            **response,
            **({"extracted": details.pop("extracted")} if "extracted" in details else {}),
            "score": grade.score,
            **({"grading": grading} if (grading := self._grading(row["id"])) else {}),
            "details": details,
            "grading_seconds": round(monotonic() - began, 3),
        }

    def _by_key(self, journal: Journal) -> dict[Key, dict[str, Any]]:
        for line in journal.lines:
            if line["id"] in self.rows and line["prompt_hash"] != self._prompt_hash(line["id"]):
                raise ValueError(
                    f"{journal.path}: prompt {line['id']!r} has changed since it was sampled. Use the same data as "
                    "before, or choose another --out."
                )
        return by_key(journal.lines)

    def _prompt_hash(self, id: str) -> str:
        messages, options = put(self.benchmark, self.rows[id], Sampling())
        return _sha([messages, options] if options else messages)

    def _grading(self, id: str) -> str | None:
        """What graded a row of the user's, and the row: a corrected answer or grader grades again."""
        return _sha([self.benchmark.graders, self.rows.get(id)]) if self.benchmark.graders else None


def _sha(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, default=str).encode()).hexdigest()[:16]
