"""Two processes with accumulation take the step that one process takes with the whole batch."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import replay
import steps
import tiny
import torch
from processes import launch

# The processes have a time limit of their own.
pytestmark = [pytest.mark.distributed, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Folders with what one process and what two processes left."""
    folder = tmp_path_factory.mktemp("sides")
    one, two = folder / "one", folder / "two"
    for side in (one, two):
        side.mkdir()
    calibration = replay.calibration_file(folder / "calibration", **steps.options_of(1))
    for seed, name in enumerate(replay.TEACHERS, 1):
        tiny.adapter(tiny.model(), folder / "adapters" / name, seed)
    launch([steps.__file__, str(two), calibration, str(folder / "adapters")], processes=2, logs=two)
    steps.take_steps(one, calibration, folder / "adapters", 1)
    steps.measure(one, 1)
    return one, two


def logged(line: dict[str, float]) -> dict[str, float]:
    return {
        name: value for name, value in line.items() if name.startswith((*replay.TOKEN_METRICS, "loss", "completions/"))
    }


@pytest.mark.parametrize("run", steps.RUNS)
def test_two_processes_have_the_gradient_and_the_metrics_of_one(run, sides):
    one, two = (torch.load(side / f"{run}.pt") for side in sides)
    assert len(one["gradients"]) == len(two["gradients"]) == 2
    for step, tolerance in ((0, 1e-5), (1, 1e-4)):  # the second begins where rounding left the first
        assert replay.difference(one["gradients"][step], two["gradients"][step]) < tolerance
        assert logged(two["logs"][step]) == pytest.approx(logged(one["logs"][step]), rel=1e-5)


@pytest.mark.skipif("kernels" not in steps.RUNS, reason="Triton is not installed")
def test_the_kernels_take_the_step_that_plain_torch_takes(sides):
    for side in sides:
        plain, fused = (torch.load(side / f"{run}.pt") for run in ("trust", "kernels"))
        for step, tolerance in ((0, 1e-5), (1, 1e-4)):
            assert replay.difference(plain["gradients"][step], fused["gradients"][step]) < tolerance
            assert logged(fused["logs"][step]) == pytest.approx(logged(plain["logs"][step]), rel=1e-4)


@pytest.mark.parametrize("run", steps.BUDGETS)
def test_a_token_budget_changes_neither_gradient_nor_metrics_in_any_number_of_processes(run, sides):
    plain = torch.load(sides[0] / f"{steps.BUDGETS[run]}.pt")
    for side in sides:
        within = torch.load(side / f"{run}.pt")
        for step, tolerance in ((0, 1e-5), (1, 1e-4)):
            assert replay.difference(plain["gradients"][step], within["gradients"][step]) < tolerance
            assert logged(within["logs"][step]) == pytest.approx(logged(plain["logs"][step]), rel=1e-4)


@pytest.mark.parametrize("run", steps.RUNS)
def test_gradients_are_synchronised_once_a_step_however_many_passes_it_has(run, sides):
    two = torch.load(sides[1] / f"{run}.pt")
    assert two["passes"] > 2
    assert two["synchronised"] == 2 * sum(gradient.numel() for gradient in two["gradients"][0].values())


@pytest.mark.parametrize("run", steps.RUNS)
def test_two_processes_record_the_tokens_that_one_records(run, sides):
    for step in (1, 2):
        one, two = (pq.read_table(side / run / "allocation" / f"step-{step:06d}.parquet") for side in sides)
        assert one.schema == two.schema and one.num_rows == two.num_rows
        for field in one.schema:
            ours, theirs = one[field.name], two[field.name]
            if pa.types.is_floating(field.type):
                tolerance = 1e-5 if field.type == pa.float32() else 1e-3
                np.testing.assert_allclose(theirs.to_numpy(), ours.to_numpy(), rtol=tolerance, atol=tolerance)
            elif not field.type.equals(pa.list_(pa.float16())):
                assert ours.equals(theirs), field.name
        assert steps.RECORDED - 1 <= len(set(one["rollout"].to_pylist())) <= steps.RECORDED  # one may be empty


def test_random_weights_are_the_same_in_any_number_of_processes(sides):
    columns = [f"weight_{name}" for name in replay.TEACHERS]
    tables = [pq.read_table(side / "random" / "allocation" / "step-000001.parquet", columns=columns) for side in sides]
    assert tables[0].equals(tables[1])
    assert len(set(tables[0]["weight_math"].to_pylist())) == tables[0].num_rows


def test_two_processes_measure_the_calibration_of_one(sides):
    one, two = (json.loads((side / "measured.json").read_text()) for side in sides)
    assert one["calibration"]["tokens"] == two["calibration"]["tokens"] == sum(steps.LENGTHS)
    for found in ("mu", "spread"):
        assert two["calibration"][found] == pytest.approx(one["calibration"][found], rel=1e-6)


def test_rows_that_do_not_fill_the_processes_are_judged_once_each(sides):
    one, two = (json.loads((side / "measured.json").read_text())["some_rows"] for side in sides)
    assert one["tokens"] == two["tokens"] == sum(steps.LENGTHS[row] for row in steps.SOME_ROWS)
    assert two["mean"] == pytest.approx(one["mean"], rel=1e-6)
