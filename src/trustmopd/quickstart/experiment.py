"""The runs of the comparison, each from a recipe as any user would write it; and their scores, by `evaluation`."""

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm
from transformers.trainer_callback import PrinterCallback

from trustmopd.evaluation.benchmarks import load_benchmarks
from trustmopd.evaluation.of_recipe import evaluate_rows, hand_over, sampling_of
from trustmopd.evaluation.read_graded import collect
from trustmopd.evaluation.rows_to_score import Method, methods_of
from trustmopd.evaluation.sampling import Sampler, make_sampler
from trustmopd.quickstart.prompts import MAX_NEW_TOKENS, prompt_set
from trustmopd.quickstart.shipped import MODELS, SHIPPED, checkpoint, expected_digests
from trustmopd.quickstart.tasks import DOMAINS
from trustmopd.recipe import Recipe
from trustmopd.runs import RowDirectory, RunDirectory
from trustmopd.runs.layout import student_folder
from trustmopd.runs.reference_rows import AVERAGE, INITIAL, TEACHER
from trustmopd.training import TrustMOPDTrainer
from trustmopd.training.from_recipe import trainer_of
from trustmopd.training.run.progress import show_progress
from trustmopd.util.files import write_text

PROMPT_SETS = ("singlecap", "multicap")
#: The rows of the paper's tables, as a recipe's `allocation`.
METHODS: dict[str, dict[str, Any]] = {
    "trust": {},
    "uniform": {"rule": "uniform"},
    "random": {"rule": "random"},
    **{f"single-{domain}": {"rule": "single", "teacher": domain} for domain in DOMAINS},
    "routed": {"rule": "routed"},
    "likelihood": {"score": "likelihood"},
    "negative-entropy": {"score": "negative_entropy"},
    "teacher-student-kl": {"score": "teacher_student_kl"},
    "without-mu": {"calibrated": False},
    "response-level": {"granularity": "response"},
    **{f"gamma-{gamma}": {"gamma": float(gamma)} for gamma in (3, 5, 9)},
}
#: Rows in which all teachers are measured from the initial student, for a pool whose teachers grew from other models.
FROM_STUDENT: dict[str, dict[str, Any]] = {
    f"{name}-from-student": METHODS[name] for name in ("trust", "response-level")
}
#: Rows under another name: the default gamma is 7.
ALIASES = {"gamma-7": "trust"}
#: The rows that need no distillation and have a checkpoint.
REFERENCES = (INITIAL, *(TEACHER + domain for domain in DOMAINS), AVERAGE)
BENCHMARKS = [f"testbed_{domain}" for domain in DOMAINS]
EVALUATION_BATCH = 500


@dataclass(frozen=True)
class Scale:
    """Sizes of a comparison: the default is the paper's 116 steps of 64 prompts; tests run a smaller one."""

    steps: int = 116
    batch_size: int = 64
    learning_rate: float = 1e-4
    num_candidates: int = 32
    max_completion_length: int = 16
    calibration_batches: int = 8
    evaluation_prompts: int = 1000
    diagnosis_rollouts: int = 256
    prompt_seed: int = 0


@dataclass(frozen=True)
class World:
    """Verified checkpoints of one reference and its specialists."""

    root: Path = SHIPPED

    def build(self) -> None:
        """Make what is not there yet: nothing."""

    def fingerprint(self) -> dict[str, str]:
        return {name: expected_digests(name, self.root)["model.safetensors"][:16] for name in MODELS}

    @property
    def reference(self) -> str:
        return str(checkpoint("reference", self.root))

    @property
    def teachers(self) -> dict[str, Any]:
        return {name: str(checkpoint(name, self.root)) for name in MODELS if name in DOMAINS}

    @property
    def methods(self) -> dict[str, dict[str, Any]]:
        """The rows of its comparison, as a recipe's `allocation`."""
        return METHODS

    @property
    def references(self) -> tuple[str, ...]:
        """The rows that need no distillation and have a checkpoint."""
        return REFERENCES


