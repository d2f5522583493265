"""Tables of students' scores: the main comparison, ablations, gamma, transfer."""

from collections.abc import Sequence

from trustmopd.recipe.rules import TRUST
from trustmopd.report.statistics.comparison import ABLATIONS, UNIFORM, Comparison, Setting
from trustmopd.report.tables.titled import NONE, Titled, percent, score_cells, signed, text, titled
from trustmopd.runs.layout import INITIAL, ROUTED, TEACHER, TITLES
from trustmopd.util.stats import recovery, spread


def main_table(comparison: Comparison) -> Titled:
    rows: list[list[str]] = []
    shown: set[tuple[str, str]] = set()
    for setting in comparison.settings:
        for run in setting.runs:
            if (key := (run.student, run.team)) not in shown:
                shown.add(key)
                rows += _reference_rows(comparison, *key)
        for method in filter(setting.overall, setting.methods):
            gains, recovered = comparison.gains(setting, method), comparison.recovered(setting, method)
            gained = signed(spread(gains.values())) if gains else NONE
            cells = score_cells(comparison, setting, method)
            rows.append([comparison.label(setting, method), *cells, gained, percent(recovered)])
    scored = [run for run in comparison.runs if run.own_scores]
    asked = {run.certainty.prompts for run in scored}
    prompts = f" on {next(iter(asked)):,} prompts" if len(asked) == 1 and 0 not in asked else ""
    note = (
        f"Scores in percent{prompts}. Δ initial: overall minus the initial student's. Recovered: share of the way from "
        f"the initial student to the routed teachers. {comparison.seeds_note}"
    )
    header = ("", *comparison.columns, "overall", "Δ initial", "recovered")
    return titled("main", "Main comparison", note, header, rows if scored else [])


def ablation_table(comparison: Comparison) -> Titled:
    note = "Δ trust: overall minus that of full trust, paired by seed."
    settings = [each for each in comparison.settings if TRUST in each.methods and {*ABLATIONS} & each.methods.keys()]
    rows = _rows_against(TRUST, (UNIFORM, TRUST, *ABLATIONS), settings, comparison)
    header = ("", *comparison.columns, "overall", "Δ trust")
    return titled("ablations", "Component ablations", f"{note} {comparison.seeds_note}", header, rows)


def gamma_table(comparison: Comparison) -> Titled:
    rows = []
    for setting in comparison.settings:
        gammas = setting.gammas()
        named = {UNIFORM: UNIFORM, **{f"γ = {gamma:g}": method for gamma, method in gammas.items()}}
        for label, method in named.items() if len(gammas) > 1 else ():
            if method in setting.methods:
                ahead = setting.ahead(method, UNIFORM) if method != UNIFORM else None
                concentration = setting.average(method, lambda run: run.mean_of("max_weight"))
                cells = score_cells(comparison, setting, method)
                rows.append([comparison.label(setting, label), *cells, signed(ahead), text(concentration)])
    note = (
        "Δ uniform: overall minus uniform's, paired by seed. Mean max weight: over all response tokens of training. "
        + comparison.seeds_note
    )
    header = ("", *comparison.columns, "overall", "Δ uniform", "mean max weight")
    return titled("gamma", "Sensitivity to gamma", note, header, rows)


def transfer_table(comparison: Comparison) -> Titled:
    note = "A setting is a student and a prompt set. Δ uniform: overall minus uniform's, paired by seed."
    settings = [each for each in comparison.settings if {TRUST, UNIFORM} <= each.methods.keys()]
    settings = settings if len(comparison.settings) > 1 else []
    rows = _rows_against(UNIFORM, (UNIFORM, TRUST), settings, comparison)
    header = ("", *comparison.columns, "overall", "Δ uniform")
    title = "Trust against uniform in every setting"
    return titled("transfer", title, f"{note} {comparison.seeds_note}", header, rows)


def _rows_against(
    other: str, methods: Sequence[str], settings: Sequence[Setting], comparison: Comparison
) -> list[list[str]]:
    """Methods with their difference from one of them."""
    return [
        [
            comparison.label(setting, method),
            *score_cells(comparison, setting, method),
            NONE if method == other else signed(setting.ahead(method, other)),
        ]
        for setting in settings
        for method in filter(setting.overall, methods)
    ]


def _reference_rows(comparison: Comparison, student: str, team: str) -> list[list[str]]:
    """The reference rows of one student and its teachers."""
    known = comparison.references.get((student, team), {})
    low, high = (known.get(name, {}).get("overall") for name in (INITIAL, ROUTED))
    students = {each for each, _ in comparison.references}
    teams = [each for each, _ in comparison.references if each == student]
    whose = ", ".join([student] * (len(students) > 1) + [f"teachers {team}"] * (len(teams) > 1))
    rows = []
    for name, row in known.items():
        title = TITLES.get(name, name.replace(TEACHER, "teacher "))
        cells = [f"{100 * row[c]:.1f}" if c in row else NONE for c in (*comparison.columns, "overall")]
        gained = share = NONE
        if low is not None:
            gained = f"{100 * (row['overall'] - low):+.1f}"
            share = f"{100 * recovery(row['overall'], low, high):.1f}" if high is not None and high > low else NONE
        rows.append([f"{whose}: {title}" if whose else title, *cells, gained, share])
    return rows
