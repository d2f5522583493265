"""The paper's comparison in the small world, and the worlds it runs in: `python -m studies.small_world --help`."""

from pathlib import Path
from typing import Annotated

import typer

from trustmopd.cli.common import errors, say, show_table
from trustmopd.quickstart.shipped import SHIPPED

app = typer.Typer(
    pretty_exceptions_enable=False,
    epilog="Examples: python -m studies.small_world --seeds 5 --jobs 2; "
    "python -m studies.small_world build --out runs/world --seed 1",
)


@app.callback(invoke_without_command=True)
def compare(
    context: typer.Context,
    seeds: Annotated[int, typer.Option(min=1, max=100, help="How many, counted from the first.")] = 5,
    only: Annotated[list[str] | None, typer.Option(help="A prompt set or row; may be given several times.")] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Cells to run side by side, each in one thread.")] = 1,
    world: Annotated[Path, typer.Option(help="Another world, from `build`.", show_default="shipped")] = SHIPPED,
    two_bases: Annotated[
        bool, typer.Option("--two-bases", help="Teachers code and if of a second base, which is built first.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the results.", show_default="runs/small-world or runs/two-bases")
    ] = None,
) -> None:
    """The paper's comparison in the small world: every baseline and ablation on both prompt sets. Finished cells
    stay."""
    if context.invoked_subcommand:
        return
    with errors("the same command", kept="finished cells"):
        from studies.small_world import pools
        from studies.small_world.cells import METHODS, OF_TWO_BASES, all_cells
        from studies.small_world.comparison import Comparison
        from studies.small_world.tables import write_results
        from studies.small_world.workers import run_cells
        from trustmopd.quickstart.experiment import Scale

        rows = OF_TWO_BASES if two_bases else METHODS
        cells = all_cells(range(seeds), rows, only or ())
        out = out or Path("runs", "two-bases" if two_bases else "small-world")
        pool = pools.two_bases(world, out) if two_bases else pools.one_base(world)
        comparison = Comparison(out, pool, Scale())
        comparison.prepare(cells)
        run_cells([(comparison, cell) for cell in cells], jobs)
        say(f"Report:  {write_results(out)}\nResults: {out / 'results.csv'}\nSeeds:   {out / 'cells.csv'}")


@app.command("rules", epilog="Example: python -m studies.small_world rules --stage one --jobs 2")
def compare_rules(
    stage: Annotated[list[str] | None, typer.Option(help="pools, one, factors, two, sweeps; may be repeated.")] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Cells to run side by side, each in one thread.")] = 1,
    seconds: Annotated[float | None, typer.Option(help="Then stop; finished cells stay.", show_default="none")] = None,
    out: Annotated[Path, typer.Option(help="Folder of the results.")] = Path("runs", "rules"),
) -> None:
    """The rules of the field, in three pools. Finished cells stay."""
    with errors("the same command", kept="finished cells"):
        from studies.small_world.rules import STAGES, prepared, work
        from studies.small_world.workers import run_cells
        from trustmopd.quickstart.experiment import Scale

        if unknown := [name for name in stage or () if name not in STAGES]:
            raise ValueError(f"--stage {unknown[0]}: there is no such stage. Choose from {', '.join(STAGES)}.")
        stages = stage or [*STAGES]
        run_cells(work(prepared(out, Scale(), stages, jobs), stages), jobs, seconds)


@app.command("guard", epilog="Example: python -m studies.small_world guard --seeds 5")
def check_guard(
    seeds: Annotated[int, typer.Option(min=0, max=5, help="Of each healthy run; 0: only the sick ones.")] = 5,
    train: Annotated[bool, typer.Option(help="--no-train: only read what is there.")] = True,
    out: Annotated[Path, typer.Option(help="Folder of the results.")] = Path("runs", "guard"),
) -> None:
    """Sick runs made on purpose, and healthy ones: what does the guard say? Finished runs stay."""
    with errors("the same command", kept="finished runs"):
        import torch

        from studies.small_world.guarded import guard_table, healthy, run_guarded, sick
        from trustmopd.quickstart.experiment import quiet

        torch.set_num_threads(1)
        quiet()
        if train:
            run_guarded(out, [*sick(), *healthy(seeds)])
        show_table(guard_table(out), "what the guard says")


@app.command(epilog="Example: python -m studies.small_world build --out runs/drifting --regime drifting")
def build(
    out: Annotated[Path, typer.Option(help="Folder of the checkpoints and their card.")],
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Everything follows from it.")] = 0,
    regime: Annotated[
        str, typer.Option(help="How specialists are trained: moderate, overtrained, drifting or adrift-N.")
    ] = "moderate",
    reference_of: Annotated[
        Path | None, typer.Option(help="Take the reference of that world.", show_default=False)
    ] = None,
) -> None:
    """Make a world's reference and specialists: supervised training, then GRPO with verified rewards. Finished stages
    stay."""
    with errors("the same command", kept="finished stages"):
        from studies.small_world.build_world import build_world
        from studies.small_world.reinforcement import REGIMES
        from trustmopd.quickstart.experiment import quiet

        if regime not in REGIMES:
            raise ValueError(f"--regime {regime}: there is no such regime. Choose from {', '.join(REGIMES)}.")
        quiet()
        build_world(out, seed, reinforcement=REGIMES[regime], reference_of=reference_of)
        say(f"World: {out}\nCard:  {out / 'README.md'}")


if __name__ == "__main__":
    app()
