"""The paper's tables from run files. A table that these runs cannot fill is not made."""

from collections.abc import Iterable
from pathlib import Path

from trustmopd.report.statistics.comparison import Comparison
from trustmopd.report.tables import cost_tables, score_tables, trust_tables, watch_tables
from trustmopd.report.tables.titled import Titled

#: In the order of the page.
_TABLES = (
    score_tables.main_table,
    score_tables.ablation_table,
    score_tables.gamma_table,
    score_tables.transfer_table,
    watch_tables.watched_table,
    trust_tables.calibration_table,
    trust_tables.scores_before_table,
    trust_tables.score_table,
    trust_tables.displacement_table,
    trust_tables.allocation_table,
    trust_tables.change_table,
    cost_tables.decontamination_table,
    cost_tables.cost_table,
)


def all_tables(comparison: Comparison) -> list[Titled]:
    return [titled for titled in (make(comparison) for make in _TABLES) if titled.table.rows]


def write_tables(tables: Iterable[Titled], folder: Path) -> None:
    for titled in tables:
        titled.table.write(folder / titled.name)
