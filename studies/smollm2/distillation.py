"""The runs of the comparison, each from a recipe as any user would write it: diagnosis, learning rate, training."""

import json
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from transformers import TrainerCallback

from studies.small_world.cells import Cell
from studies.smollm2.domains import Data
from studies.smollm2.lora import ADAPTER, halve
from studies.smollm2.prompt_sets import evaluation_file
from studies.smollm2.restarts import with_restarts
from studies.smollm2.settings import Settings
from studies.smollm2.tasks import DOMAINS
from studies.smollm2.weights import cpu_has_bfloat16
from trustmopd.quickstart import experiment as small_world
from trustmopd.recipe import Recipe
from trustmopd.runs import RunDirectory, newest_checkpoint, step_of
from trustmopd.training.stages import diagnose_recipe, train_recipe
from trustmopd.util.files import read_json, write_json

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
        by_displacement = rule.get("rule", "trust") == "trust" and rule.get("score", "displacement") == "displacement"
        shares = by_displacement and method != FULL  # whose weights, and so reference, are read in another precision
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
        print(f"Learning rate {chosen:g}{at_the_edge(chosen, list(losses))}; loss by rate: {told}", flush=True)

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

    def _diagnosed(self, prompts: str) -> RunDirectory:
        return RunDirectory(self.out / "diagnosis" / prompts)


def at_the_edge(chosen: float, rates: Sequence[float]) -> str:
    """A sweep whose best rate is its first or last has not shown that no other is better."""
    if chosen == max(rates):
        return " (none higher was tried: distil.sweep_count)"
    return " (none lower was tried: distil.sweep_lowest)" if chosen == min(rates) else ""


def _on_this_machine(method: str) -> dict[str, Any]:
    """The base is stored in bfloat16 and needs no more below an adapter, which is float32. On a GPU, sampling is
    compiled. On a CPU, bfloat16 is used if the processor multiplies in it, and policies read in passes of 2,048 tokens,
    which leave out padding."""
    base = None if method == FULL else {"dtype": "bfloat16"}
    if torch.cuda.is_available():
        return {"cache_implementation": "static", "model_init_kwargs": base}
    if torch.accelerator.is_available() or not cpu_has_bfloat16():
        return {}
    return {"use_cpu": True, "bf16": True, "max_tokens_per_micro_batch": 2048, "model_init_kwargs": base}


class _StopAt(TrainerCallback):
    """Ends a training at the deadline, with a checkpoint."""

    def __init__(self, deadline: float | None) -> None:
        self.deadline = deadline

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        if self.deadline is not None and time.monotonic() > self.deadline:
            control.should_save = control.should_training_stop = True
        return control
