"""The comparison's results: means and standard deviations over seeds (n − 1) as CSV, and one report of all runs."""

import warnings
from collections.abc import Mapping
from pathlib import Path
from statistics import mean
from typing import Any

from studies.small_world.cells import Cell, finished_cells
from studies.small_world.comparison import read_study
from studies.small_world.machine import describe, made_by
from trustmopd.evaluation.of_recipe import scored
from trustmopd.evaluation.read_graded import finished_entries
from trustmopd.quickstart.experiment import REFERENCES
from trustmopd.quickstart.tasks import DOMAINS
from trustmopd.report.page.report import write_report
from trustmopd.report.readers.run import open_run
from trustmopd.runs import RunDirectory
from trustmopd.runs.layout import AVERAGE
from trustmopd.util.files import write_text
from trustmopd.util.stats import paired_difference
from trustmopd.util.text_tables import TextTable, text_table

COLUMNS = (*DOMAINS, "overall", "recovery")


def write_results(out: Path) -> Path:
    """`results.csv`, `cells.csv` with every seed, the scores of all rows, and the report, whose path is returned. An
    incomplete comparison is shown as far as it goes."""
    study, cells, evaluation = read_study(out), whole_cells(out), RunDirectory(out).evaluation
    done = [*finished_entries(evaluation, (*REFERENCES, AVERAGE)), *(cell.responses for cell in cells)]
    rows = scored([evaluation / row for row in done], evaluation).scores
    runs = {cell: open_run(cell.run(out).path) for cell in cells}
    weights = {cell: mean(line["agreement/max_weight"] for line in run.logged_steps) for cell, run in runs.items()}
    write_text(out / "results.csv", _result_table(rows, cells, weights).to_csv())
    write_text(out / "cells.csv", _cell_table(cells, weights).to_csv())
    scale = study["scale"]
    notes = [
        f"{scale['steps']} steps of {scale['batch_size']} prompts; scores on "
        f"{scale['evaluation_prompts']} evaluation prompts a domain, one sample "
        f"at temperature 0.6. {study['date']}, {describe(study)}."
    ]
    if len(machines := list(dict.fromkeys(describe(made_by(run.manifest)) for run in runs.values()))) > 1:
        notes.append(f"These runs are of different machines or library versions: {'; '.join(machines)}.")
        warnings.warn(f"{out}: {notes[-1]} Each run's manifest.json names its own.", stacklevel=2)
    return write_report(list(runs.values()), out, title="The paper's comparison in the small world", notes=notes)


def whole_cells(out: Path) -> dict[Cell, dict[str, Any]]:
    """Finished cells whose responses and logged steps are there. A run that was begun anew and then stopped has its old
    scores and lacks some."""
    cells = finished_cells(out)
    rows = finished_entries(RunDirectory(out).evaluation, (cell.responses for cell in cells))
    here = {cell: scores for cell, scores in cells.items() if cell.responses in rows}
    return {cell: scores for cell, scores in here.items() if open_run(cell.run(out).path).logged_steps}


def _result_table(
    rows: Mapping[str, Mapping[str, Any]], cells: Mapping[Cell, Mapping[str, Any]], weights: Mapping[Cell, float]
) -> TextTable:
    """A line for each row of scores. Trust ahead: trust's recovery minus the row's, paired by seed."""
    by_row: dict[str, dict[int, Cell]] = {}
    for cell in cells:
        by_row.setdefault(cell.row, {})[cell.seed] = cell
    recovered = {
        row: {seed: share for seed, cell in seeds.items() if (share := cells[cell]["recovery"]) is not None}
        for row, seeds in by_row.items()
    }
    names = [f"{column}_{part}" for column in COLUMNS for part in ("mean", "sd")]
    lines = [
        ["", row, "", *(part for column in COLUMNS for part in (_text(scores[column]), "")), "", "", ""]
        for row, scores in rows.items()
        if row not in by_row
    ]
    for row, seeds in by_row.items():
        cell = next(iter(seeds.values()))
        numbers = [part for column in COLUMNS for part in (rows[row][column], rows[row]["sd"].get(column))]
        ahead = paired_difference(recovered.get(f"{cell.prompts}-trust", {}), recovered[row])
        lines.append(
            [
                *(cell.prompts, cell.method, " ".join(map(str, seeds))),
                *map(_text, numbers),
                *(map(_text, ahead[:2]) if ahead else ["", ""]),
                _text(mean(weights[cell] for cell in seeds.values())),
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