@dataclass(frozen=True)
class Experiment:
    """What all runs of a comparison share."""

    world: World
    scale: Scale
    out: Path

    @property
    def evaluation(self) -> Path:
        """One folder for all rows: those that runs have in common are evaluated once."""
        return RunDirectory(self.out).evaluation

    def recipe(self, name: str, prompts: str, method: str, seed: int, output: Path) -> Recipe:
        scale = self.scale
        return Recipe.model_validate(
            {
                "name": name,
                "student": self.world.reference,
                "teachers": self._teachers(from_student=method in FROM_STUDENT),
                "prompts": {"path": str(self.out / "prompts" / f"{prompts}.jsonl")},
                "allocation": self.world.methods[method],
                "training": {
                    "max_steps": scale.steps,
                    "global_batch_size": scale.batch_size,
                    "per_device_train_batch_size": scale.batch_size,
                    "learning_rate": scale.learning_rate,
                    "num_candidates": scale.num_candidates,
                    "max_completion_length": scale.max_completion_length,
                    "calibration_batches": scale.calibration_batches,
                    "bf16": False,  # 0.87M parameters: float32 is as fast, and exact
                    "gradient_checkpointing": False,
                    "save_steps": scale.steps,
                    "save_only_model": True,
                    "record_allocation_every": 1,
                    "disable_tqdm": True,
                },
                "evaluation": {"benchmarks": BENCHMARKS, "max_new_tokens": MAX_NEW_TOKENS},
                "seeds": [seed],
                "output": output,
            }
        )

    def _teachers(self, from_student: bool) -> dict[str, Any]:
        teachers = self.world.teachers
        if not from_student:
            return teachers
        return {
            name: {"model": each["model"], "reference": "student"} if isinstance(each, dict) else each
            for name, each in teachers.items()
        }

    def trainer(self, recipe: Recipe, **changes: Any) -> TrustMOPDTrainer:
        """Recipe and prompts are written down, so that analysis can go back to them."""
        path = Path(recipe.prompts.path)
        rows = prompt_set(path.stem, self.scale.steps * self.scale.batch_size, self.scale.prompt_seed)
        write_text(path, "".join(f"{json.dumps(row)}\n" for row in rows))
        write_text(RunDirectory(recipe.output).recipe, recipe.to_yaml())
        (seed,) = recipe.seeds
        trainer = trainer_of(recipe, seed, **changes)
        trainer.remove_callback(PrinterCallback)  # without a bar, transformers prints every step's metrics instead
        return trainer

    def train(self, recipe: Recipe, bar: str | None = None, **changes: Any) -> None:
        """From the start: checkpoints that an earlier attempt at the same recipe left are removed. Progress is shown
        under the name `bar`."""
        run = RunDirectory(recipe.output)
        if run.recipe.is_file() and run.recipe.read_text() == recipe.to_yaml():
            shutil.rmtree(run.checkpoints, ignore_errors=True)
        trainer = self.trainer(recipe, **changes)
        if bar is not None:
            show_progress(trainer, bar)
        trainer.train()

    def evaluate_references(self, recipe: Recipe, rows: Sequence[str]) -> None:
        """The rows that need no distillation, unless they are finished."""
        found = {row: collect([self.evaluation / row]) for row in rows}
        todo = [row for row, (there, unfinished) in found.items() if unfinished or not there]
        for row in tqdm(todo, desc="Evaluating initial student and teachers", disable=not todo):
            self._evaluate(recipe, row)

    def evaluate_student(self, recipe: Recipe) -> None:
        """From the start, as it takes seconds: the student may be another one now. The run gets its scores."""
        (seed,) = recipe.seeds
        self.forget(student_folder(recipe.name, seed))
        self._evaluate(recipe, recipe.name)
        hand_over(recipe, self.evaluation, recipe.evaluation.benchmarks)

    def forget(self, row: str) -> None:
        """Remove a row's responses, and no folder of the user's."""
        if RowDirectory(self.evaluation / row).record.is_file():
            shutil.rmtree(self.evaluation / row)

    def _evaluate(self, recipe: Recipe, row: str) -> None:
        benchmarks = load_benchmarks(recipe.evaluation.benchmarks, {}, self.scale.evaluation_prompts)
        methods, _ = methods_of(recipe, [row])
        evaluate_rows(recipe, methods, self.evaluation, benchmarks, sampling_of(recipe), sampling_engine, quiet=True)


def sampling_engine(method: Method) -> Sampler:
    return make_sampler("transformers", method.source, method.base, batch_size=EVALUATION_BATCH)
