"""Statistics against numpy and by hand."""

import math

import numpy as np
import pytest

from trustmopd.util.stats import bootstrap_means, paired_difference, recovery, spread

pytestmark = pytest.mark.unit


def test_spread_is_the_mean_and_the_deviation_with_n_minus_one():
    values = [0.3, 0.5, 0.9]
    assert spread(values) == pytest.approx((np.mean(values), np.std(values, ddof=1), 3))
    assert spread([0.25]) == (0.25, 0.0, 1)
    assert (spread(values).percent(), spread([0.25]).percent()) == ("56.7 ± 30.6", "25.0")
    assert (spread([-0.0004, 0.0]).percent(), spread([-0.001, 0.0]).text()) == ("0.0 ± 0.0", "0.00 ± 0.00")
    with pytest.raises(ValueError, match="no values"):
        spread([])


def test_paired_difference_uses_shared_seeds_only():
    found = paired_difference({0: 1.0, 1: 3.0, 7: 100.0}, {1: 1.0, 0: 0.5, 9: -100.0})
    assert found == pytest.approx((1.25, np.std([0.5, 2.0], ddof=1), 2))
    assert paired_difference({0: 1.0}, {1: 1.0}) is None


def test_recovery_runs_from_the_initial_student_to_the_routed_teachers():
    assert [recovery(score, 0.3, 0.7) for score in (0.3, 0.5, 0.7, 0.2)] == pytest.approx([0, 0.5, 1, -0.25])
    assert math.isnan(recovery(0.5, 0.5, 0.5))


def test_bootstrap_interval_covers_the_mean_as_often_as_it_says():
    rng = np.random.default_rng(1)
    drawn = [bootstrap_means([rng.normal(size=60)], draws=400, seed=i) for i in range(200)]
    intervals = [np.quantile(means, [0.05, 0.95]) for means in drawn]
    covered = sum(low < 0 < high for low, high in intervals)
    assert 165 <= covered <= 193  # 180 expected; the percentile interval is a little narrow at this size
    assert (bootstrap_means([[1.0, 1.0]]) == 1).all()
    assert (bootstrap_means([[0, 1, 1]], seed=3) == bootstrap_means([[0, 1, 1]], seed=3)).all()


def test_a_spread_that_holds_a_missing_value_is_missing_and_no_crash() -> None:
    found = spread([float("nan"), 1.0])
    assert math.isnan(found.mean) and math.isnan(found.sd) and found.n == 2
