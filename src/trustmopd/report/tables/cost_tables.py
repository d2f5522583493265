"""Tables of the data and the compute that went in: decontamination, cost."""

from collections.abc import Iterable, Sequence
from statistics import mean

from trustmopd.recipe.rules import TRUST
from trustmopd.report.statistics.comparison import UNIFORM, Comparison, united
from trustmopd.report.statistics.summary import Summary
from trustmopd.report.tables.titled import NONE, Titled, titled

_COUNTS = {
    "candidates": "candidates",
    "within_exact": "within: exact",
    "within_ngram": "within: n-gram",
    "cross_exact": "cross: exact",
    "cross_ngram": "cross: n-gram",
    "kept": "kept",
}


def decontamination_table(comparison: Comparison) -> Titled:
    rows: dict[str, list[object]] = {}
    for run in comparison.runs:
        for pool, counts in run.decontamination.items():
            rows.setdefault(f"{run.prompts}, {pool}", [counts.get(key, NONE) for key in _COUNTS])
    note = "Prompts removed by each rule: within the pool, and against evaluation and other comparison texts."
    header = ("pool", *_COUNTS.values())
    return titled("decontamination", "Decontamination", note, header, ([name, *row] for name, row in rows.items()))


def cost_table(comparison: Comparison) -> Titled:
    shown = _measured(run for setting in comparison.settings for run in setting.runs)
    # With evaluation only where every run has it: hours must hold the same things to be compared.
    evaluated = all(run.cost.get("evaluation") for run in shown)
    rows = []
    for setting in comparison.settings:
        priced = {method: runs for method, seeds in setting.methods.items() if (runs := _measured(seeds.values()))}
        hours = {method: _hours(runs, evaluated) for method, runs in priced.items()}
        for method, runs in priced.items():
            whole = not any(run.stopped for run in runs)  # some of the steps cost less than all of them
            placed = f", placement {runs[0].placement}"
            uniform = hours.get(UNIFORM + placed if placed in method else UNIFORM)
            relative = f"{100 * (hours[method] / uniform - 1):+.1f}%" if uniform and whole else NONE
            peak = max(run.cost["training"]["peak_memory_gib"] for run in runs)
            cells = (len(runs), f"{hours[method] * len(runs):.3g}", relative, f"{peak:.2f}")
            rows.append([comparison.label(setting, method), *_scored(runs[0]), *cells])
        paid = [run for run in setting.runs if run.cost.get("calibration")]
        if paid:
            run = min(paid, key=lambda run: (run.method != TRUST, bool(run.stopped)))
            once, full = run.cost["calibration"]["device_hours"], hours.get(run.method)
            share = f"{100 * once / (full * len(priced[run.method])):.1f}% of {run.method}" if full else NONE
            rows.append([comparison.label(setting, "calibration"), *_scored(run), "once", f"{once:.3g}", share, NONE])
    devices = united([run.cost.get("device", "")] for run in shown)
    held = [sum(run.cost["elsewhere"].values()) for run in shown if run.cost.get("elsewhere")]
    away = f"Up to {max(held):g} devices held policies on Ray, all the time; their hours are counted. " if held else ""
    note = (
        f"{', '.join(devices)}. Device-hours are device time of all seeds, {'with' if evaluated else 'without'} "
        "evaluation; the share against uniform is per seed, with teachers placed alike. Parameters scored: of all "
        "frozen models that read a response, each by its own size. Peak memory is of one device (of the "
        f"process, on a CPU). {away}Hours are wall-clock time: they "
        "include whatever else the machine was doing."
    )
    scored = ("teachers scored", "reference scored", "parameters scored")
    header = ("", *scored, "seeds", "device-hours", "against uniform", "peak GiB")
    return titled("cost", "Computational cost", note, header, rows)


def _measured(runs: Iterable[Summary]) -> list[Summary]:
    return [run for run in runs if run.cost.get("training")]


def _scored(run: Summary) -> list[str]:
    """How many models read every response, and their size together: each counts by its own."""
    scored = run.cost.get("scored", {})
    size = scored.get("parameters")
    short = NONE if not size else f"{size / 1e9:.3g}B" if size >= 1e9 else f"{size / 1e6:.3g}M"
    return [*(str(scored.get(who, NONE)) for who in ("teachers", "reference")), short]


def _hours(runs: Sequence[Summary], evaluated: bool) -> float:
    """Device-hours of a seed."""
    return mean(
        run.cost["training"]["device_hours"] + (run.cost["evaluation"]["device_hours"] if evaluated else 0.0)
        for run in runs
    )
