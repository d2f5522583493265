"""`trustmopd plan`: what a recipe needs on a machine, before there is one."""

import json
from typing import TYPE_CHECKING, Annotated

import typer

from trustmopd.cli.common import app, errors, say, show_table
from trustmopd.cli.training import Overrides, RecipePath, load

if TYPE_CHECKING:
    from trustmopd.planning import Row

_PARTS = ("weights", "gradients", "optimizer", "activations", "answers", "rollout_engine")


@app.command(epilog="Example: trustmopd plan recipes/smollm3-3b/singlecap-trust.yaml --gpus 8 --memory 80")
def plan(
    recipe: RecipePath,
    overrides: Overrides = None,
    gpus: Annotated[int, typer.Option(help="GPUs of a node.")] = 8,
    memory: Annotated[float, typer.Option(help="GiB of memory of each GPU.")] = 80,
    nodes: Annotated[int, typer.Option(help="Nodes.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print all rows as JSON.")] = False,
) -> None:
    """What fits on which GPUs, and how long it takes: from the models' configurations, without their weights."""
    with errors():
        loaded = load(recipe, overrides)
        from trustmopd.planning import plan as rows_of
        from trustmopd.planning import to_json, workload_of
        from trustmopd.training.from_recipe import config_of, lora_of

        # Of the machine that is planned for, not of this one.
        args = config_of(loaded, loaded.seeds[0], bf16=None, fp16=False)
        half = loaded.training.get("bf16") is not False or bool(loaded.training.get("fp16"))
        work = workload_of(loaded, args, lora_of(loaded), half=half)
        rows = rows_of(loaded, work, gpus=gpus, memory=memory, nodes=nodes)
        words = [str(recipe), *(overrides or [])]
        if as_json:
            typer.echo(json.dumps(to_json(rows, words), indent=1, ensure_ascii=False))
        else:
            _show(rows, f"{loaded.name}: {_machine(gpus, memory, nodes)}")
            _recommend(rows, words)
    if not any(row.fits for row in rows):
        raise typer.Exit(1)


def _show(rows: "list[Row]", title: str) -> None:
    from trustmopd.planning.seconds import rates
    from trustmopd.text_tables import text_table

    shown = []
    for row in rows:
        parts = [f"{getattr(row.gib, part):.1f}" for part in _PARTS]
        hours = "" if row.gpu_hours is None else f"{row.gpu_hours:,.0f}"
        setup, time = row.setup, [f"{row.seconds_per_step:,.0f}", hours, f"{row.network_gb:,.0f}"]
        mark = "yes" if row.fits and row.at_hand else "yes*" if row.fits else "no"
        shown.append([setup.placement, setup.engine, setup.student_dtype, mark, *parts, f"{row.gib.total:.1f}", *time])
    header = ["placement", "engine", "student", "fits", *(part.replace("_", " ") for part in _PARTS), "total"]
    header += ["s/step", "GPU hours", "GB sent"]
    show_table(text_table(header, shown, left=("engine", "student", "fits")), title)
    say(
        "GiB of one GPU at the peak of a step. Seconds and GPU hours (of one seed) are estimates, from rates measured "
        f"on one {rates()['machine']}, with responses as long as allowed. GB sent: by each GPU, a step."
    )
    if any(not row.at_hand for row in rows):
        say(
            "* This would fit, but this recipe cannot use it: `adapters` needs teachers that are LoRA adapters of the "
            "student's base; `sharded` and FSDP2 need more than one GPU; ZeRO-3 does not go with use_vllm."
        )


def _recommend(rows: "list[Row]", words: list[str]) -> None:
    from trustmopd.planning import fastest

    row = fastest(rows)
    if row is None:
        least = min(rows, key=lambda each: each.gib.total)
        start = "Nothing fits as it is" if any(each.fits for each in rows) else "Nothing fits"
        say(
            f"{start}. The least is {_named(least)}: {least.gib.total:.1f} GiB a GPU. Use more or larger GPUs, or "
            "shorten training.max_prompt_length and training.max_completion_length."
        )
        return
    say(f": {_named(row)}, {row.gib.total:.1f} GiB a GPU, about {row.seconds_per_step:,.0f} s a step.", lead="Fastest")
    if row.host_gib:
        say(f"It pins {row.host_gib:.1f} GiB of host memory on each node.")
    say("Set: " + "\n     ".join(row.overrides))
    each = "" if row.setup.nodes == 1 else " on each node, with its own RANK,"
    say(f"Check it{each} with: {row.command(words)} --dry-run\nStart it with the same, without --dry-run.")


def _named(row: "Row") -> str:
    return f"{row.setup.placement} teachers, {row.setup.engine}, {row.setup.student_dtype} student"


def _machine(gpus: int, memory: float, nodes: int) -> str:
    return f"{f'{nodes} nodes × ' if nodes > 1 else ''}{gpus} GPUs of {memory:g} GiB"
