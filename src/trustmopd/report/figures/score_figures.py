"""Figures of students' scores, by domain, ablation, gamma and setting; and of losses and lengths."""

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

from trustmopd.recipe.rules import TRUST
from trustmopd.report.figures.drawing import (
    GREY,
    INK,
    Picture,
    draw_series,
    figure,
    legend,
    lines_in,
    named_rows,
    styles,
    wrapped,
)
from trustmopd.report.statistics.comparison import ABLATIONS, UNIFORM, Comparison
from trustmopd.report.statistics.summary import Summary
from trustmopd.runs.layout import INITIAL, ROUTED, TITLES
from trustmopd.util.stats import Spread, spread

_PANELS = 3  # side by side


def _looks(comparison: Comparison) -> dict[str, dict[str, Any]]:
    """Each method has its own look in all figures; trust and uniform look the same in every report."""
    methods = [method for setting in comparison.settings for method in setting.methods]
    return styles(list(dict.fromkeys([TRUST, UNIFORM, *methods])))


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
            bars = axes.barh(
                list(found),
                [100 * score.mean for score in found.values()],
                0.7,
                xerr=[100 * score.sd for score in found.values()],
                error_kw={"ecolor": INK, "elinewidth": 1.0},
                color=[colours[place] for place in found],
            )
            axes.bar_label(bars, fmt="%.1f", fontsize=7, padding=2)
            axes.set_title(wrapped(domain), fontsize=9)
            axes.set_xlabel("score, %")
            axes.xaxis.set_major_locator(MaxNLocator(2, integer=True))
        axes = rows.flat[0]
        named_rows(axes, list(shown))
        axes.set_ylim(len(shown) - 0.4, -0.6)
        axes.set_xlim(0, 1.5 * max(100 * (s.mean + s.sd) for row in shown.values() for s in row.values()) or 1)
    return Picture(path, "Scores by domain", f"{comparison.seeds_note} Grey: without distillation.")


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
    settings = {comparison.label(setting): setting for setting in comparison.settings}
    ahead: dict[str, dict[str, Spread]] = {}
    for name, setting in settings.items():
        every = {method: setting.ahead(method, TRUST) for method in (UNIFORM, *ABLATIONS)}
        if any(every[method] for method in ABLATIONS):
            ahead[name] = {method: difference for method, difference in every.items() if difference is not None}
    if not ahead:
        return None
    rows = [method for method in (UNIFORM, *ABLATIONS) if any(method in found for found in ahead.values())]
    _draw_differences(path, rows, ahead, "overall score minus that of full trust, points;\nfurther right is better")
    return Picture(path, "Component ablations", f"Differences are paired by seed. {comparison.seeds_note}")


def draw_transfer(comparison: Comparison, path: Path) -> Picture | None:
    every = {comparison.label(setting): setting.ahead(TRUST, UNIFORM) for setting in comparison.settings}
    gains = {name: ahead for name, ahead in every.items() if ahead is not None}
    if len(gains) < 2:
        return None
    _draw_differences(path, list(gains), {TRUST: gains}, "overall gain over uniform, points")
    return Picture(path, "Gain over uniform in every setting", f"Gains are paired by seed. {comparison.seeds_note}")


def _draw_differences(path: Path, rows: Sequence[str], series: Mapping[str, Mapping[str, Spread]], label: str) -> None:
    """In each row a marker for each series, with its standard deviation; a line at zero."""
    look = styles(list(series))
    with figure(path, 0.8 + (0.2 + 0.14 * lines_in(rows)) * len(rows)) as ((axes,),):
        for index, (name, values) in enumerate(series.items()):
            axes.errorbar(
                [100 * value.mean for value in values.values()],
                [rows.index(row) + 0.22 * (index - (len(series) - 1) / 2) for row in values],
                xerr=[100 * value.sd for value in values.values()],
                fmt=look[name]["marker"],
                color=look[name]["colour"],
                capsize=3,
                label=name,
            )
        axes.axvline(0, color=INK, linewidth=0.8)
        named_rows(axes, rows)
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.margins(x=0.06)
        axes.set_xlabel(label)
        legend(axes)


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
    caption = f"Above: overall score minus the initial student's; dashed: uniform. {comparison.seeds_note}"
    return Picture(path, "Sensitivity to gamma, and concentration", caption)


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
    with figure(path, 1.6, len(shown) * len(settings)) as rows:
        for place, (where, of_setting) in enumerate(settings.items()):
            panels = rows[len(shown) * place : len(shown) * (place + 1), 0]
            for panel, (name, title) in zip(panels, shown.items(), strict=True):
                for run in of_setting:
                    draw_series(panel, run, {run.method: name}, look)
                panel.set_ylabel(title)
            _log_scale(panels[0])
            panels[0].set_title(where if len(settings) > 1 else "", fontsize=9)
        legend(rows[0, 0])
    seeds = ", ".join(str(seed) for seed in sorted({run.seed for run in runs}))
    caption = f"One seed of each method ({seeds}). Below: the total probability of the student's candidates."
    return Picture(path, "Loss, lengths and candidate mass", caption)


def _log_scale(panel: Any) -> None:
    """Plain numbers as labels: matplotlib's own labels are formulas, which are switched off because names come from
    data."""
    panel.set_yscale("log")
    low, high = panel.get_ylim()
    panel.yaxis.set_major_formatter("{x:g}")
    panel.yaxis.set_minor_locator(LogLocator(subs=(2, 5)))
    panel.yaxis.set_minor_formatter("{x:g}" if high < 100 * low else NullFormatter())
