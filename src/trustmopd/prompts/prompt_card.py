"""A prompt set on disk: the prompts, a card and a `README.md` that say what it is, and what screening removed."""

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from trustmopd.prompts.build import PromptSet
from trustmopd.prompts.build_config import Category, DataConfig
from trustmopd.prompts.corpora import Pool
from trustmopd.prompts.decontaminate import removal_table
from trustmopd.prompts.ngrams import words_of
from trustmopd.prompts.prompt_set import SCHEMA, hash_of
from trustmopd.prompts.quotas import bucket_of
from trustmopd.prompts.reading.messages import user_text
from trustmopd.prompts.reading.sources import local_files, named
from trustmopd.runs.layout import CARD
from trustmopd.runs.schemas import write_file
from trustmopd.util.files import check_free, file_sha256, whole_file, whole_folder, write_json, write_text
from trustmopd.util.text_tables import text_table

_WRITTEN = {"prompts.parquet", "prompts.jsonl", "removed.json", CARD, "README.md"}


def write_prompt_set(built: PromptSet, *, overwrite: bool = False) -> Path:
    """The folder appears when all of it is written. The same config and sources give the same bytes, wherever and
    whenever they are built."""
    output = built.config.output
    check_output(built.config, overwrite=overwrite)
    with whole_folder(output, overwrite=overwrite) as folder:
        prompts = folder / f"prompts.{built.config.format}"
        if built.config.format == "jsonl":
            lines = (json.dumps(record, ensure_ascii=False) + "\n" for record in built.records)
            write_text(prompts, "".join(lines))
        else:
            write_table(prompts, pa.Table.from_pylist(built.records, schema=SCHEMA))
        write_json(folder / "removed.json", {"removed": _removed(built)})
        card = _card(built) | {"files": {prompts.name: file_sha256(prompts)}}
        write_file(folder / CARD, card)
        write_text(folder / "README.md", _readme(built, card))
    return output


def check_output(config: DataConfig, *, overwrite: bool = False) -> None:
    """Refuse a folder that must not be replaced, before work is done for it: --overwrite is for prompt sets alone."""
    output = config.output.resolve()
    if output == Path.cwd():
        raise FileExistsError(
            f"output = {config.output} is the current folder, which cannot be replaced. Name another."
        )
    check_free(output, overwrite=overwrite)
    if not output.is_dir() or not any(output.iterdir()):
        return
    sources = [(f"pools.{name}", config.pools[name]) for name in config.used_pools]
    sources += [(f"comparison.{name}", source) for name, source in config.compared.items()]
    for name, source in sources:
        with named(name):
            files = local_files(source.location(name))
        for file in files:
            if file.resolve().is_relative_to(output):
                raise ValueError(
                    f"{name} is read from {file}, inside the output {config.output}. Choose another output."
                )
    there = {file.name for file in output.iterdir()}
    if strangers := sorted(there - _WRITTEN) or sorted({"removed.json", CARD} - there):
        state = "holds" if strangers[0] in there else "lacks"
        raise FileExistsError(
            f"{config.output} is not a prompt set that was built here (it {state} {', '.join(strangers[:3])}), so "
            "--overwrite does not delete it. Choose another output, or empty the folder yourself."
        )


def write_table(path: Path, table: pa.Table) -> None:
    with whole_file(path) as partial:
        pq.write_table(table, partial)


def _removed(built: PromptSet) -> list[dict[str, Any]]:
    listed = []
    for name, screening in built.screenings.items():
        for index, rule, text, similarity, matched in screening.removed:
            row = built.pools[name].rows[index]
            what = {"pool": name, "source_id": row.source_id, "text": row.text, "parent": row.parent}
            why = {"rule": rule, "similarity": similarity, "matched": text}
            listed.append({**what, **why, "matched_source": matched.source, "matched_id": matched.id})
    return listed


