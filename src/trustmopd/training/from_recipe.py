"""From a recipe to the trainer of one of its seeds."""

from typing import Any

from peft import LoraConfig

from trustmopd.checkpoints.meta_model import check_student_lora
from trustmopd.policies import Teacher
from trustmopd.prompts.prompt_set import load_prompts
from trustmopd.recipe import Recipe
from trustmopd.recipe.yaml_layers import RecipeError
from trustmopd.runs import RunDirectory
from trustmopd.training.config import TrustMOPDConfig, unknown_field
from trustmopd.training.environment import check_launch
from trustmopd.training.trainer import TrustMOPDTrainer


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


def trainer_of(recipe: Recipe, seed: int, **changes: Any) -> TrustMOPDTrainer:
    args = config_of(recipe, seed, **changes)
    if (lora := lora_of(recipe)) is not None:  # before the student is loaded
        check_student_lora(lora, recipe.student, trust_remote_code=args.trust_remote_code)
    return TrustMOPDTrainer(
        model=recipe.student,
        teachers=teachers_of(recipe),
        reference=recipe.reference,
        args=args,
        train_dataset=load_prompts(recipe.prompts.path, recipe.prompts.split),
        peft_config=lora_of(recipe),
    )


def teachers_of(recipe: Recipe) -> dict[str, Teacher]:
    return {name: Teacher.of(source) for name, source in recipe.teachers.items()}


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
