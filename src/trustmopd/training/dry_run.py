"""Check a run as far as possible without loading weights, and describe what it would do."""

import json
import math
import shutil
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from trustmopd.data import load_prompts, prompt_hash
from trustmopd.method import Calibration
from trustmopd.planning.here import memory_here
from trustmopd.recipe import Recipe
from trustmopd.rows import SUFFIXES
from trustmopd.runs import RunDirectory, resumable_checkpoint, step_of, whole_checkpoints
from trustmopd.runs.checkpoints import read_manifest
from trustmopd.teacher_source import RAY
from trustmopd.teachers import Teacher, fingerprint_tokenizer
from trustmopd.teachers.references import role_of, starts_of
from trustmopd.teachers.skeleton import check_student_lora, skeleton
from trustmopd.teachers.units import placed
from trustmopd.training.config import TrustMOPDConfig, rule_name
from trustmopd.training.environment import check_writable
from trustmopd.training.from_recipe import config_of, lora_of, teachers_of
from trustmopd.training.lessons import SAMPLING
from trustmopd.training.prompt_lengths import fit_prompts
from trustmopd.training.resuming import changes, check_checkpoint, check_same_settings
from trustmopd.training.setup import Ingredients, check_ingredients, used_teachers


def dry_run(recipe: Recipe, *, resume: bool = False, calibrate: bool = False) -> dict[str, str]:
    """What would run, by topic. With `calibrate`, mu is measured even if it is known. Raises the errors that the run
    would raise before it loads its models, and some of the later ones."""
    configs = {seed: config_of(recipe, seed) for seed in recipe.seeds}
    args = configs[recipe.seeds[0]]
    for seed in recipe.seeds:
        check_writable(recipe.run_directory(seed))
    prompts = load_prompts(recipe.prompts.path, recipe.prompts.split)
    given = check_ingredients(recipe.student, teachers_of(recipe), recipe.reference, args, prompts)
    prompts, _ = fit_prompts(prompts, given.prompt_lengths, args)
    lora = lora_of(recipe)
    student = (
        check_student_lora(lora, recipe.student, trust_remote_code=args.trust_remote_code)
        if lora is not None
        else skeleton(recipe.student, trust_remote_code=args.trust_remote_code)
    )
    known = _known_dependencies(args, given, prompts)
    if args.calibrates and args.calibration_path is not None:
        Calibration.load(args.calibration_path).check_known(known)
    begun = {seed: _resumed(recipe, seed, config, known) for seed, config in configs.items() if resume}
    for path in (*(b for b in recipe.evaluation.benchmarks if b.endswith(SUFFIXES)), *recipe.evaluation.data.values()):
        if not Path(path).exists():
            warnings.warn(f"evaluation: {path} does not exist here; `trustmopd evaluate` will need it.", stacklevel=2)
    resumes = all(begun.values()) and bool(begun)
    said = {
        "student": recipe.student + ("" if recipe.peft is None else f", as a LoRA adapter {recipe.peft}"),
        "teachers": ", ".join(f"{name} = {t.source}" for name, t in used_teachers(given.teachers, args).items()),
        "reference": _references(args, given),
        "weights": _weights(recipe, args, given, student),
        "vocabulary": f"{given.vocab_size} tokens that all models share; {args.num_candidates} candidates a position",
        "allocation": ", ".join(f"{key} {value}" for key, value in recipe.allocation.model_dump().items()),
        "calibration": _calibration(args, known, resumes=resumes, anew=calibrate),
        "prompts": f"{_counted(prompts['prompt'])} from {recipe.prompts.path}, "
        + ("plain text: no chat template is applied" if isinstance(prompts[0]["prompt"], str) else "conversational")
        + f", up to {max(given.prompt_lengths)} tokens",
        "training": _training(args, len(prompts)),
        "machine": _machine(args),
        "seeds": ", ".join(str(seed) for seed in recipe.seeds),
        "output": ", ".join(str(recipe.run_directory(seed)) for seed in recipe.seeds),
    }
    if begun:
        each = (
            found or f"seed {seed} starts from the beginning: it has no checkpoint" for seed, found in begun.items()
        )
        said["resumes from"] = ", ".join(each)
    return said | {"memory": memory_here(recipe, args, lora_of(recipe), max(given.prompt_lengths))}


def _known_dependencies(args: TrustMOPDConfig, given: Ingredients, prompts: Any) -> dict[str, Any]:
    """The dependencies of a calibration that can be known without weights."""
    return {
        "score": rule_name(args.score),
        "tokenizer": fingerprint_tokenizer(given.tokenizer),
        "prompts": prompt_hash(prompts),
        **{name: getattr(args, name) for name in SAMPLING},
    }


def _resumed(recipe: Recipe, seed: int, args: TrustMOPDConfig, known: dict[str, Any]) -> str | None:
    """The checkpoint that a seed is resumed from; None if it has none."""
    run = recipe.run_directory(seed)
    if not whole_checkpoints(RunDirectory(run).checkpoints):
        return None
    checkpoint = resumable_checkpoint(True, str(args.output_dir), run)
    check_checkpoint(checkpoint)
    check_same_settings(checkpoint, args.to_dict())
    stored = read_manifest(checkpoint)
    moved = _other_models(recipe, stored, known["prompts"], checkpoint)
    if args.calibrates:
        Calibration.load(RunDirectory(checkpoint).calibration).check_known(known)
    changed = {**moved, **changes(checkpoint, args.to_dict())}
    told = "".join(f", {name} {now} instead of {was}" for name, (was, now) in changed.items())
    return f"{checkpoint} (step {step_of(checkpoint)}{told})"


