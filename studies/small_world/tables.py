"""The comparison's results: means and standard deviations over seeds (n − 1) as CSV, and one report of all runs."""

import warnings
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from studies.small_world.cells import Cell, finished_cells
from studies.small_world.reproduce import mixed_machines, read_study
from trustmopd.evaluation.aggregation import score_rows, write_scores
from trustmopd.evaluation.read_graded import collect, whole_rows
from trustmopd.quickstart.experiment import REFERENCES
from trustmopd.quickstart.machine import describe
from trustmopd.quickstart.tasks import DOMAINS
from trustmopd.report.page.report import write_report
from trustmopd.report.readers.run import open_run
from trustmopd.runs import RunDirectory
from trustmopd.util.files import write_text
from trustmopd.util.stats import paired_difference
from trustmopd.util.text_tables import TextTable, text_table

COLUMNS = (*DOMAINS, "overall", "recovery")


def write_results(out: Path) -> Path:
    """`results.csv`, `cells.csv` with every seed, the scores of all rows, and the report, whose path is returned. An
    incomplete comparison is shown as far as it goes."""
    study, cells = read_study(out), whole_cells(out, finished_cells(out))
    scale = study["scale"]
    notes = [
        f"{scale['steps']} steps of {scale['batch_size']} prompts, C = {scale['num_candidates']}, learning rate "
        f"{scale['learning_rate']:g}; scores on {scale['evaluation_prompts']} evaluation prompts a domain, one sample "
        f"at temperature 0.6. {study['date']}, {describe(study)}."
    ]
    if others := mixed_machines(out):
        notes.append(f"These runs are of different machines or library versions: {others}.")
        warnings.warn(
            f"{out} averages runs of different machines or library versions: {others}. Remove those of one kind and "
            "run them again, or keep comparisons apart with --out.",
            stacklevel=2,
        )
    return write_comparison(out, cells, "The paper's comparison in the small world", notes)


def whole_cells(out: Path, cells: Mapping[Cell, Mapping[str, Any]]) -> dict[Cell, Mapping[str, Any]]:
    """Those of `cells` whose responses and logged steps are there. A run that was begun anew, or asked more, and then
    stopped has its old scores and lacks some."""
    rows = whole_rows(RunDirectory(out).evaluation, (cell.responses for cell in cells))
    here = {cell: scores for cell, scores in cells.items() if cell.responses in rows}
    return {cell: scores for cell, scores in here.items() if open_run(cell.run(out).path).logged_steps}


def write_comparison(
    out: Path,
    cells: Mapping[Cell, Mapping[str, Any]],
    title: str,
    notes: Sequence[str],
    only_scores: Collection[str] = (),
) -> Path:
    """What `write_results` writes, of the whole cells of any comparison of these three domains. Methods of
    `only_scores` are not in the report, where others are."""
    evaluation = RunDirectory(out).evaluation
    done = [*whole_rows(evaluation, REFERENCES), *(cell.responses for cell in cells)]  # not what a kill left unfinished
    rows = score_rows(collect([evaluation / row for row in done])[0])
    write_scores(evaluation, rows)
    runs = {cell: open_run(cell.run(out).path) for cell in cells}
    weights = {cell: mean(line["agreement/max_weight"] for line in run.logged_steps) for cell, run in runs.items()}
    write_text(out / "results.csv", _result_table(rows, cells, weights).to_csv())
    write_text(out / "cells.csv", _cell_table(cells, weights).to_csv())
    reported = [run for cell, run in runs.items() if cell.method not in only_scores]
    return write_report(reported or list(runs.values()), out, title=title, notes=notes)


def _result_table(
    rows: Mapping[str, Mapping[str, Any]], cells: Mapping[Cell, Mapping[str, Any]], weights: Mapping[Cell, float]
) -> TextTable:
    """A line for each row of scores. Trust ahead: trust's recovery minus the row's, paired by seed."""
    by_row: dict[str, dict[int, Cell]] = {}
    for cell in cells:
        by_row.setdefault(cell.row, {})[cell.seed] = cell
    recovered = {
        row: {seed: found for seed, cell in mine.items() if (found := cells[cell]["recovery"]) is not None}
        for row, mine in by_row.items()
    }
    names = [f"{column}_{part}" for column in COLUMNS for part in ("mean", "sd")]
    lines = [
        ["", row, "", *(part for column in COLUMNS for part in (_text(scores[column]), "")), "", "", ""]
        for row, scores in rows.items()
        if row not in by_row
    ]
    for row, mine in by_row.items():
        cell = next(iter(mine.values()))
        numbers = [part for column in COLUMNS for part in (rows[row][column], rows[row]["sd"].get(column))]
        ahead = paired_difference(recovered.get(f"{cell.prompts}-trust", {}), recovered[row])
        lines.append(
            [
                *(cell.prompts, cell.method, " ".join(map(str, mine))),
                *map(_text, numbers),
                *(map(_text, ahead[:2]) if ahead else ["", ""]),
                _text(mean(weights[cell] for cell in mine.values())),
            ]
        )
    header = ["prompts", "method", "seeds", *names, "trust_ahead_mean", "trust_ahead_sd", "max_weight_mean"]
    return text_table(header, lines)


def _cell_table(cells: Mapping[Cell, Mapping[str, Any]], weights: Mapping[Cell, float]) -> TextTable:
    return text_table(
        ("prompts", "method", "seed", *COLUMNS, "max_weight"),
        [
            (cell.prompts, cell.method, str(cell.seed), *map(_text, (*map(row.get, COLUMNS), weights[cell])))
            for cell, row in cells.items()
        ],
    )


def _text(value: float | None) -> str:
    """Nothing for the recovery of a world whose teachers are no better than its reference."""
    return "" if value is None else f"{value:.6f}"
