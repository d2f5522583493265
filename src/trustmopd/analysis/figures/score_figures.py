"""Figures of students' scores and cost: by domain, ablations, gamma, transfer, loss and lengths, time."""

from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

from trustmopd.analysis.figures.drawing import DEVIATION, Picture, figure, legend, styles, whole_numbers, wrapped
from trustmopd.analysis.figures.palette import GREY, INK
from trustmopd.analysis.statistics.comparison import ABLATIONS, FULL, UNIFORM, Comparison, differences
from trustmopd.analysis.statistics.summary import Summary
from trustmopd.analysis.tables.titled import clock_note, label_in, one_seed
from trustmopd.statistics import Spread, spread

_PANELS = 3  # side by side


def _looks(comparison: Comparison) -> dict[str, dict[str, Any]]:
    """A method looks alike in every figure, and like no other; trust and uniform in every report."""
    methods = [method for setting in comparison.settings for method in setting.methods]
    return styles(list(dict.fromkeys([FULL, UNIFORM, *methods])))


def draw_scores(summaries: Sequence[Summary], comparison: Comparison, folder: Path) -> Picture | None:
    """A panel a domain; in each a row a student, between what they started from and what they aim at. However many
    rows there are, the figure is no wider."""
    look, students, colours = _looks(comparison), {}, []
    for setting in comparison.settings:
        for method in setting.methods:
            if setting.overall(method):
                scores = {column: setting.score(method, column) for column in comparison.columns}
                students[label_in(comparison)(setting, method)] = {
                    column: spread(list(seeds.values())) for column, seeds in scores.items() if seeds
                }
                colours.append(look[method]["colour"])
    domains = comparison.columns
    if not domains or not students:
        return None
    initial, routed = (_reference_rows(comparison, name) for name in ("initial", "routed-teachers"))
    shown = {**initial, **students, **routed}
    colours = [*[GREY] * len(initial), *colours, *[GREY] * len(routed)]
    names = [wrapped(name) for name in shown]
    lines = max(name.count("\n") + 1 for name in names)
    panels = min(_PANELS, len(domains))
    height = 0.8 + (0.1 + 0.14 * lines) * len(shown)
    with figure(folder / "scores", height, -(-len(domains) // panels), panels, sharex=True, sharey=True) as rows:
        for axes, domain in zip_longest(rows.flat, domains):
            if domain is None:
                axes.set_axis_off()
                continue
            found = {place: row[domain] for place, row in enumerate(shown.values()) if domain in row}
            bars = axes.barh(
                list(found),
                [100 * score.mean for score in found.values()],
                0.7,
                xerr=[100 * score.sd for score in found.values()],
                error_kw=DEVIATION,
                color=[colours[place] for place in found],
            )
            axes.bar_label(bars, fmt="%.1f", fontsize=7, padding=2)
            axes.set_title(wrapped(domain), fontsize=9)
            axes.set_xlabel("score, %")
            axes.xaxis.set_major_locator(MaxNLocator(2, integer=True))
        axes = rows.flat[0]
        axes.set_yticks(range(len(names)), names)
        axes.set_ylim(len(names) - 0.4, -0.6)
        axes.set_xlim(0, 1.5 * max(100 * (s.mean + s.sd) for row in shown.values() for s in row.values()) or 1)
    spreads = _one(comparison) or "Mean over seeds; lines are the standard deviation."
    return Picture(folder / "scores", "Scores by domain", f"{spreads} Grey: without distillation.")


def _reference_rows(comparison: Comparison, name: str) -> dict[str, dict[str, Spread]]:
    """The row of this name for each student and its teachers."""
    title = name.replace("initial", "initial student").replace("-", " ")
    return {
        ", ".join([student, team, title] if len(comparison.references) > 1 else [title]): {
            column: Spread(known[name][column], 0.0) for column in comparison.columns if column in known[name]
        }
        for (student, team), known in comparison.references.items()
        if name in known
    }


def draw_ablations(summaries: Sequence[Summary], comparison: Comparison, folder: Path) -> Picture | None:
    found = [
        (label_in(comparison)(setting), d)
        for setting in comparison.settings
        if (d := differences(setting, (UNIFORM, *ABLATIONS), FULL)) and set(d) & set(ABLATIONS)
    ]
    if not found:
        return None
    methods = [m for m in (UNIFORM, *ABLATIONS) if any(m in d for _, d in found)]
    look = styles([name for name, _ in found])
    with figure(folder / "ablations", 1.1 + 0.36 * len(methods)) as ((axes,),):
        for index, (name, by_method) in enumerate(found):
            shown = [method for method in methods if method in by_method]
            rows = [methods.index(method) + 0.22 * (index - (len(found) - 1) / 2) for method in shown]
            axes.errorbar(
                [100 * by_method[method].mean for method in shown],
                rows,
                xerr=[100 * by_method[method].sd for method in shown],
                fmt=look[name]["marker"],
                color=look[name]["colour"],
                capsize=3,
                label=name,
            )
        axes.axvline(0, color=INK, linewidth=0.8)
        axes.set_yticks(range(len(methods)), methods)
        axes.set_ylim(len(methods) - 0.4, -0.6)
        axes.margins(x=0.06)
        axes.set_xlabel("overall score minus that of full trust, points;\nfurther right is better")
        legend(axes)
    caption = f"Differences are paired by seed; bars are their standard deviation. {_one(comparison)}"
    return Picture(folder / "ablations", "Component ablations", caption)


def draw_gamma(summaries: Sequence[Summary], comparison: Comparison, folder: Path) -> Picture | None:
    settings = [
        setting
        for setting in comparison.settings
        if len(setting.gammas()) > 1 and any(comparison.gains(setting, method) for method in setting.gammas().values())
    ]
    if not settings:
        return None
    names = [label_in(comparison)(setting) for setting in settings]
    look = styles(names)
    tried = sorted({gamma for setting in settings for gamma in setting.gammas()})
    with figure(folder / "gamma", 2.3, 2) as ((scores,), (sharpness,)):
        for name, setting in zip(names, settings, strict=True):
            gammas, style = setting.gammas(), look[name]
            gains = {
                gamma: spread(list(gained.values()))
                for gamma, method in gammas.items()
                if (gained := comparison.gains(setting, method))
            }
            scores.errorbar(
                list(gains),
                [100 * gain.mean for gain in gains.values()],
                yerr=[100 * gain.sd for gain in gains.values()],
                color=style["colour"],
                marker=style["marker"],
                linestyle="-",
                capsize=3,
                label=name,
            )
            if uniform := comparison.gains(setting, UNIFORM):
                level = 100 * spread(list(uniform.values())).mean
                ends = {"marker": style["marker"], "fillstyle": "none"}  # whose it is, in black and white
                scores.plot([tried[0], tried[-1]], [level] * 2, color=style["colour"], linestyle="--", **ends)
            weights = {
                gamma: mean.mean
                for gamma, method in gammas.items()
                if (mean := setting.average(method, lambda run: run.mean_of("max_weight")))
            }
            sharpness.plot(
                list(weights), list(weights.values()), color=style["colour"], marker=style["marker"], label=name
            )
        scores.set_ylabel("gain over the initial\nstudent, points")
        sharpness.set_ylabel("mean max weight")
        for panel in (scores, sharpness):
            panel.set_xlabel("gamma")
            panel.set_xticks(tried, [f"{gamma:g}" for gamma in tried])
        legend(sharpness)
    caption = f"Above: overall score, mean ± standard deviation over seeds; dashed: uniform. {_one(comparison)}"
    return Picture(folder / "gamma", "Sensitivity to gamma, and concentration", caption)


def draw_transfer(summaries: Sequence[Summary], comparison: Comparison, folder: Path) -> Picture | None:
    gains = [
        (wrapped(label_in(comparison)(setting)), ahead)
        for setting in comparison.settings
        if (ahead := setting.ahead(FULL, UNIFORM)) is not None
    ]
    if len(gains) < 2:
        return None
    lines = max(name.count("\n") + 1 for name, _ in gains)
    with figure(folder / "transfer", 0.8 + (0.2 + 0.14 * lines) * len(gains)) as ((axes,),):
        axes.barh(
            range(len(gains)),
            [100 * gain.mean for _, gain in gains],
            0.55,
            xerr=[100 * gain.sd for _, gain in gains],
            error_kw=DEVIATION,
            color=_looks(comparison)[FULL]["colour"],
        )
        axes.set_yticks(range(len(gains)), [name for name, _ in gains])
        axes.invert_yaxis()
        axes.axvline(0, color=INK, linewidth=0.8)
        axes.set_xlabel("overall gain over uniform, points")
    caption = f"Paired by seed; lines are the standard deviation of the gains. {_one(comparison)}"
    return Picture(folder / "transfer", "Gain over uniform in every setting", caption)


def draw_training(summaries: Sequence[Summary], comparison: Comparison, folder: Path) -> Picture | None:
    """Three panels a setting, a line a method."""
    runs = one_seed(comparison, lambda run: run.series)
    settings = dict.fromkeys((run.student, run.prompts) for run in runs)
    if not runs:
        return None
    look = _looks(comparison)
    shown = {"loss": "loss", "length": "mean response\nlength, tokens", "student_mass": "held by the\ncandidates"}
    handles: dict[str, Any] = {}
    with figure(folder / "training", 1.6, len(shown) * len(settings)) as rows:
        for place, key in enumerate(settings):
            panels = rows[len(shown) * place : len(shown) * (place + 1), 0]
            mine = [run for run in runs if (run.student, run.prompts) == key]
            for panel, (name, title) in zip(panels, shown.items(), strict=True):
                for run in (run for run in mine if name in run.series):
                    style = {"color": look[run.method]["colour"], "linestyle": look[run.method]["line"]}
                    (line,) = panel.plot(run.series["step"], run.series[name], linewidth=1.2, label=run.method, **style)
                    handles.setdefault(run.method, line)
                panel.set_ylabel(title)
                panel.set_xlabel("step")
                whole_numbers(panel.xaxis)
            _log_scale(panels[0])
            panels[0].set_title(label_in(comparison)(mine[0]) if len(settings) > 1 else "", fontsize=9)
        legend(rows[0, 0], list(handles.values()))
    seeds = ", ".join(str(seed) for seed in sorted({run.seed for run in runs}))
    caption = f"One seed of each method ({seeds}). Below: the student's probability of its candidates together."
    return Picture(folder / "training", "Loss, lengths and candidate mass", caption)


def draw_cost(summaries: Sequence[Summary], comparison: Comparison, folder: Path) -> Picture | None:
    look = _looks(comparison)
    rows = [
        (wrapped(label_in(comparison)(setting, method)), seconds, look[method]["colour"])
        for setting in comparison.settings
        for method in setting.methods
        if (
            seconds := setting.average(
                method,
                lambda run: (
                    run.cost["training"]["seconds"] / max(1, run.cost["training"]["steps"])
                    if run.cost.get("training")
                    else None
                ),
            )
        )
    ]
    if not rows:
        return None
    spreads = comparison.seeds > 1
    lines = max(name.count("\n") + 1 for name, *_ in rows)
    with figure(folder / "cost", 0.8 + (0.16 + 0.14 * lines) * len(rows)) as ((axes,),):
        bars = axes.barh(
            range(len(rows)),
            [seconds.mean for _, seconds, _ in rows],
            0.6,
            xerr=[seconds.sd for _, seconds, _ in rows] if spreads else None,
            error_kw=DEVIATION,
            color=[colour for *_, colour in rows],
        )
        axes.bar_label(bars, fmt="%.3g", fontsize=8, padding=3)
        axes.set_yticks(range(len(rows)), [name for name, *_ in rows])
        axes.invert_yaxis()
        axes.margins(x=0.12)
        axes.set_xlabel("seconds a step")
    device = next((run.cost["device"] for run in summaries if run.cost.get("device")), "")
    caption = (
        f"{device}; mean over steps and seeds{'; lines are the standard deviation over seeds' * spreads}. "
        f"{clock_note(comparison)}"
    )
    return Picture(folder / "cost", "Time of a training step", caption)


def _log_scale(panel: Any) -> None:
    """Labelled in plain numbers: matplotlib's own are formulas, which names from data must not become."""
    panel.set_yscale("log")
    low, high = panel.get_ylim()
    panel.yaxis.set_major_formatter("{x:g}")
    panel.yaxis.set_minor_locator(LogLocator(subs=(2, 5)))
    panel.yaxis.set_minor_formatter("{x:g}" if high < 100 * low else NullFormatter())


def _one(comparison: Comparison) -> str:
    return "One seed: no error bars." if comparison.seeds < 2 else ""