def _other_models(
    recipe: Recipe, manifest: Mapping[str, Any], prompts: str, checkpoint: Path
) -> dict[str, tuple[str, str]]:
    """Models with another path than when the run began. They may have been moved: their weights are compared when they
    are loaded. Refuses what can be compared now: the prompts, the teachers' names, whether an adapter is trained."""
    stored = manifest["models"]
    adapter = stored["student"].get("adapter", recipe.peft)
    for what, was, now in (
        ("the prompt set", manifest["prompts"]["fingerprint"], prompts),
        ("teachers", sorted(stored["teachers"]), sorted(recipe.teachers)),
        ("peft", "none" if adapter is None else "one", "none" if recipe.peft is None else "one"),
    ):
        if was != now:
            raise ValueError(
                f"{what} was {was} when this run began ({checkpoint}), and is {now} now. Restore it, or start a new "
                "run in another output."
            )
    sources = {f"teacher '{name}'": (stored["teachers"][name], each) for name, each in teachers_of(recipe).items()}
    named = {name: (was["source"], now.source) for name, (was, now) in sources.items()}
    named |= {"student": (stored["student"]["source"], recipe.student)}
    return {name: (was, now) for name, (was, now) in named.items() if was != now}


def _references(args: TrustMOPDConfig, given: Ingredients) -> str:
    if not args.needs_reference:
        return "not loaded: this rule needs none"
    starts = [start for start in starts_of(used_teachers(given.teachers, args), given.reference) if start.measures]
    sources = ["the initial student" if start.given is None else start.given.source for start in starts]
    if len(starts) == 1:
        return sources[0]
    return ", ".join(f"{source} (of {', '.join(s.measures)})" for source, s in zip(sources, starts, strict=True))


def _counted(prompts: Iterable[Any]) -> str:
    texts = [json.dumps(prompt) for prompt in prompts]
    repeats = len(texts) - len(set(texts))
    return f"{len(texts)}" + (f" ({repeats} of them are repeats)" if repeats else "")


def _calibration(args: TrustMOPDConfig, known: dict[str, Any], *, resumes: bool, anew: bool) -> str:
    if not args.calibrates:
        return "none: this rule uses no calibrated scores"
    if resumes:
        return "the one that the run began with"
    if args.calibration_path is not None:
        return args.calibration_path
    rollouts = f"{args.calibration_batches} × {args.global_batch_size} rollouts before training"
    saved = RunDirectory(Path(str(args.run_dir))).calibration
    if anew or not saved.is_file():
        return rollouts
    try:
        Calibration.load(saved).check_known(known)
    except ValueError:
        return rollouts
    return f"{saved}, if the models still have the weights it was measured with"


def _training(args: TrustMOPDConfig, prompts: int) -> str:
    steps = (
        args.max_steps if args.max_steps > 0 else math.ceil(prompts // args.global_batch_size * args.num_train_epochs)
    )
    responses = steps * args.global_batch_size
    assert args.max_completion_length is not None
    split = f"{args.per_device_train_batch_size} × {args.gradient_accumulation_steps} accumulation"
    if args.max_tokens_per_micro_batch is not None:
        split = f"at most {args.max_tokens_per_micro_batch:,} tokens a pass"
    return (
        f"{steps} steps of {args.global_batch_size} prompts ({split}), learning rate {args.learning_rate:g}; "
        f"{responses / prompts:.3g} passes over the prompts; responses up to {args.max_completion_length} tokens, "
        f"{responses * args.max_completion_length:,} in all at most"
    )


def _machine(args: TrustMOPDConfig) -> str:
    if torch.cuda.is_available() and not args.use_cpu:
        return f"{torch.cuda.device_count()} × {torch.cuda.get_device_name()}"
    return "CPU" if args.use_cpu else "CPU: no GPU was found here"


def _weights(recipe: Recipe, args: TrustMOPDConfig, given: Ingredients, student: Any) -> str:
    """GiB of weights by model, as they are loaded."""
    frozen = str(args.frozen_dtype).removeprefix("torch.")
    trained = str((args.model_init_kwargs or {}).get("dtype", "float32"))
    told, total = [], 0

    def add(name: str, model: Any, dtype: str, on: str | None = None) -> None:
        nonlocal total
        if model is not None:
            size = sum(p.numel() for p in model.parameters()) * getattr(torch, dtype, torch.float32).itemsize
            total += 0 if on == RAY else size
            told.append(f"{name} {_size(size)} ({dtype}{', on Ray' if on == RAY else ''})")

    add("student", student, trained)
    teachers = used_teachers(given.teachers, args)
    starts = starts_of(teachers, given.reference)
    for name, teacher in teachers.items():
        if not any(name in start.carries for start in starts):
            add(name, skeleton(teacher.model, revision=teacher.revision), str(teacher.dtype or frozen), teacher.on)
    for start in starts:
        # by the student, whose base is frozen
        lent = start.given is None and recipe.peft is not None and args.teacher_placement != RAY
        if not lent and start.used(args.needs_reference):
            source = placed(start.name, start.given or Teacher(model=recipe.student), args.teacher_placement)
            bare = skeleton(source.model, revision=source.revision)
            add(role_of(start.name), bare, str(source.dtype or frozen), source.on)
    free = shutil.disk_usage(next(path for path in Path(args.output_dir).absolute().parents if path.exists())).free
    return f"{', '.join(told)}; {_size(total)} in all here. The disk of the output has {_size(free)} free"


def _size(count: int) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**29 else f"{count / 2**20:.1f} MiB"
