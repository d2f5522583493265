"""Tables of what data and compute went in: decontamination, cost."""

from collections.abc import Sequence
from statistics import mean

from trustmopd.analysis.cells import NONE, Titled, clock_note, label_in
from trustmopd.analysis.compare import FULL, UNIFORM, Comparison
from trustmopd.analysis.summary import Summary
from trustmopd.text_tables import text_table

_RULES = ("within_exact", "within_ngram", "cross_exact", "cross_ngram")


def decontamination_table(summaries: Sequence[Summary], comparison: Comparison) -> Titled | None:
    rows: dict[str, list[str]] = {}
    for run in summaries:
        for pool, counts in run.decontamination.items():
            name = f"{run.prompts}, {pool}"
            rows.setdefault(name, [name, *(str(counts.get(key, NONE)) for key in ("candidates", *_RULES, "kept"))])
    header = ("pool", "candidates", "within: exact", "within: n-gram", "cross: exact", "cross: n-gram", "kept")
    note = "Prompts removed by each rule: within the pool, and against evaluation and other comparison texts."
    table = text_table(header, rows.values())
    return Titled("decontamination", "Decontamination", note, table) if rows else None


def cost_table(summaries: Sequence[Summary], comparison: Comparison) -> Titled | None:
    rows: list[list[str]] = []
    # With evaluation only where every run has it: hours that hold different things are not to be compared.
    measured = [run for run in summaries if run.cost.get("training")]
    evaluated = all(run.cost.get("evaluation") for run in measured)
    for setting in comparison.settings:
        priced = {
            method: [run for run in seeds.values() if run.cost.get("training")]
            for method, seeds in setting.methods.items()
        }
        hours = {method: _hours(runs, evaluated) for method, runs in priced.items() if runs}
        uniform = hours.get(UNIFORM)
        for method, each in hours.items():
            runs = priced[method]
            whole = not any(run.stopped for run in runs)  # some of the steps cost less than all of them
            relative = f"{100 * (each / uniform - 1):+.1f}%" if uniform and whole else NONE
            peak = max(run.cost["training"]["peak_memory_gib"] for run in runs)
            rows.append(
                [
                    label_in(comparison)(setting, method),
                    *_scored(runs[0]),
                    str(len(runs)),
                    f"{each * len(runs):.3g}",
                    relative,
                    f"{peak:.2f}",
                ]
            )
        paid = [run for seeds in setting.methods.values() for run in seeds.values() if run.cost.get("calibration")]
        if paid:
            run = min(paid, key=lambda run: (run.method != FULL, bool(run.stopped)))
            once, full = run.cost["calibration"]["device_hours"], hours.get(run.method)
            share = f"{100 * once / (full * len(priced[run.method])):.1f}% of {run.method}" if full else NONE
            cells = [*_scored(run), "once", f"{once:.3g}", share, NONE]
            rows.append([label_in(comparison)(setting, "calibration"), *cells])
    device = next((run.cost["device"] for run in summaries if run.cost.get("device")), "")
    note = (
        f"{device}. Device-hours are device time of all seeds, {'with' if evaluated else 'without'} evaluation; "
        "the share against uniform is per seed. Peak memory is of one device (of the process, on a CPU). "
        f"{clock_note(comparison)}"
    )
    header = ("", "teachers scored", "reference scored", "seeds", "device-hours", "against uniform", "peak GiB")
    return Titled("cost", "Computational cost", note, text_table(header, rows)) if rows else None


def _scored(run: Summary) -> list[str]:
    return [str(run.cost.get("scored", {}).get(who, NONE)) for who in ("teachers", "reference")]


def _hours(runs: Sequence[Summary], evaluated: bool) -> float:
    """Device-hours of a seed."""
    return mean(
        run.cost["training"]["device_hours"] + (run.cost["evaluation"]["device_hours"] if evaluated else 0.0)
        for run in runs
    )
