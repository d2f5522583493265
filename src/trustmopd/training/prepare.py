"""A recipe, resolved once: what training, calibration, diagnosis, the plan, a resume and the dry run all start from."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from peft import LoraConfig

from trustmopd.checkpoints.meta_model import check_student_lora
from trustmopd.planning.this_machine import RunHere, run_here
from trustmopd.policies import PolicyGraph, Teacher
from trustmopd.prompts.prompt_set import load_prompts
from trustmopd.recipe import Recipe
from trustmopd.recipe.yaml_layers import RecipeError
from trustmopd.runs import RunDirectory
from trustmopd.training.calibration import Calibration
from trustmopd.training.config import TrustMOPDConfig, unknown_field
from trustmopd.training.environment import check_launch
from trustmopd.training.parallelism import Parallelism
from trustmopd.training.run.across_ranks import first_decides
from trustmopd.training.run.identity import RunIdentity, dependencies, expected_identity, run_manifest
from trustmopd.training.run.resuming import check_resumable
from trustmopd.training.run.which_checkpoint import Resumed, checkpoints_of_seeds
from trustmopd.training.setup import Ingredients, check_ingredients, graph_of
from trustmopd.training.trainer import TrustMOPDTrainer
from trustmopd.util.files import check_writable


@dataclass(frozen=True)
class Prepared:
    """`configs` are by seed. Everything else is found when it is first asked for: a plan needs no prompts, and a run no
    estimate of its memory. An error is the one that the run itself would raise before it loads its models."""

    recipe: Recipe
    configs: Mapping[int, TrustMOPDConfig]
    lora: LoraConfig | None
    changes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def args(self) -> TrustMOPDConfig:
        """Of the first seed: seeds differ in nothing but their number and their folder."""
        return self.configs[self.recipe.seeds[0]]

    @cached_property
    def graph(self) -> PolicyGraph:
        return graph_of(self.recipe.student, self._teachers, self.recipe.reference, self.args)

    @cached_property
    def engine(self) -> Parallelism:
        engine = Parallelism.expected(self.args)
        engine.check(self.args)
        return engine

    @cached_property
    def ingredients(self) -> Ingredients:
        assert self.engine
        if self.lora is not None:
            check_student_lora(self.lora, self.recipe.student, trust_remote_code=self.args.trust_remote_code)
        prompts = load_prompts(self.recipe.prompts.path, self.recipe.prompts.split)
        return check_ingredients(self.recipe.student, self.graph, self.args, prompts)

    def check(self, *, resume: Resumed = False) -> dict[int, Path | None]:
        """Make the checks of a run that need no weights, in every process. With `resume`, the checkpoint of each seed,
        None for one that starts from the beginning."""
        assert self.identity  # before one process decides for all
        return first_decides(lambda: self._check_files(resume))

    def _check_files(self, resume: Resumed) -> dict[int, Path | None]:
        for seed in self.recipe.seeds:
            check_writable(self.recipe.run_directory(seed))
        if self.args.calibrates and self.args.calibration_path is not None:
            self.check_calibration(self.args.calibration_path)
        checkpoints = checkpoints_of_seeds(self.recipe, resume)
        for seed, checkpoint in checkpoints.items():
            if checkpoint is not None:
                check_resumable(checkpoint, self.manifest(seed))
                if self.args.calibrates:
                    self.check_calibration(RunDirectory(checkpoint).calibration)
        return checkpoints if resume else {}

    @cached_property
    def memory(self) -> RunHere:
        longest = self.ingredients.longest_prompt
        return run_here(self.graph, self.recipe.student, self.args, self.lora, longest)

    @cached_property
    def identity(self) -> RunIdentity:
        """Of a run that has not loaded its weights."""
        return expected_identity(self.ingredients, self.engine, self.lora)

    def check_calibration(self, path: str | Path) -> None:
        """Refuse one that was not made for this run, as far as it is known without weights."""
        Calibration.load(path).check(dependencies(self.identity, self.args))

    def manifest(self, seed: int) -> dict[str, Any]:
        return run_manifest(self.identity, self.configs[seed], run_id="", planned_steps=0)

    def trainer(self, seed: int, **changes: Any) -> TrustMOPDTrainer:
        return TrustMOPDTrainer(
            model=self.recipe.student,
            teachers=self._teachers,
            reference=self.recipe.reference,
            args=config_of(self.recipe, seed, **{**self.changes, **changes}),
            peft_config=copy.deepcopy(self.lora),  # PEFT writes into it
            ingredients=self.ingredients,
        )

    @property
    def _teachers(self) -> dict[str, Teacher]:
        return {name: Teacher.of(source) for name, source in self.recipe.teachers.items()}


def prepare(recipe: Recipe, **changes: Any) -> Prepared:
    """`changes` are fields of TrustMOPDConfig in place of the recipe's. From here on the processes know each other."""
    configs = {seed: config_of(recipe, seed, **changes) for seed in recipe.seeds}
    return Prepared(recipe, configs, lora_of(recipe), changes)


def config_of(recipe: Recipe, seed: int, **changes: Any) -> TrustMOPDConfig:
    """The recipe's configuration for one seed. Checkpoints have a subfolder of the run directory."""
    given = {**recipe.config_fields(), **changes}
    if problem := unknown_field(given, TrustMOPDConfig):
        raise RecipeError(f"recipe {recipe.name}: training.{problem}")
    if given.get("resume_from_checkpoint") is not None:
        raise RecipeError(
            f"recipe {recipe.name}: training.resume_from_checkpoint would have no effect. Resume with `trustmopd train "
            "RECIPE --resume`."
        )
    run = RunDirectory(recipe.run_directory(seed))
    try:
        args = TrustMOPDConfig(output_dir=str(run.checkpoints), run_dir=str(run.path), seed=seed, **given)
    except ValueError:
        raise
    except Exception as error:  # transformers passes on any error of a file or package
        raise RecipeError(
            f"recipe {recipe.name}: transformers does not accept `training` ({type(error).__name__}: {error}). Correct "
            "the field that the error names."
        ) from error
    check_launch(args)
    return args


def lora_of(recipe: Recipe) -> LoraConfig | None:
    if recipe.peft is None:
        return None
    if problem := unknown_field(recipe.peft, LoraConfig, "Remove it."):
        raise RecipeError(f"recipe {recipe.name}: peft.{problem}")
    try:
        config = LoraConfig(**{"task_type": "CAUSAL_LM", **recipe.peft})
    except (TypeError, ValueError) as error:
        raise RecipeError(
            f"recipe {recipe.name}: LoraConfig does not accept peft = {recipe.peft}: {error}. Correct it."
        ) from error
    if config.task_type != "CAUSAL_LM":
        raise RecipeError(
            f"recipe {recipe.name}: peft.task_type = {config.task_type!r}: the student is a causal language model. "
            "Leave it out."
        )
    return config