def _card(built: PromptSet) -> dict[str, Any]:
    config = built.config
    plain = config.model_dump(mode="json", exclude={"output"})  # where it was written is not what it is

    def sources(pools: dict[str, Pool], described: dict[str, Any]) -> dict[str, Any]:
        return {
            name: described[name]
            | {"rows_read": pool.read, "rows": len(pool.rows), "rows_with_block": len(pool.donors)}
            | {"rows_sha256": pool.sha256, "files_sha256": pool.files}
            for name, pool in pools.items()
        }

    screenings = {
        name: {"candidates": found.candidates, **found.counts, "kept": len(found.kept)}
        for name, found in built.screenings.items()
    }
    return {
        "name": config.name,
        "seed": config.seed,
        "prompts": len(built.records),
        "prompt_hash": hash_of(record["prompt"] for record in built.records),
        "categories": {name: plain["categories"][name] | _counts(built, name) for name in config.categories},
        "sources": sources(built.pools, plain["pools"]),
        "comparison": sources(built.comparison, plain["comparison"]),
        "comparison_left_out": config.left_out,
        "comparison_texts": sum(len(pool.rows) for pool in built.comparison.values()),
        "decontamination": plain["decontamination"] | {"pools": screenings},
        "length_edges": config.length_edges,
    }


def _counts(built: PromptSet, category: str) -> dict[str, Any]:
    """Of the finished prompts: by number of constraints, by length bucket, and by checker."""
    records = [record for record in built.records if record["id"].startswith(f"{category}/")]
    lengths = [bucket_of(len(words_of(user_text(record["prompt"]))), built.config.length_edges) for record in records]
    return {
        "prompts_by_constraints": _sorted(Counter(len(record["constraints"]) for record in records)),
        "prompts_by_length": {str(bucket): lengths.count(bucket) for bucket in sorted({*lengths}, key=lambda b: b.low)},
        "checkers": _sorted(Counter(each["checker"] for record in records for each in record["constraints"])),
    }


def _sorted(counts: Counter[Any]) -> dict[str, int]:
    return {str(key): counts[key] for key in sorted(counts)}


def _readme(built: PromptSet, card: dict[str, Any]) -> str:
    config = built.config

    def after(category: Category) -> str:
        block = f"a constraint block of {category.blocks}" if category.blocks else "–"
        return "the derivation block" if category.derivation else block

    kinds = text_table(
        ("category", "prompts", "capabilities", "pool", "followed by"),
        [
            (name, f"{each.count:,}", ", ".join(each.capabilities), each.pool, after(each))
            for name, each in config.categories.items()
        ],
        left=("capabilities", "pool", "followed by"),
    )
    parts: Iterable[str] = (
        f"---\nconfigs:\n- config_name: default\n  data_files: prompts.{config.format}\n---\n",
        f"# {config.name}\n",
        f"{card['prompts']:,} prompts for on-policy distillation, built by trustmopd with seed {config.seed}. "
        f"`{CARD}` has the whole configuration, counts and hashes; `removed.json` what screening took out, and what "
        "it matched.\n",
        kinds.to_markdown(),
        "## Sources and licences\n",
        _source_table(config.pools, built.pools),
        "Each source's licence holds for the prompts taken from it.\n",
        "## Decontamination\n",
        f"Against {card['comparison_texts']:,} comparison texts ({', '.join(config.compared) or 'none'})"
        + (" and the candidates accepted before" if config.decontamination.within else "")
        + f": equal letters and digits, or a Jaccard similarity of word {config.decontamination.ngram}-grams of "
        f"{config.decontamination.threshold} or more."
        + (f" Left out of the comparison: {', '.join(config.left_out)}." if config.left_out else "")
        + "\n",
        removal_table(built.screenings).to_markdown(),
        f"Prompt hash: `{card['prompt_hash']}`\n",
    )
    return "\n".join(parts)


def _source_table(described: dict[str, Any], pools: dict[str, Pool]) -> str:
    rows = [
        (name, source.path, source.licence or "not stated", f"{len(pools[name].rows):,}")
        for name, source in described.items()
        if name in pools
    ]
    return text_table(("pool", "from", "licence", "rows"), rows, left=("from", "licence")).to_markdown()
