"""The later stages: prompts, diagnosis, learning rate, distillation, evaluation, results. Each continues where it
stopped."""

import time
from collections.abc import Sequence
from functools import partial
from itertools import product
from pathlib import Path

from studies.small_world.cells import Cell, finished_cells
from studies.smollm2.distillation import FULL, METHODS, Comparison
from studies.smollm2.lora import ADAPTER
from studies.smollm2.prompt_sets import SETS, evaluation_file, write_prompt_sets
from studies.smollm2.results_page import sizes, write_page
from studies.smollm2.row_scores import PARTS, RowScores
from studies.smollm2.side_by_side import Again, share_machine, side_by_side
from studies.smollm2.stages import Study
from studies.smollm2.tasks import DOMAINS
from trustmopd.evaluation.of_recipe import scored
from trustmopd.evaluation.read_graded import collect
from trustmopd.quickstart.experiment import REFERENCES
from trustmopd.quickstart.machine import describe, made_by
from trustmopd.recipe import load_recipe

say = partial(print, flush=True)


def check_only(only: Sequence[str], stages: Sequence[str], comparison: Comparison) -> None:
    """Every name means something to one of the stages: else it would be ignored, and all of them done."""
    runs = [name for cell in comparison.cells for name in (cell.name, _rule(cell))]
    students = (*SETS, *METHODS, *runs)
    known = {
        "specialists": DOMAINS,
        "diagnose": (*SETS, *runs),
        "sweep": tuple(comparison.sweep_rates()),
        "distil": students,
        "evaluate": (*REFERENCES, *students),
    }
    for name in only:
        meant = [stage for stage, names in known.items() if name in names]
        if not meant:
            names = ", ".join((*DOMAINS, *SETS, *METHODS, *REFERENCES))
            raise ValueError(
                f"--only {name}: there is no such name. Choose from {names}; or name a set's method such as "
                "singlecap/trust, or one run such as singlecap/trust/seed-0: the study has "
                f"{comparison.settings.distil.seeds} seeds (distil.seeds)."
            )
        if not set(meant) & set(stages):
            raise ValueError(
                f"--only {name} means nothing to --stage {', '.join(stages)}: it is for {', '.join(meant)}. Leave it "
                "out, or name one of those stages."
            )


