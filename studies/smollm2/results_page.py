"""The page of the study, from its files alone: what is not measured yet is said, with the stage that measures it."""

import csv
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from studies.small_world.cells import Cell
from studies.smollm2.distillation import Comparison, at_the_edge
from studies.smollm2.prompt_sets import SETS
from studies.smollm2.tasks import DOMAINS, SCORED
from trustmopd.evaluation.aggregation import score_rows
from trustmopd.evaluation.journal import GRADED, read_entries
from trustmopd.evaluation.read_graded import collect
from trustmopd.evaluation.run_record import read_record
from trustmopd.quickstart.machine import describe
from trustmopd.recipe import load_recipe
from trustmopd.runs import RunDirectory
from trustmopd.runs.layout import ASKED, DIAGNOSIS, FIGURES, TABLES
from trustmopd.util.files import read_json, write_text
from trustmopd.util.stats import Spread, paired_difference
from trustmopd.util.text_tables import text_table

PAGE = "results.md"
_TITLES = {"singlecap": "SingleCap", "multicap": "MultiCap"}


def write_page(comparison: Comparison, cells: Collection[Cell]) -> Path:
    """`cells` are the runs that are whole."""
    return write_text(comparison.out / PAGE, "\n\n".join(part.strip() for part in _parts(comparison, cells)) + "\n")


def sizes(out: Path, cells: Collection[Cell]) -> str:
    """How the runs were trained and sampled, by their own recipes: most of them, then those that differ."""
    rows: dict[str, list[str]] = {}
    for cell in cells:
        recipe = load_recipe(cell.run(out).recipe)
        how, asked = recipe.training, recipe.evaluation
        size = (
            f"{how['max_steps']} steps of {how['global_batch_size']} prompts, C = {how['num_candidates']}, learning "
            f"rate {how['learning_rate']:g}; {asked.samples} held-out sample{'s' * (asked.samples != 1)} a prompt at "
            f"temperature {asked.temperature:g}"
        )
        rows.setdefault(size, []).append(cell.name)
    usual, *others = sorted(rows, key=lambda size: -len(rows[size]))
    return ". ".join([usual, *(f"{', '.join(rows[size])}: {size}" for size in others)])


def _parts(comparison: Comparison, cells: Collection[Cell]) -> Iterator[str]:
    out, how = comparison.out, comparison.settings
    yield "# The paper's comparison with SmolLM2-135M"
    yield "Made by `trustmopd reproduce smollm2`; docs/smollm2.md explains domains, prompts and stages."
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
    if cells:
        yield (
            f"{sizes(out, cells)}. *Recovery* is the share of the gap between the base (`initial`) and the routed "
            "teachers. In brackets: 95% intervals over prompts. ± is the standard deviation over seeds."
        )
    yield _table(out / "evaluation", "evaluate")
    yield from _judged(out / "evaluation")
    yield from _came_true(out, cells)
    yield from _ahead(out, cells)
    if (out / FIGURES / "scores.png").is_file():
        yield f"![scores of every rule, and of base and teachers]({FIGURES}/scores.png)"
        yield "## Where the weight went"
        yield from _allocation(out)
        yield "## Cost"
        yield "Device-hours of all seeds. Students side by side wait for each other, so their hours are too many."
        yield _table(out, "results", "cost")
    yield "## Mixed prompts"
    yield from _asked(out / "mixed")
    yield _table(out / "mixed", "evaluate")
    yield from _left_out(out / "mixed")
    yield "## Public benchmarks"
    yield from _asked(out / "public")
    yield _table(out / "public", "evaluate, then --stage grade")
    yield from _left_out(out / "public")


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
    yield f"Chosen: {found['chosen']:g}{at_the_edge(found['chosen'], [float(rate) for rate in found['losses']])}."


def _table(folder: Path, stage: str, name: str = "scores") -> str:
    path = folder / TABLES / f"{name}.md"
    return path.read_text(encoding="utf-8") if path.is_file() else _missing(stage)


def _allocation(out: Path) -> Iterator[str]:
    """Trust's weights, where there are other rules' too; a single run's rows have no name of a rule."""
    path = out / TABLES / "allocation.csv"
    if not path.is_file():
        yield _missing("results")
        return
    with path.open(encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file)
    trusting = [row for row in rows if "trust" in row[0].split(", ")]
    whose = "Trust's mean weights" if trusting else "Mean weights"
    yield (
        f"{whose} in recorded rollouts; *relevant mass* is that of the teachers that the prompts need, *margin* the "
        "matched teacher's lead over the next. The report has every rule's."
    )
    yield text_table(header, trusting or rows).to_markdown()
    if (out / FIGURES / "allocation.png").is_file():
        yield f"![mean weights by what the prompts need, in one seed]({FIGURES}/allocation.png)"


