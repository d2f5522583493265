"""Scores against the paper's definitions, by hand and by numpy."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trustmopd.evaluation.aggregation import score_entries, score_table, write_scores
from trustmopd.evaluation.read_graded import Graded, collect
from trustmopd.util.files import read_json, write_json
from trustmopd.util.stats import bootstrap_means

pytestmark = pytest.mark.unit


def answers(domain: str, *scores: float) -> Graded:
    return Graded(
        domain,
        {str(i): score for i, score in enumerate(scores)},
        {"prompts": len(scores), "responses": len(scores), "truncated": 0},
    )


def checkpoint(*scores: tuple[float, ...]) -> dict[str, Graded]:
    """AIME twice, LiveCodeBench once: a domain's benchmarks count alike, and so do domains."""
    names = (("aime25", "math"), ("aime26", "math"), ("lcb_v5", "code"))
    return {name: answers(domain, *each) for (name, domain), each in zip(names, scores, strict=True)}


METHODS: dict[str, Any] = {
    "initial": {0: checkpoint((0, 0.5), (0, 0, 0), (0.2, 0.2))},
    "teacher-math": {0: checkpoint((1, 1), (1, 0, 0.5), (0, 0))},
    "teacher-code": {0: checkpoint((0, 0), (0, 0, 0), (0.8, 0.6))},
    "trust": {0: checkpoint((1, 0.5), (0.5, 0, 0.1), (0.6, 0.6)), 1: checkpoint((1, 1), (0.5, 0.4, 0.3), (0.7, 0.5))},
}


def test_domains_overall_spread_and_recovery_follow_the_papers_definitions() -> None:
    summary = score_entries(METHODS)
    initial = (((0.25 + 0) / 2) + 0.2) / 2
    routed = (((1 + 0.5) / 2) + 0.7) / 2
    trust = [(((0.75 + 0.2) / 2) + 0.6) / 2, (((1 + 0.4) / 2) + 0.6) / 2]
    assert summary["initial"]["overall"] == pytest.approx(initial)
    assert summary["initial"]["math"] == pytest.approx(0.125)
    assert summary["routed-teachers"]["overall"] == pytest.approx(routed)
    assert summary["routed-teachers"]["math"] == summary["teacher-math"]["math"]
    row = summary["trust"]
    assert row["overall"] == pytest.approx(np.mean(trust))
    assert row["sd"]["overall"] == pytest.approx(np.std(trust, ddof=1))
    recovered = [(each - initial) / (routed - initial) for each in trust]
    assert row["recovery"] == pytest.approx(np.mean(recovered))
    assert row["sd"]["recovery"] == pytest.approx(np.std(recovered, ddof=1))
    assert (summary["initial"]["recovery"], summary["routed-teachers"]["recovery"]) == pytest.approx((0, 1))
    assert row["difference"]["overall"] == pytest.approx(np.mean(trust) - initial)
    assert row["difference"]["n"] == 2 and "difference" not in summary["initial"]


def test_teachers_that_are_worse_than_the_initial_student_leave_no_gap_to_recover() -> None:
    better = {**METHODS, "initial": {0: checkpoint((1, 1), (1, 1, 1), (1, 1))}}
    summary = score_entries(better)
    assert summary["routed-teachers"]["overall"] < summary["initial"]["overall"]
    assert all(row["recovery"] is None and "recovery" not in row["interval"] for row in summary.values())


def test_differences_of_trained_methods_are_paired_by_seed() -> None:
    other = {seed: checkpoint((0.9, 0.4), (0.4, 0, 0), (0.5, 0.5)) for seed in (1, 0)}
    other[1] = checkpoint((1, 1), (0.4, 0.3, 0.2), (0.7, 0.5))
    summary = score_entries({**METHODS, "uniform": other}, against="uniform")
    by_seed = [0.5 * ((0.475 - (0.65 + 0.4 / 3) / 2) + 0.1), 0.5 * ((0.7 - (1 + 0.3) / 2) + 0)]
    assert summary["trust"]["difference"]["overall"] == pytest.approx(np.mean(by_seed))
    assert summary["trust"]["difference"]["sd"] == pytest.approx(np.std(by_seed, ddof=1))


def one_benchmark(*scores: float) -> dict[str, Graded]:
    return {"ifeval": answers("if", *scores)}


