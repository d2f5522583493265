"""The paper's tables from run files. A table that these runs cannot fill is not made."""

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from trustmopd.report.statistics.comparison import Comparison
from trustmopd.report.tables import cost_tables, score_tables, trust_tables
from trustmopd.report.tables.titled import Titled

_TABLES: dict[str, Callable[[Comparison], Titled]] = {
    "main comparison": score_tables.main_table,
    "ablations": score_tables.ablation_table,
    "gamma": score_tables.gamma_table,
    "transfer": score_tables.transfer_table,
    "calibration": trust_tables.calibration_table,
    "scores before training": trust_tables.scores_before_table,
    "scores": trust_tables.score_table,
    "displacement": trust_tables.displacement_table,
    "allocation": trust_tables.allocation_table,
    "drift": trust_tables.drift_table,
    "changes": trust_tables.change_table,
    "decontamination": cost_tables.decontamination_table,
    "cost": cost_tables.cost_table,
}


def all_tables(comparison: Comparison) -> list[Titled]:
    made = (comparison.attempt(f"table of {name}", partial(make, comparison)) for name, make in _TABLES.items())
    return [each for each in made if each is not None and each.table.rows]


def write_tables(tables: Iterable[Titled], folder: Path) -> None:
    for each in tables:
        each.table.write(folder / each.name)
