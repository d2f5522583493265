"""Check a run as far as possible without loading weights, and describe what it would do."""

import json
import math
import shutil
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from trustmopd.checkpoints.meta_model import check_student_lora, skeleton
from trustmopd.planning.this_machine import memory_here
from trustmopd.planning.workload import student_dtype_of
from trustmopd.policies import Teacher, fingerprint_tokenizer
from trustmopd.policies.graph import units_of
from trustmopd.policies.references import fallback_note, is_reference, starts_of
from trustmopd.policies.sizes import size_of
from trustmopd.prompts.prompt_set import load_prompts, prompt_hash
from trustmopd.recipe import Recipe
from trustmopd.recipe.names import SUFFIXES
from trustmopd.recipe.teacher_source import RAY
from trustmopd.rollouts.vllm_package import vllm_version
from trustmopd.runs import RunDirectory
from trustmopd.training.calibration import Calibration
from trustmopd.training.config import TrustMOPDConfig
from trustmopd.training.environment import check_writable
from trustmopd.training.from_recipe import config_of, lora_of, teachers_of
from trustmopd.training.parallelism import Parallelism
from trustmopd.training.prompt_lengths import fit_prompts
from trustmopd.training.run.dry_resume import checkpoint_to_resume
from trustmopd.training.run.resume_policy import SAMPLING
from trustmopd.training.setup import Ingredients, check_ingredients, used_teachers
from trustmopd.training.variants import rule_name


@dataclass(frozen=True)
class DryRun:
    """What would run, by topic; and whether its memory `fits` by the estimate, None if there is none."""

    topics: dict[str, str]
    fits: bool | None


def dry_run(recipe: Recipe, *, resume: bool = False, calibrate: bool = False) -> DryRun:
    """With `calibrate`, mu is measured even if it is known. Raises the errors that the run
    would raise before it loads its models, and some of the later ones."""
    configs = {seed: config_of(recipe, seed) for seed in recipe.seeds}
    args = configs[recipe.seeds[0]]
    engine = Parallelism.expected(args)
    engine.check(args)
    for seed in recipe.seeds:
        check_writable(recipe.run_directory(seed))
    prompts = load_prompts(recipe.prompts.path, recipe.prompts.split)
    adapter = {"trains_adapter": recipe.peft is not None}
    given = check_ingredients(recipe.student, teachers_of(recipe), recipe.reference, args, prompts, **adapter)
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
    begun = {
        seed: checkpoint_to_resume(recipe, seed, config, known, given) for seed, config in configs.items() if resume
    }
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
        "rollouts": _rollouts(args),
        "engine": str(engine),
        "machine": _machine(args),
        "seeds": ", ".join(str(seed) for seed in recipe.seeds),
        "output": ", ".join(str(recipe.run_directory(seed)) for seed in recipe.seeds),
    }
    if begun:
        each = (
            found or f"seed {seed} starts from the beginning: it has no checkpoint" for seed, found in begun.items()
        )
        said["resumes from"] = ", ".join(each)
    memory = memory_here(recipe, args, lora_of(recipe), max(given.prompt_lengths))
    if memory.fits is False:
        warnings.warn(
            "memory: by the estimate in the table, training does not fit here. It is an estimate, so nothing is "
            f"refused. To see what would fit: trustmopd plan RECIPE {memory.machine}, with the recipe and overrides "
            "of this run.",
            stacklevel=2,
        )
    return DryRun(said | {"memory": memory.told}, memory.fits)


def _known_dependencies(args: TrustMOPDConfig, given: Ingredients, prompts: Any) -> dict[str, Any]:
    """The dependencies of a calibration that can be known without weights."""
    return {
        "score": rule_name(args.score),
        "tokenizer": fingerprint_tokenizer(given.tokenizer),
        "prompts": prompt_hash(prompts),
        **{name: getattr(args, name) for name in SAMPLING},
    }


def _references(args: TrustMOPDConfig, given: Ingredients) -> str:
    if not args.needs_reference:
        return "not loaded: this rule needs none"
    teachers = used_teachers(given.teachers, args)
    starts = [start for start in starts_of(teachers, given.reference) if start.measures]
    sources = ["the initial student" if start.given is None else _named(start.given) for start in starts]
    if len(starts) > 1:
        sources = [f"{each} (of {', '.join(start.measures)})" for each, start in zip(sources, starts, strict=True)]
    return "; ".join(filter(None, [", ".join(sources), fallback_note(teachers)]))


def _named(reference: Teacher) -> str:
    more = [f"{name} {value}" for name in ("revision", "dtype") if (value := getattr(reference, name)) is not None]
    return ", ".join([reference.source, *more])


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


def _rollouts(args: TrustMOPDConfig) -> str:
    if not args.use_vllm:
        return "sampled by transformers"
    if args.vllm_mode == "server":
        url = args.vllm_server_base_url or f"http://{args.vllm_server_host}:{args.vllm_server_port}"
        return f"sampled by a vLLM server at {url}"
    joined = args.vllm_tensor_parallel_size
    return (
        f"sampled by vLLM {vllm_version()}, colocated: an engine in "
        + ("each process" if joined == 1 else f"every {joined} processes")
        + f", with {args.vllm_gpu_memory_utilization:g} of the GPU's memory"
        + (", asleep while the student trains" if args.vllm_enable_sleep_mode else "")
    )


def _machine(args: TrustMOPDConfig) -> str:
    if torch.cuda.is_available() and not args.use_cpu:
        return f"{torch.cuda.device_count()} × {torch.cuda.get_device_name()}"
    return "CPU" if args.use_cpu else "CPU: no GPU was found here"


def _weights(recipe: Recipe, args: TrustMOPDConfig, given: Ingredients, student: Any) -> str:
    """GiB of weights by model, as they are loaded."""
    sizes: dict[str, tuple[int, torch.dtype]] = {}
    if student is not None:
        dtype = student_dtype_of(args, recipe.student)
        sizes["student"] = sum(parameter.numel() for parameter in student.parameters()) * dtype.itemsize, dtype
    away = []
    teachers, placement = used_teachers(given.teachers, args), args.teacher_placement
    for unit in units_of(teachers, given.reference, with_reference=args.needs_reference, placement=placement):
        if unit.given is None and recipe.peft is not None and unit.on != RAY:
            continue  # lent by the student, whose base is frozen
        size = size_of(
            unit.given or Teacher(model=recipe.student), args.frozen_dtype, trust_remote_code=args.trust_remote_code
        )
        name = unit.itself if unit.itself and not is_reference(unit.itself) else unit.role
        if size is not None and unit.on == RAY:
            away.append(f"{name} {_size(size.bytes)}")
        elif size is not None:
            sizes[name] = size.bytes, size.dtype
    told = [f"{name} {_size(size)} ({str(dtype).removeprefix('torch.')})" for name, (size, dtype) in sizes.items()]
    total = sum(size for size, _ in sizes.values())
    on_ray = f" On Ray: {', '.join(away)}." if away else ""
    free = shutil.disk_usage(next(path for path in Path(args.output_dir).absolute().parents if path.exists())).free
    return f"{', '.join(told)}; {_size(total)} in all.{on_ray} The disk of the output has {_size(free)} free"


def _size(count: int) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**29 else f"{count / 2**20:.1f} MiB"