def test_a_difference_and_its_interval_are_of_the_same_seeds() -> None:
    uniform = {0: one_benchmark(0, 0, 0, 0), 1: one_benchmark(1, 1, 1, 1), 2: one_benchmark(1, 1, 1, 1)}
    trust = {0: one_benchmark(1, 1, 1, 1), 1: one_benchmark(1, 1, 1, 1)}
    methods = {"initial": {0: one_benchmark(0, 0, 0, 1)}, "uniform": uniform, "trust": trust}
    summary = score_entries(methods, against="uniform")
    # The one initial student meets all three seeds: 1/4 − 2/3, and not 1/4 − 0.
    found = summary["initial"]["difference"]
    assert found["overall"] == pytest.approx(0.25 - 2 / 3) and found["n"] == 3
    low, high = found["interval"]
    assert low < found["overall"] < high < 0.34
    # Seeds 0 and 1 are shared. Prompts do not matter to this difference, so neither does resampling them.
    found = summary["trust"]["difference"]
    assert (found["overall"], found["n"]) == (0.5, 2)
    assert found["interval"] == pytest.approx([0.5, 0.5])
    apart = {**methods, "trust": {seed + 5: each for seed, each in trust.items()}}
    assert score_entries(apart, against="uniform")["trust"]["difference"]["interval"] is None
    assert score_table(score_entries(apart, against="uniform")).rows[-1][-1] == "–"


def test_a_row_to_compare_with_must_be_there() -> None:
    with pytest.raises(ValueError, match="unifrom.*initial, .*trust"):
        score_entries(METHODS, against="unifrom")
    alone = score_entries({"trust": METHODS["trust"]})
    assert "difference" not in alone["trust"] and list(score_table(alone).header)[-2:] == ["code, mean", "overall"]


def test_intervals_hold_the_score_and_a_shared_shift_has_no_width() -> None:
    rng = np.random.default_rng(0)
    easy = rng.random(200)
    scores = {"initial": easy * 0.5, "trust": easy * 0.5 + 0.25}
    methods = {name: {0: {"ifeval": answers("if", *each)}} for name, each in scores.items()}
    summary = score_entries(methods)
    low, high = summary["trust"]["interval"]["overall"]
    assert low < summary["trust"]["overall"] < high and high - low > 0.02
    assert (low, high) == pytest.approx(
        np.quantile(bootstrap_means([scores["trust"].tolist()]), [0.025, 0.975]).tolist(), abs=0.005
    )
    # Prompts are resampled together: what both methods share does not blur their difference.
    assert summary["trust"]["difference"]["interval"] == pytest.approx([0.25, 0.25])
    assert summary["trust"]["recovery"] is None  # no teachers, no gap


def test_resampled_means_are_those_of_resampled_columns() -> None:
    data = np.arange(12.0).reshape(2, 6) ** 2
    means = bootstrap_means(data.tolist(), draws=20_000, seed=1)
    assert means.shape == (20_000, 2)
    assert means.mean(axis=0) == pytest.approx(data.mean(axis=1), rel=0.02)
    assert means.std(axis=0) == pytest.approx(data.std(axis=1) / np.sqrt(6), rel=0.02)
    assert np.corrcoef(means.T)[0, 1] == pytest.approx(np.corrcoef(data)[0, 1], abs=0.02)


def test_checkpoints_with_other_prompts_are_not_compared() -> None:
    short = {0: checkpoint((0, 0.5), (0, 0), (0.2, 0.2))}
    with pytest.raises(ValueError, match="initial, seed 0 .*3 .*aime26.*short, seed 0 .*2"):
        score_entries({**METHODS, "short": short})
    with pytest.raises(ValueError, match="trustmopd evaluate"):
        score_entries({})


def test_without_every_teacher_there_is_no_routed_row() -> None:
    some = {name: METHODS[name] for name in ("initial", "teacher-math", "trust")}
    summary = score_entries(some)
    assert "routed-teachers" not in summary and summary["trust"]["recovery"] is None


def test_scores_are_written_as_json_and_three_tables(tmp_path: Path) -> None:
    path = write_scores(tmp_path, score_entries(METHODS))
    rows = read_json(path, what="scores", remedy="")
    assert rows["trust"]["seeds"] == [0, 1]
    table = score_table(rows)
    assert list(table.header) == [
        "",
        "aime25",
        "aime26",
        "lcb_v5",
        "math, mean",
        "code, mean",
        "overall",
        "recovery",
        "vs initial",
    ]
    trust = next(row for row in table.rows if row[0] == "trust")
    assert trust[1] == "87.5 ± 17.7" and " ± " in trust[-2] and "[" in trust[-2]
    found = rows["trust"]["difference"]
    assert trust[-1].startswith(f"+{100 * found['overall']:.1f} ± {100 * found['sd']:.1f} [")
    assert table.rows[0][-1] == "–"  # of the initial student from itself
    assert {file.suffix for file in (tmp_path / "tables").iterdir()} == {".md", ".csv", ".tex"}


ENTRY = {"id": "0", "sample": 0, "prompt_hash": "", "response": "", "tokens": 1, "truncated": False, "details": {}}


