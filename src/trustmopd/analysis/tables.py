"""The paper's tables from run files. A table that these runs cannot fill is not made."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from trustmopd.analysis.cells import Titled
from trustmopd.analysis.compare import Comparison
from trustmopd.analysis.summary import Summary
from trustmopd.analysis.tables_cost import cost_table, decontamination_table
from trustmopd.analysis.tables_scores import ablation_table, gamma_table, main_table, transfer_table
from trustmopd.analysis.tables_trust import (
    allocation_table,
    calibration_table,
    change_table,
    displacement_table,
    drift_table,
    score_table,
    scores_before_table,
)

_TABLES: tuple[Callable[[Sequence[Summary], Comparison], Titled | None], ...] = (
    main_table,
    ablation_table,
    gamma_table,
    transfer_table,
    calibration_table,
    scores_before_table,
    score_table,
    displacement_table,
    allocation_table,
    drift_table,
    change_table,
    decontamination_table,
    cost_table,
)


def all_tables(summaries: Sequence[Summary], comparison: Comparison) -> list[Titled]:
    return [made for table in _TABLES if (made := table(summaries, comparison)) is not None]


def write_tables(tables: Iterable[Titled], folder: Path) -> None:
    for each in tables:
        each.table.write(folder / each.name)
