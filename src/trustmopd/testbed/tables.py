"""The comparison's results: means and standard deviations over seeds (n − 1) as CSV, and one report of all runs."""

import warnings
from collections.abc import Mapping
from pathlib import Path
from statistics import mean
from typing import Any

from trustmopd.analysis.report import write_report
from trustmopd.analysis.run import open_run
from trustmopd.evaluation.graded import collect
from trustmopd.evaluation.scores import score_rows, write_scores
from trustmopd.files import write_text
from trustmopd.runs import RunDirectory
from trustmopd.statistics import paired_difference, spread
from trustmopd.testbed.cells import Cell, finished_cells
from trustmopd.testbed.experiment import METHODS, PROMPT_SETS
from trustmopd.testbed.machine import describe
from trustmopd.testbed.reproduce import mixed_machines, read_study
from trustmopd.testbed.tasks import DOMAINS
from trustmopd.text_tables import TextTable, text_table

COLUMNS = (*DOMAINS, "overall", "recovery")


def write_results(out: Path) -> Path:
    """`results.csv`, `cells.csv` with every seed, the scores of all rows, and the report, whose path is returned. An
    incomplete comparison is shown as far as it goes."""
    study, cells = read_study(out), finished_cells(out)
    evaluation = RunDirectory(out).evaluation
    rows = score_rows(collect([evaluation])[0])
    write_scores(evaluation, rows)
    runs = {cell: open_run(cell.run(out).path) for cell in cells}
    weights = {cell: mean(line["agreement/max_weight"] for line in run.steps) for cell, run in runs.items()}
    references = {name: row for name, row in rows.items() if name not in {cell.row for cell in cells}}
    write_text(out / "results.csv", _result_table(references, cells, weights).to_csv())
    write_text(out / "cells.csv", _cell_table(cells, weights).to_csv())
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
    return write_report(list(runs.values()), out, title="The paper's comparison in the small world", notes=notes)


def _result_table(
    references: Mapping[str, Mapping[str, Any]],
    cells: Mapping[Cell, Mapping[str, Any]],
    weights: Mapping[Cell, float],
) -> TextTable:
    """A row for each method on each prompt set. Trust ahead: its recovery minus the row's, paired by seed."""
    names = [f"{column}_{part}" for column in COLUMNS for part in ("mean", "sd")]
    header = ["prompts", "method", "seeds", *names, "trust_ahead_mean", "trust_ahead_sd", "max_weight_mean"]
    lines = [
        ["", name, "", *(part for column in COLUMNS for part in (f"{row[column]:.6f}", "")), "", "", ""]
        for name, row in references.items()
    ]
    for prompts in PROMPT_SETS:
        by_method = {
            method: {cell.seed: cell for cell in cells if (cell.prompts, cell.method) == (prompts, method)}
            for method in METHODS
        }
        recovered = {
            method: {seed: cells[cell]["recovery"] for seed, cell in mine.items()} for method, mine in by_method.items()
        }
        for method, mine in by_method.items():
            if not mine:
                continue
            scores = [spread([cells[cell][column] for cell in mine.values()]) for column in COLUMNS]
            ahead = paired_difference(recovered["trust"], recovered[method])
            numbers = [part for each in scores for part in each[:2]]
            max_weight = mean(weights[cell] for cell in mine.values())
            lines.append(
                [
                    *(prompts, method, " ".join(map(str, sorted(mine)))),
                    *(f"{number:.6f}" for number in numbers),
                    *([f"{part:.6f}" for part in ahead[:2]] if ahead else ["", ""]),
                    f"{max_weight:.6f}",
                ]
            )
    return text_table(header, lines)


def _cell_table(cells: Mapping[Cell, Mapping[str, Any]], weights: Mapping[Cell, float]) -> TextTable:
    return text_table(
        ("prompts", "method", "seed", *COLUMNS, "max_weight"),
        [
            (cell.prompts, cell.method, str(cell.seed), *(f"{x:.6f}" for x in (*map(row.get, COLUMNS), weights[cell])))
            for cell, row in cells.items()
        ],
    )
