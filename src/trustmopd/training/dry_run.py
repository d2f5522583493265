"""Print what a prepared recipe would do."""

import json
import math
import shutil
import warnings
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import torch

from trustmopd.evaluation.user_sets import is_graded
from trustmopd.planning.memory import checkpoint_bytes
from trustmopd.planning.this_machine import UnknownMemory
from trustmopd.planning.workload import FrozenModel, student_dtype_of
from trustmopd.policies.graph import Policy, fallback_note, role_of
from trustmopd.recipe.names import SUFFIXES
from trustmopd.recipe.recipe import Watch
from trustmopd.recipe.rollout_engines import VLLM
from trustmopd.recipe.teacher_source import RAY
from trustmopd.rollouts.vllm_engine import vllm_version
from trustmopd.runs import RunDirectory
from trustmopd.training.config import TrustMOPDConfig
from trustmopd.training.prepare import Prepared
from trustmopd.training.run.resuming import changes, moves, read_state
from trustmopd.training.run.which_checkpoint import Resumed
from trustmopd.training.setup import Ingredients


@dataclass(frozen=True)
class DryRun:
    """What would run, by topic; and whether its memory `fits` by the estimate, None if there is none."""

    topics: dict[str, str]
    fits: bool | None


def dry_run(prepared: Prepared, *, resume: Resumed = False, calibrate: bool = False) -> DryRun:
    """With `calibrate`, mu is measured even if it is known. Raises the errors that the run would raise before it loads
    its models."""
    recipe, args = prepared.recipe, prepared.args
    checkpoints, given = prepared.check(resume=resume), prepared.ingredients
    own = [str(getattr(benchmark, "path", benchmark)) for benchmark in recipe.evaluation.benchmarks]
    for path in (*(name for name in own if name.endswith(SUFFIXES)), *recipe.evaluation.data.values()):
        if not Path(path).exists():
            warnings.warn(f"evaluation: {path} does not exist here; `trustmopd evaluate` will need it.", stacklevel=2)
    weights, memory, fits = _memory(prepared)
    used = [given.graph.teachers[name] for name in given.graph.used]
    topics = {
        "student": recipe.student + ("" if recipe.peft is None else f", as a LoRA adapter {recipe.peft}"),
        "teachers": ", ".join(f"{teacher.name} = {teacher.source}" for teacher in used),
        "reference": _references(prepared, used),
        **({"views": _views(prepared)} if given.views else {}),
        "weights": weights,
        "vocabulary": f"{given.vocab_size} tokens that all models share; {args.num_candidates} candidates a position",
        "allocation": ", ".join(f"{key} {value}" for key, value in recipe.allocation.model_dump().items()),
        "calibration": _calibration(prepared, resumes=bool(checkpoints) and all(checkpoints.values()), anew=calibrate),
        "prompts": _prompts(prepared),
        "training": _training(args, len(given.prompts)),
        "rollouts": _rollouts(args),
        **({"watch": _watched(args.watching, given)} if args.watching is not None else {}),
        "engine": str(prepared.engine),
        "machine": _machine(args),
        "seeds": ", ".join(str(seed) for seed in recipe.seeds),
        "output": ", ".join(str(recipe.run_directory(seed)) for seed in recipe.seeds),
        "disk": _disk(prepared),
    }
    if checkpoints:
        topics["resumes from"] = ", ".join(_resumed(prepared, seed, path) for seed, path in checkpoints.items())
    return DryRun(topics | {"memory": memory}, fits)


def _resumed(prepared: Prepared, seed: int, checkpoint: Path | None) -> str:
    """From where, and what has changed since. Models of another path may have been moved: their weights are compared
    when they are loaded."""
    if checkpoint is None:
        return f"seed {seed} starts from the beginning: it has no checkpoint"
    manifest = prepared.manifest(seed)
    changed = {**moves(checkpoint, manifest), **changes(checkpoint, manifest["config"])}
    told = "".join(f", {name} {is_now} instead of {was}" for name, (was, is_now) in changed.items())
    return f"{checkpoint} (step {read_state(checkpoint).global_step}{told})"


def _memory(prepared: Prepared) -> tuple[str, str, bool | None]:
    """GiB of weights by model, as they are loaded; what a step needs, and whether that fits."""
    try:
        memory = prepared.memory
    except UnknownMemory as error:
        return f"not known: {error}", f"not known: {error}", None
    if not memory.fits:
        warnings.warn(
            "memory: by the estimate in the table, training does not fit here. It is an estimate, so nothing is "
            f"refused. To see what would fit: trustmopd plan RECIPE {memory.machine}, with the recipe and overrides "
            "of this run.",
            stacklevel=3,
        )
    dtype = student_dtype_of(prepared.args, prepared.recipe.student)
    student = FrozenModel(memory.work.student, dtype=dtype, role="student")
    own = [student, *(m for m in memory.work.models(memory.setup) if not m.lent)]
    here, away = ([model for model in own if (model.on == RAY) == is_away] for is_away in (False, True))
    weights = ", ".join(f"{m.name} {_size(m.bytes)} ({str(m.dtype).removeprefix('torch.')})" for m in here)
    weights += f"; {_size(sum(model.bytes for model in here))} in all"
    if away:
        weights += f". On Ray: {', '.join(f'{model.name} {_size(model.bytes)}{_read_by(model)}' for model in away)}"
    return weights, str(memory), memory.fits


def _read_by(model: FrozenModel) -> str:
    """What does, where it is not transformers."""
    return f" ({', '.join(filter(None, (model.engine, model.quantization)))})" if model.on_vllm else ""


