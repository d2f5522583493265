"""The scores of base, teachers and students, by `evaluation`: own prompts, mixed prompts, public benchmarks."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from studies.small_world.cells import Cell, begun_cells
from studies.smollm2.distillation import METHODS, OWN, Comparison
from studies.smollm2.mixed import KINDS
from studies.smollm2.prompt_sets import PUBLIC, evaluation_file
from studies.smollm2.tasks import DOMAINS
from studies.smollm2.word_problems import svamp_rows
from trustmopd.evaluation.benchmark import Unavailable
from trustmopd.evaluation.benchmarks import Loaded, get_benchmark, load_benchmarks
from trustmopd.evaluation.evaluate import grade_responses
from trustmopd.evaluation.of_recipe import evaluate_rows, hand_over, sampling_of
from trustmopd.evaluation.read_graded import whole_rows
from trustmopd.evaluation.rows_to_score import methods_of
from trustmopd.evaluation.run_record import read_record
from trustmopd.evaluation.sampling import make_sampler
from trustmopd.runs import RunDirectory, step_of
from trustmopd.runs.layout import ASKED, RowDirectory

MIXED = [f"smollm2_{kind.replace('+', '_')}" for kind in KINDS]
#: What is evaluated, and what it is called. A process evaluates all its rows on one before the next.
PARTS = {"own": "own prompts", "mixed": "mixed prompts", "public": "public benchmarks"}
_FOLDERS = {"own": "evaluation", "mixed": "mixed", "public": "public"}
#: MBPP's test problems, by its authors' split: a file may have them all.
_MBPP_TEST = range(11, 511)


@dataclass(frozen=True)
class RowScores:
    """A row is a policy by its name, or a run."""

    runs: Comparison

    def evaluate(self, row: str | Cell, part: str, quiet: bool = True) -> None:
        """One of PARTS. Own and mixed prompts are graded, public benchmarks only sampled. A second call continues the
        first."""
        if isinstance(row, Cell):
            recipe, name = self.runs.recipe_of(row), row.row
        else:
            recipe, name = self.runs.recipe("references", "singlecap", "trust", 0, self.runs.out), row
        methods, _ = methods_of(recipe, [name])
        if not methods and isinstance(row, Cell):
            raise FileNotFoundError(f"{row.name} has no checkpoint. Train it first: --stage distil --only {row.name}")
        size = self.runs.settings.scoring.batch_size
        sampling = sampling_of(recipe)
        if part == "public":
            loaded = self.public()
            sampling = replace(sampling, max_new_tokens=self.runs.settings.public.max_new_tokens, samples=1)
        else:
            loaded = self._own(OWN, DOMAINS) if part == "own" else self._own(MIXED, KINDS)
        evaluate_rows(
            *(recipe, methods, self.runs.out / _FOLDERS[part], loaded, sampling),
            lambda method: make_sampler("transformers", method.source, method.base, batch_size=size),
            jobs=os.cpu_count() or 1,
            quiet=quiet,
            grading=part != "public",
        )

    def is_evaluated(self, row: str | Cell, part: str) -> bool:
        """Whether every response is there; those to public benchmarks are graded later."""
        if part != "public":
            return self._graded(part, row)
        sampled = RowDirectory(self.runs.out / _FOLDERS[part] / _folder(row))
        files = {sampled.responses(each.benchmark.name): len(each.rows) for each in self.public()}
        return all(file.is_file() and file.read_bytes().count(b"\n") >= count for file, count in files.items())

    def is_scored(self, cell: Cell) -> bool:
        """On its own prompts, after as many steps as it is to have. Its weights may be elsewhere, or gone; without its
        recipe, the run was removed."""
        if not cell.run(self.runs.out).recipe.is_file() or not self._graded("own", cell):
            return False
        record = read_record(RunDirectory(self.runs.out).evaluation / _folder(cell))
        return step_of(Path(record["adapter"] or record["model"])) >= self.runs.settings.distil.steps

    def hand_over(self) -> None:
        """The scores of every evaluated student into its run, beside those of base and teachers, which may have come
        later. A student may have a seed that this command does not ask for."""
        for cell in begun_cells(self.runs.out, METHODS):
            if self._graded("own", cell):
                hand_over(self.runs.recipe_of(cell), RunDirectory(self.runs.out).evaluation, OWN)

    def _graded(self, part: str, row: str | Cell) -> bool:
        return bool(whole_rows(self.runs.out / _FOLDERS[part], [_folder(row)]))

    def grade(self) -> list[str]:
        """The public benchmarks' responses, wherever they were sampled; of those that can be graded here. Returns what
        the others lack."""
        lacking = []
        for each in self.public():
            try:
                each.benchmark.ready()
            except Unavailable as error:
                lacking.append(f"{each.benchmark.name} is not graded: {error}")
                continue
            for record in sorted((self.runs.out / _FOLDERS["public"]).rglob(ASKED)):
                grade_responses(record.parent, each, jobs=os.cpu_count() or 1)
        return lacking

    def public(self) -> list[Loaded]:
        """Those whose data are given, or all from the Hub; SVAMP always, since it is trained on too. What grades them
        need not be installed here."""
        svamp, *others = PUBLIC
        named = [svamp, *([name for name in others if name in self.runs.data] or others)]
        loaded = []
        for benchmark in map(get_benchmark, named):
            path = self.runs.data.get(benchmark.name)
            rows = svamp_rows(True, path) if benchmark.name == "svamp" else benchmark.load(path)
            if benchmark.name == "mbpp":
                rows[:] = [row for row in rows if int(row["id"]) in _MBPP_TEST]
            del rows[self.runs.settings.public.prompts :]
            loaded.append(Loaded(benchmark, rows))
        return loaded

    def _own(self, names: Sequence[str], kinds: Sequence[str]) -> list[Loaded]:
        files = {name: str(evaluation_file(self.runs.out, kind)) for name, kind in zip(names, kinds, strict=True)}
        return load_benchmarks(names, files)


def _folder(row: str | Cell) -> str:
    """Of a row's responses."""
    return row if isinstance(row, str) else row.responses
