"""Tables of students' scores: the main comparison, ablations, gamma, transfer."""

from collections.abc import Callable, Sequence

from trustmopd.analysis.cells import NONE, Titled, label_in, percent, seeds_note, signed
from trustmopd.analysis.compare import ABLATIONS, FULL, UNIFORM, Comparison, Setting
from trustmopd.analysis.summary import Summary
from trustmopd.statistics import recovery, spread
from trustmopd.text_tables import text_table

_REFERENCES = {
    "initial": "initial student",
    "routed-teachers": "routed teachers",
    "parameter-average": "parameter average",
}


def main_table(summaries: Sequence[Summary], comparison: Comparison) -> Titled | None:
    columns = [*comparison.columns, "overall"]
    rows: list[list[str]] = []
    shown: set[tuple[str, str]] = set()
    label = label_in(comparison)
    for setting in comparison.settings:
        for run in (run for seeds in setting.methods.values() for run in seeds.values()):
            if (key := (run.student, run.team)) not in shown:
                shown.add(key)
                rows += _reference_rows(comparison, key, columns)
        for method in setting.methods:
            if not setting.overall(method):
                continue
            cells = [percent(setting.score(method, column)) for column in columns]
            gains, recovered = comparison.gains(setting, method), comparison.recovered(setting, method)
            gained = signed(spread(list(gains.values()))) if gains else NONE
            rows.append([label(setting, method), *cells, gained, percent(recovered)])
    if not any(setting.overall(method) for setting in comparison.settings for method in setting.methods):
        return None
    asked = {run.certainty.prompts for run in summaries if run.own_scores}
    prompts = f" on {next(iter(asked)):,} prompts" if len(asked) == 1 and 0 not in asked else ""
    note = (
        f"Scores in percent{prompts}. Δ initial: overall minus the initial student's. Recovered: share of the way from "
        f"the initial student to the routed teachers. {seeds_note(comparison)}"
    )
    header = ("", *columns, "Δ initial", "recovered")
    return Titled("main", "Main comparison", note, text_table(header, rows))


def ablation_table(summaries: Sequence[Summary], comparison: Comparison) -> Titled | None:
    methods = (UNIFORM, FULL, *ABLATIONS)
    return _against_one(
        comparison,
        methods,
        FULL,
        name="ablations",
        title="Component ablations",
        note="Δ trust: overall minus that of full trust, paired by seed.",
        needs=lambda setting: FULL in setting.methods and any(name in setting.methods for name in ABLATIONS),
    )


def gamma_table(summaries: Sequence[Summary], comparison: Comparison) -> Titled | None:
    rows = []
    for setting in comparison.settings:
        gammas = setting.gammas()
        if len(gammas) < 2:
            continue
        for label, method in [(UNIFORM, UNIFORM), *((f"γ = {gamma:g}", name) for gamma, name in gammas.items())]:
            if method not in setting.methods:
                continue
            concentration = setting.average(method, lambda run: run.mean_of("max_weight"))
            ahead = setting.ahead(method, UNIFORM) if method != UNIFORM else None
            rows.append(
                [
                    label_in(comparison)(setting, label),
                    *(percent(setting.score(method, column)) for column in (*comparison.columns, "overall")),
                    signed(ahead),
                    concentration.text() if concentration else NONE,
                ]
            )
    note = (
        "Δ uniform: overall minus uniform's, paired by seed. Mean max weight: over all response tokens of training. "
        + seeds_note(comparison)
    )
    header = ("", *comparison.columns, "overall", "Δ uniform", "mean max weight")
    return Titled("gamma", "Sensitivity to gamma", note, text_table(header, rows)) if rows else None


def transfer_table(summaries: Sequence[Summary], comparison: Comparison) -> Titled | None:
    if len(comparison.settings) < 2:
        return None
    return _against_one(
        comparison,
        (UNIFORM, FULL),
        UNIFORM,
        name="transfer",
        title="Trust against uniform in every setting",
        note="A setting is a student and a prompt set. Δ uniform: overall minus uniform's, paired by seed.",
        needs=lambda setting: {FULL, UNIFORM} <= set(setting.methods),
    )


def _against_one(
    comparison: Comparison,
    methods: Sequence[str],
    other: str,
    *,
    name: str,
    title: str,
    note: str,
    needs: Callable[[Setting], bool],
) -> Titled | None:
    rows = [
        [
            label_in(comparison)(setting, method),
            *(percent(setting.score(method, column)) for column in (*comparison.columns, "overall")),
            NONE if method == other else signed(setting.ahead(method, other)),
        ]
        for setting in comparison.settings
        if needs(setting)
        for method in methods
        if setting.overall(method)
    ]
    header = ("", *comparison.columns, "overall", f"Δ {other}")
    return Titled(name, title, f"{note} {seeds_note(comparison)}", text_table(header, rows)) if rows else None


def _reference_rows(comparison: Comparison, key: tuple[str, str], columns: Sequence[str]) -> list[list[str]]:
    """Rows that no distillation made, of one student and its teachers."""
    known = comparison.references.get(key, {})
    low, high = (known.get(name, {}).get("overall") for name in ("initial", "routed-teachers"))
    student, team = key
    several = len({student for student, _ in comparison.references}) > 1
    teams = [each for each in comparison.references if each[0] == student]
    whose = ", ".join([student] * several + [f"teachers {team}"] * (len(teams) > 1))
    rows = []
    for name, row in sorted(known.items(), key=lambda item: _reference_place(item[0])):
        title = _REFERENCES.get(name, name.replace("teacher-", "teacher "))
        cells = [f"{100 * row[c]:.1f}" if c in row else NONE for c in columns]
        rows.append([f"{whose}: {title}" if whose else title, *cells, *_against(row.get("overall"), low, high)])
    return rows


def _reference_place(name: str) -> int:
    order = ("initial", "teacher", "routed-teachers", "parameter-average")
    return order.index("teacher" if name.startswith("teacher-") else name)


def _against(overall: float | None, low: float | None, high: float | None) -> list[str]:
    if overall is None or low is None:
        return [NONE, NONE]
    recovered = f"{100 * recovery(overall, low, high):.1f}" if high not in (None, low) else NONE
    return [f"{100 * (overall - low):+.1f}", recovered]
