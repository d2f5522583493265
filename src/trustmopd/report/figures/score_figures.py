"""Figures of students' scores and cost: by domain, ablations, gamma, transfer, loss and lengths, time."""

from itertools import zip_longest
from pathlib import Path
from typing import Any

from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

from trustmopd.recipe.rules import TRUST
from trustmopd.report.figures.drawing import (
    GREY,
    INK,
    Picture,
    figure,
    legend,
    lines_in,
    named_rows,
    spread_bars,
    styles,
    whole_numbers,
    wrapped,
)
from trustmopd.report.statistics.comparison import ABLATIONS, UNIFORM, Comparison, differences
from trustmopd.report.statistics.summary import Summary
from trustmopd.runs.layout import INITIAL, ROUTED, TITLES
from trustmopd.util.stats import Spread, spread

_PANELS = 3  # side by side


def _looks(comparison: Comparison) -> dict[str, dict[str, Any]]:
    """Each method has its own look in all figures; trust and uniform look the same in every report."""
    methods = [method for setting in comparison.settings for method in setting.methods]
    return styles(list(dict.fromkeys([TRUST, UNIFORM, *methods])))


def _one(comparison: Comparison) -> str:
    return "One seed: no error bars." if comparison.seeds < 2 else ""


def draw_scores(comparison: Comparison, path: Path) -> Picture | None:
    """One panel per domain and one row per student, between the initial student and the teachers. The width does not
    depend on the number of rows."""
    look, students, colours = _looks(comparison), {}, []
    for setting in comparison.settings:
        for method in filter(setting.overall, setting.methods):
            scores = {column: setting.score(method, column) for column in comparison.columns}
            students[comparison.label(setting, method)] = {
                column: spread(seeds.values()) for column, seeds in scores.items() if seeds
            }
            colours.append(look[method]["colour"])
    domains = comparison.columns
    if not domains or not students:
        return None
    initial, routed = (_reference_rows(comparison, name) for name in (INITIAL, ROUTED))
    shown = {**initial, **students, **routed}
    colours = [*[GREY] * len(initial), *colours, *[GREY] * len(routed)]
    panels = min(_PANELS, len(domains))
    height = 0.8 + (0.1 + 0.14 * lines_in(shown)) * len(shown)
    with figure(path, height, -(-len(domains) // panels), panels, sharex=True, sharey=True) as rows:
        for axes, domain in zip_longest(rows.flat, domains):
            if domain is None:
                axes.set_axis_off()
                continue
            found = {place: row[domain] for place, row in enumerate(shown.values()) if domain in row}
            bars = spread_bars(axes, found, 0.7, [colours[place] for place in found], scale=100)
            axes.bar_label(bars, fmt="%.1f", fontsize=7, padding=2)
            axes.set_title(wrapped(domain), fontsize=9)
            axes.set_xlabel("score, %")
            axes.xaxis.set_major_locator(MaxNLocator(2, integer=True))
        axes = rows.flat[0]
        named_rows(axes, list(shown))
        axes.set_ylim(len(shown) - 0.4, -0.6)
        axes.set_xlim(0, 1.5 * max(100 * (s.mean + s.sd) for row in shown.values() for s in row.values()) or 1)
    spreads = _one(comparison) or "Mean over seeds; lines are the standard deviation."
    return Picture(path, "Scores by domain", f"{spreads} Grey: without distillation.")


def _reference_rows(comparison: Comparison, name: str) -> dict[str, dict[str, Spread]]:
    """The row of this name for each student and its teachers."""
    title = TITLES[name]
    return {
        ", ".join([student, team, title] if len(comparison.references) > 1 else [title]): {
            column: Spread(known[name][column], 0.0) for column in comparison.columns if column in known[name]
        }
        for (student, team), known in comparison.references.items()
        if name in known
    }


def draw_ablations(comparison: Comparison, path: Path) -> Picture | None:
    found = {
        comparison.label(setting): ahead
        for setting in comparison.settings
        if (ahead := differences(setting, (UNIFORM, *ABLATIONS), TRUST)) and ahead.keys() & {*ABLATIONS}
    }
    if not found:
        return None
    methods = [method for method in (UNIFORM, *ABLATIONS) if any(method in ahead for ahead in found.values())]
    look = styles(list(found))
    with figure(path, 1.1 + 0.36 * len(methods)) as ((axes,),):
        for index, (name, ahead) in enumerate(found.items()):
            shown = [method for method in methods if method in ahead]
            axes.errorbar(
                [100 * ahead[method].mean for method in shown],
                [methods.index(method) + 0.22 * (index - (len(found) - 1) / 2) for method in shown],
                xerr=[100 * ahead[method].sd for method in shown],
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
    return Picture(path, "Component ablations", caption)


def draw_gamma(comparison: Comparison, path: Path) -> Picture | None:
    settings = {
        comparison.label(setting): setting
        for setting in comparison.settings
        if len(setting.gammas()) > 1 and any(comparison.gains(setting, method) for method in setting.gammas().values())
    }
    if not settings:
        return None
    look = styles(list(settings))
    tried = sorted({gamma for setting in settings.values() for gamma in setting.gammas()})
    with figure(path, 2.3, 2) as ((scores,), (sharpness,)):
        for name, setting in settings.items():
            style = {"color": look[name]["colour"], "marker": look[name]["marker"]}
            gammas = setting.gammas()
            every = {gamma: comparison.gains(setting, method) for gamma, method in gammas.items()}
            gains = {gamma: spread(seeds.values()) for gamma, seeds in every.items() if seeds}
            scores.errorbar(
                list(gains),
                [100 * gain.mean for gain in gains.values()],
                yerr=[100 * gain.sd for gain in gains.values()],
                linestyle="-",
                capsize=3,
                label=name,
                **style,
            )
            if uniform := comparison.gains(setting, UNIFORM):
                level = 100 * spread(uniform.values()).mean
                # An open marker at each end shows whose line it is, in black and white.
                scores.plot([tried[0], tried[-1]], [level] * 2, linestyle="--", fillstyle="none", **style)
            means = {
                gamma: setting.average(method, lambda run: run.mean_of("max_weight"))
                for gamma, method in gammas.items()
            }
            weights = {gamma: mean.mean for gamma, mean in means.items() if mean}
            sharpness.plot(list(weights), list(weights.values()), label=name, **style)
        scores.set_ylabel("gain over the initial\nstudent, points")
        sharpness.set_ylabel("mean max weight")
        for panel in (scores, sharpness):
            panel.set_xlabel("gamma")
            panel.set_xticks(tried, [f"{gamma:g}" for gamma in tried])
        legend(sharpness)
    caption = f"Above: overall score, mean ± standard deviation over seeds; dashed: uniform. {_one(comparison)}"
    return Picture(path, "Sensitivity to gamma, and concentration", caption)


def draw_transfer(comparison: Comparison, path: Path) -> Picture | None:
    every = {comparison.label(setting): setting.ahead(TRUST, UNIFORM) for setting in comparison.settings}
    gains = {name: ahead for name, ahead in every.items() if ahead is not None}
    if len(gains) < 2:
        return None
    with figure(path, 0.8 + (0.2 + 0.14 * lines_in(gains)) * len(gains)) as ((axes,),):
        bars = dict(enumerate(gains.values()))
        spread_bars(axes, bars, 0.55, _looks(comparison)[TRUST]["colour"], scale=100)
        named_rows(axes, list(gains))
        axes.invert_yaxis()
        axes.axvline(0, color=INK, linewidth=0.8)
        axes.set_xlabel("overall gain over uniform, points")
    caption = f"Paired by seed; lines are the standard deviation of the gains. {_one(comparison)}"
    return Picture(path, "Gain over uniform in every setting", caption)


def draw_training(comparison: Comparison, path: Path) -> Picture | None:
    """Three panels per setting, one line per method."""
    runs = comparison.one_seed(lambda run: run.series)
    settings: dict[str, list[Summary]] = {}
    for run in runs:
        settings.setdefault(comparison.label(run), []).append(run)
    if not runs:
        return None
    look = _looks(comparison)
    shown = {
        "loss": "loss",
        "length": "mean response\nlength, tokens",
        "student_mass": "candidates'\nprobability",
    }
    handles: dict[str, Any] = {}
    with figure(path, 1.6, len(shown) * len(settings)) as rows:
        for place, (where, mine) in enumerate(settings.items()):
            panels = rows[len(shown) * place : len(shown) * (place + 1), 0]
            for panel, (name, title) in zip(panels, shown.items(), strict=True):
                for run in (run for run in mine if name in run.series):
                    style = {"color": look[run.method]["colour"], "linestyle": look[run.method]["line"]}
                    (line,) = panel.plot(run.series["step"], run.series[name], linewidth=1.2, label=run.method, **style)
                    handles.setdefault(run.method, line)
                panel.set_ylabel(title)
                panel.set_xlabel("step")
                whole_numbers(panel.xaxis)
            _log_scale(panels[0])
            panels[0].set_title(where if len(settings) > 1 else "", fontsize=9)
        legend(rows[0, 0], list(handles.values()))
    seeds = ", ".join(str(seed) for seed in sorted({run.seed for run in runs}))
    caption = f"One seed of each method ({seeds}). Below: the total probability of the student's candidates."
    return Picture(path, "Loss, lengths and candidate mass", caption)


def draw_cost(comparison: Comparison, path: Path) -> Picture | None:
    def seconds_a_step(run: Summary) -> float | None:
        training = run.cost.get("training")
        return training["seconds"] / max(1, training["steps"]) if training else None

    look, rows, colours = _looks(comparison), {}, []
    for setting in comparison.settings:
        for method in setting.methods:
            if seconds := setting.average(method, seconds_a_step):
                rows[comparison.label(setting, method)] = seconds
                colours.append(look[method]["colour"])
    if not rows:
        return None
    several = comparison.seeds > 1
    with figure(path, 0.8 + (0.16 + 0.14 * lines_in(rows)) * len(rows)) as ((axes,),):
        bars = spread_bars(axes, dict(enumerate(rows.values())), 0.6, colours, deviations=several)
        axes.bar_label(bars, fmt="%.3g", fontsize=8, padding=3)
        named_rows(axes, list(rows))
        axes.invert_yaxis()
        axes.margins(x=0.12)
        axes.set_xlabel("seconds a step")
    lines = "; lines are the standard deviation over seeds" if several else ""
    caption = f"{comparison.device}; mean over steps and seeds{lines}. {comparison.clock_note}"
    return Picture(path, "Time of a training step", caption)


def _log_scale(panel: Any) -> None:
    """Plain numbers as labels: matplotlib's own labels are formulas, which are switched off because names come from
    data."""
    panel.set_yscale("log")
    low, high = panel.get_ylim()
    panel.yaxis.set_major_formatter("{x:g}")
    panel.yaxis.set_minor_locator(LogLocator(subs=(2, 5)))
    panel.yaxis.set_minor_formatter("{x:g}" if high < 100 * low else NullFormatter())
