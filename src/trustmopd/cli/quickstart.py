"""The verb quickstart."""

from pathlib import Path
from typing import Annotated

import typer

from trustmopd.cli.common import app, errors, say, show_table
from trustmopd.runs import RunDirectory
from trustmopd.runs.layout import FIGURES, INITIAL, REPORT
from trustmopd.util.text_tables import text_table


@app.command(epilog="Example: trustmopd quickstart --out runs/quickstart")
def quickstart(
    out: Annotated[Path, typer.Option(help="Folder for runs, scores, figures and the report.")] = Path(
        "runs/quickstart"
    ),
) -> None:
    """Watch it work, offline, in minutes: three small specialists, one student, trust against uniform weights."""
    with errors():
        from trustmopd.quickstart.quickstart import ELSEWHERE, STORY, more_seeds
        from trustmopd.quickstart.quickstart import quickstart as run
        from trustmopd.quickstart.tasks import DOMAINS

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
        for title, what in {**next_steps, "Next": more_seeds(out)}.items():
            say(f"{title + ':':<8} {what}")
        say(ELSEWHERE)
