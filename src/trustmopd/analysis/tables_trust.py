"""Tables of what teachers said and whom a run trusted: mu, scores, weights, drift, changes."""

from collections.abc import Sequence

from trustmopd.analysis.cells import NONE, Titled, groups_of, label_in, one_seed, one_seed_note, teacher_in, teachers_of
from trustmopd.analysis.compare import Comparison
from trustmopd.analysis.dynamics import BAND, WINDOW
from trustmopd.analysis.summary import Summary
from trustmopd.statistics import Spread, spread
from trustmopd.text_tables import text_table


def calibration_table(summaries: Sequence[Summary], comparison: Comparison) -> Titled | None:
    teachers = teachers_of(summaries)
    label, several = label_in(comparison), len({run.team for run in summaries}) > 1
    rows: dict[str, list[str]] = {}
    for run in summaries:
        if not (mu := run.calibration.get("mu")):
            continue
        rule = str(run.calibration.get("depends_on", {}).get("score", ""))
        name = ", ".join([label(run), rule, *([f"teachers {run.team}"] if several else [])])
        cells = [f"{mu[t]:.4g}" if t in mu else NONE for t in teachers]
        cells.append(str(run.calibration.get("tokens", NONE)))
        if rows.setdefault(name, cells) != cells:  # calibrated once more, and otherwise
            rows[f"{name}, {run.method}, seed {run.seed}"] = cells
    header = ("setting, score", *(f"μ {t}" for t in teachers), "tokens")
    note = "μ is the mean raw score over the initial student's tokens; one calibration serves all seeds."
    table = text_table(header, ([name, *cells] for name, cells in rows.items()))
    return Titled("calibration", "Calibration constants", note, table) if rows else None


def scores_before_table(summaries: Sequence[Summary], comparison: Comparison) -> Titled | None:
    """One diagnosis for each pool of teachers on a prompt set: seeds and methods share it."""
    pools: dict[tuple[str, str, str], Summary] = {}
    for run in summaries:
        if run.diagnosis.get("domains"):
            pools.setdefault((run.student, run.prompts, run.team), run)
    label, several, teams = label_in(comparison), len(pools) > 1, len({team for *_, team in pools}) > 1
    columns = dict.fromkeys(d["domain"] for run in pools.values() for d in run.diagnosis["domains"])
    rows, verdicts = [], []
    for run in pools.values():
        where = ", ".join([label(run), *([f"teachers {run.team}"] if teams else [])])
        verdicts.append(f"{where}: " * several + str(run.diagnosis.get("verdict", "")))
        cells = {
            (d["domain"], teacher): f"{score:.3f} ± {d['spread'][teacher]:.3f}"
            for d in run.diagnosis["domains"]
            for teacher, score in d["score"].items()
            if teacher in d["spread"]
        }
        for teacher in dict.fromkeys(teacher for _, teacher in cells):
            name = f"{where}, {teacher}" if several else teacher
            rows.append([name, *(cells.get((column, teacher), NONE) for column in columns)])
    note = f"Mean over response tokens ± standard deviation across prompts. {' '.join(verdicts)}"
    table = text_table(("teacher", *columns), rows)
    return Titled("scores_before", "Calibrated scores before training", note, table) if rows else None


def score_table(summaries: Sequence[Summary], comparison: Comparison) -> Titled | None:
    runs, name = one_seed(comparison, lambda run: run.scores), teacher_in(comparison)
    groups = groups_of(runs, lambda run: run.scores)
    rows = [
        [name(run, teacher), *(run.scores[g][teacher].text(3) if g in run.scores else NONE for g in groups)]
        for run in runs
        for teacher in run.teachers
    ]
    header = ("teacher", *groups)
    note = (
        "Recorded rollouts of training, by what their prompts need: mean over response tokens ± standard deviation "
        "across responses; raw where a run is not calibrated."
    ) + one_seed_note(comparison, runs)
    return Titled("scores", "Calibrated scores in training", note, text_table(header, rows)) if rows else None


