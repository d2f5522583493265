"""Statistics of every comparison: spread over seeds, paired differences, recovery, bootstrap means."""

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import mean, stdev
from typing import Any, NamedTuple

import numpy as np


class Spread(NamedTuple):
    """Mean and standard deviation with n − 1; 0 for a single value."""

    mean: float
    sd: float
    n: int = 1

    def percent(self, digits: int = 1) -> str:
        return Spread(100 * self.mean, 100 * self.sd, self.n).text(digits)

    def text(self, digits: int = 2) -> str:
        # z: what rounds to nothing has no sign.
        return f"{self.mean:z.{digits}f}" + (f" ± {self.sd:.{digits}f}" if self.n > 1 else "")


def spread(numbers: Iterable[float]) -> Spread:
    values = list(numbers)
    if not values:
        raise ValueError("no values to average.")
    if not all(map(math.isfinite, values)):  # statistics.stdev takes no NaN
        return Spread(sum(values) / len(values), math.nan if len(values) > 1 else 0.0, len(values))
    return Spread(mean(values), stdev(values) if len(values) > 1 else 0.0, len(values))


def paired_difference(first: Mapping[Any, float], second: Mapping[Any, float]) -> Spread | None:
    """first − second over the keys (seeds, prompts) that both have; None where they share none."""
    shared = [key for key in first if key in second]
    return spread([first[key] - second[key] for key in shared]) if shared else None


def recovery(score: float, initial: float, routed: float) -> float:
    """The share of the way from the initial student to the routed teachers; NaN where there is no gap."""
    return (score - initial) / (routed - initial) if routed != initial else float("nan")


def share_interval(share: float, count: float) -> tuple[float, float]:
    """Wilson's 95% interval of a share of `count` independent cases."""
    z = 1.96
    centre, scale = share + z * z / (2 * count), 1 + z * z / count
    half = z * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    return max(0.0, (centre - half) / scale), min(1.0, (centre + half) / scale)


def bootstrap_means(rows: Sequence[Sequence[float]], *, draws: int = 10_000, seed: int = 0) -> np.ndarray:
    """Means of resampled columns, [draws, rows]. All rows (methods) get the same columns (prompts) in a draw, so that
    differences and ratios of the means can be resampled too. Give one column per independent unit: a prompt's mean
    over its samples, not each sample."""
    data = np.asarray(rows, dtype=float)
    if data.size == 0:
        raise ValueError("no values to resample.")
    generator = np.random.default_rng(seed)
    columns = data.shape[1]
    step = max(1, 2**22 // columns)  # a few tens of MB at a time
    means = []
    for done in range(0, draws, step):
        # How often each column is drawn: a mean is then a product, whatever the number of rows.
        counts = generator.multinomial(columns, np.full(columns, 1 / columns), size=min(step, draws - done))
        means.append(counts @ data.T / columns)
    return np.concatenate(means)
