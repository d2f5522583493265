"""From a recipe to the trainer of one of its seeds."""

from pathlib import Path
from typing import Any

from peft import LoraConfig

from trustmopd.data import load_prompts
from trustmopd.layers import RecipeError
from trustmopd.recipe import Recipe
from trustmopd.teachers import Teacher
from trustmopd.training.config import TrustMOPDConfig, unknown_field
from trustmopd.training.setup import check_ingredients, used_teachers
from trustmopd.training.trainer import TrustMOPDTrainer


def config_of(recipe: Recipe, seed: int, **changes: Any) -> TrustMOPDConfig:
    """The recipe's configuration, in its run directory: checkpoints below it, everything else beside them."""
    given = {**recipe.config_fields(), **changes}
    if problem := unknown_field(given):
        raise RecipeError(f"recipe {recipe.name}: training.{problem}")
    run_dir = recipe.run_directory(seed)
    return TrustMOPDConfig(output_dir=str(run_dir / "checkpoints"), run_dir=str(run_dir), seed=seed, **given)


def trainer_of(recipe: Recipe, seed: int, **changes: Any) -> TrustMOPDTrainer:
    return TrustMOPDTrainer(
        model=recipe.student,
        teachers=teachers_of(recipe),
        reference=recipe.reference,
        args=config_of(recipe, seed, **changes),
        train_dataset=load_prompts(recipe.prompts.path, recipe.prompts.split),
        peft_config=lora_of(recipe),
    )


def teachers_of(recipe: Recipe) -> dict[str, Teacher]:
    return {name: Teacher(**source.model_dump()) for name, source in recipe.teachers.items()}


def lora_of(recipe: Recipe) -> LoraConfig | None:
    try:
        return None if recipe.peft is None else LoraConfig(**{"task_type": "CAUSAL_LM", **recipe.peft})
    except (TypeError, ValueError) as error:
        raise RecipeError(f"recipe {recipe.name}: peft = {recipe.peft} does not make a LoraConfig: {error}.") from error


def check(recipe: Recipe) -> dict[str, str]:
    """Everything that can be checked without loading weights, and what a run would do, in a person's words."""
    args = config_of(recipe, recipe.seeds[0])
    lora_of(recipe)
    prompts = load_prompts(recipe.prompts.path, recipe.prompts.split)
    given = check_ingredients(recipe.student, teachers_of(recipe), recipe.reference, args, prompts)
    used = used_teachers(given.teachers, args)
    calibration = (
        args.calibration_path or f"{args.calibration_batches} × {args.global_batch_size} rollouts before training"
    )
    rule = ", ".join(f"{key} {value}" for key, value in recipe.allocation.model_dump().items())
    return {
        "student": recipe.student + ("" if recipe.peft is None else f", as a LoRA adapter {recipe.peft}"),
        "teachers": ", ".join(f"{name} = {teacher.source}" for name, teacher in used.items()),
        "reference": (recipe.reference or "the initial student")
        if args.needs_reference
        else "not loaded: this rule needs none",
        "vocabulary": f"{given.vocab_size} tokens that all models share; {args.num_candidates} candidates a position",
        "allocation": rule,
        "calibration": calibration if args.calibrates else "none: this rule uses no calibrated scores",
        "prompts": f"{len(prompts)} from {recipe.prompts.path}, "
        + ("plain text: no chat template is applied" if isinstance(prompts[0]["prompt"], str) else "conversational"),
        "training": (
            f"{f'{args.max_steps} steps' if args.max_steps > 0 else f'{args.num_train_epochs:g} epochs'} of "
            f"{args.global_batch_size} prompts ({args.per_device_train_batch_size} × "
            f"{args.gradient_accumulation_steps} accumulation), learning rate {args.learning_rate:g}, responses up to "
            f"{args.max_completion_length} tokens"
        ),
        "seeds": ", ".join(str(seed) for seed in recipe.seeds),
        "output": ", ".join(str(Path(recipe.run_directory(seed))) for seed in recipe.seeds),
    }