class ComparisonStages:
    """`only` are names of prompt sets and methods, or of single runs and rows. The last two are worked on in this
    process: what a stage starts side by side are commands with such names. `parts` are those of PARTS that are
    evaluated. `ungraded` is what `grade` could not do here."""

    def __init__(
        self,
        study: Study,
        only: Sequence[str],
        jobs: int,
        deadline: float | None,
        again: Again,
        parts: Sequence[str] = tuple(PARTS),
    ) -> None:
        self.study, self.only, self.jobs, self.deadline, self.again = study, only, jobs, deadline, again
        self.parts, self.ungraded = parts, list[str]()
        self.all = Comparison(study.out, study.settings, study.data)
        self.scores = RowScores(self.all)

    def prompts(self) -> None:
        out, asked = self.study.out, self.study.settings.scoring.prompts
        write_prompt_sets(out, self.study.settings, self.study.data)
        made = sum(1 for _ in evaluation_file(out, DOMAINS[0]).open(encoding="utf-8"))
        if made != asked:
            say(f"{out / 'prompts'} was made with scoring.prompts={made}; this command's {asked} changes nothing.")

    def diagnose(self) -> None:
        """One prompt set after the other, or those that `only` names."""
        self._ready()
        named = [name.partition("/")[0] for name in self.only]
        for prompts in [name for name in SETS if name in named] or SETS:
            self.all.diagnose(prompts)

    def sweep(self) -> None:
        rates = self.all.sweep_rates()
        if here := [name for name in self.only if name in rates]:
            share_machine(self.jobs)
            for name in here:
                self.all.sweep(name, None)
            return
        if (chosen := self.study.out / "sweep.json").is_file():
            say(f"The learning rate is {self.all.learning_rate:g}, by {chosen}. Remove that file to sweep again.")
            return
        self._ready()
        side_by_side(list(rates), lambda name: self.again("sweep", [name]), self.jobs)
        self.all.choose_rate()

    def distil(self) -> None:
        """Runs that have their scores are not trained again. A single run is trained in this process, and several if
        `jobs` is 1."""
        by_name = {cell.name: cell for cell in self.all.cells}
        self._check_runs()
        named = [by_name[name] for name in self.only if name in by_name]
        for cell in named:
            if self.scores.is_scored(cell):
                say(f"{cell.name} has its scores. To train it again, remove {cell.run(self.study.out).path} first.")
            else:
                self._say_if_trained(cell)
        if not (todo := self._untrained()):
            return
        self._ready()
        if len(named) == len(self.only) > 0 and (self.jobs == 1 or len(named) == 1):
            share_machine(self.jobs)
            for cell in todo:
                self.all.train(cell, self.deadline)
                self._say_if_trained(cell)
        else:
            names = [cell.name for cell in todo]
            side_by_side(names, lambda name: self.again("distil", [name]), self.jobs, self.deadline)
        if left := self._untrained():
            say(f"Out of time: not finished are {', '.join(cell.name for cell in left)}. The same command continues.")

    def evaluate(self) -> None:
        """As many processes as `jobs`, each with some of the rows: their own prompts first, then mixed, then public."""
        by_name: dict[str, str | Cell] = {row: row for row in REFERENCES}
        by_name |= {cell.name: cell for cell in self.all.cells}
        self._ready()
        if self.only and all(name in by_name for name in self.only):
            share_machine(self.jobs)
            rows = list(self.only)
            for part, name in product(self.parts, rows):
                if self.deadline is None or time.monotonic() < self.deadline:
                    self.scores.evaluate(by_name[name], part, quiet=self.jobs > 1)
                    say(f"{name}: {PARTS[part]}, row {rows.index(name) + 1} of {len(rows)}")
        else:
            references = [name for name in REFERENCES if name in self.only] or REFERENCES
            trained = [cell.name for cell in self._chosen() if self.all.is_trained(self.all.recipe_of(cell))]
            if away := [
                cell.name for cell in self._chosen() if cell.name not in trained and self.scores.is_scored(cell)
            ]:
                say(f"Not evaluated further, since their weights are not here: {', '.join(away)}.")
            rows = [name for name in (*references, *trained) if self._unevaluated(by_name[name])]
            shares = {", ".join(share): share for place in range(self.jobs) if (share := rows[place :: self.jobs])}
            side_by_side(list(shares), lambda name: self.again("evaluate", shares[name]), self.jobs, self.deadline)
        left = {name: self._unevaluated(by_name[name]) for name in rows}
        if told := [f"{name} ({', '.join(parts)})" for name, parts in left.items() if parts]:
            say(f"Out of time: not finished are {', '.join(told)}. The same command continues.")
        elif "public" in self.parts:
            say("Responses to the public benchmarks are graded by --stage grade.")

    def grade(self) -> None:
        self.ungraded = self.scores.grade()

    def results(self) -> Path:
        """Tables, figures and report of the finished runs, the scores of the other prompts, and the page."""
        from studies.small_world.tables import (  # figures, which a GPU machine need not draw
            whole_cells,
            write_comparison,
        )

        out, how = self.study.out, self.study.settings
        self.scores.hand_over()
        scored_cells = finished_cells(out, METHODS)
        cells = whole_cells(out, scored_cells)
        if partly := [cell.name for cell in scored_cells if cell not in cells]:
            say(f"Left out, since some of their responses or logged steps are missing: {', '.join(partly)}.")
        if cells:
            model = Path(how.model).name if how.model else "SmolLM2-135M"
            notes = [f"{sizes(out, cells)}. {describe(made_by())}."]
            # its base is read in float32, so the report would take it for a student of another
            write_comparison(out, cells, f"The paper's comparison with {model}", notes, only_scores=[FULL])
        else:
            say(f"No run below {out / 'runs'} has its scores yet.")
        for folder in (out / "mixed", out / "public"):
            if collect([folder])[0]:
                for note in scored([folder], folder).notes:
                    say(note)
        return write_page(self.all, cells)

    def _ready(self) -> None:
        out = self.study.out
        if lacking := [domain for domain in DOMAINS if not (self.study.adapter(domain) / ADAPTER).is_file()]:
            raise FileNotFoundError(
                f"{out} has no specialist in {', '.join(lacking)}. Train it first, with --stage specialists, or copy "
                f"those that come with the repository: cp -r checkpoints/smollm2-135m/. {out}"
            )
        self.study.base()
        self.prompts()

    def _check_runs(self) -> None:
        """Runs are compared at one learning rate and one size. Steps can only be added."""
        how = self.study.settings.distil
        for cell in self.all.cells:
            run = cell.run(self.study.out)
            if not run.recipe.is_file():
                continue
            had = load_recipe(run.recipe).training
            now: dict[str, float] = {
                "global_batch_size": how.batch_size,
                "max_steps": min(how.steps, had["max_steps"]),
                "learning_rate": had["learning_rate"] if cell.method == FULL else self.all.learning_rate,
            }
            if other := [name for name in now if had[name] != now[name]]:
                raise ValueError(
                    f"{run.path} has {other[0]} = {had[other[0]]:g}, and now it is {now[other[0]]:g}: by a setting of "
                    "this command (distil.*), or by the stage sweep. Runs of one study are compared at one size and "
                    "rate. Go back to its settings, choose another --out, or remove that folder to train it again."
                )

    def _chosen(self) -> list[Cell]:
        """The runs that `only` names, and those of its prompt sets and methods; all where it names none."""
        runs = [cell for cell in self.all.cells if cell.name in self.only or _rule(cell) in self.only]
        if self.only and all(name in REFERENCES or "/" in name for name in self.only):
            return runs
        methods = [name for name in self.only if name in METHODS] or METHODS
        kinds = [cell for cell in self.all.cells if cell.prompts in self._sets() and cell.method in methods]
        return list(dict.fromkeys([*runs, *kinds]))

    def _sets(self) -> Sequence[str]:
        return [name for name in self.only if name in SETS] or SETS

    def _say_if_trained(self, cell: Cell) -> None:
        if self.all.is_trained(self.all.recipe_of(cell)):
            say(f"{cell.name} is trained: {cell.run(self.study.out).path}")

    def _unevaluated(self, row: str | Cell) -> list[str]:
        return [PARTS[part] for part in self.parts if not self.scores.is_evaluated(row, part)]

    def _untrained(self) -> list[Cell]:
        """Runs that have neither scores nor finished weights."""
        chosen = [cell for cell in self._chosen() if not self.scores.is_scored(cell)]
        return [cell for cell in chosen if not self.all.is_trained(self.all.recipe_of(cell))]


def _rule(cell: Cell) -> str:
    """All seeds of a set and method."""
    return f"{cell.prompts}/{cell.method}"
