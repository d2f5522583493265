"""The tables of several methods, prompt sets and seeds, every cell again from the files of the runs."""

import csv
import io
import itertools
import json
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import pyarrow.parquet as pq
import pytest
import recorded

from trustmopd.report.tables import all_tables

Table = dict[str, dict[str, str]]  # row → column → cell
DOMAINS = ("math", "code", "if")
FOLDER = {"without μ": "without-mu", "γ = 3": "gamma-3", "γ = 7": "trust"}


def tables_of(*paths: Path) -> dict[str, Table]:
    made = {}
    for each in all_tables(recorded.compared(*paths)):
        rows = list(csv.DictReader(io.StringIO(each.table.to_csv())))
        made[each.name] = {next(iter(row.values())): row for row in rows}
        assert len(made[each.name]) == len(rows), "two rows share a name"
    return made


@pytest.fixture(scope="module")
def made(study: Path) -> dict[str, Table]:
    return tables_of(study)


def seeds_of(study: Path, label: str) -> list[Path]:
    prompts, method = label.split(", ")
    return sorted((study / prompts / FOLDER.get(method, method)).iterdir())


def scores(study: Path, label: str, column: str) -> list[float]:
    rows = [json.loads((run / "evaluation" / "scores.json").read_text()) for run in seeds_of(study, label)]
    return [row[run.parent.name][column] for row, run in zip(rows, seeds_of(study, label), strict=True)]


def responses_of(run: Path) -> list[list[dict[str, Any]]]:
    rows = [row for file in sorted((run / "allocation").iterdir()) for row in pq.read_table(file).to_pylist()]
    return [list(each) for _, each in itertools.groupby(rows, key=lambda row: (row["step"], row["rollout"]))]


def with_spread(values: list[float], digits: int = 2) -> str:
    return f"{mean(values):.{digits}f} ± {stdev(values):.{digits}f}"


@pytest.mark.parametrize("table", ["ablations", "gamma", "transfer"])
def test_every_score_and_difference(study: Path, made: dict[str, Table], table: str) -> None:
    against = "trust" if table == "ablations" else "uniform"
    assert made[table]
    for label, row in made[table].items():
        prompts, method = label.split(", ")
        for column in (*DOMAINS, "overall"):
            values = [100 * value for value in scores(study, label, column)]
            assert row[column] == with_spread(values, 1), (label, column)
        if method == against:
            assert row[f"Δ {against}"] == "–"
            continue
        other = scores(study, f"{prompts}, {against}", "overall")
        pairs = [100 * (a - b) for a, b in zip(scores(study, label, "overall"), other, strict=True)]
        assert row[f"Δ {against}"] == f"{mean(pairs):+.1f} ± {stdev(pairs):.1f}", label


def test_every_weight_mass_and_margin_over_seeds(study: Path, made: dict[str, Table]) -> None:
    for label in ("multicap, trust", "multicap, uniform", "multicap, γ = 3", "singlecap, trust"):
        by_seed: list[dict[str, list[dict[str, float]]]] = []
        for run in seeds_of(study, label):
            groups: dict[str, list[dict[str, float]]] = {}
            for response in responses_of(run):
                means = {t: mean(row[f"weight_{t}"] for row in response) for t in DOMAINS}
                groups.setdefault("+".join(response[0]["capabilities"]), []).append(means)
            by_seed.append(groups)
        for group in by_seed[0]:
            row, seeds, needs = made["allocation"][f"{label}, {group}"], [g[group] for g in by_seed], group.split("+")
            assert row["rollouts"] == str(sum(map(len, seeds)))
            for teacher in DOMAINS:
                assert row[teacher] == with_spread([mean(each[teacher] for each in seed) for seed in seeds])
            mass = [mean(sum(each[t] for t in needs) for each in seed) for seed in seeds]
            assert row["relevant mass"] == with_spread(mass)
            if len(needs) == 1 and "uniform" not in label:  # there it is 0 but for rounding
                own = needs[0]
                margins = [[each[own] - max(w for t, w in each.items() if t != own) for each in seed] for seed in seeds]
                assert row["margin"] == with_spread([mean(each) for each in margins])
                positive = mean(mean(margin > 0 for margin in each) for each in margins)
                assert row["margin > 0"] == f"{100 * positive:.0f}%"


