"""What benchmarks write down must be what they ran."""

import csv
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from trustmopd.recipe.rules import RULES, TARGETS

FOLDER = Path(__file__).parent.parent / "benchmarks"
sys.path.insert(0, str(FOLDER))
record, plot_heads = import_module("record"), import_module("plot_heads")


def benchmark(script, *words, **environment):
    """Without Triton's interpreter, as a user runs it."""
    kept = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    return subprocess.run(
        [sys.executable, str(FOLDER / script), *map(str, words)], env=kept | environment, capture_output=True, text=True
    )


def test_a_head_that_cannot_run_here_gets_no_row(tmp_path):
    small = ("--tokens", "16", "--vocab", "64", "--hidden", "32", "--candidates", "8", "--repeats", "1")
    made = benchmark("bench_heads.py", *small, "--implementations", "chunked,fused", "--output", tmp_path / "heads.csv")
    assert made.returncode != 0
    assert "fused" in made.stderr and "GPU" in made.stderr
    assert not (tmp_path / "heads.csv").exists()


def test_padded_micro_batches_and_token_budgets_are_measured_on_one_loss(tmp_path):
    small = ("--shape", "tiny", "--responses", "4", "--mean", "20", "--longest", "48", "--micro-batch", "2")
    path = tmp_path / "budget.csv"
    made = benchmark("bench_budget.py", *small, "--budgets", "0,400", "--device", "cpu", "--output", path)
    assert made.returncode == 0, made.stderr
    padded, within = csv.DictReader(path.read_text().splitlines())
    assert (padded["budget"], within["budget"]) == ("0", "400")
    assert int(within["tokens_read"]) < int(padded["tokens_read"])
    assert float(within["loss"]) == pytest.approx(float(padded["loss"]), rel=0.02) and float(within["loss"]) > 0
    assert all(
        float(row[f"{phase}_seconds"]) > 0 for row in (padded, within) for phase in ("forward_backward", "reading")
    )


def test_a_misspelt_name_is_not_the_label_of_another_measurement():
    assert record.known("placement", "offload,resident", ("resident", "offload")) == ["offload", "resident"]
    with pytest.raises(SystemExit, match="'ofload'.*resident, offload"):
        record.known("placement", "resident,ofload", ("resident", "offload"))


def test_rows_of_other_columns_do_not_shift_those_of_a_file(tmp_path, capsys):
    path = tmp_path / "rows.csv"
    record.append([{"a": 1, "b": 2}], path)
    record.append([{"a": 3, "b": 4}], path)
    before = path.read_text()
    record.append([{"a": 5, "c": 6, "b": 7}], path)
    assert path.read_text() == before == "a,b\n1,2\n3,4\n"
    (other,) = set(tmp_path.iterdir()) - {path}
    assert other.read_text() == "a,c,b\n5,6,7\n"
    assert str(other) in capsys.readouterr().out
    record.append([{"a": 8, "d": 9}], path)
    assert (tmp_path / "rows-3.csv").read_text() == "a,d\n8,9\n" and other.read_text() == "a,c,b\n5,6,7\n"


def test_measurements_are_kept_where_there_is_no_git(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    assert "torch" in record.versions("cpu")["versions"]


def test_rows_just_appended_do_not_make_the_code_another(tmp_path):
    clone = tmp_path / "clone"
    (clone / "benchmarks" / "results").mkdir(parents=True)
    (clone / "benchmarks" / "record.py").write_text((FOLDER / "record.py").read_text())
    (clone / "benchmarks" / "results" / "heads.csv").write_text("a\n")
    (clone / "code.py").write_text("1\n")

    def run(*words):
        beside = {**os.environ, "PYTHONPATH": str(clone / "benchmarks"), "PYTHONDONTWRITEBYTECODE": "1"}
        told = subprocess.run(words, cwd=clone, env=beside, capture_output=True, text=True, check=True)
        return told.stdout.strip()

    def version():
        return run(sys.executable, "-c", "import record; print(record._commit())")

    run("git", "init", "-q")
    run("git", "add", ".")
    run("git", "-c", "user.name=n", "-c", "user.email=e", "commit", "-qm", "first")
    clean = version()
    assert "trustmopd " in clean and "dirty" not in clean
    (clone / "benchmarks" / "results" / "heads.csv").write_text("a\n1\n")
    assert version() == clean
    (clone / "code.py").write_text("2\n")
    assert "-dirty" in version()


def test_a_sweep_is_drawn_from_the_last_version_that_swept(tmp_path, monkeypatch):
    path = tmp_path / "heads.csv"
    base = {**plot_heads.BASE, **plot_heads.AXES, "milliseconds": "1", "extra_gib": "0"}
    rows = [{**base, "tokens": tokens, "versions": version} for version in "ab" for tokens in ("1024", "8192")]
    rows.append({**base, "milliseconds": "7", "versions": "c"})  # the base shape alone
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    monkeypatch.setattr(plot_heads, "RESULTS", path)
    assert plot_heads.points("tokens") == [(1024, 1.0, 0.0), (8192, 1.0, 0.0)]
    with pytest.raises(SystemExit, match="vocab"):
        plot_heads.points("vocab")


def test_every_rule_without_state_is_timed_beside_trust(tmp_path):
    path = tmp_path / "rules.csv"
    made = benchmark("bench_rules.py", "--responses", "2", "--tokens", "8", "--rounds", "1", "--output", path)
    assert made.returncode == 0, made.stderr
    rows = {row["rule"]: row for row in csv.DictReader(path.read_text().splitlines())}
    known = ({*RULES} | {*TARGETS}) - {"single", "routed", "geometric_mean"}
    assert rows.keys() == known | {"plain"} and rows["trust"]["times_trust"] == "1.00"