def displacement_table(summaries: Sequence[Summary], comparison: Comparison) -> Titled | None:
    runs, name = one_seed(comparison, lambda run: run.displacement), teacher_in(comparison)
    groups = groups_of(runs, lambda run: run.displacement)
    rows = [
        [
            name(run, teacher),
            *(f"{run.displacement[g][teacher]:.3f}" if g in run.displacement else NONE for g in groups),
        ]
        for run in runs
        for teacher in run.teachers
    ]
    note = "Mean raw score over the response tokens of recorded rollouts, by what their prompts need."
    note += one_seed_note(comparison, runs)
    table = text_table(("teacher", *groups), rows)
    return Titled("displacement", "Raw scores by teacher and prompts", note, table) if rows else None


def allocation_table(summaries: Sequence[Summary], comparison: Comparison) -> Titled | None:
    """Means over seeds, each seed's a mean over its rollouts."""
    teachers = teachers_of(summaries)
    several = len(one_seed(comparison)) > 1
    rows = []
    for setting in comparison.settings:
        for method, seeds in setting.methods.items():
            runs = [run for run in seeds.values() if len(run.teachers) > 1]  # one teacher has all the weight
            for group in groups_of(runs, lambda run: run.allocation):
                entries = [run.allocation[group] for run in runs if group in run.allocation]

                def over_seeds(key: str, entries: list[dict] = entries) -> Spread | None:
                    values = [entry[key] for entry in entries if key in entry]
                    return spread(values) if values else None

                weights = [
                    spread(found).text() if (found := [e["weights"][t] for e in entries if t in e["weights"]]) else NONE
                    for t in teachers
                ]
                mass, margin, positive = (over_seeds(k) for k in ("relevant_mass", "margin", "positive_margin"))
                rows.append(
                    [
                        f"{label_in(comparison)(setting, method)}, {group}" if several else group,
                        str(sum(entry["rollouts"] for entry in entries)),
                        *weights,
                        mass.text() if mass else NONE,
                        margin.text() if margin else NONE,
                        f"{100 * positive.mean:.0f}%" if positive else NONE,
                    ]
                )
    header = ("prompts that need", "rollouts", *teachers, "relevant mass", "margin", "margin > 0")
    note = (
        "Means over recorded rollouts of each rollout's mean weight. Relevant mass: of the teachers that the prompts "
        "need. Margin: the matched teacher's mean weight minus the largest other. Labels only sort the rows."
    ) + (" Mean ± standard deviation over seeds; rollouts are of all of them." if comparison.seeds > 1 else "")
    return Titled("allocation", "Where the weight went", note, text_table(header, rows)) if rows else None


def drift_table(summaries: Sequence[Summary], comparison: Comparison) -> Titled | None:
    runs, name = one_seed(comparison, lambda run: run.drift), teacher_in(comparison)
    rows = [
        [
            name(run, teacher),
            f"{found.first:.2f}",
            f"{found.last:.2f}",
            f"{found.farthest:.2f}",
            "leaves the band" if found.outside else "inside",
        ]
        for run in runs
        for teacher, found in run.drift.items()
    ]
    note = (
        f"A teacher's mean calibrated score over all tokens of {WINDOW} steps; 1 is its calibration, the band is "
        f"{BAND[0]:.2f} to {BAND[1]:g}."
    ) + one_seed_note(comparison, runs)
    header = ("teacher", "first", "last", "farthest from 1", "")
    return Titled("drift", "Drift from the calibration", note, text_table(header, rows)) if rows else None


def change_table(summaries: Sequence[Summary], comparison: Comparison) -> Titled | None:
    if len(summaries) != 1 or not summaries[0].sharpest_changes:
        return None
    rows = [
        [
            f"{each.step}/{each.rollout}:{each.position}",
            repr(each.before),
            repr(each.token),
            f"{each.giver} → {each.taker}",
            f"{each.moved:.2f}",
        ]
        for each in summaries[0].sharpest_changes
    ]
    header = ("step/rollout:position", "before", "token", "from → to", "weight moved")
    note = "The positions at which most weight changed hands, at most one a response; --case takes the first column."
    return Titled("changes", "Sharpest changes within a response", note, text_table(header, rows))
