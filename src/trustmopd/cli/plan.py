"""`trustmopd plan`: what a recipe needs on a machine, before there is one."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trustmopd.cli.common import app, errors, say, show_table
from trustmopd.cli.training import Overrides, RecipePath, load

if TYPE_CHECKING:
    from trustmopd.planning import Option
    from trustmopd.planning.workload import Setup, Workload

#: How many ways are shown, and what of them.
_FEW, _BRIEF = 6, ("placement", "engine", "student", "fits", "total", "s/step", "GPU hours")
_PARTS = ("weights", "gradients", "optimizer", "activations", "answers", "rollout_engine")


@app.command(epilog="Example: trustmopd plan recipes/smollm3-3b/singlecap-trust.yaml --gpus 8 --memory 80")
def plan(
    recipe: RecipePath,
    overrides: Overrides = None,
    gpus: Annotated[int, typer.Option(help="GPUs of a node, to train on.")] = 8,
    memory: Annotated[float, typer.Option(help="GiB of memory of each GPU.")] = 80,
    nodes: Annotated[int, typer.Option(help="Nodes.")] = 1,
    server_gpus: Annotated[
        int | None,
        typer.Option(min=1, help="GPUs of a vLLM server, beside --gpus.", show_default="as few as hold the student"),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Show all ways, with the parts of the memory.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print all rows as JSON.")] = False,
) -> None:
    """What fits on which GPUs, and how long it takes: from the models' configurations, without their weights."""
    with errors():
        loaded = load(recipe, overrides)
        from trustmopd.planning import fastest, to_json, workload_of
        from trustmopd.planning import plan as options_of
        from trustmopd.training.prepare import prepare

        prepared = prepare(loaded, bf16=None, fp16=False)  # the machine that is planned for may have other ones
        half = loaded.training.get("bf16") is not False or bool(loaded.training.get("fp16"))
        work = workload_of(prepared.graph, loaded.student, prepared.args, prepared.lora, half=half)
        options = options_of(loaded, work, gpus=gpus, memory=memory, nodes=nodes, server=server_gpus)
        words = [str(recipe), *(overrides or [])]
        if as_json:
            typer.echo(json.dumps(to_json(options, words), indent=1, ensure_ascii=False))
        else:
            _show(options, f"{loaded.name}: {_machine(options[0].setup)}", every, uses_vllm=work.uses_vllm)
            if work.policies > len(work.frozen):
                say(f"{work.policies} frozen policies read with {len(work.frozen)} sets of weights, each loaded once.")
            _recommend(options, words, work, memory)
    if fastest(options) is None:
        raise typer.Exit(1)


def _show(options: "list[Option]", title: str, every: bool, *, uses_vllm: bool) -> None:
    """Unless `every` one is asked for, the fastest that can be used, or else the smallest ones; in 80 columns."""
    from trustmopd.planning.seconds import rates
    from trustmopd.util.text_tables import text_table

    header = ["placement", "engine", "student", "fits", *(part.replace("_", " ") for part in _PARTS), "total"]
    header += ["s/step", "GPU hours", "GB sent", "extra GPUs"]
    shown, columns = options, [*range(len(header))]
    if not every:
        shown, columns = sorted(options, key=_worth)[:_FEW], [header.index(name) for name in _BRIEF]
    rows = ([_cells(option)[column] for column in columns] for option in shown)
    show_table(text_table([header[column] for column in columns], rows, left=("engine", "student", "fits")), title)
    say(
        "GiB of one GPU at the peak of a step. Seconds and GPU hours (of one seed) are estimates, from rates measured "
        f"on one {rates()['machine']}, with responses as long as allowed. "
        + ("GB sent: by each GPU, a step." if every else f"--all shows all {len(options)} ways, and what fills memory.")
    )
    setup = options[0].setup
    if setup.server_gpus:
        say(
            f"Beside the {_gpus(setup.world)} to train on, the vLLM server has {_gpus(setup.server_gpus)} of its own, "
            "and samples there alone (docs/rollouts.md has its command). GPU hours count both."
        )
    if any(option.fits and not option.at_hand for option in shown):
        no_zero = "ZeRO-3 does not go with vLLM; " if uses_vllm else ""
        say(
            "* This would fit, but this recipe cannot use it: `adapters` needs teachers that are LoRA adapters of the "
            f"student's base; `sharded` and FSDP2 need more than one GPU; {no_zero}`ray` needs the extra GPUs, for its "
            "teachers."
        )