def _disk(prepared: Prepared) -> str:
    """What is free, and what the checkpoints take of it. A new one is whole before the oldest is deleted."""
    args, seeds = prepared.args, len(prepared.recipe.seeds)
    output = Path(str(args.output_dir)).absolute()
    free = shutil.disk_usage(next(path for path in output.parents if path.exists())).free
    told = f"{_size(free)} are free"
    if args.save_strategy == "no":
        return f"{told}; no checkpoint is saved"
    try:
        memory = prepared.memory
    except UnknownMemory:
        return told
    steps = steps_of(args, len(prepared.ingredients.prompts))
    between = args.save_steps if args.save_steps >= 1 else math.ceil(steps * args.save_steps)
    saved = math.ceil(steps / between) if args.save_strategy == "steps" else steps
    kept = min(saved, args.save_total_limit or saved)
    size = round(checkpoint_bytes(memory.work, memory.setup, with_optimizer=not args.save_only_model))
    most = seeds * kept + (kept < saved)
    if most * size > free:
        warnings.warn(
            f"disk: at most {most} checkpoints of about {_size(size)} are kept, but only {_size(free)} are free. Lower "
            "training.save_total_limit, or choose another output=FOLDER.",
            stacklevel=3,
        )
    return f"{told}; checkpoints take about {_size(size)} each, at most {most} at a time: {_size(most * size)}"


def _references(prepared: Prepared, used: list[Policy]) -> str:
    graph = prepared.graph
    if not graph.scored:
        return "not loaded: this rule needs none"
    sources = {name: _named(reference) for name, reference in graph.scored.items()}
    if len(sources) > 1:
        sources = {name: f"{source} (of {', '.join(graph.measured_from(name))})" for name, source in sources.items()}
    return "; ".join(filter(None, [", ".join(sources.values()), fallback_note(used)]))


def _named(reference: Policy) -> str:
    if (given := reference.checkpoint) is None:
        return "the initial student"
    more = [f"{name} {value}" for name in ("revision", "dtype") if (value := getattr(given, name)) is not None]
    return ", ".join([given.source, *more])


def _prompts(prepared: Prepared) -> str:
    given = prepared.ingredients
    is_text = isinstance(given.prompts[0]["prompt"], str)
    kind = "plain text: no chat template is applied" if is_text else "conversational"
    texts = [json.dumps(prompt) for prompt in given.prompts["prompt"]]
    repeats = len(texts) - len(set(texts))
    counted = f"{len(texts)}" + (f" ({repeats} of them are repeats)" if repeats else "")
    return f"{counted} from {prepared.recipe.prompts.path}, {kind}, up to {given.longest_prompt} tokens"


def _views(prepared: Prepared) -> str:
    """The first prompt as each policy reads it, up to where the response begins."""
    given, lines = prepared.ingredients, []
    as_student = ["the student", *(role_of(name) for name in given.graph.policies if name not in given.views)]
    shown = {", ".join(as_student): given.student_view}
    shown |= {f"{role_of(name)} ({given.graph.policies[name].reading})": view for name, view in given.views.items()}
    for who, view in shown.items():
        ids = view.render(given.prompts[0])
        lines.append(f"{who}: {len(ids)} tokens, then the response: {view.text(ids)!r}")
    return "\n".join(lines)


def _calibration(prepared: Prepared, *, resumes: bool, anew: bool) -> str:
    args = prepared.args
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
        prepared.check_calibration(saved)
    except ValueError:
        return rollouts
    return f"{saved}, if the models still have the weights it was measured with"


def steps_of(args: TrustMOPDConfig, prompts: int) -> int:
    if args.max_steps > 0:
        return args.max_steps
    return math.ceil(prompts // args.prompts_per_step * args.num_train_epochs)


def _training(args: TrustMOPDConfig, prompts: int) -> str:
    steps = steps_of(args, prompts)
    responses = steps * args.global_batch_size
    assert args.max_completion_length is not None
    split = f"{args.per_device_train_batch_size} × {args.gradient_accumulation_steps} accumulation"
    if args.max_tokens_per_micro_batch is not None:
        split = f"at most {args.max_tokens_per_micro_batch:,} tokens a pass"
    several = f" with {args.num_generations} responses each" if args.num_generations > 1 else ""
    return (
        f"{steps} steps of {args.prompts_per_step} prompts{several} ({split}), learning rate {args.learning_rate:g}; "
        f"{steps * args.prompts_per_step / prompts:.3g} passes over the prompts; "
        f"responses up to {args.max_completion_length} tokens, "
        f"{responses * args.max_completion_length:,} in all at most"
    )


def _rollouts(args: TrustMOPDConfig) -> str:
    if args.rules.rollouts.engine != VLLM:
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


def _watched(watch: Watch, given: Ingredients) -> str:
    graded = sum(map(is_graded, given.prompts))
    told = f"the rollouts of {graded} of {len(given.prompts)} prompts, which carry answers"
    for name, count in Counter(each.benchmark for each in given.held_out).items():
        told += f"; {count} prompts of {name}"
    if given.held_out:
        told += f" before the first step, every {watch.every} steps and after the last"
    return told + ("; the best checkpoint is kept" if watch.save_best else "")


def _machine(args: TrustMOPDConfig) -> str:
    if torch.cuda.is_available() and not args.use_cpu:
        return f"{torch.cuda.device_count()} × {torch.cuda.get_device_name()}"
    return "CPU" if args.use_cpu else "CPU: no GPU was found here"


def _size(count: int) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**29 else f"{count / 2**20:.1f} MiB"
