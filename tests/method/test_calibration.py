"""mu: measured over tokens, kept as a file, refused where it does not belong."""

import json
import math
from dataclasses import FrozenInstanceError, replace

import numpy as np
import oracle
import pytest
import torch
from cases import assert_close, cases, tensor
from hypothesis import given
from hypothesis import strategies as st

from trustmopd.method import ScoreTotals, calibrated_scores
from trustmopd.training.calibration import Calibration

DEPENDS_ON = {
    "teachers": {"math": "ab12", "code": "cd34"},
    "reference": "ef56",
    "student": "ef56",
    "score": "displacement",
    "num_candidates": 128,
    "temperature": 0.6,
    "top_k": None,
}
CALIBRATION = Calibration(
    mu={"math": 4.080123456789012, "code": 6.33},
    depends_on=DEPENDS_ON,
    spread={"math": 1.5, "code": 0.25},
    tokens=4096,
    batches=8,
    global_batch_size=64,
)
SHAPES = st.lists(st.tuples(st.integers(1, 3), st.integers(1, 6)), min_size=1, max_size=4)
several_batches = st.tuples(st.integers(1, 4), SHAPES, st.integers(0, 2**32 - 1))


def draw_batches(num_teachers, shapes, seed):
    """Batches of (scores [K, B, T], mask [B, T]) of different lengths, the first token always valid."""
    rng = np.random.default_rng(seed)
    drawn = []
    for responses, tokens in shapes:
        mask = np.arange(tokens) < rng.integers(0, tokens + 1, (responses, 1))
        mask[0, 0] = True
        drawn.append((rng.gamma(2.0, 3.0, (num_teachers, responses, tokens)), mask))
    return drawn


def totals_of(drawn):
    totals = ScoreTotals(len(drawn[0][0]))
    for scores, mask in drawn:
        totals.add(tensor(scores), torch.tensor(mask))
    return totals


@given(several_batches)
def test_mu_is_the_token_weighted_mean_over_batches_of_different_lengths(shape):
    drawn = draw_batches(*shape)
    totals = totals_of(drawn)
    assert_close(totals.mean, oracle.mu(drawn))
    assert totals.tokens == sum(mask.sum() for _, mask in drawn)


def test_a_long_batch_counts_more_than_a_short_one():
    totals = ScoreTotals(1)
    totals.add(torch.full((1, 1, 9), 1.0), torch.ones(1, 9))
    totals.add(torch.full((1, 1, 1), 11.0), torch.ones(1, 1))
    assert totals.mean.tolist() == [2.0]
    assert totals.spread.tolist() == [3.0]


@given(several_batches)
def test_the_spread_is_the_standard_deviation_over_all_calibration_tokens(shape):
    drawn = draw_batches(*shape)
    tokens = np.concatenate([scores[:, mask] for scores, mask in drawn], axis=1)
    assert_close(totals_of(drawn).spread, tokens.std(axis=1), atol=1e-6)


@given(several_batches)
def test_totals_of_two_processes_add_up_to_those_of_one(shape):
    drawn = draw_batches(*shape)
    both = totals_of(drawn * 2)
    first, second = totals_of(drawn), totals_of(drawn)
    first.totals += second.totals
    assert_close(first.totals, both.totals)
    assert first.tokens == both.tokens
    assert_close(first.mean, both.mean)
    assert_close(first.spread, both.spread)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64, torch.float32])
def test_totals_skip_padding_whatever_stands_there_and_whatever_the_mask_dtype(dtype):
    totals = ScoreTotals(2)
    totals.add(torch.tensor([[[1.0, 3.0, math.nan]], [[5.0, 5.0, math.inf]]]), torch.tensor([[1, 1, 0]]).to(dtype))
    assert totals.tokens == 2
    assert totals.mean.tolist() == [2.0, 5.0]
    assert totals.spread.tolist() == [1.0, 0.0]


@pytest.mark.parametrize("constant", [0.0, 0.1, 0.3, 0.7, 2.3, 6.33])
def test_scores_that_never_vary_have_no_spread_whatever_the_rounding(constant):
    totals = ScoreTotals(1)
    for tokens in (3, 7, 11):
        totals.add(torch.full((1, tokens), constant, dtype=torch.float64), torch.ones(tokens))
    assert totals.spread.item() == pytest.approx(0.0, abs=1e-7)


def test_many_small_float32_scores_are_summed_without_losing_digits():
    totals = ScoreTotals(1)
    for _ in range(20):
        totals.add(torch.full((1, 100_000), 0.1), torch.ones(100_000))
    assert totals.mean.item() == pytest.approx(float(torch.tensor(0.1)), rel=1e-12)


@given(case=cases())
def test_calibrated_scores_divide_each_teacher_by_its_own_mu(case):
    scores, mu = case.rng.gamma(2.0, 3.0, case.teacher_logits.shape[:-1]), case.some_mu()
    actual = calibrated_scores(tensor(scores), tensor(mu))
    for teacher in range(case.num_teachers):
        assert_close(actual[teacher], scores[teacher] / mu[teacher])
    assert calibrated_scores(tensor(scores, torch.float32), tensor(mu)).dtype == torch.float32


@given(several_batches)
def test_scores_calibrated_by_their_own_batches_average_one_for_every_teacher(shape):
    drawn = draw_batches(*shape)
    mu = totals_of(drawn).mean
    again = ScoreTotals(len(mu))
    for scores, mask in drawn:
        again.add(calibrated_scores(tensor(scores), mu), torch.tensor(mask))
    assert_close(again.mean, np.ones(len(mu)))


