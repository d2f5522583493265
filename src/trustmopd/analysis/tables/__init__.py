"""The paper's tables from run files. A table that these runs cannot fill is not made."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

from trustmopd.analysis.statistics.comparison import Comparison
from trustmopd.analysis.statistics.summary import Summary
from trustmopd.analysis.tables.cost_tables import cost_table, decontamination_table
from trustmopd.analysis.tables.score_tables import ablation_table, gamma_table, main_table, transfer_table
from trustmopd.analysis.tables.titled import Titled
from trustmopd.analysis.tables.trust_tables import (
    allocation_table,
    calibration_table,
    change_table,
    displacement_table,
    drift_table,
    score_table,
    scores_before_table,
)

_TABLES: dict[str, Callable[[Sequence[Summary], Comparison], Titled | None]] = {
    "main comparison": main_table,
    "ablations": ablation_table,
    "gamma": gamma_table,
    "transfer": transfer_table,
    "calibration": calibration_table,
    "scores before training": scores_before_table,
    "scores": score_table,
    "displacement": displacement_table,
    "allocation": allocation_table,
    "drift": drift_table,
    "changes": change_table,
    "decontamination": decontamination_table,
    "cost": cost_table,
}


def all_tables(summaries: Sequence[Summary], comparison: Comparison) -> list[Titled]:
    made = (
        comparison.attempt(f"table of {name}", partial(table, summaries, comparison)) for name, table in _TABLES.items()
    )
    return [table for table in made if table is not None]


def write_tables(tables: Iterable[Titled], folder: Path) -> None:
    for each in tables:
        each.table.write(folder / each.name)
