"""Who was trusted where: the paper's statistics over recorded rollouts. Labels sort rollouts into groups; nothing
else uses them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trustmopd.report.readers.token_records import Rollout, TokenRecords
from trustmopd.util.stats import Spread, spread


def score_matrix(records: TokenRecords, mu: Mapping[str, float]) -> dict[str, dict[str, Spread]]:
    """Calibrated scores by group and teacher: the mean over response tokens, and the standard deviation (n − 1) across
    responses of each one's mean. Without mu the scores stay raw."""
    divisor = np.array([mu.get(teacher, 1.0) for teacher in records.teachers])[:, None]
    matrix = {}
    for group, raw in _scores_by_group(records).items():
        scores = [each / divisor for each in raw]
        means = np.concatenate(scores, axis=1).mean(axis=1).tolist()
        responses = np.array([each.mean(axis=1) for each in scores]).T.tolist()
        matrix[group] = {
            teacher: Spread(mean, spread(of_responses).sd, len(scores))
            for teacher, mean, of_responses in zip(records.teachers, means, responses, strict=True)
        }
    return matrix


def rollout_means(rollout: Rollout) -> np.ndarray:
    """Each teacher's mean weight over the response's tokens."""
    return rollout.weights.mean(axis=1, dtype=np.float64)


def margins(records: TokenRecords) -> dict[str, list[float]]:
    """By teacher: m_i, its mean weight minus the largest other, of every rollout whose prompt needs only this
    teacher."""
    found: dict[str, list[float]] = {}
    for rollouts in records.by_group().values():
        teacher, *more = rollouts[0].needs or [None]
        if len(records.teachers) > 1 and teacher in records.teachers and not more:
            own = records.teachers.index(teacher)
            means = [rollout_means(rollout) for rollout in rollouts]
            found[teacher] = [float(mean[own] - np.delete(mean, own).max()) for mean in means]
    return found


def weights_by_group(records: TokenRecords) -> dict[str, dict[str, Any]]:
    """By composition of the prompts: rollout-mean weights and the mass on the teachers that the prompts need; if that
    is one teacher, also its margin over the next one and how often the margin is positive. `needs` lists teachers only:
    other capabilities have no weight."""
    by_teacher = margins(records)
    summary = {}
    for group, rollouts in records.by_group().items():
        mean = np.mean([rollout_means(rollout) for rollout in rollouts], axis=0).tolist()
        weights = dict(zip(records.teachers, mean, strict=True))
        needs = [name for name in rollouts[0].needs if name in weights]
        entry: dict[str, Any] = {"rollouts": len(rollouts), "weights": weights, "needs": needs}
        if needs:
            entry["relevant_mass"] = sum(weights[name] for name in needs)
        if len(rollouts[0].needs) == 1 and (m := by_teacher.get(rollouts[0].needs[0])):
            entry |= {"margin": float(np.mean(m)), "positive_margin": float(np.mean(np.array(m) > 0))}
        summary[group] = entry
    return summary


@dataclass(frozen=True)
class Change:
    """Allocation moved at `position`: `moved` is the weight that changed hands from the token before it, 0 to 1."""

    step: int
    rollout: int
    sample: int
    prompt_id: str
    position: int
    before: str
    token: str
    moved: float
    giver: str
    taker: str


def moved_weight(weights: np.ndarray) -> np.ndarray:
    """Total variation between each token's weights and those of the token before it, K × T → T − 1."""
    return 0.5 * np.abs(np.diff(weights.astype(np.float64), axis=1)).sum(axis=0)


def sharpest_changes(records: TokenRecords, count: int = 20) -> list[Change]:
    """The positions at which most weight changed hands, at most one per response."""
    best = []
    for rollout in records.rollouts:
        moved = moved_weight(rollout.weights)
        if len(moved):
            best.append((float(moved.max()), int(moved.argmax()) + 1, rollout))
    best.sort(key=lambda found: -found[0])
    return [_change(rollout, at, moved, records.teachers) for moved, at, rollout in best[:count]]


def _change(rollout: Rollout, at: int, moved: float, teachers: Sequence[str]) -> Change:
    shift = rollout.weights[:, at] - rollout.weights[:, at - 1]
    return Change(
        step=rollout.step,
        rollout=rollout.row,
        sample=rollout.sample,
        prompt_id=rollout.prompt_id,
        position=int(rollout.positions[at]),
        before="".join(rollout.texts[max(0, at - 8) : at]),
        token=rollout.texts[at],
        moved=moved,
        giver=teachers[int(shift.argmin())],
        taker=teachers[int(shift.argmax())],
    )


def _scores_by_group(records: TokenRecords) -> dict[str, list[np.ndarray]]:
    """The raw scores of each response, K × T, by what the prompts need; groups without scores are left out."""
    found = {
        group: [rollout.scores.astype(np.float64) for rollout in rollouts if rollout.scores is not None]
        for group, rollouts in records.by_group().items()
    }
    return {group: scores for group, scores in found.items() if scores}
