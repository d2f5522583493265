"""The runs of the small world, each from a recipe as any user would write it; and their scores, by `evaluation`."""

import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import datasets
import torch
import transformers
from tqdm.auto import tqdm

from trustmopd.evaluation.benchmarks import load_benchmarks
from trustmopd.evaluation.entries import Entry, entries_of
from trustmopd.evaluation.of_recipe import evaluate_entries, hand_over, sampling_of
from trustmopd.evaluation.sampling import Sampler, make_sampler
from trustmopd.quickstart.prompts import MAX_NEW_TOKENS, prompt_set
from trustmopd.quickstart.shipped import checkpoint
from trustmopd.quickstart.tasks import DOMAINS
from trustmopd.recipe import Recipe
from trustmopd.runs import EntryDirectory, RunDirectory
from trustmopd.runs.layout import INITIAL, TEACHER, student_folder
from trustmopd.training.prepare import prepare
from trustmopd.training.run.progress import show_progress
from trustmopd.util.files import write_text

#: The rows that need no distillation and have a checkpoint.
REFERENCES = (INITIAL, *(TEACHER + domain for domain in DOMAINS))
EVALUATION_BATCH = 500


@dataclass(frozen=True)
class Scale:
    """Sizes of a run: the default is the paper's 116 steps of 64 prompts; tests run a smaller one."""

    steps: int = 116
    batch_size: int = 64
    calibration_batches: int = 8
    evaluation_prompts: int = 1000


@dataclass(frozen=True)
class Experiment:
    """What runs that are compared share: their folder, their sizes, the student and its teachers."""

    out: Path
    scale: Scale = field(default_factory=Scale)
    student: str = field(default_factory=lambda: str(checkpoint("reference")))
    teachers: Mapping[str, Any] = field(default_factory=lambda: {name: str(checkpoint(name)) for name in DOMAINS})

    @property
    def evaluation(self) -> Path:
        """One folder for all rows: those that runs have in common are evaluated once."""
        return RunDirectory(self.out).evaluation

    def recipe(self, name: str, prompts: str, allocation: Mapping[str, Any], seed: int, output: Path) -> Recipe:
        """Its prompts are written down, so that analysis can go back to them."""
        scale = self.scale
        rows = prompt_set(prompts, scale.steps * scale.batch_size, seed=0)
        path = self.out / "prompts" / f"{prompts}.jsonl"
        write_text(path, "".join(f"{json.dumps(row)}\n" for row in rows))
        return Recipe.model_validate(
            {
                "name": name,
                "student": self.student,
                "teachers": dict(self.teachers),
                "prompts": {"path": str(path)},
                "allocation": dict(allocation),
                "training": {
                    "max_steps": scale.steps,
                    "global_batch_size": scale.batch_size,
                    "per_device_train_batch_size": scale.batch_size,
                    "learning_rate": 1e-4,
                    "num_candidates": 32,
                    "max_completion_length": 16,
                    "calibration_batches": scale.calibration_batches,
                    "bf16": False,  # 0.87M parameters: float32 is as fast, and exact
                    "gradient_checkpointing": False,
                    "save_steps": scale.steps,
                    "save_only_model": True,
                    "record_allocation_every": 1,
                    "disable_tqdm": True,
                },
                "evaluation": {
                    "benchmarks": [f"testbed_{domain}" for domain in DOMAINS],
                    "max_new_tokens": MAX_NEW_TOKENS,
                },
                "seeds": [seed],
                "output": output,
            }
        )

    def train(self, recipe: Recipe, bar: str | None = None) -> None:
        """From the start: checkpoints that an earlier attempt at the same recipe left are removed. Progress is shown
        under the name `bar`."""
        run = RunDirectory(recipe.output)
        if run.recipe.is_file() and run.recipe.read_text() == recipe.to_yaml():
            shutil.rmtree(run.checkpoints, ignore_errors=True)
        (seed,) = recipe.seeds
        trainer = prepare(recipe).trainer(seed)
        trainer.files.recipe = recipe.to_yaml()
        show_progress(trainer, bar)
        trainer.train()

    def evaluate_references(self, recipe: Recipe, rows: Iterable[str]) -> None:
        """The rows that need no distillation. What is finished stays."""
        for row in tqdm(list(rows), desc="Evaluating initial student and teachers"):
            self._evaluate(recipe, row)

    def evaluate_student(self, recipe: Recipe) -> None:
        """From the start, as it takes seconds: the student may be another one now. The run gets its scores."""
        (seed,) = recipe.seeds
        self.forget(student_folder(recipe.name, seed))
        self._evaluate(recipe, recipe.name)
        hand_over(recipe, self.evaluation, list(map(str, recipe.evaluation.benchmarks)))

    def forget(self, row: str) -> None:
        """Remove a row's responses, and no folder of the user's."""
        if EntryDirectory(self.evaluation / row).record.is_file():
            shutil.rmtree(self.evaluation / row)

    def _evaluate(self, recipe: Recipe, row: str) -> None:
        benchmarks = load_benchmarks(recipe.evaluation.benchmarks, {}, self.scale.evaluation_prompts)
        methods, _ = entries_of(recipe, [row])
        evaluate_entries(recipe, methods, self.evaluation, benchmarks, sampling_of(recipe), sampler_of, quiet=True)


def sampler_of(method: Entry) -> Sampler:
    return make_sampler("transformers", method.source, method.base, batch_size=EVALUATION_BATCH)


@contextmanager
def reproducibly() -> Iterator[None]:
    """The same bits from the same seeds on the same machine: deterministic kernels wherever there are any."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when cuBLAS is first used
    deterministic = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    memory_efficient = torch.backends.cuda.mem_efficient_sdp_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cuda.enable_mem_efficient_sdp(False)  # its backward adds up in any order
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)
        torch.backends.cuda.enable_mem_efficient_sdp(memory_efficient)


def quiet() -> None:
    """Our own bars and messages only."""
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    datasets.disable_progress_bars()
