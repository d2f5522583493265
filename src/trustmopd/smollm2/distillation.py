"""The runs of the comparison, each from a recipe as any user would write it; and their scores, by `evaluation`."""

import json
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from transformers import TrainerCallback

from trustmopd.evaluation.benchmark import Unavailable
from trustmopd.evaluation.benchmarks import Loaded, get_benchmark, load_benchmarks
from trustmopd.evaluation.evaluate import grade_responses
from trustmopd.evaluation.graded import whole_rows
from trustmopd.evaluation.methods import methods_of
from trustmopd.evaluation.of_recipe import evaluate_rows, hand_over, sampling_of
from trustmopd.evaluation.run_record import read_record
from trustmopd.evaluation.sampling import make_sampler
from trustmopd.files import read_json, write_json
from trustmopd.recipe import Recipe
from trustmopd.runs import RunDirectory, newest_checkpoint, step_of
from trustmopd.runs.layout import ASKED, RowDirectory, seed_folder
from trustmopd.smollm2.domains import Data
from trustmopd.smollm2.lora import ADAPTER, halve
from trustmopd.smollm2.mixed import KINDS
from trustmopd.smollm2.prompt_sets import PUBLIC, evaluation_file
from trustmopd.smollm2.restarts import with_restarts
from trustmopd.smollm2.settings import Settings
from trustmopd.smollm2.tasks import DOMAINS
from trustmopd.smollm2.word_problems import svamp_rows
from trustmopd.testbed import experiment as small_world
from trustmopd.testbed.cells import Cell
from trustmopd.training.recipe_stages import diagnose_recipe, train_recipe

#: In the order of the tables. One student trains all weights; the others an adapter.
FULL = "full-weights"
_MAIN, _ABLATIONS = ("trust", "uniform", "routed"), ("response-level", "without-mu")
_LAST = ("random", *(f"single-{each}" for each in DOMAINS), "likelihood", "negative-entropy", "teacher-student-kl")
METHODS: Mapping[str, Mapping[str, Any]] = {
    **{name: small_world.METHODS[name] for name in (*_MAIN, *_ABLATIONS)},
    FULL: small_world.METHODS["trust"],
    **{name: small_world.METHODS[name] for name in _LAST},
}
OWN = [f"smollm2_{domain}" for domain in DOMAINS]
MIXED = [f"smollm2_{kind.replace('+', '_')}" for kind in KINDS]
#: What is evaluated: its folder, and what it is called. A process evaluates all its rows on one before the next.
_OWN, _MIXED, _PUBLIC = "evaluation", "mixed", "public"
PARTS = {_OWN: "own prompts", _MIXED: "mixed prompts", _PUBLIC: "public benchmarks"}
#: MBPP's test problems, by its authors' split: a file may have them all.
_MBPP_TEST = range(11, 511)
#: Tokens by which mixed prompts may be longer; one in a thousand prompts is dropped.
_LONGER = 16
#: What a checkpoint needs only to be resumed.
_FOR_RESUMING = ("optimizer.*", "scheduler.pt", "rng_state*.pth")


def all_cells(seeds: int) -> list[Cell]:
    """In the order in which they are run: the three rules seed by seed, then ablations, then the rest."""
    main = [
        Cell(prompts, method, seed)
        for seed in range(seeds)
        for prompts in small_world.PROMPT_SETS
        for method in _MAIN
        if (prompts, method) != ("multicap", "routed")
    ]
    ablations = [Cell(prompts, method, 0) for prompts in small_world.PROMPT_SETS for method in _ABLATIONS]
    return [*main, *ablations, *(Cell("singlecap", method, 0) for method in (FULL, *_LAST))]


