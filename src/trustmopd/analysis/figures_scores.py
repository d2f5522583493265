"""Figures of students' scores and cost: by domain, ablations, gamma, transfer, loss and lengths, time."""

import textwrap
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from matplotlib.ticker import LogLocator, NullFormatter

from trustmopd.analysis.cells import clock_note, label_in, one_seed
from trustmopd.analysis.compare import ABLATIONS, FULL, UNIFORM, Comparison, differences
from trustmopd.analysis.drawing import COLOURS, Picture, figure, styles, whole_numbers
from trustmopd.analysis.summary import Summary
from trustmopd.statistics import Spread, spread

_PANELS = 4  # side by side


def draw_scores(summaries: Sequence[Summary], comparison: Comparison, folder: Path) -> Picture | None:
    """A panel a domain; in each a row a student, between what they started from and what they aim at. However many
    rows there are, the figure is no wider."""
    students = {
        label_in(comparison)(setting, method): {
            column: spread(list(values.values()))
            for column in comparison.columns
            if (values := setting.score(method, column))
        }
        for setting in comparison.settings
        for method in setting.methods
        if setting.overall(method)
    }
    domains = comparison.columns
    if not domains or not students:
        return None
    initial, routed = (_reference_rows(comparison, name) for name in ("initial", "routed-teachers"))
    shown = {**initial, **students, **routed}
    colours = [*["0.6"] * len(initial), *[COLOURS[0]] * len(students), *["0.6"] * len(routed)]
    names = [textwrap.fill(name, 36) for name in shown]
    lines = max(name.count("\n") + 1 for name in names)
    panels = min(_PANELS, len(domains))
    width = 0.07 * max(len(line) for name in names for line in name.split("\n")) + 2.2 * panels
    height = 0.8 + (0.1 + 0.14 * lines) * len(shown)
    with figure(folder / "scores", width, height, panels, -(-len(domains) // panels), sharex=True, sharey=True) as rows:
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
                color=[colours[place] for place in found],
            )
            axes.bar_label(bars, fmt="%.1f", fontsize=8, padding=3)
            axes.set_title(domain, fontsize=9)
            axes.set_xlabel("score, %")
        axes = rows.flat[0]
        axes.set_yticks(range(len(names)), names)
        axes.set_ylim(len(names) - 0.4, -0.6)
        axes.set_xlim(0, 1.2 * max(100 * (s.mean + s.sd) for row in shown.values() for s in row.values()) or 1)
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
    with figure(folder / "ablations", 6.2, 1.2 + 0.36 * len(methods)) as axes:
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
        axes.axvline(0, color="black", linewidth=0.8)
        axes.set_yticks(range(len(methods)), methods)
        axes.set_ylim(len(methods) - 0.4, -0.6)
        axes.margins(x=0.06)
        axes.set_xlabel("overall score minus that of full trust, points; further right is better")
        axes.legend(ncols=len(found), loc="lower center", bbox_to_anchor=(0.5, 1.0))
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
    with figure(folder / "gamma", 7.2, 2.9, 2) as (scores, sharpness):
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
        sharpness.legend()
    caption = f"Left: overall score, mean ± standard deviation over seeds; dashed: uniform. {_one(comparison)}"
    return Picture(folder / "gamma", "Sensitivity to gamma, and concentration", caption)


def draw_transfer(summaries: Sequence[Summary], comparison: Comparison, folder: Path) -> Picture | None:
    gains = [
        (label_in(comparison)(setting).replace(", ", "\n"), ahead)
        for setting in comparison.settings
        if (ahead := setting.ahead(FULL, UNIFORM)) is not None
    ]
    if len(gains) < 2:
        return None
    with figure(folder / "transfer", max(4.0, 1.5 * len(gains) + 0.8), 2.8) as axes:
        axes.bar(
            range(len(gains)),
            [100 * gain.mean for _, gain in gains],
            0.55,
            yerr=[100 * gain.sd for _, gain in gains],
            capsize=4,
            color="#0072B2",
            alpha=0.85,
        )
        axes.set_xticks(range(len(gains)), [name for name, _ in gains])
        axes.axhline(0, color="black", linewidth=0.8)
        axes.set_ylabel("overall gain over uniform, points")
    caption = f"Paired by seed; bars are the standard deviation of the gains. {_one(comparison)}"
    return Picture(folder / "transfer", "Gain over uniform in every setting", caption)


def draw_training(summaries: Sequence[Summary], comparison: Comparison, folder: Path) -> Picture | None:
    """A row a setting, a line a method."""
    runs = one_seed(comparison, lambda run: run.series)
    settings = dict.fromkeys((run.student, run.prompts) for run in runs)
    if not runs:
        return None
    look = styles(list(dict.fromkeys(run.method for run in runs)))
    shown = {"loss": "loss", "length": "mean response length, tokens", "student_mass": "held by the candidates"}
    height = max(2.7, 0.6 + 0.17 * len(look))  # room for the legend
    with figure(folder / "training", 10.5, height, 3, len(settings)) as rows:
        for key, panels in zip(settings, rows, strict=True):
            mine = [run for run in runs if (run.student, run.prompts) == key]
            for run in mine:
                style = {"color": look[run.method]["colour"], "linestyle": look[run.method]["line"]}
                for panel, name in zip(panels, shown, strict=True):
                    if name in run.series:
                        panel.plot(run.series["step"], run.series[name], linewidth=1.2, label=run.method, **style)
            for panel, title in zip(panels, shown.values(), strict=True):
                panel.set_ylabel(title)
                panel.set_xlabel("step")
                whole_numbers(panel.xaxis)
            _log_scale(panels[0])
            panels[0].set_title(label_in(comparison)(mine[0]) if len(settings) > 1 else "", fontsize=9)
            panels[2].legend(fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5))
    seeds = ", ".join(str(seed) for seed in sorted({run.seed for run in runs}))
    caption = f"One seed of each method ({seeds}). Right: the student's probability of its candidates together."
    return Picture(folder / "training", "Loss, lengths and candidate mass", caption)


def draw_cost(summaries: Sequence[Summary], comparison: Comparison, folder: Path) -> Picture | None:
    rows = [
        (label_in(comparison)(setting, method), seconds)
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
    with figure(folder / "cost", 6.2, 0.9 + 0.3 * len(rows)) as axes:
        bars = axes.barh(
            range(len(rows)),
            [seconds.mean for _, seconds in rows],
            0.6,
            xerr=[seconds.sd for _, seconds in rows] if spreads else None,
            color="#0072B2",
            alpha=0.85,
        )
        axes.bar_label(bars, fmt="%.3g", fontsize=8, padding=3)
        axes.set_yticks(range(len(rows)), [name for name, _ in rows])
        axes.invert_yaxis()
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
    return "One seed: no spread to draw." if comparison.seeds < 2 else ""
