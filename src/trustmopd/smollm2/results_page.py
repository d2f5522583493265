"""The page of the study, from its files alone: what is not measured yet is said, with the stage that measures it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trustmopd.evaluation.aggregation import score_rows
from trustmopd.evaluation.graded import collect
from trustmopd.files import read_json, write_text
from trustmopd.runs import RunDirectory
from trustmopd.runs.layout import DIAGNOSIS, FIGURES, TABLES, seed_folder
from trustmopd.smollm2.distillation import Comparison
from trustmopd.smollm2.prompt_sets import SETS
from trustmopd.smollm2.tasks import DOMAINS, SCORED
from trustmopd.statistics import paired_difference
from trustmopd.testbed.machine import describe
from trustmopd.text_tables import text_table

PAGE = "results.md"
_TITLES = {"singlecap": "SingleCap", "multicap": "MultiCap"}


def write_page(comparison: Comparison) -> Path:
    return write_text(comparison.out / PAGE, "\n\n".join(part.strip() for part in _parts(comparison)) + "\n")


def _parts(comparison: Comparison) -> Iterator[str]:
    out, how = comparison.out, comparison.settings
    yield "# The paper's comparison with SmolLM2-135M"
    yield "Made by `trustmopd reproduce smollm2`; [the study](../smollm2.md) explains domains, prompts and stages."
    if how.model:
        yield f"The instruction model here is `{how.model}`."
    yield "## Base and specialists"
    yield from _specialists(out)
    yield "## Before training"
    for prompts in SETS:
        yield from _diagnosis(out / "diagnosis" / prompts / DIAGNOSIS, _TITLES[prompts])
    yield "## Learning rate"
    yield from _sweep(out / "sweep.json")
    yield "## Held-out prompts of one domain"
    yield (
        f"{how.distil.steps} steps of {how.distil.batch_size} prompts. *Recovery* is the share of the gap between the "
        "base (`initial`) and the routed teachers. In brackets: 95% intervals over prompts. ± is the standard "
        "deviation over seeds."
    )
    yield _table(out / "evaluation", "evaluate")
    yield from _came_true(comparison)
    yield from _ahead(comparison)
    if (out / FIGURES / "scores.png").is_file():
        yield f"![scores of every rule, and of base and teachers]({FIGURES}/scores.png)"
        yield "## Where the weight went"
        yield "Mean weights of recorded rollouts; *relevant mass* is that of the teachers that the prompts need."
        yield _table(out, "results", "allocation")
        yield "## Cost"
        yield "Device-hours of all seeds. Students side by side wait for each other, so their hours are too many."
        yield _table(out, "results", "cost")
    yield "## Mixed prompts"
    yield _table(out / "mixed", "evaluate")
    yield "## Public benchmarks"
    yield _table(out / "public", "evaluate, then --stage grade")


def _missing(stage: str) -> str:
    return f"Not measured yet (`--stage {stage}`)."


def _read(path: Path) -> dict[str, Any]:
    return read_json(path, what="result", remedy="Remove it, and run its stage again.") if path.is_file() else {}


def _specialists(out: Path) -> Iterator[str]:
    found = _read(out / "scores" / "specialists.json") or _read(out / "scores" / "base.json")
    if not found:
        yield _missing("scores")
        return
    instruct = _read(out / "scores" / "instruct.json").get("scores", {})
    rows = [
        [name, *(f"{100 * row[each]:.1f}" if each in row else "–" for each in SCORED)]
        for name, row in (instruct | found["scores"]).items()
    ]
    yield f"Held-out prompts right, in percent. {describe(found)}."
    yield text_table(("", *SCORED), rows).to_markdown()
    unscored = [domain for domain in DOMAINS if domain not in found["scores"]]
    for what, stage, trained in (("trained", "specialists", False), ("scored", "scores", True)):
        if names := [each for each in unscored if (out / "adapters" / each).is_dir() is trained]:
            yield f"Not {what} yet: {', '.join(names)} (`--stage {stage}`)."


def _diagnosis(path: Path, title: str) -> Iterator[str]:
    found = _read(path)
    yield f"### {title}"
    if not found:
        yield _missing("diagnose")
        return
    domains = found["domains"]
    rows = [
        [teacher, *(f"{each['score'][teacher]:.2f} ± {each['spread'][teacher]:.2f}" for each in domains)]
        for teacher in domains[0]["score"]
    ]
    leads = ["own teacher leads on", *("–" if each["leads"] is None else f"{each['leads']:.0%}" for each in domains)]
    yield "Calibrated scores of rollouts of the base, mean over tokens ± standard deviation across prompts:"
    header = ("teacher", *(f"{each['domain']} ({each['rollouts']})" for each in domains))
    yield text_table(header, [*rows, leads]).to_markdown()
    yield f"`diagnose` says: {found['verdict']}"


def _sweep(path: Path) -> Iterator[str]:
    found = _read(path)
    if not found:
        yield _missing("sweep")
        return
    yield "Chosen once, on uniform weights, by the mean loss of the last quarter of the steps."
    yield text_table(
        ("learning rate", "loss"), [(rate, f"{loss:.4f}") for rate, loss in found["losses"].items()]
    ).to_markdown()
    yield f"Chosen: {found['chosen']:g}."


def _table(folder: Path, stage: str, name: str = "scores") -> str:
    path = folder / TABLES / f"{name}.md"
    return path.read_text(encoding="utf-8") if path.is_file() else _missing(stage)


def _came_true(comparison: Comparison) -> Iterator[str]:
    """Trust against uniform, paired by seed: what a good separation promises."""
    out = comparison.out
    for prompts in SETS:
        separates = _read(out / "diagnosis" / prompts / DIAGNOSIS).get("separates")
        recovered = {
            method: {
                cell.seed: row["recovery"]
                for cell in comparison.cells
                if cell.prompts == prompts
                if cell.method == method and (row := (cell.scores(out) or {})).get("recovery") is not None
            }
            for method in ("trust", "uniform")
        }
        ahead = paired_difference(recovered["trust"], recovered["uniform"])
        if separates is None or ahead is None:
            continue
        predicted = "separates" if separates else "does not separate"
        yield (
            f"{_TITLES[prompts]}: `diagnose` predicted that displacement {predicted} the teachers. Trust recovers "
            f"{ahead.percent()} points more of the gap than uniform weights (seeds: {ahead.n})."
        )


def _ahead(comparison: Comparison) -> Iterator[str]:
    """Trust against every other rule, paired by seed and by prompt."""
    evaluation = RunDirectory(comparison.out).evaluation
    rows = []
    for prompts in SETS:
        cells = [cell for cell in comparison.cells if cell.prompts == prompts and cell.scores(comparison.out)]
        graded, _ = collect([evaluation / cell.row / seed_folder(cell.seed) for cell in cells])
        trust = f"{prompts}-trust"
        for other in (row for row in graded if trust in graded and row != trust):
            found = score_rows({row: graded[row] for row in (trust, other)}, against=other)[trust]["difference"]
            if found["overall"] is not None:
                low, high = found["interval"]
                rows.append((other, f"{100 * found['overall']:+.1f} [{100 * low:+.1f}, {100 * high:+.1f}]", found["n"]))
    if rows:
        yield (
            "Trust's overall score minus that of the same seeds with another rule, in points; in brackets, 95% "
            "intervals over prompts, which are the same for both:"
        )
        yield text_table(("rule", "trust ahead", "seeds"), [(*row[:2], str(row[2])) for row in rows]).to_markdown()
