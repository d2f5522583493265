"""The later stages: prompts, diagnosis, learning rate, distillation, evaluation, results. Each continues where it
stopped."""

import time
from collections.abc import Sequence
from itertools import product
from pathlib import Path

from trustmopd.evaluation.graded import collect
from trustmopd.evaluation.of_recipe import scored
from trustmopd.recipe import load_recipe
from trustmopd.smollm2.distillation import FULL, METHODS, PARTS, Comparison, all_cells
from trustmopd.smollm2.lora import ADAPTER
from trustmopd.smollm2.prompt_sets import SETS, write_prompt_sets
from trustmopd.smollm2.results_page import write_page
from trustmopd.smollm2.side_by_side import Again, share_machine, side_by_side
from trustmopd.smollm2.stages import Study
from trustmopd.smollm2.tasks import DOMAINS
from trustmopd.testbed.cells import Cell, finished_cells
from trustmopd.testbed.experiment import REFERENCES
from trustmopd.testbed.machine import describe, made_by


def check_only(only: Sequence[str], seeds: int) -> None:
    runs = {cell.name for cell in all_cells(seeds)}
    known = (*DOMAINS, *SETS, *METHODS, *REFERENCES)
    if unknown := [name for name in only if name not in known and name not in runs and not name.startswith("lr-")]:
        raise ValueError(
            f"--only {unknown[0]}: there is no such name. Choose from {', '.join(known)}, or a run such as "
            f"singlecap/trust/seed-0; the study has {seeds} seeds (distil.seeds)."
        )


class ComparisonStages:
    """`only` are names of prompt sets and methods, or of single runs and rows. Those are worked on in this process:
    what a stage starts side by side are commands with such names."""

    def __init__(self, study: Study, only: Sequence[str], jobs: int, deadline: float | None, again: Again) -> None:
        self.study, self.only, self.jobs, self.deadline, self.again = study, only, jobs, deadline, again
        self.all = Comparison(study.out, study.settings, study.data)

    def prompts(self) -> None:
        write_prompt_sets(self.study.out, self.study.settings, self.study.data)

    def diagnose(self) -> None:
        """One prompt set after the other, or those that `only` names."""
        self._ready()
        for prompts in self._sets():
            self.all.diagnose(prompts)

    def sweep(self) -> None:
        rates = self.all.sweep_rates()
        if here := [name for name in self.only if name in rates]:
            share_machine(self.jobs)
            for name in here:
                self.all.sweep(name, None)
            return
        if (self.study.out / "sweep.json").is_file():
            return
        self._ready()
        side_by_side(list(rates), lambda name: self.again("sweep", [name]), self.jobs)
        self.all.choose_rate()

    def distil(self) -> None:
        by_name = {cell.name: cell for cell in self.all.cells}
        self._check_rates()
        if self.only and all(name in by_name for name in self.only):
            share_machine(self.jobs)
            for name in self.only:
                self.all.train(by_name[name], self.deadline)
            return
        self._ready()
        todo = [cell.name for cell in self._untrained()]
        side_by_side(todo, lambda name: self.again("distil", [name]), self.jobs, self.deadline)
        if left := self._untrained():
            names = ", ".join(cell.name for cell in left)
            print(f"Out of time: not finished are {names}. The same command continues.", flush=True)

    def evaluate(self) -> None:
        """As many processes as `jobs`, each with some of the rows: their own prompts first, then mixed, then public."""
        by_name: dict[str, str | Cell] = {row: row for row in REFERENCES}
        by_name |= {cell.name: cell for cell in self.all.cells}
        if self.only and all(name in by_name for name in self.only):
            share_machine(self.jobs)
            for part, name in product(PARTS, self.only):
                if self.deadline is None or time.monotonic() < self.deadline:
                    self.all.evaluate(by_name[name], part)
            return
        self._ready()
        references = [name for name in REFERENCES if name in self.only] or REFERENCES
        trained = [cell.name for cell in self._chosen() if self.all.is_trained(self.all.recipe_of(cell))]
        rows = [name for name in (*references, *trained) if not self.all.is_evaluated(by_name[name])]
        shares = {", ".join(share): share for place in range(self.jobs) if (share := rows[place :: self.jobs])}
        side_by_side(list(shares), lambda name: self.again("evaluate", shares[name]), self.jobs, self.deadline)

    def grade(self) -> None:
        self.all.grade()

    def results(self) -> Path:
        """Tables, figures and report of the finished runs, the scores of the other prompts, and the page."""
        out, how = self.study.out, self.study.settings
        self.all.hand_over()
        if cells := finished_cells(out, METHODS):
            from trustmopd.testbed.tables import write_comparison  # draws figures, which a GPU machine need not

            notes = [
                f"{how.distil.steps} steps of {how.distil.batch_size} prompts, C = {how.distil.num_candidates}, "
                f"learning rate {self.all.learning_rate:g}, adapters of rank {how.lora.rank}; {how.scoring.prompts} "
                f"held-out prompts a domain, {how.scoring.samples} samples each at temperature "
                f"{how.scoring.temperature:g}. {describe(made_by())}."
            ]
            model = Path(how.model).name if how.model else "SmolLM2-135M"
            write_comparison(out, cells, f"The paper's comparison with {model}", notes)
        for folder in (out / "mixed", out / "public"):
            if collect([folder])[0]:
                scored([folder], folder)
        return write_page(self.all)

    def _ready(self) -> None:
        self.study.base()
        self.prompts()
        lacking = [domain for domain in DOMAINS if not (self.study.adapter(domain) / ADAPTER).is_file()]
        if lacking:
            raise FileNotFoundError(
                f"{self.study.out} has no specialist in {', '.join(lacking)}. Train it first: --stage specialists."
            )

    def _check_rates(self) -> None:
        """Runs are compared at one learning rate. One that was trained before the sweep may have another."""
        for cell in (cell for cell in self.all.cells if cell.method != FULL):
            run, rate = cell.run(self.study.out), self.all.learning_rate
            if run.recipe.is_file() and (had := load_recipe(run.recipe).training["learning_rate"]) != rate:
                raise ValueError(
                    f"{run.path} has learning rate {had:g}, and the study has {rate:g} now: the stage sweep chose it, "
                    "or a setting was changed. Remove that folder, to train it again, or go back to its rate."
                )

    def _chosen(self) -> list[Cell]:
        """The runs that `only` names, and those of its prompt sets and methods; all where it names none."""
        runs = [cell for cell in self.all.cells if cell.name in self.only]
        if self.only and all(name in REFERENCES or "/" in name for name in self.only):
            return runs
        methods = [name for name in self.only if name in METHODS] or METHODS
        kinds = [cell for cell in self.all.cells if cell.prompts in self._sets() and cell.method in methods]
        return list(dict.fromkeys([*runs, *kinds]))

    def _sets(self) -> Sequence[str]:
        return [name for name in self.only if name in SETS] or SETS

    def _untrained(self) -> list[Cell]:
        """Runs that have neither scores nor finished weights."""
        chosen = [cell for cell in self._chosen() if not self.all.is_scored(cell)]
        return [cell for cell in chosen if not self.all.is_trained(self.all.recipe_of(cell))]