@pytest.mark.parametrize("label", ["multicap, trust", "singlecap, trust", "multicap, γ = 3"])
def test_every_score_and_displacement_is_of_the_first_seed(study: Path, made: dict[str, Table], label: str) -> None:
    responses = responses_of(seeds_of(study, label)[0])
    for group in {"+".join(response[0]["capabilities"]) for response in responses}:
        mine = [response for response in responses if "+".join(response[0]["capabilities"]) == group]
        for teacher in DOMAINS:
            raw = [[row[f"score_{teacher}"] for row in response] for response in mine]
            tokens = mean(value for response in raw for value in response)
            assert made["displacement"][f"{label}, {teacher}"][group] == f"{tokens:.3f}"
            mu = recorded.MU[teacher]
            each = [mean(response) / mu for response in raw]
            spread = f" ± {stdev(each):.3f}" if len(each) > 1 else ""
            assert made["scores"][f"{label}, {teacher}"][group] == f"{tokens / mu:.3f}{spread}"


def test_rows_stand_in_the_order_of_the_main_comparison(made: dict[str, Table]) -> None:
    methods = [name.removeprefix("multicap, ") for name in made["main"] if name.startswith("multicap, ")]
    assert methods == ["uniform", "trust", "without μ", "response-level", "γ = 3"]
    for table in ("scores", "displacement", "allocation"):
        shown = [name.split(", ")[1] for name in made[table] if name.startswith("multicap, ")]
        assert list(dict.fromkeys(shown)) == [method for method in methods if method in shown]


def test_calibration_and_changes_of_one_run(trusting: Path) -> None:
    made = tables_of(trusting)
    (row,) = made["calibration"].values()
    stored = json.loads((trusting / "calibration.json").read_text())
    assert row["tokens"] == str(stored["tokens"]) and row["μ if"] == f"{stored['mu']['if']:.4g}"
    responses = {(rows[0]["step"], rows[0]["rollout"]): rows for rows in responses_of(trusting)}
    assert len(made["changes"]) == 20
    for place, row in made["changes"].items():
        where, position = place.split(":")
        step, rollout = map(int, where.split("/"))
        response = responses[step, rollout]
        at = [each["position"] for each in response].index(int(position))
        shift = {t: response[at][f"weight_{t}"] - response[at - 1][f"weight_{t}"] for t in DOMAINS}
        assert row["from → to"] == f"{min(shift, key=shift.__getitem__)} → {max(shift, key=shift.__getitem__)}"
        assert float(row["weight moved"]) == pytest.approx(sum(map(abs, shift.values())) / 2, abs=0.0051)
        assert row["token"] == repr(response[at]["token_text"])
        assert row["before"] == repr("".join(each["token_text"] for each in response[max(0, at - 8) : at]))


def test_a_second_calibration_of_one_setting_is_shown_too(tmp_path: Path) -> None:
    for seed in (0, 1):
        recorded.make_run(tmp_path / str(seed), steps=1, rollouts=1, seed=seed)
    assert len(tables_of(tmp_path)["calibration"]) == 1
    recorded.change(tmp_path / "1", "mu.if", 9.0, "calibration.json")
    found = {name: row["μ if"] for name, row in tables_of(tmp_path)["calibration"].items()}
    first = "prompts abcdef, displacement"
    assert found == {first: "1.5", f"{first}, trust, seed 1": "9"}


def test_two_students_on_one_prompt_set_are_named_in_every_row(tmp_path: Path) -> None:
    for student in ("small", "large"):
        run = recorded.make_run(tmp_path / student, steps=1, scores=recorded.scores_of("trust", 0.4))
        recorded.change(run, "models.student", {"source": f"models/{student}", "fingerprint": student})
    made = tables_of(tmp_path)  # which checks that no two rows of a table share a name
    assert {"large, trust, math", "small, trust, math"} <= set(made["scores"])
    assert {"large, trust", "small, trust"} <= set(made["main"]) & set(made["cost"])
