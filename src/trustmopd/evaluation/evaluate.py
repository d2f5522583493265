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
from trustmopd.evaluation.benchmarks import Loaded
from trustmopd.evaluation.journal import GRADED, SAMPLED, Journal, Key, by_key
from trustmopd.evaluation.rows_to_score import Method
from trustmopd.evaluation.run_record import ELSEWHERE, run_folder
from trustmopd.evaluation.sampling import Reply, Request, Sampler, Sampling
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
    sampler = cache(make_sampler)
    with run_folder(folder, method, sampling, benchmarks):
        for loaded in benchmarks:
            with _Answers(folder, loaded, jobs, None if quiet else method.folder) as answers:
                answers.complete(sampling, sampler, grading)


def grade_responses(folder: Path, loaded: Loaded, *, jobs: int = 2) -> None:
    """Grade what was sampled into `folder` and is not graded yet. The checkpoint need not be there."""
    with locked(folder, ELSEWHERE), _Answers(folder, loaded, jobs, folder.name) as answers:
        answers.grade()


class _Answers:
    """The responses to one benchmark: those that were sampled, and those of them that are graded. Threads grade while
    the model samples; what they find is written by the main thread. `label` names the progress bar; None for no bar."""

    def __init__(self, folder: Path, loaded: Loaded, jobs: int, label: str | None) -> None:
        self.benchmark, self.rows = loaded.benchmark, {row["id"]: row for row in loaded.rows}
        self.name, self.label = loaded.benchmark.name, label
        self.responses = Journal(RowDirectory(folder).responses(self.name), SAMPLED)
        self.grades = Journal(RowDirectory(folder).graded(self.name), GRADED)
        self.sampled, self.graded = self._by_key(self.responses), self._by_key(self.grades)
        self.pool = ThreadPoolExecutor(jobs, thread_name_prefix="grade")
        self.pending: set[Future[dict[str, Any]]] = set()
        self.score, self.counted, self.cut = 0.0, 0, 0

    def __enter__(self) -> "_Answers":
        return self

    def __exit__(self, *_: object) -> None:
        self.pool.shutdown(wait=False, cancel_futures=True)

    def complete(self, sampling: Sampling, sampler: Callable[[], Sampler], grading: bool) -> None:
        """Sample what is asked and not there, and grade it."""
        wanted = [(name, sample) for name in self.rows for sample in range(sampling.samples or self.benchmark.samples)]
        missing = [key for key in wanted if key not in self.sampled and key not in self.graded]
        requests = [Request(*key, self.benchmark.prompt(self.rows[key[0]])) for key in missing]
        model = sampler() if requests else None  # before our bar: loading has a bar of its own
        with self._bar(len(wanted)) as bar:
            for key in wanted:
                if key in self.graded:
                    self._count(self.graded[key])
                elif key in self.sampled and grading:
                    self._submit(self.sampled[key])
            bar.initial = bar.n = self.counted  # the ETA starts here
            for reply in model.sample(requests, sampling) if model else ():
                response = self._record(reply)
                self.responses.append(response)
                if grading:
                    self._submit(response)
                    self._collect(bar)
                else:
                    bar.update()
            self._collect(bar, everything=True)

    def grade(self) -> None:
        """Grade what was sampled and is not graded yet."""
        todo = [key for key in self.sampled if key not in self.graded and key[0] in self.rows]
        with self._bar(len(todo)) as bar:
            for key in todo:
                self._submit(self.sampled[key])
            self._collect(bar, everything=True)

    def _bar(self, total: int) -> Any:
        return tqdm(total=total, desc=f"{self.label} {self.name}", unit="response", disable=self.label is None)

    def _record(self, reply: Reply) -> dict[str, Any]:
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
            "extracted": details.pop("extracted", None),
            "score": grade.score,
            "details": details,
            "grading_seconds": round(monotonic() - began, 3),
        }

    def _by_key(self, journal: Journal) -> dict[Key, dict[str, Any]]:
        for entry in journal.entries:
            if entry["id"] in self.rows and entry["prompt_hash"] != self._prompt_hash(entry["id"]):
                raise ValueError(
                    f"{journal.path}: prompt {entry['id']!r} has changed since it was sampled. Use the same data as "
                    "before, or choose another --out."
                )
        return by_key(journal.entries)

    def _prompt_hash(self, id: str) -> str:
        return hashlib.sha256(json.dumps(self.benchmark.prompt(self.rows[id])).encode()).hexdigest()[:16]
