"""The verbs of finished runs: analyze, report."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trustmopd.cli.common import app, console, errors, plain, say, show_table

if TYPE_CHECKING:
    from trustmopd.report.readers.run import Run

Responses = Annotated[int, typer.Option("--responses", min=1, help="Responses in the token viewer.")]
#: Tables that are printed; the others are in files.
_PRINTED = ("main", "allocation")


@app.command(
    epilog="Examples: trustmopd analyze runs/singlecap-trust; trustmopd analyze runs/singlecap-trust --case "
    "1/214:37 --tokens right=964 --tokens right=96 --tokens 'comma=/,/'"
)
def analyze(
    run: Annotated[Path, typer.Argument(help="The run directory.", show_default=False)],
    case: Annotated[
        str | None,
        typer.Option(help="A position, as ROLLOUT:POSITION or STEP/ROLLOUT:POSITION; loads the run's models."),
    ] = None,
    tokens: Annotated[
        list[str] | None,
        typer.Option(help="For --case: a set of tokens, NAME=TOKEN or NAME=/REGEX/; repeat to add to it."),
    ] = None,
    responses: Responses = 64,
) -> None:
    """Whom a run trusted where: tables, figures and the token viewer, from the run's own files."""
    with errors():
        from trustmopd.report.readers.run import open_run
        from trustmopd.runs import as_commands

        opened = open_run(run)
        if case is not None:
            _case(opened, case, tokens or [])
            return
        if tokens:
            raise ValueError("--tokens names what --case ROLLOUT:POSITION looks at. Give a --case.")
        from trustmopd.report.page.report import analyse, viewer
        from trustmopd.runs.layout import ANALYSIS, FIGURES, TABLES

        found, tables, pictures = analyse(opened)
        page = viewer(run, responses).path if found.rollouts else None
        for table in tables:
            if table.name in _PRINTED:
                show_table(table.table, table.title, table.note)
        for warning in found.warnings:
            say(f" {warning}", lead="Warning:")
        for missing in found.missing:
            say(f" {as_commands(str(missing), run)}", lead="Not here:")
        made = [f"{len(tables)} tables: {run / TABLES}", f"{len(pictures)} figures: {run / FIGURES}"]
        made += [f"Numbers: {run / ANALYSIS}", *([f"Open: {page}"] if page else [])]
        say("\n".join(made))


@app.command(epilog="Example: trustmopd report runs/singlecap-trust runs/singlecap-uniform --out runs/comparison")
def report(
    runs: Annotated[
        list[Path], typer.Argument(help="Run directories, or folders that hold several.", show_default=False)
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="Folder of the report.", show_default="where the runs are"),
    ] = None,
    responses: Responses = 64,
) -> None:
    """One page that opens from disk: what happened, figures, tables and the token viewer; of one run or of several."""
    with errors():
        from trustmopd.report.page.report import report as make

        page = make(*runs, out=out, responses=responses)
        say(f"Tables and figures are next to the report.\nOpen: {page.path}")


def _case(run: "Run", place: str, tokens: list[str]) -> None:
    from trustmopd.report.page.case_studies import find_token, write_case

    rollout, at = find_token(run.records(), place)
    from transformers.utils import logging

    from trustmopd.training.case_study import compute_case, parse_tokens

    logging.disable_progress_bar()  # one for each model, and nothing between them
    with console.status("Asking the run's models again"):
        case = compute_case(
            run.path,
            parse_tokens(tokens),
            step=rollout.step,
            row=rollout.row,
            at=at,
            token_ids=rollout.token_ids.tolist(),
            recorded=rollout.weights,
        )
    position = int(rollout.positions[at])
    view, path = write_case({**case, "sample": rollout.sample, "position": position}, run.path)
    console.print(plain(view.title, "bold"), plain(view.prefix[-400:]), "", sep="\n")
    for table in view.tables:
        show_table(table.table, table.title, table.note)
    say(f"Saved: {path}.json, tables next to it.\nRead: {path}-text.md")
