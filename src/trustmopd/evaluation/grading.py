"""Grade responses in processes of their own, with a time limit, while the caller does something else. A grader that
raises, hangs, ends its process or gives no number costs one grade, and never the caller's run."""

import math
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from trustmopd.evaluation.benchmark import Grade, Row
from trustmopd.evaluation.benchmarks import get_benchmark
from trustmopd.evaluation.graders.reasoning import strip_reasoning
from trustmopd.recipe import QuestionFile

#: Seconds for one response: a program may take several for each of its tests.
TIME_LIMIT = 60.0
#: Seconds until a new process answers; Python starts slowly where the machine is busy.
_START_LIMIT = 120.0
_MOST_PROCESSES = 4


class Graded(NamedTuple):
    """`score` is None if the grader failed; `problem` says how."""

    score: float | None
    problem: str = ""


class GradingPool:
    """A few processes, each of which grades one response at a time. They start when they are needed. Graders are
    functions that can be pickled: those of a module, or `partial`s of them."""

    def __init__(self, processes: int | None = None, limit: float = TIME_LIMIT) -> None:
        here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        self.processes = processes or max(1, min(_MOST_PROCESSES, (os.cpu_count() or 1) // here))
        self.limit = limit
        self._threads: ThreadPoolExecutor | None = None
        self._workers: list[_Worker] = []
        self._own = threading.local()

    def submit(self, grader: Callable[..., Any], *args: Any) -> Future[Graded]:
        """`grader` gives a `Grade`, a number or a truth value."""
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self.processes, "grade", self._begin)
        return self._threads.submit(self._grade, pickle.dumps((self.limit, grader, args)))

    def _begin(self) -> None:
        self._own.worker = _Worker()
        self._workers.append(self._own.worker)

    def _grade(self, call: bytes) -> Graded:
        return self._own.worker.ask(call, self.limit)

    def close(self) -> None:
        """End the processes, whatever they are doing, and what they have started."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
            for worker in self._workers:
                worker.close()
            self._threads, self._workers = None, []


class _Worker:
    """One process, and its successors."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = False

    def ask(self, call: bytes, limit: float) -> Graded:
        try:
            if self._process is None:
                self._start()
            self._pipe.send_bytes(call)
            return self._receive(limit)
        except (OSError, EOFError) as error:
            self._end()
            return Graded(None, str(error) or "its process ended")

    def close(self) -> None:
        self._closed = True
        self._end()

    def _start(self) -> None:
        if self._closed:
            raise EOFError
        self._pipe, its_end = Pipe()
        # What can be imported here can be imported there. The main module is not imported again: it trains.
        code = f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import serve; serve({its_end.fileno()})"
        with its_end:
            self._process = subprocess.Popen(
                [sys.executable, "-c", code],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[its_end.fileno()],
                start_new_session=True,  # Ctrl-C reaches the run alone, and what a grader has started is ended with it
            )
        self._receive(_START_LIMIT)

    def _receive(self, limit: float) -> Any:
        if not self._pipe.poll(limit):
            raise TimeoutError(f"it took longer than {limit:g} s")
        return self._pipe.recv()

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def serve(pipe_end: int) -> None:
    """In the other process: grade until the pipe is closed, which the end of the run does."""
    pipe, own = Connection(pipe_end), os.getpid()
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")  # where memory runs out, this process ends, and not the run
    pipe.send(None)
    with suppress(EOFError):
        while True:
            graded = _graded(pipe.recv_bytes())
            if os.getpid() != own:  # a copy that a grader made by forking
                os._exit(0)
            pipe.send(graded)


def _graded(call: bytes) -> Graded:
    try:
        limit, grader, args = pickle.loads(call)
        signal.alarm(math.ceil(limit) + 1)  # if the run was killed, nobody else would end this process
        found = grader(*args)
        score = float(getattr(found, "score", found))
        return Graded(score) if math.isfinite(score) else Graded(None, f"it gave {score}")
    except BaseException as error:  # SystemExit too
        return Graded(None, f"{type(error).__name__}: {error}")
    finally:
        signal.alarm(0)


def grade_row(benchmark: str | QuestionFile, row: Row, response: str) -> Grade:
    """Grade a response to a benchmark's row. Unlike `Benchmark.grade`, it raises where the grader does."""
    return _grader(benchmark)(row, strip_reasoning(response))


@cache
def _grader(benchmark: str | QuestionFile) -> Callable[[Row, str], Grade]:
    return get_benchmark(benchmark).grader
