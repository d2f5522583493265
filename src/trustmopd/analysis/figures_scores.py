"""Figures of students' scores and cost: by domain, ablations, gamma, transfer, loss and lengths, time."""

from collections.abc import Sequence
from pathlib import Path

from trustmopd.analysis.cells import label_in, one_seed
from trustmopd.analysis.compare import ABLATIONS, FULL, UNIFORM, Comparison, differences
from trustmopd.analysis.drawing import Picture, figure, grouped_bars, styles
from trustmopd.analysis.summary import Summary
from trustmopd.statistics import spread


def draw_scores(summaries: Sequence[Summary], comparison: Comparison, folder: Path) -> Picture | None:
    """Scores by domain, for students and what they started from and aim at."""
    columns: dict[str, dict[str, float]] = {}
    for setting in comparison.settings:
        several = len(comparison.references) > 1
        for student, team in dict.fromkeys(
            (run.student, run.team) for seeds in setting.methods.values() for run in seeds.values()
        ):
            known = comparison.references.get((student, team), {})
            for name, title in (("initial", "initial student"), ("routed-teachers", "routed teachers")):
                if name in known:
                    columns[f"{student}\n{team}\n{title}" if several else title] = known[name]
        for method in (UNIFORM, "random", "routed", FULL, *(m for m in setting.methods if m.startswith("single"))):
            if setting.overall(method):
                means = {
                    column: spread(list(values.values())).mean
                    for column in comparison.columns
                    if (values := setting.score(method, column))
                }
                columns[label_in(comparison)(setting, method).replace(", ", "\n")] = means
    domains = comparison.columns
    if not domains or not any(setting.overall(m) for setting in comparison.settings for m in setting.methods):
        return None
    ordered = sorted(columns, key=lambda name: ("routed teachers" in name) - ("initial student" in name))
    with figure(folder / "scores", max(6.0, 1.1 * len(ordered) + 1), 3.2) as axes:
        series = {d: [100 * columns[name][d] if d in columns[name] else None for name in ordered] for d in domains}
        grouped_bars(axes, ordered, series, styles(domains), "%.0f")
        axes.set_ylabel("score, %")
        axes.legend(ncols=len(domains), loc="lower center", bbox_to_anchor=(0.5, 1.0))
    return Picture(folder / "scores", "Scores by domain", "Mean over seeds.")


def draw_ablations(summaries: Sequence[Summary], comparison: Comparison, folder: Path) -> Picture | None:
    found = {
        setting.prompts
        if len({s.student for s in comparison.settings}) == 1
        else f"{setting.student}, {setting.prompts}": d
        for setting in comparison.settings
        if (d := differences(setting, (UNIFORM, *ABLATIONS), FULL)) and set(d) & set(ABLATIONS)
    }
    if not found:
        return None
    methods = [m for m in (UNIFORM, *ABLATIONS) if any(m in d for d in found.values())]
    look = styles(list(found))
    with figure(folder / "ablations", 6.2, 1.2 + 0.36 * len(methods)) as axes:
        for index, (name, by_method) in enumerate(found.items()):
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
        axes.invert_yaxis()
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
    names = [label_in(comparison)(setting, "").rstrip(", ") or setting.prompts for setting in settings]
    look = styles(names)
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
                scores.axhline(level, color=style["colour"], linestyle="--", linewidth=1)
            weights = {
                gamma: mean.mean
                for gamma, method in gammas.items()
                if (mean := setting.average(method, lambda run: run.mean_of("max_weight")))
            }
            sharpness.plot(
                list(weights), list(weights.values()), color=style["colour"], marker=style["marker"], label=name
            )
        scores.set_ylabel("overall gain over the initial student, points")
        sharpness.set_ylabel("mean max weight")
        for panel in (scores, sharpness):
            panel.set_xlabel("gamma")
        sharpness.legend()
    caption = f"Left: mean ± standard deviation over seeds; dashed: uniform. {_one(comparison)}"
    return Picture(folder / "gamma", "Sensitivity to gamma, and concentration", caption)


def draw_transfer(summaries: Sequence[Summary], comparison: Comparison, folder: Path) -> Picture | None:
    gains = {
        f"{setting.student}\n{setting.prompts}": ahead
        for setting in comparison.settings
        if (ahead := setting.ahead(FULL, UNIFORM)) is not None
    }
    if len(gains) < 2:
        return None
    with figure(folder / "transfer", max(4.0, 1.5 * len(gains) + 0.8), 2.8) as axes:
        heights = [100 * gain.mean for gain in gains.values()]
        axes.bar(
            list(gains),
            heights,
            0.55,
            yerr=[100 * gain.sd for gain in gains.values()],
            capsize=4,
            color="#0072B2",
            alpha=0.85,
        )
        axes.axhline(0, color="black", linewidth=0.8)
        axes.set_ylabel("overall gain over uniform, points")
    caption = f"Paired by seed; bars are the standard deviation of the gains. {_one(comparison)}"
    return Picture(folder / "transfer", "Gain over uniform in every setting", caption)


def draw_training(summaries: Sequence[Summary], comparison: Comparison, folder: Path) -> Picture | None:
    runs = [run for run in one_seed(summaries) if run.series]
    if not runs:
        return None
    several = len({run.prompts for run in runs}) > 1
    names = [f"{run.prompts}, {run.method}" if several else run.method for run in runs]
    look = styles(names)
    with figure(folder / "training", 9.0, 2.7, 3) as panels:
        for name, run in zip(names, runs, strict=True):
            for panel, key in zip(panels, ("loss", "length", "student_mass"), strict=True):
                if key in run.series:
                    style = look[name]
                    panel.plot(
                        run.series["step"],
                        run.series[key],
                        color=style["colour"],
                        linestyle=style["line"],
                        linewidth=1.2,
                        label=name,
                    )
        for panel, label in zip(
            panels, ("loss", "mean response length, tokens", "probability held by the candidates"), strict=True
        ):
            panel.set_ylabel(label)
            panel.set_xlabel("step")
        panels[0].set_yscale("log")
        panels[0].yaxis.set_major_formatter("{x:g}")
        panels[0].legend(fontsize=7, ncols=1 if len(names) <= 6 else 2)
    return Picture(folder / "training", "Loss, lengths and candidate mass", "One seed of each method.")


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
    with figure(folder / "cost", 6.2, 0.9 + 0.3 * len(rows)) as axes:
        bars = axes.barh(
            [name for name, _ in rows],
            [seconds.mean for _, seconds in rows],
            0.6,
            xerr=[seconds.sd for _, seconds in rows] if comparison.seeds > 1 else None,
            color="#0072B2",
            alpha=0.85,
        )
        axes.bar_label(bars, fmt="%.2f", fontsize=8, padding=3)
        axes.invert_yaxis()
        axes.set_xlabel("seconds a step")
    device = next((run.cost["device"] for run in summaries if run.cost.get("device")), "")
    return Picture(folder / "cost", "Time of a training step", f"{device}; mean over steps and seeds.")


def _one(comparison: Comparison) -> str:
    return "One seed: no spread to draw." if comparison.seeds < 2 else ""