def _worth(option: "Option") -> tuple[bool, float]:
    usable = option.fits and option.at_hand
    return not usable, option.seconds_per_step if usable else option.gib.total


def _cells(option: "Option") -> list[str]:
    setup, gib, hours = option.setup, option.gib, option.gpu_hours
    fits = "no" if not option.fits else "yes" if option.at_hand else "yes*"
    sizes = [f"{size:.1f}" for size in (*(getattr(gib, part) for part in _PARTS), gib.total)]
    time = [f"{option.seconds_per_step:,.0f}", "" if hours is None else f"{hours:,.0f}", f"{option.network_gb:,.0f}"]
    return [setup.placement, setup.engine, setup.student_dtype, fits, *sizes, *time, str(option.extra_gpus or "")]


def _recommend(options: "list[Option]", words: list[str], work: "Workload", memory: float) -> None:
    from trustmopd.planning import fastest
    from trustmopd.planning.launching import ACCELERATE
    from trustmopd.planning.seconds import sampling_seconds
    from trustmopd.planning.workload import ZERO3

    best = fastest(options)
    if best is None:
        say(_what_is_lacking(options, memory))
        return
    seconds, command = best.seconds_per_step, best.command(words)
    say(f": {_named(best)}, {best.gib.total:.1f} GiB a GPU, about {seconds:,.0f} s a step.", lead="Fastest")
    if sampling_seconds(work, best.setup) > seconds / 2:
        if not work.uses_vllm:
            say("More than half of that is sampling, which vLLM makes faster: see docs/rollouts.md.")
        elif work.vllm_serves:
            say("More than half of that is sampling: a server with more GPUs would be faster (--server-gpus).")
    if best.host_gib:
        say(f"It pins {best.host_gib:.1f} GiB of host memory on each node.")
    if best.setup.engine == ZERO3:
        say("It needs DeepSpeed: pip install 'trustmopd[deepspeed]'")
    say("Set: " + "\n     ".join(best.overrides))
    nodes = "" if best.setup.nodes == 1 else " on each node, with its own RANK,"
    say(f"Check it{nodes} with: {command} --dry-run\nStart it with the same, without --dry-run.")
    if ACCELERATE in command and not Path(ACCELERATE).is_dir():
        say(f"{ACCELERATE} is a folder of trustmopd's repository.")


def _what_is_lacking(options: "list[Option]", memory: float) -> str:
    from trustmopd.planning.workload import ADAPTERS, RAY

    def least(some: Iterable["Option"]) -> "Option":
        return min(some, key=lambda option: option.gib.total)

    best = least(option for option in options if option.at_hand)
    adapted, away = (least(o for o in options if o.setup.placement == place) for place in (ADAPTERS, RAY))
    fixed = best.gib.weights + best.gib.gradients + best.gib.optimizer
    advice = f"Nothing fits. The least that this recipe can use is {_named(best)}: {best.gib.total:.1f} GiB a GPU. "
    if fixed > memory:
        advice += f"Its weights and optimizer alone are {fixed:.1f}, so shorter responses do not help. "
    else:
        advice += "Lower training.global_batch_size, training.max_prompt_length or training.max_completion_length. "
    if away.gib.total < best.gib.total:
        advice += f"With teachers on Ray, on {away.extra_gpus} more GPUs, it would be {away.gib.total:.1f}. "
    if adapted.gib.total < best.gib.total:
        advice += (
            f"A LoRA student (`peft`) whose teachers are adapters of its base would need {adapted.gib.total:.1f}. "
        )
    return advice + "Or use more or larger GPUs."


def _named(option: "Option") -> str:
    setup = option.setup
    return f"{setup.placement.removesuffix('s')} teachers, {setup.engine}, {setup.student_dtype} student"


def _machine(setup: "Setup") -> str:
    nodes = f"{setup.nodes} nodes × " if setup.nodes > 1 else ""
    server = f" to train on, and {_gpus(setup.server_gpus)} for the vLLM server" if setup.server_gpus else ""
    return f"{nodes}{_gpus(setup.gpus)} of {setup.memory:g} GiB{server}"


def _gpus(count: int) -> str:
    return f"{count} GPU{'s' if count > 1 else ''}"