def _asked(folder: Path) -> Iterator[str]:
    """How many prompts, and how they were sampled; of the first row, since rows of one table were asked the same."""
    if record := next(iter(sorted(folder.rglob(ASKED))), None):
        about = read_record(record.parent)
        prompts = ", ".join(f"{len(each['ids'])} of {name}" for name, each in about["benchmarks"].items())
        yield (
            f"Prompts: {prompts}; responses of at most {about['max_new_tokens']} tokens at temperature "
            f"{about['temperature']:g}."
        )


def _left_out(folder: Path) -> Iterator[str]:
    """What was asked below `folder` and is not in its table."""
    found, _ = collect([folder])
    records = {record.parent: read_record(record.parent) for record in sorted(folder.rglob(ASKED))}
    shown = {name for seeds in found.values() for row in seeds.values() for name in row}
    asked = dict.fromkeys(name for record in records.values() for name in record["benchmarks"])
    rows = [
        row.relative_to(folder).as_posix()
        for row, record in records.items()
        if record["seed"] not in found.get(record["method"], {})
    ]
    if asked and not shown:
        yield f"Sampled, and not graded yet: {', '.join(asked)} (`--stage grade`)."
    elif left := [*(name for name in asked if name not in shown), *rows]:
        yield f"Not in this table, since some responses are missing or not graded: {', '.join(left)}."


def _judged(evaluation: Path) -> Iterator[str]:
    """By what the functions were judged; where that differs, which rows by what."""
    rows: dict[str, dict[str, None]] = {}
    for path in sorted(evaluation.rglob("smollm2_code.jsonl")):
        for entry in read_entries(path, GRADED)[0]:
            judge = entry["details"].get("judged_by", "not recorded")
            rows.setdefault(judge, {})[path.parent.relative_to(evaluation).as_posix()] = None
    told = [judge if len(rows) == 1 else f"{judge} ({', '.join(which)})" for judge, which in rows.items()]
    if told:
        yield f"Functions were judged by: {'; '.join(told)}."


def _came_true(out: Path, cells: Collection[Cell]) -> Iterator[str]:
    """Trust against uniform, paired by seed: what a good separation promises."""
    for prompts in SETS:
        separates = _read(out / "diagnosis" / prompts / DIAGNOSIS).get("separates")
        recovered = {
            method: {
                cell.seed: row["recovery"]
                for cell in cells
                if cell.prompts == prompts
                if cell.method == method and (row := (cell.scores(out) or {})).get("recovery") is not None
            }
            for method in ("trust", "uniform")
        }
        ahead = paired_difference(recovered["trust"], recovered["uniform"])
        if separates is None or ahead is None:
            continue
        predicted = "separates" if separates else "does not separate"
        less, points = ahead.mean < 0, Spread(abs(ahead.mean), ahead.sd, ahead.n)
        yield (
            f"{_TITLES[prompts]}: `diagnose` predicted that displacement {predicted} the teachers. Trust recovers "
            f"{points.percent()} points {'less' if less else 'more'} of the gap than uniform weights "
            f"(seeds: {ahead.n})."
        )


def _ahead(out: Path, cells: Collection[Cell]) -> Iterator[str]:
    """Trust against every other rule, paired by prompt, over the seeds that both have."""
    evaluation = RunDirectory(out).evaluation
    graded, _ = collect([evaluation / cell.responses for cell in cells])
    rows = []
    for trust in (f"{prompts}-trust" for prompts in SETS if f"{prompts}-trust" in graded):
        for other in (row for row in graded if row.startswith(trust.removesuffix("trust")) and row != trust):
            seeds = graded[trust].keys() & graded[other].keys()
            if not seeds:
                continue
            same = {row: {seed: graded[row][seed] for seed in seeds} for row in (trust, other)}
            found = score_rows(same, against=other)[trust]["difference"]
            low, high = found["interval"]
            rows.append((other, f"{100 * found['overall']:+.1f} [{100 * low:+.1f}, {100 * high:+.1f}]", found["n"]))
    if rows:
        yield (
            "Trust's overall score minus that of the same seeds with another rule, in points; in brackets, 95% "
            "intervals over prompts, which are the same for both:"
        )
        yield text_table(("rule", "trust ahead", "seeds"), [(*row[:2], str(row[2])) for row in rows]).to_markdown()
