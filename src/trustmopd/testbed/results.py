"""From finished cells to the paper's tables: mean ± standard deviation over seeds (n − 1), paired by seed."""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from trustmopd.files import read_json, write_text
from trustmopd.testbed.experiment import METHODS, PROMPT_SETS, with_recovery
from trustmopd.testbed.reproduce import load_cells
from trustmopd.testbed.tasks import DOMAINS

COLUMNS = (*DOMAINS, "overall", "recovery")
TITLES = {"singlecap": "SingleCap", "multicap": "MultiCap"}
REFERENCES = ("initial", *(f"teacher-{domain}" for domain in DOMAINS), "routed-teachers", "parameter-average")


def summarise(out: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The reference rows, and one row per prompt set and method with all of its seeds."""
    references = read_json(out / "references.json", what="references", remedy="Run `trustmopd reproduce testbed`.")
    cells = load_cells(out)
    by_row: dict[tuple[str, str], dict[int, dict[str, Any]]] = {}
    for cell in cells:
        scores = with_recovery({"it": cell["scores"]}, references["scores"])["it"]
        by_row.setdefault((cell["prompts"], cell["method"]), {})[cell["seed"]] = {**cell, "scores": scores}
    rows = []
    for prompts in PROMPT_SETS:
        trust = by_row.get((prompts, "trust"), {})
        for method in METHODS:
            seeds = by_row.get((prompts, method))
            if not seeds:
                continue
            shared = sorted(seeds.keys() & trust.keys())
            behind = [trust[s]["scores"]["recovery"] - seeds[s]["scores"]["recovery"] for s in shared]
            rows.append(
                {
                    "prompts": prompts,
                    "method": method,
                    "seeds": sorted(seeds),
                    **{name: spread([cell["scores"][name] for cell in seeds.values()]) for name in COLUMNS},
                    "trust_ahead": spread(behind) if behind else None,
                    "max_weight": spread([cell["max_weight"] for cell in seeds.values()]),
                    "seconds": spread([cell["seconds"] for cell in seeds.values()]),
                    "allocation": _mean_allocation([cell["allocation"] for cell in seeds.values()]),
                }
            )
    return references, rows


def spread(values: Sequence[float]) -> tuple[float, float]:
    return mean(values), stdev(values) if len(values) > 1 else 0.0


def write_results(out: Path) -> Path:
    """`results.csv` and `results.md` from what is there; incomplete comparisons are shown as far as they go."""
    references, rows = summarise(out)
    table = io.StringIO()
    writer = csv.writer(table, lineterminator="\n")
    names = [f"{column}_{part}" for column in COLUMNS for part in ("mean", "sd")]
    writer.writerow(["prompts", "method", "seeds", *names, "trust_ahead_mean", "trust_ahead_sd", "max_weight_mean"])
    for name, scores in references["scores"].items():
        cells = [part for column in COLUMNS for part in (f"{scores[column]:.6f}", "")]
        writer.writerow(["", name, "", *cells, "", "", ""])
    for row in rows:
        cells = [f"{part:.6f}" for column in COLUMNS for part in row[column]]
        ahead = [f"{part:.6f}" for part in row["trust_ahead"]] if row["trust_ahead"] else ["", ""]
        seeds = " ".join(str(seed) for seed in row["seeds"])
        writer.writerow([row["prompts"], row["method"], seeds, *cells, *ahead, f"{row['max_weight'][0]:.6f}"])
    write_text(out / "results.csv", table.getvalue())
    return write_text(out / "results.md", markdown(out, references, rows))


def markdown(out: Path, references: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> str:
    scale = references["scale"]
    seeds = sorted({seed for row in rows for seed in row["seeds"]})
    lines = [
        f"{references['date']}, {references['machine']}. Seeds {', '.join(map(str, seeds))}; {scale['steps']} steps of "
        f"{scale['batch_size']} prompts, C = {scale['num_candidates']}, learning rate {scale['learning_rate']:g}; "
        f"scores in percent on {scale['evaluation_prompts']} evaluation prompts a domain, one sample at temperature "
        "0.6; ± is the standard deviation over seeds (n − 1). *Recovery* is the share of the gap between the initial "
        "student and the routed teachers; *trust ahead* is trust's recovery minus the row's, paired by seed.",
        "",
        "## Without distillation",
        "",
        "| | " + " | ".join(COLUMNS) + " |",
        "|---" * (len(COLUMNS) + 1) + "|",
    ]
    for name in REFERENCES:
        if name in references["scores"]:
            cells = [f"{100 * references['scores'][name][column]:.1f}" for column in COLUMNS]
            lines.append(f"| {name} | " + " | ".join(cells) + " |")
    for prompts in PROMPT_SETS:
        mine = [row for row in rows if row["prompts"] == prompts]
        if not mine:
            continue
        lines += [
            "",
            f"## {TITLES[prompts]}",
            "",
            "| | " + " | ".join(COLUMNS) + " | trust ahead | mean max weight |",
            "|---" * (len(COLUMNS) + 3) + "|",
        ]
        for row in mine:
            cells = [_percent(row[column]) for column in COLUMNS]
            ahead = _percent(row["trust_ahead"]) if row["trust_ahead"] and row["method"] != "trust" else "–"
            lines.append(f"| {row['method']} | {' | '.join(cells)} | {ahead} | {row['max_weight'][0]:.2f} |")
        lines += _diagnosis_lines(out / "diagnosis" / f"{prompts}.json")
        lines += _allocation_lines(next((row for row in mine if row["method"] == "trust"), None))
    return "\n".join([*lines, ""])


def _diagnosis_lines(path: Path) -> list[str]:
    if not path.is_file():
        return []
    found = read_json(path, what="diagnosis", remedy="Remove it and run again.")
    teachers = list(found["domains"][0]["score"])
    lines = [
        "",
        "Calibrated scores before any training, mean over tokens ± standard deviation across prompts:",
        "",
        "| teacher | " + " | ".join(f"{d['domain']} ({d['rollouts']})" for d in found["domains"]) + " |",
        "|---" * (len(found["domains"]) + 1) + "|",
    ]
    for name in teachers:
        cells = [f"{d['score'][name]:.2f} ± {d['spread'][name]:.2f}" for d in found["domains"]]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return [*lines, "", f"`diagnose` says: {found['verdict']}"]


def _allocation_lines(row: Mapping[str, Any] | None) -> list[str]:
    if row is None:
        return []
    teachers = list(next(iter(row["allocation"].values()))["weights"])
    lines = [
        "",
        "Where trust's weight went, means over recorded rollouts (labels only sort the rows):",
        "",
        "| prompts | " + " | ".join(teachers) + " | relevant mass | margin | margin > 0 |",
        "|---" * (len(teachers) + 4) + "|",
    ]
    for needs, entry in row["allocation"].items():
        weights = " | ".join(f"{entry['weights'][name]:.2f}" for name in teachers)
        margin = f"{entry['margin']:.2f} | {entry['positive_margin']:.0%}" if "margin" in entry else "– | –"
        lines.append(f"| {needs} | {weights} | {entry['relevant_mass']:.2f} | {margin} |")
    return lines


def _mean_allocation(summaries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Means over seeds, entry by entry."""
    merged: dict[str, Any] = {}
    for needs in sorted({needs for summary in summaries for needs in summary}, key=lambda n: (n.count("+"), n)):
        entries = [summary[needs] for summary in summaries if needs in summary]
        merged[needs] = {
            "weights": {name: mean(e["weights"][name] for e in entries) for name in entries[0]["weights"]},
            **{
                key: mean(entry[key] for entry in entries)
                for key in ("relevant_mass", "margin", "positive_margin")
                if key in entries[0]
            },
        }
    return merged


def _percent(value: tuple[float, float]) -> str:
    return f"{100 * value[0]:.1f} ± {100 * value[1]:.1f}"