def evaluation(folder: Path, graded: dict[str, list[float]], asked: int | None = None, **about: Any) -> Path:
    """A folder as `evaluate` leaves it: graded scores by benchmark, of `asked` prompts (or as many as are graded)."""
    folder.mkdir()
    benchmarks = {}
    for name, scores in graded.items():
        entries = [{**ENTRY, "id": str(i), "score": score} for i, score in enumerate(scores)]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in entries))
        ids = [str(i) for i in range(asked or len(scores))]
        benchmarks[name] = {"domain": "math", "ids": ids, "samples": 1, "malformed": []}
    record = {"method": "m", "seed": 0, "model": "org/m", "files": [], "temperature": 0.6, **about}
    write_json(folder / "run.json", {**record, "benchmarks": benchmarks}, schema_version=2)
    return folder


@pytest.mark.parametrize("other", [{"model": "else/m"}, {"temperature": 1.0}, {"files": [["w", 1, 2]]}])
def test_two_evaluations_under_one_name_are_not_taken_for_one(tmp_path: Path, other: dict[str, Any]) -> None:
    folders = [evaluation(tmp_path / "a", {"svamp": [0, 0]}), evaluation(tmp_path / "b", {"svamp": [1, 1]}, **other)]
    with pytest.raises(ValueError, match=f"a and .*b .*'m', seed 0.*{next(iter(other))} "):
        collect(folders)


def test_two_folders_of_one_checkpoint_make_one_row(tmp_path: Path) -> None:
    a, b = evaluation(tmp_path / "a", {"svamp": [0, 1]}), evaluation(tmp_path / "b", {"gsm8k": [1, 1, 1]})
    methods, notes = collect([a, b, a])
    assert notes == [] and {name: each.score for name, each in methods["m"][0].items()} == {"gsm8k": 1, "svamp": 0.5}
    c = evaluation(tmp_path / "c", {"svamp": [0, 1, 1]})
    with pytest.raises(ValueError, match="svamp"):
        collect([a, c])


def test_folders_of_two_engines_make_no_row_and_one_without_an_engine_goes_with_either(tmp_path: Path) -> None:
    old = evaluation(tmp_path / "a", {"svamp": [0, 1]})
    vllm = evaluation(tmp_path / "b", {"gsm8k": [1, 1]}, engine="vllm")
    other = evaluation(tmp_path / "c", {"aime25": [1, 0]}, engine="transformers")
    for folder in (vllm, other):
        assert len(collect([old, folder])[0]["m"][0]) == 2
    for folders in ([vllm, other], [old, vllm, other]):
        with pytest.raises(ValueError, match="engine 'vllm' and 'transformers'"):
            collect(folders)


def test_an_unfinished_benchmark_costs_itself_and_not_its_folder(tmp_path: Path) -> None:
    whole = evaluation(tmp_path / "a", {"svamp": [0, 1], "gsm8k": [1, 1]})
    part = evaluation(tmp_path / "b", {"svamp": [1, 1], "gsm8k": []}, asked=2, method="n")
    none = evaluation(tmp_path / "c", {"svamp": [], "gsm8k": [1]}, asked=2, method="o")
    methods, notes = collect([whole, part, none])
    assert {name: list(seeds[0]) for name, seeds in methods.items()} == {"m": ["svamp"], "n": ["svamp"]}
    assert len(notes) == 2 and str(none) in notes[0] and "svamp, gsm8k" in notes[0]
    assert str(part) in notes[1] and "gsm8k" in notes[1]
    methods, notes = collect([whole, part], ["svamp"])
    assert notes == [] and list(methods) == ["m", "n"]
    with pytest.raises(ValueError, match="trustmopd evaluate"):
        score_entries(collect([none])[0])


def test_a_response_that_stands_twice_counts_once_and_the_later_one(tmp_path: Path) -> None:
    folder = evaluation(tmp_path / "a", {"svamp": [0, 1]})
    again = {**ENTRY, "score": 1, "truncated": True, "tokens": 3}
    extra = {**again, "id": "beyond what is asked", "score": 0}
    with (folder / "svamp.jsonl").open("a") as file:
        file.write(f"{json.dumps(again)}\n{json.dumps(extra)}\n")
    answers = collect([folder])[0]["m"][0]["svamp"]
    assert answers.by_prompt == {"0": 1, "1": 1}
    assert (answers.facts["responses"], answers.facts["truncated"]) == (2, 1)


def test_strict_match_counts_what_was_never_graded_as_not_passed(tmp_path: Path) -> None:
    first, second = (evaluation(tmp_path / f"{seed}", {"svamp": [1, 0]}, seed=seed) for seed in (0, 1))
    entries = [{**ENTRY, "score": 1, "details": {"strict_match": True}}, {**ENTRY, "id": "1", "score": 0}]
    (first / "svamp.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    methods = collect([first, second])[0]
    assert methods["m"][0]["svamp"].facts["strict_match"] == 0.5
    assert score_entries({"m": {0: methods["m"][0]}})["m"]["benchmarks"]["svamp"]["strict_match"] == 0.5
    assert "strict_match" not in score_entries(methods)["m"]["benchmarks"]["svamp"]  # the other seed has none
