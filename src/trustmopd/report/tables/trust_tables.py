"""Tables of what teachers said and whom a run trusted: mu, scores, weights, drift, changes."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from trustmopd.report.readers.token_records import rollout_name
from trustmopd.report.statistics.comparison import Comparison, united
from trustmopd.report.statistics.summary import Summary
from trustmopd.report.tables.titled import NONE, Titled, text, titled
from trustmopd.util.stats import Spread, spread

#: Group of prompts → teacher → its score.
Groups = Mapping[str, Mapping[str, Any]]


def calibration_table(comparison: Comparison) -> Titled:
    teachers = united(run.teachers for run in comparison.runs)
    own = any(len(run.references) > 1 for run in comparison.runs)
    rows: dict[str, list[str]] = {}
    for run in comparison.runs:
        if not (mu := run.calibration.get("mu")):
            continue
        rule = str(run.calibration.get("depends_on", {}).get("score", ""))
        name = ", ".join([comparison.label(run), rule, *_team(comparison, run)])
        cells = [f"{mu[t]:.4g}" if t in mu else NONE for t in teachers]
        cells += [str(run.calibration.get("tokens", NONE)), *([_measured(run)] if own else [])]
        if rows.setdefault(name, cells) != cells:  # another calibration of the same setting
            rows[f"{name}, {run.method}, seed {run.seed}"] = cells
    header = ("setting, score", *(f"μ {t}" for t in teachers), "tokens", *(["measured from"] if own else []))
    note = "μ is the mean raw score over the initial student's tokens; one calibration serves all seeds."
    return titled("calibration", "Calibration constants", note, header, ([name, *row] for name, row in rows.items()))


def scores_before_table(comparison: Comparison) -> Titled:
    """One diagnosis for each pool of teachers on a prompt set: seeds and methods share it."""
    pools: dict[tuple[str, ...], Summary] = {}
    for run in comparison.runs:
        if run.diagnosis.get("domains"):
            pools.setdefault((run.student, run.prompts, run.team, _measured(run)), run)
    columns = united([d["domain"] for d in run.diagnosis["domains"]] for run in pools.values())
    rows, verdicts = [], []
    for run in pools.values():
        measured = [f"from {_measured(run)}"] if any(len(each.references) > 1 for each in pools.values()) else []
        where = ", ".join([comparison.label(run), *_team(comparison, run), *measured])
        before = f"{where}: " if len(pools) > 1 else ""
        verdicts.append(before + str(run.diagnosis.get("verdict", "")))
        cells = {
            (d["domain"], teacher): f"{score:.3f} ± {d['spread'][teacher]:.3f}"
            for d in run.diagnosis["domains"]
            for teacher, score in d["score"].items()
            if teacher in d["spread"]
        }
        for teacher in united([teacher] for _, teacher in cells):
            name = f"{where}, {teacher}" if len(pools) > 1 else teacher
            rows.append([name, *(cells.get((column, teacher), NONE) for column in columns)])
    note = f"Mean over response tokens ± standard deviation across prompts. {' '.join(verdicts)}"
    return titled("scores_before", "Calibrated scores before training", note, ("teacher", *columns), rows)


def _team(comparison: Comparison, run: Summary) -> list[str]:
    """The run's teachers, if other runs have other teachers."""
    return [f"teachers {run.team}"] if len({each.team for each in comparison.runs}) > 1 else []


def _measured(run: Summary) -> str:
    """The references of a run, each with its teachers if there are several."""
    if len(run.references) < 2:
        return "".join(map(str, run.references))
    return "; ".join(f"{each} ({', '.join(each.teachers)})" for each in run.references)


def score_table(comparison: Comparison) -> Titled:
    note = (
        "Recorded rollouts of training, by what their prompts need: mean over response tokens ± standard deviation "
        "across responses; raw where a run is not calibrated."
    )
    rows = _by_group(comparison, note, lambda run: run.scores, lambda score: score.text(3))
    return titled("scores", "Calibrated scores in training", *rows)


def displacement_table(comparison: Comparison) -> Titled:
    note = "Mean raw score over the response tokens of recorded rollouts, by what their prompts need."
    rows = _by_group(comparison, note, lambda run: run.displacement, lambda score: f"{score:.3f}")
    return titled("displacement", "Raw scores by teacher and prompts", *rows)


def _by_group(
    comparison: Comparison, note: str, scores_of: Callable[[Summary], Groups], shown: Callable[[Any], str]
) -> tuple[str, Iterable[str], list[list[str]]]:
    """Note, header and rows of a table with a row for each teacher of one seed of each method, and a column for each
    group of prompts."""
    runs = comparison.one_seed(scores_of)
    groups = united(map(scores_of, runs))
    several = len(comparison.one_seed()) > 1
    rows = []
    for run in runs:
        scores = scores_of(run)
        for teacher in run.teachers:
            name = f"{comparison.label(run, run.method)}, {teacher}" if several else teacher
            rows.append([name, *(shown(scores[group][teacher]) if group in scores else NONE for group in groups)])
    seeds = ", ".join(map(str, sorted({run.seed for run in runs})))
    note += f" One seed of each method ({seeds})." if comparison.seeds > 1 else ""
    return note, ("teacher", *groups), rows


def allocation_table(comparison: Comparison) -> Titled:
    """Means over seeds, each seed's a mean over its rollouts."""
    teachers = united(run.teachers for run in comparison.runs)
    several = len(comparison.one_seed()) > 1
    rows = []
    for setting in comparison.settings:
        for method, seeds in setting.methods.items():
            runs = [run for run in seeds.values() if len(run.teachers) > 1]  # one teacher has all the weight
            for group in united(run.allocation for run in runs):
                entries = [run.allocation[group] for run in runs if group in run.allocation]
                positive = _over_seeds([entry.get("positive_margin") for entry in entries])
                rows.append(
                    [
                        f"{comparison.label(setting, method)}, {group}" if several else group,
                        str(sum(entry["rollouts"] for entry in entries)),
                        *(text(_over_seeds([entry["weights"].get(t) for entry in entries])) for t in teachers),
                        *(text(_over_seeds([e.get(key) for e in entries])) for key in ("relevant_mass", "margin")),
                        f"{100 * positive.mean:.0f}%" if positive else NONE,
                    ]
                )
    header = ("prompts that need", "rollouts", *teachers, "relevant mass", "margin", "margin > 0")
    note = (
        "Means over recorded rollouts of each rollout's mean weight. Relevant mass: of the teachers that the prompts "
        "need. Margin: the matched teacher's mean weight minus the largest other. Labels only sort the rows."
    ) + (" Mean ± standard deviation over seeds; rollouts are counted over all seeds." if comparison.seeds > 1 else "")
    return titled("allocation", "Where the weight went", note, header, rows)


def _over_seeds(values: list[float | None]) -> Spread | None:
    known = [value for value in values if value is not None]
    return spread(known) if known else None


def change_table(comparison: Comparison) -> Titled:
    changes = comparison.runs[0].sharpest_changes if len(comparison.runs) == 1 else []
    rows = [
        [
            f"{each.step}/{rollout_name(each.rollout, each.sample)}:{each.position}",
            repr(each.before),
            repr(each.token),
            f"{each.giver} → {each.taker}",
            f"{each.moved:.2f}",
        ]
        for each in changes
    ]
    header = ("step/rollout:position", "before", "token", "from → to", "weight moved")
    note = "The positions at which most weight changed hands, at most one per response; --case takes the first column."
    return titled("changes", "Sharpest changes within a response", note, header, rows)