def test_a_saved_calibration_loads_unchanged(tmp_path):
    path = CALIBRATION.save(tmp_path / "new" / "calibration.json")
    assert Calibration.load(path) == CALIBRATION
    assert json.loads(path.read_text(encoding="utf-8"))["schema_version"] == 1
    assert [file.name for file in path.parent.iterdir()] == ["calibration.json"]


def test_a_calibration_is_frozen():
    with pytest.raises(FrozenInstanceError):
        CALIBRATION.mu = {}


def test_mu_comes_in_the_order_of_the_asked_teachers():
    assert CALIBRATION.mu_of(["code", "math"]).tolist() == pytest.approx([6.33, 4.080123456789012], rel=1e-7)


def test_a_file_cut_short_anywhere_never_loads_as_another_calibration(tmp_path):
    named = replace(CALIBRATION, mu={"mathé": 1.25}, spread={"mathé": 0.5})
    whole = named.save(tmp_path / "whole.json").read_bytes()
    cut = tmp_path / "cut.json"
    for length in range(len(whole.rstrip())):
        cut.write_bytes(whole[:length])
        with pytest.raises(ValueError, match=r"cut\.json"):
            Calibration.load(cut)
    cut.write_bytes(whole.rstrip())  # all but the final line break
    assert Calibration.load(cut) == named


def rewritten(path, **changes):
    """The stored calibration with some entries changed, or removed where the change is None."""
    payload = {**json.loads(CALIBRATION.save(path).read_text(encoding="utf-8")), **changes}
    path.write_text(json.dumps({key: value for key, value in payload.items() if value is not None}), encoding="utf-8")
    return path


@pytest.mark.parametrize("key", ["mu", "depends_on", "spread", "tokens", "batches", "global_batch_size"])
def test_a_file_without_one_of_its_entries_is_refused_by_the_entrys_name(tmp_path, key):
    with pytest.raises(ValueError, match=rf"calibration\.json has no {key}\."):
        Calibration.load(rewritten(tmp_path / "calibration.json", **{key: None}))


@pytest.mark.parametrize("version", [None, 0, 2, "1"])
def test_a_file_of_another_schema_version_is_refused(tmp_path, version):
    with pytest.raises(ValueError, match=rf"schema_version {version!r}"):
        Calibration.load(rewritten(tmp_path / "calibration.json", schema_version=version))


def test_json_that_is_no_calibration_at_all_is_refused(tmp_path):
    (tmp_path / "list.json").write_text("[1, 2]", encoding="utf-8")
    with pytest.raises(ValueError, match="schema_version None"):
        Calibration.load(tmp_path / "list.json")
    with pytest.raises(FileNotFoundError, match=r"absent\.json"):
        Calibration.load(tmp_path / "absent.json")


def test_a_teacher_with_mu_zero_is_named_with_what_to_do():
    with pytest.raises(ValueError, match=r"'code'.* 0\b.*4096"):
        replace(CALIBRATION, mu={"math": 4.0, "code": 0.0})


@pytest.mark.parametrize("wrong", [-1.0, math.nan, math.inf])
def test_a_mu_that_is_no_positive_number_is_refused_in_memory_and_from_a_file(tmp_path, wrong):
    with pytest.raises(ValueError, match=f"'code'.* {wrong}"):
        replace(CALIBRATION, mu={"math": 4.0, "code": wrong})
    with pytest.raises(ValueError, match=rf"calibration\.json has mu\.code = {wrong}"):
        Calibration.load(rewritten(tmp_path / "calibration.json", mu={"math": 4.0, "code": wrong}))


def test_a_calibration_measured_on_no_token_is_refused():
    mu = ScoreTotals(1).mean.item()
    with pytest.raises(ValueError, match="'math'.* nan"):
        replace(CALIBRATION, mu={"math": mu}, tokens=0)


def test_a_calibration_accepts_the_run_it_was_made_for_also_after_a_round_trip(tmp_path):
    CALIBRATION.check(dict(reversed(DEPENDS_ON.items())))
    Calibration.load(CALIBRATION.save(tmp_path / "calibration.json")).check(DEPENDS_ON)


@pytest.mark.parametrize(
    ("change", "field", "made", "found"),
    [
        ({"num_candidates": 64}, "num_candidates", "128", "64"),
        ({"temperature": 1.0}, "temperature", "0.6", "1.0"),
        ({"top_k": 20}, "top_k", "None", "20"),
        ({"score": "likelihood"}, "score", "'displacement'", "'likelihood'"),
        ({"reference": None}, "reference", "'ef56'", "None"),
        ({"teachers": {"math": "ab12", "code": "other"}}, "teachers.code", "'cd34'", "'other'"),
        ({"teachers": {"math": "ab12", "coding": "cd34"}}, "teachers.coding", "None", "'cd34'"),
        ({"teachers": {"math": "ab12"}}, "teachers.code", "'cd34'", "None"),
        ({"teachers": {"math": "ab12", "code": "cd34", "if": "99"}}, "teachers.if", "None", "'99'"),
        ({"prompts": "77"}, "prompts", "None", "'77'"),
    ],
)
def test_another_run_is_refused_by_the_field_that_differs_and_both_its_values(change, field, made, found):
    with pytest.raises(ValueError, match=rf"{field} = {made}, .*{found}"):
        CALIBRATION.check({**DEPENDS_ON, **change})
