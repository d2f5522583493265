"""The cells of the comparison of rules, and how two of its choices are made by what was measured before."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from studies.small_world import rules
from studies.small_world.cells import Cell
from studies.small_world.comparison import Comparison
from studies.small_world.pools import one_base
from studies.small_world.rules import DRIFTING, ROWS, RULES, SHIPPED, SIX, STAGES, RulesComparison, best_others, work
from studies.small_world.tests.sizes import SMALL
from trustmopd.recipe.rules import PARTS
from trustmopd.recipe.rules import RULES as ALLOCATIONS


@pytest.fixture
def comparisons(tmp_path: Path) -> dict[str, Comparison]:
    pool = one_base(methods=ROWS)
    return {name: RulesComparison(tmp_path / name, pool, SMALL, rollouts=8) for name in (SHIPPED, SIX, DRIFTING)}


def test_every_rule_of_the_package_is_compared() -> None:
    rows = [settings.get("rule", "trust") for settings in RULES.values()]
    assert {*rows} == ALLOCATIONS.keys() - {"random", "single"}
    named = {settings[part]["rule"] for settings in ROWS.values() for part in PARTS if part in settings}
    assert named == {"extrapolated", "shift", "domain_normalised", "equal_shares"}


def test_stages_have_the_cells_of_the_protocol_each_once(comparisons: dict[str, Comparison]) -> None:
    cells = list(work(comparisons, STAGES))
    assert len({(comparison.out, cell) for comparison, cell in cells}) == len(cells)
    one = [cell for _, cell in work(comparisons, ["one"])]
    assert Counter(cell.prompts for cell in one) == {"singlecap": 3 * len(RULES), "multicap": 3 * (len(RULES) - 3)}
    swept = Counter(cell.method.rstrip(".0123456789").rstrip("-") for _, cell in work(comparisons, ["sweeps"]))
    assert {*swept.values()} == {4}, "four values of each rule's parameter"


def scored(comparison: Comparison, method: str, recovery: float) -> None:
    for prompts in rules.PROMPT_SETS:
        for seed in range(3):
            cell = Cell(prompts, method, seed)
            path = cell.run(comparison.out).scores
            path.parent.mkdir(parents=True)
            row = {"overall": 0.5, "recovery": recovery, "sd": {}, "interval": {}, "seeds": [seed], "benchmarks": {}}
            path.write_text(json.dumps({"schema_version": 1, cell.row: row}))


def test_the_two_best_others_are_those_with_the_largest_recovery(comparisons: dict[str, Comparison]) -> None:
    shipped = comparisons[SHIPPED]
    for method, recovery in {"trust": 0.99, "argmax": 0.8, "novelty": 0.3, "shift-weighted": 0.9}.items():
        scored(shipped, method, recovery)
    assert best_others(shipped) == ["shift-weighted", "argmax"]
    drifting = {cell.method for comparison, cell in work(comparisons, ["two"]) if comparison is comparisons[DRIFTING]}
    assert drifting == {"trust", "trust-x2", "uniform", "shift", "shift-weighted", "argmax"}


def test_a_cell_leaves_its_scores_its_metrics_and_its_distance(comparisons: dict[str, Comparison]) -> None:
    shipped = replace(comparisons[SHIPPED], scale=replace(SMALL, steps=2))
    cell = Cell("singlecap", "expert-align-x2", 0)
    shipped.prepare([])
    shipped.run(cell)
    run = cell.run(shipped.out)
    assert cell.scores(shipped.out) is not None and len(run.metrics.read_text().splitlines()) >= 1
    assert 0 < json.loads((run.path / rules.DISTANCE).read_text())["nats"] < 0.1
    assert not run.recorded()
