"""The paper's comparison in the small world, and the worlds it runs in: `python -m studies.small_world --help`."""

from pathlib import Path
from typing import Annotated

import typer

from trustmopd.cli.common import errors, say
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
    rules: Annotated[bool, typer.Option("--rules", help="Rules of the field, in place of the paper's rows.")] = False,
    first_seed: Annotated[int, typer.Option(min=0, help="The seed to count from.")] = 0,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the results.", show_default="runs/small-world, two-bases or rules")
    ] = None,
) -> None:
    """The paper's comparison in the small world: every baseline and ablation on both prompt sets. Finished cells
    stay."""
    if context.invoked_subcommand:
        return
    with errors("the same command", kept="finished cells"):
        from studies.small_world import pools
        from studies.small_world.cells import METHODS, OF_RULES, OF_TWO_BASES, all_cells
        from studies.small_world.comparison import Comparison
        from studies.small_world.tables import write_results
        from studies.small_world.workers import run_cells
        from trustmopd.quickstart.experiment import Scale

        rows = OF_TWO_BASES if two_bases else OF_RULES if rules else METHODS
        cells = all_cells(range(first_seed, first_seed + seeds), rows, only or ())
        out = out or Path("runs", "two-bases" if two_bases else "rules" if rules else "small-world")
        pool = pools.two_bases(world, out) if two_bases else pools.one_base(world, rows)
        run_cells(Comparison(out, pool, Scale()), cells, jobs)
        say(f"Report:  {write_results(out)}\nResults: {out / 'results.csv'}\nSeeds:   {out / 'cells.csv'}")


@app.command(epilog="Example: python -m studies.small_world build --out runs/drifting --regime drifting")
def build(
    out: Annotated[Path, typer.Option(help="Folder of the checkpoints and their card.")],
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Everything follows from it.")] = 0,
    regime: Annotated[
        str, typer.Option(help="How specialists are trained: moderate, overtrained or drifting.")
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
