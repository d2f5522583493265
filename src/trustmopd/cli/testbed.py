"""The verbs of the small world: quickstart, testbed build."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from trustmopd.cli.common import app, errors, say, show_table
from trustmopd.runs import RunDirectory
from trustmopd.runs.layout import FIGURES, REPORT
from trustmopd.runs.reference_rows import INITIAL
from trustmopd.text_tables import text_table

testbed = typer.Typer(no_args_is_help=True, help="The small world that ships with the package.")
app.add_typer(testbed, name="testbed")


@app.command(epilog="Example: trustmopd quickstart --out runs/quickstart")
def quickstart(
    out: Annotated[Path, typer.Option(help="Folder for runs, scores, figures and the report.")] = Path(
        "runs/quickstart"
    ),
) -> None:
    """Watch it work, offline, in minutes: three small specialists, one student, trust against uniform weights."""
    with errors():
        from trustmopd.testbed.quickstart import STORY, more_seeds
        from trustmopd.testbed.quickstart import quickstart as run
        from trustmopd.testbed.tasks import DOMAINS

        rows = run(out)
        prompts = next(iter(rows[INITIAL]["benchmarks"].values()))["prompts"]
        title = f"right answers, %, on {prompts:,} prompts a domain, never trained on"
        lines = [
            [shown, *(f"{100 * rows[row][name]:.1f}" for name in (*DOMAINS, "overall")), f"{rows[row]['recovery']:.0%}"]
            for row, shown in STORY.items()
        ]
        show_table(text_table(("", *DOMAINS, "overall", "recovered"), lines), title)
        ahead = 100 * (rows["trust"]["recovery"] - rows["uniform"]["recovery"])
        headline = (
            f"Trust recovered {abs(ahead):.0f} points {'more' if ahead >= 0 else 'less'} of the gap than uniform "
        )
        say(f" (one seed, {len(DOMAINS) * prompts:,} prompts).", lead=f"{headline}weights, without labels")
        next_steps = {"Open": out / REPORT, "Scores": RunDirectory(out).scores, "Figures": out / FIGURES}
        for title, what in {**next_steps, "Next": more_seeds()}.items():
            say(f"{title + ':':<8} {what}")


@testbed.command("build", epilog="Example: trustmopd testbed build --out runs/world --seed 1")
def testbed_build(
    out: Annotated[Path, typer.Option(help="Folder of the checkpoints and their card.")],
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Everything follows from it.")] = 0,
    regime: Annotated[
        str, typer.Option(help="How specialists are trained: moderate, overtrained or drifting.")
    ] = "moderate",
    reference_of: Annotated[
        Path | None, typer.Option(help="Take the reference of that world.", show_default=False)
    ] = None,
    evaluation_prompts: Annotated[int, typer.Option(min=1, help="Prompts of each kind to score it on.")] = 2000,
) -> None:
    """Make the small world's reference and specialists again: supervised training, then GRPO with verified rewards."""
    again = ["trustmopd", "testbed", "build", "--out", str(out), "--seed", str(seed), "--regime", regime]
    again += ["--evaluation-prompts", str(evaluation_prompts)]
    again += ["--reference-of", str(reference_of)] if reference_of else []
    with errors(shlex.join(again), kept="finished stages"):
        from trustmopd.testbed.build_world import build_world
        from trustmopd.testbed.machine import quiet
        from trustmopd.testbed.reinforcement import REGIMES

        if regime not in REGIMES:
            raise ValueError(f"--regime {regime}: there is no such regime. Choose from {', '.join(REGIMES)}.")
        quiet()
        build_world(
            out,
            seed,
            reinforcement=REGIMES[regime],
            evaluation_prompts=evaluation_prompts,
            reference_of=reference_of,
        )
        say(f"World: {out}\nCard:  {out / 'README.md'}")
