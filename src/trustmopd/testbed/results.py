"""From finished cells to the paper's tables: mean ± standard deviation over seeds (n − 1), paired by seed."""

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from trustmopd.files import write_text
from trustmopd.runs.layout import FIGURES
from trustmopd.statistics import paired_difference, spread
from trustmopd.tables import TextTable, text_table
from trustmopd.testbed.cells import load_cells, read_diagnosis, read_references, records
from trustmopd.testbed.experiment import METHODS, PROMPT_SETS, with_recovery
from trustmopd.testbed.figures import draw_recovery
from trustmopd.testbed.machine import describe, mixture
from trustmopd.testbed.tasks import DOMAINS

COLUMNS = (*DOMAINS, "overall", "recovery")
TITLES = {"singlecap": "SingleCap", "multicap": "MultiCap"}
_MIXED = "cells of different machines or library versions"
_APART = "Remove those of one kind and run them again, or keep comparisons apart with --out."
REFERENCES = ("initial", *(f"teacher-{domain}" for domain in DOMAINS), "routed-teachers", "parameter-average")


def summarise(out: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The reference rows, and one row per prompt set and method with all of its seeds."""
    references = read_references(out)
    cells = load_cells(out)
    by_row: dict[tuple[str, str], dict[int, dict[str, Any]]] = {}
    for cell in cells:
        scores = with_recovery({"it": cell["scores"]}, references["scores"])["it"]
        by_row.setdefault((cell["prompts"], cell["method"]), {})[cell["seed"]] = {**cell, "scores": scores}
    rows = []
    for prompts in PROMPT_SETS:
        trust = {seed: cell["scores"]["recovery"] for seed, cell in by_row.get((prompts, "trust"), {}).items()}
        for method in METHODS:
            seeds = by_row.get((prompts, method))
            if not seeds:
                continue
            recovered = {seed: cell["scores"]["recovery"] for seed, cell in seeds.items()}
            rows.append(
                {
                    "prompts": prompts,
                    "method": method,
                    "seeds": sorted(seeds),
                    **{name: spread([cell["scores"][name] for cell in seeds.values()]) for name in COLUMNS},
                    "trust_ahead": paired_difference(trust, recovered),
                    "cells": seeds,
                    "max_weight": spread([cell["max_weight"] for cell in seeds.values()]),
                    "seconds": spread([cell["seconds"] for cell in seeds.values()]),
                    "allocation": _mean_allocation([cell["allocation"] for cell in seeds.values()]),
                }
            )
    return references, rows


def write_results(out: Path) -> Path:
    """`results.md`, `results.csv`, `cells.csv` with every seed's scores, and a figure, from what is there: incomplete
    comparisons as far as they go."""
    references, rows = summarise(out)
    names = [f"{column}_{part}" for column in COLUMNS for part in ("mean", "sd")]
    header = ["prompts", "method", "seeds", *names, "trust_ahead_mean", "trust_ahead_sd", "max_weight_mean"]
    lines = [
        ["", name, "", *(part for column in COLUMNS for part in (f"{scores[column]:.6f}", "")), "", "", ""]
        for name, scores in references["scores"].items()
    ]
    for row in rows:
        cells = [f"{part:.6f}" for column in COLUMNS for part in row[column][:2]]
        ahead = [f"{part:.6f}" for part in row["trust_ahead"][:2]] if row["trust_ahead"] else ["", ""]
        seeds = " ".join(str(seed) for seed in row["seeds"])
        lines.append([row["prompts"], row["method"], seeds, *cells, *ahead, f"{row['max_weight'].mean:.6f}"])
    write_text(out / "results.csv", text_table(header, lines).to_csv())
    write_text(out / "cells.csv", _cell_table(rows).to_csv())
    others = mixture(records(out))
    if others:
        warnings.warn(f"{out} averages {_MIXED}: {others}. {_APART}", stacklevel=2)
    path = write_text(out / "results.md", markdown(out, references, rows, others))
    if rows:
        draw_recovery(rows, TITLES, out / FIGURES / "recovery")
    return path


def _cell_table(rows: Sequence[Mapping[str, Any]]) -> TextTable:
    return text_table(
        ("prompts", "method", "seed", *COLUMNS, "max_weight"),
        [
            (row["prompts"], row["method"], str(seed), *(f"{x:.6f}" for x in numbers))
            for row in rows
            for seed, cell in sorted(row["cells"].items())
            for numbers in [[*(cell["scores"][name] for name in COLUMNS), cell["max_weight"]]]
        ],
    )


def markdown(
    out: Path, references: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], others: str | None = None
) -> str:
    scale = references["scale"]
    seeds = sorted({seed for row in rows for seed in row["seeds"]})
    lines = [
        f"{references['date']}, {describe(references)}. Seeds {', '.join(map(str, seeds))}; {scale['steps']} steps of "
        f"{scale['batch_size']} prompts, C = {scale['num_candidates']}, learning rate {scale['learning_rate']:g}; "
        f"scores in percent on {scale['evaluation_prompts']} evaluation prompts a domain, one sample at temperature "
        "0.6; ± is the standard deviation over seeds (n − 1). *Recovery* is the share of the gap between the initial "
        "student and the routed teachers; *trust ahead* is trust's recovery minus the row's, paired by seed. Trust's "
        "gamma is 7.",
        "",
        *([f"**Averaged here are {_MIXED}**: {others}. {_APART}", ""] if others else []),
        "## Without distillation",
        "",
        text_table(
            ("", *COLUMNS),
            [
                (name, *(f"{100 * references['scores'][name][column]:.1f}" for column in COLUMNS))
                for name in REFERENCES
                if name in references["scores"]
            ],
        ).to_markdown(),
    ]
    for prompts in PROMPT_SETS:
        mine = [row for row in rows if row["prompts"] == prompts]
        if not mine:
            continue
        cells = [
            (
                row["method"],
                *(row[column].percent() for column in COLUMNS),
                row["trust_ahead"].percent() if row["trust_ahead"] and row["method"] != "trust" else "–",
                f"{row['max_weight'].mean:.2f}",
            )
            for row in mine
        ]
        table = text_table(("", *COLUMNS, "trust ahead", "mean max weight"), cells)
        lines += [f"## {TITLES[prompts]}", "", table.to_markdown()]
        lines += _diagnosis_lines(out / "diagnosis" / f"{prompts}.json")
        lines += _allocation_lines(next((row for row in mine if row["method"] == "trust"), None))
    return "\n".join(lines)


def _diagnosis_lines(path: Path) -> list[str]:
    if not path.is_file():
        return []
    found = read_diagnosis(path)
    teachers = list(found["domains"][0]["score"])
    cells = [
        (name, *(f"{d['score'][name]:.2f} ± {d['spread'][name]:.2f}" for d in found["domains"])) for name in teachers
    ]
    table = text_table(("teacher", *(f"{d['domain']} ({d['rollouts']})" for d in found["domains"])), cells)
    return [
        "Calibrated scores before any training, mean over tokens ± standard deviation across prompts:",
        "",
        table.to_markdown(),
        f"`diagnose` says: {found['verdict']}",
        "",
    ]


def _allocation_lines(row: Mapping[str, Any] | None) -> list[str]:
    if row is None:
        return []
    teachers = list(next(iter(row["allocation"].values()))["weights"])
    cells = [
        (
            needs,
            *(f"{entry['weights'][name]:.2f}" for name in teachers),
            f"{entry['relevant_mass']:.2f}",
            *((f"{entry['margin']:.2f}", f"{entry['positive_margin']:.0%}") if "margin" in entry else ("–", "–")),
        )
        for needs, entry in row["allocation"].items()
    ]
    table = text_table(("prompts", *teachers, "relevant mass", "margin", "margin > 0"), cells)
    return [
        "Where trust's weight went, means over recorded rollouts (labels only sort the rows):",
        "",
        table.to_markdown(),
    ]


def _mean_allocation(summaries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Means over seeds, entry by entry, of what every seed has."""
    merged: dict[str, Any] = {}
    for needs in sorted({needs for summary in summaries for needs in summary}, key=_place):
        entries = [summary[needs] for summary in summaries if needs in summary]
        merged[needs] = {
            "weights": {
                name: mean(entry["weights"][name] for entry in entries)
                for name in entries[0]["weights"]
                if all(name in entry["weights"] for entry in entries)
            },
            **{
                key: mean(entry[key] for entry in entries)
                for key in ("relevant_mass", "margin", "positive_margin")
                if all(key in entry for entry in entries)
            },
        }
    return merged


def _place(needs: str) -> tuple[int, list[int]]:
    """Prompts of one domain before mixtures, and domains in the order of every other table."""
    parts = needs.split("+")
    return len(parts), [DOMAINS.index(part) if part in DOMAINS else len(DOMAINS) for part in parts]