@dataclass(frozen=True)
class Comparison:
    """All below one folder: `base`, `adapters` and `prompts` are there before."""

    out: Path
    settings: Settings
    data: Data

    @property
    def cells(self) -> list[Cell]:
        return all_cells(self.settings.distil.seeds)

    @property
    def learning_rate(self) -> float:
        """The sweep's, where there is one."""
        path = self.out / "sweep.json"
        if not path.is_file():
            return self.settings.distil.learning_rate
        return float(read_json(path, what="sweep", remedy="Remove it, and run the stage sweep again.")["chosen"])

    def recipe(self, name: str, prompts: str, method: str, seed: int, output: Path, **training: Any) -> Recipe:
        how, lora, scoring = self.settings.distil, self.settings.lora, self.settings.scoring
        rule = METHODS[method]
        calibration = self._diagnosed(prompts).calibration
        shares = rule.get("rule", "trust") == "trust" and rule.get("score", "displacement") == "displacement"
        peft = {"r": lora.rank, "lora_alpha": lora.alpha, "target_modules": "all-linear"}
        return Recipe.model_validate(
            {
                "name": name,
                "student": str(self.out / "base"),
                "teachers": {each: {"adapter": str(self.out / "adapters" / each)} for each in DOMAINS},
                "prompts": {"path": str(self.out / "prompts" / prompts)},
                "allocation": dict(rule),
                "peft": None if method == FULL else peft,
                "training": {
                    "max_steps": how.steps,
                    "global_batch_size": how.batch_size,
                    "per_device_train_batch_size": how.batch_size,
                    "learning_rate": how.full_learning_rate if method == FULL else self.learning_rate,
                    "num_candidates": how.num_candidates,
                    "max_prompt_length": self.settings.max_prompt_tokens + _LONGER,
                    "prompt_truncation": "drop",
                    "max_completion_length": self.settings.max_new_tokens,
                    "calibration_batches": how.calibration_batches,
                    "gradient_checkpointing": False,
                    "save_total_limit": 1,
                    "disable_tqdm": True,
                    **_on_this_machine(method),
                    **training,
                },
                "calibration": calibration if shares and calibration.is_file() else None,
                "evaluation": {
                    "benchmarks": OWN,
                    "samples": scoring.samples,
                    "temperature": scoring.temperature,
                    "max_new_tokens": self.settings.max_new_tokens,
                    "data": {f"smollm2_{domain}": str(evaluation_file(self.out, domain)) for domain in DOMAINS},
                },
                "seeds": [seed],
                "output": output,
            }
        )

    def recipe_of(self, cell: Cell) -> Recipe:
        return self.recipe(cell.row, cell.prompts, cell.method, cell.seed, cell.run(self.out).path)

    def diagnose(self, prompts: str) -> None:
        """Calibrate, and write down the calibrated scores before any training. What is there stays."""
        run = self._diagnosed(prompts)
        if not run.diagnosis.is_file():
            recipe = self.recipe("diagnosis", prompts, "trust", 0, run.path)
            found, _ = diagnose_recipe(recipe, self.settings.distil.diagnosis_rollouts)
            print(f"{prompts}: {found.verdict}", flush=True)

    def sweep_rates(self) -> dict[str, float]:
        how = self.settings.distil
        rates = [how.sweep_lowest * how.sweep_factor**place for place in range(how.sweep_count)]
        return {f"lr-{rate:.3g}": float(f"{rate:.3g}") for rate in rates}

    def sweep(self, name: str, deadline: float | None) -> None:
        """A short run of uniform weights with one learning rate."""
        how, run = self.settings.distil, RunDirectory(self.out / "sweep" / name)
        rate = {"learning_rate": self.sweep_rates()[name], "max_steps": how.sweep_steps}
        self._train(
            f"sweep-{name}", self.recipe(f"sweep-{name}", "singlecap", "uniform", 0, run.path, **rate), deadline
        )

    def choose_rate(self) -> None:
        """The rate with the lowest loss over the last quarter of its steps. No evaluation prompt is used for it."""
        losses = {}
        for name, rate in self.sweep_rates().items():
            lines = map(json.loads, RunDirectory(self.out / "sweep" / name).metrics.read_text().splitlines())
            found = [line["loss"] for line in lines if "loss" in line]
            losses[rate] = mean(found[-max(1, len(found) // 4) :])
        chosen = min(losses, key=lambda rate: losses[rate])
        write_json(self.out / "sweep.json", {"chosen": chosen, "losses": {f"{key:g}": losses[key] for key in losses}})
        told = ", ".join(f"{rate:g}: {loss:.4g}" for rate, loss in losses.items())
        print(f"Learning rate {chosen:g}; loss by rate: {told}", flush=True)

    def is_trained(self, recipe: Recipe) -> bool:
        newest = newest_checkpoint(recipe.output)
        return newest is not None and step_of(newest) >= recipe.training["max_steps"]

    def train(self, cell: Cell, deadline: float | None) -> None:
        run, diagnosis = cell.run(self.out), self._diagnosed(cell.prompts).diagnosis
        self._train(cell.name, self.recipe_of(cell), deadline)
        if cell.method == "trust" and diagnosis.is_file():
            shutil.copy(diagnosis, run.diagnosis)

    def _train(self, name: str, recipe: Recipe, deadline: float | None) -> None:
        """To its end or to the deadline, from its last checkpoint. A finished adapter is stored in bfloat16, without
        what resuming needs: 5 MB remain of 30."""

        def train(compiled: bool) -> None:
            def ready(trainer: Any) -> None:
                trainer.add_callback(_StopAt(deadline))
                trainer.generation_config.disable_compile = trainer.generation_config.disable_compile or not compiled

            train_recipe(recipe, resume=True, on_ready=ready)

        if self.is_trained(recipe):
            return
        with_restarts(name, train)
        newest = newest_checkpoint(recipe.output)
        if newest is not None and self.is_trained(recipe):
            for file in (file for pattern in _FOR_RESUMING for file in newest.glob(pattern)):
                file.unlink()
            if (newest / ADAPTER).is_file():
                halve(newest / ADAPTER)

    def evaluate(self, row: str | Cell, part: str, quiet: bool = True) -> None:
        """One of PARTS. Own and mixed prompts are graded, public benchmarks only sampled. A second call continues the
        first."""
        if isinstance(row, Cell):
            recipe, name = self.recipe_of(row), row.row
        else:
            recipe, name = self.recipe("references", "singlecap", "trust", 0, self.out), row
        methods, notes = methods_of(recipe, [name])
        if not methods:
            raise FileNotFoundError(" ".join(notes))
        size = self.settings.scoring.batch_size
        sampling = sampling_of(recipe)
        if part == _PUBLIC:
            loaded = self.public()
            sampling = replace(sampling, max_new_tokens=self.settings.public.max_new_tokens, samples=1)
        else:
            loaded = self._own(OWN, DOMAINS) if part == _OWN else self._own(MIXED, KINDS)
        evaluate_rows(
            *(recipe, methods, self.out / part, loaded, sampling),
            lambda method: make_sampler("transformers", method.source, method.base, batch_size=size),
            jobs=os.cpu_count() or 1,
            quiet=quiet,
            grading=part != _PUBLIC,
        )

    def is_evaluated(self, row: str | Cell) -> bool:
        """Whether every response is there; those to public benchmarks are graded later."""
        if not all(self._graded(folder, row) for folder in (_OWN, _MIXED)):
            return False
        sampled = RowDirectory(self.out / _PUBLIC / _folder(row))
        files = {sampled.responses(each.benchmark.name): len(each.rows) for each in self.public()}
        return all(file.is_file() and file.read_bytes().count(b"\n") >= count for file, count in files.items())

    def is_scored(self, cell: Cell) -> bool:
        """On its own prompts, after as many steps as it is to have. Its weights may be elsewhere, or gone."""
        if not self._graded(_OWN, cell):
            return False
        record = read_record(self.out / _OWN / _folder(cell))
        return step_of(Path(record["adapter"] or record["model"])) >= self.settings.distil.steps

    def hand_over(self) -> None:
        """The scores of every evaluated student into its run, beside those of base and teachers, which may have come
        later."""
        for cell in self.cells:
            if self._graded(_OWN, cell):
                hand_over(self.recipe_of(cell), RunDirectory(self.out).evaluation, OWN)

    def _graded(self, folder: str, row: str | Cell) -> bool:
        return bool(whole_rows(self.out / folder, [_folder(row)]))

    def grade(self) -> None:
        """The public benchmarks' responses, wherever they were sampled; of those that can be graded here. What the
        others lack is told in the end."""
        lacking = []
        for each in self.public():
            try:
                each.benchmark.ready()
            except Unavailable as error:
                lacking.append(f"{each.benchmark.name} is not graded: {error}")
                continue
            for record in sorted((self.out / _PUBLIC).rglob(ASKED)):
                grade_responses(record.parent, each, jobs=os.cpu_count() or 1)
        if lacking:
            raise Unavailable("\n".join(lacking))

    def public(self) -> list[Loaded]:
        """Those whose data are given, or all from the Hub; SVAMP always, since it is trained on too. What grades them
        need not be installed here."""
        svamp, *others = PUBLIC
        named = [svamp, *([name for name in others if name in self.data] or others)]
        loaded = []
        for benchmark in map(get_benchmark, named):
            path = self.data.get(benchmark.name)
            rows = svamp_rows(True, path) if benchmark.name == "svamp" else benchmark.load(path)
            if benchmark.name == "mbpp":
                rows[:] = [row for row in rows if int(row["id"]) in _MBPP_TEST]
            del rows[self.settings.public.prompts :]
            loaded.append(Loaded(benchmark, rows))
        return loaded

    def _own(self, names: Sequence[str], kinds: Sequence[str]) -> list[Loaded]:
        files = {name: str(evaluation_file(self.out, kind)) for name, kind in zip(names, kinds, strict=True)}
        return load_benchmarks(names, files)

    def _diagnosed(self, prompts: str) -> RunDirectory:
        return RunDirectory(self.out / "diagnosis" / prompts)


def _on_this_machine(method: str) -> dict[str, Any]:
    """The base is stored in bfloat16 and needs no more below an adapter, which is float32. On a GPU, sampling is
    compiled. On a CPU, bfloat16 is used if the processor multiplies in it, and policies read in passes of 2,048 tokens,
    which leave out padding."""
    base = None if method == FULL else {"dtype": "bfloat16"}
    if torch.cuda.is_available():
        return {"cache_implementation": "static", "model_init_kwargs": base}
    if torch.accelerator.is_available() or not torch.cpu._is_avx512_bf16_supported():
        return {}
    return {"use_cpu": True, "bf16": True, "max_tokens_per_micro_batch": 2048, "model_init_kwargs": base}


def _folder(row: str | Cell) -> str:
    """Of a row's responses."""
    return row if isinstance(row, str) else f"{row.row}/{seed_folder(row.seed)}"


class _StopAt(TrainerCallback):
    """Ends a training at the deadline, with a checkpoint."""

    def __init__(self, deadline: float | None) -> None:
        self.deadline = deadline

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        if self.deadline is not None and time.monotonic() > self.deadline:
            control.should_save = control.should_training_stop = True
        return control
