"""Who was trusted where, from a run's token records: the paper's rollout-level statistics."""

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from trustmopd.testbed.tasks import DOMAINS


def rollout_means(folder: Path) -> list[dict[str, Any]]:
    """One row per recorded rollout: its capabilities and each teacher's mean weight over its tokens."""
    rollouts = []
    for file in sorted(folder.glob("step-*.parquet")):
        table = pq.read_table(file).to_pydict()
        teachers = [name for name in DOMAINS if f"weight_{name}" in table]
        spans: dict[int, list[int]] = {}
        for index, rollout in enumerate(table["rollout"]):
            spans.setdefault(rollout, []).append(index)
        for span in spans.values():
            weights = {name: sum(table[f"weight_{name}"][i] for i in span) / len(span) for name in teachers}
            rollouts.append({"capabilities": tuple(table["capabilities"][span[0]]), "weights": weights})
    return rollouts


def summarise_records(folder: Path) -> dict[str, dict[str, Any]]:
    """By composition of the prompts: mean weights, relevant mass and, for single domains, the matched teacher's margin
    over the next and how often it is positive."""
    groups: dict[tuple[str, ...], list[dict[str, float]]] = {}
    for rollout in rollout_means(folder):
        groups.setdefault(rollout["capabilities"], []).append(rollout["weights"])
    summary: dict[str, dict[str, Any]] = {}
    for needs, rollouts in sorted(groups.items()):
        mean = {name: sum(weights[name] for weights in rollouts) / len(rollouts) for name in rollouts[0]}
        entry: dict[str, Any] = {
            "rollouts": len(rollouts),
            "weights": mean,
            "relevant_mass": sum(mean.get(name, 0.0) for name in needs),
        }
        if len(needs) == 1 and len(mean) > 1:
            own = needs[0]
            margins = [w[own] - max(value for name, value in w.items() if name != own) for w in rollouts]
            entry["margin"] = sum(margins) / len(margins)
            entry["positive_margin"] = sum(margin > 0 for margin in margins) / len(margins)
        summary["+".join(needs)] = entry
    return summary
