"""Prompt sets as the trainer reads them: a `prompt` column, text or conversational, and extra columns (`id`,
`domain`, …)."""

import glob
import hashlib
import json
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
from datasets import Dataset, DatasetDict, Value, concatenate_datasets, load_dataset, load_from_disk

from trustmopd.prompts.reading.formats import kind_of
from trustmopd.prompts.reading.messages import malformed, plain
from trustmopd.prompts.reading.sources import Location, hub_dataset, local_files, named, read_source
from trustmopd.util.messages import first_line

#: Columns that other trainers read, and what to do instead.
_NOT_READ = {
    **dict.fromkeys(("image", "images"), "with the prompts that need it"),
    "tools": "and describe tools in a system message, or give TrustMOPDTrainer the functions, as tools=[…]",
    "chat_template_kwargs": "and set training.chat_template_kwargs, for prompts of one kind",
}
#: The columns of a set that `data build` wrote.
SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("prompt", pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))),
        ("domain", pa.string()),
        ("capabilities", pa.list_(pa.string())),
        ("source", pa.string()),
        ("source_id", pa.string()),
        ("constraints", pa.list_(pa.struct([("checker", pa.string()), ("arguments", pa.string())]))),
        ("block_source", pa.string()),
        ("block_source_id", pa.string()),
    ]
)


def load_prompts(path: str | Path, split: str = "train") -> Dataset:
    """A Hub id, a file (JSON Lines, JSON, CSV, Parquet), a folder of such files, or what `Dataset.save_to_disk` wrote.
    Of a folder whose files name their split, those of `split`; a file is read whole. Prompts are of one kind, as
    `of_one_kind` makes them."""
    build = "Sets of recipes/data are built first: trustmopd data build CONFIG.yaml"
    location = Location(str(path), split, path_option=f"give local files. {build}")
    with named("prompts"):
        if any((Path(path) / name).is_file() for name in ("dataset_info.json", "dataset_dict.json")):
            return of_one_kind(_stored(path, split))
        files = local_files(location)
        if not files:
            return of_one_kind(hub_dataset(location))
        if kind_of(files[0]) == ".parquet":
            return of_one_kind(_parquet(files))
        rows = [row for _, row in read_source(location)]
        if not rows:
            raise ValueError(f"{path} has no rows. Give another file.")
        columns = {
            name: [row.get(name) for row in rows] for name in dict.fromkeys(name for row in rows for name in row)
        }
        if "prompt" in columns:
            columns["prompt"] = _of_one_kind(columns["prompt"])
        return Dataset.from_dict(columns, on_mixed_types="use_json")


def of_one_kind(prompts: Any) -> Any:
    """A prompt set, or several by name, without plain texts among conversations: such a text becomes one user turn,
    since TRL takes a batch to be all text or all conversations. Messages are made `plain`. Anything else is returned as
    it is."""
    if isinstance(prompts, Mapping):
        return {name: of_one_kind(dataset) for name, dataset in prompts.items()}
    if not isinstance(prompts, Dataset) or prompts.features.get("prompt") in (None, Value("string")):
        return prompts
    column = prompts["prompt"][:]
    if (turned := _of_one_kind(column)) == column:
        return prompts
    made = Dataset.from_dict({"prompt": turned}, on_mixed_types="use_json")
    return concatenate_datasets([prompts.remove_columns("prompt"), made], axis=1)


def _of_one_kind(column: list[Any]) -> list[Any]:
    if 0 < (texts := sum(isinstance(prompt, str) for prompt in column)) < len(column):
        _check_rows(column)
        warnings.warn(
            f"{texts} of {len(column)} prompts are plain text, the others conversations. Each plain text becomes a "
            "conversation of one user turn.",
            stacklevel=4,
        )
        column = [[{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt for prompt in column]
    return column if any(map(malformed, column)) else [plain(prompt) for prompt in column]  # `check_prompts` says why


def _stored(path: str | Path, split: str) -> Dataset:
    stored = load_from_disk(str(path))
    if not isinstance(stored, DatasetDict):
        return stored
    if split not in stored:
        raise ValueError(f"{path} has no split {split!r}, only {', '.join(stored)}. Choose another split.")
    return stored[split]


def _parquet(files: Sequence[Path]) -> Dataset:
    """By datasets, which maps the file into memory instead of reading it; without the bars that it draws."""
    drawn = not datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        return load_dataset("parquet", data_files=[glob.escape(str(file)) for file in files], split="train")
    except Exception as error:  # it has a class for each way to fail, with the reason in the cause
        reason = ": ".join(first_line(each) for each in (error, error.__cause__) if each)
        raise ValueError(f"{', '.join(map(str, files))} cannot be read: {reason}. Fix it, or give another.") from None
    finally:
        if drawn:
            datasets.enable_progress_bars()


def check_prompts(dataset: Dataset) -> None:
    """Every row has a prompt that a chat template can render."""
    if len(dataset) == 0:
        raise ValueError("the prompt set is empty: there is nothing to roll out. Check its path and filters.")
    if "prompt" not in dataset.column_names:
        raise ValueError(
            f"the prompt set has no column 'prompt', only {', '.join(dataset.column_names)}. Rename the column that "
            "holds the prompts: text, or a list of {'role', 'content'} messages."
        )
    for column in _NOT_READ.keys() & {*dataset.column_names}:
        if used := sum(bool(value) for value in dataset[column]):
            raise ValueError(
                f"{used} of {len(dataset)} prompts have {column!r}, a column that is not read: students would answer "
                f"without it. Remove the column, {_NOT_READ[column]}."
            )
    try:
        _check_rows(dataset["prompt"])
    except UnicodeDecodeError as error:
        raise ValueError(f"the prompt set is not UTF-8 ({error}). Save its files as UTF-8.") from error


def _check_rows(prompts: Iterable[Any]) -> None:
    for row, prompt in enumerate(prompts):
        if reason := malformed(prompt):
            raise ValueError(
                f"row {row} of the prompt set has a malformed prompt, {str(prompt)[:80]!r}: {reason}. A prompt is "
                "non-empty text, or a list of messages such as [{'role': 'user', 'content': '…'}]."
            )


def check_labels(dataset: Dataset, column: str | None, teachers: Sequence[str]) -> None:
    """Every row's label names a teacher: what `allocation='routed'` routes by."""
    if column is None or column not in dataset.column_names:
        raise ValueError(
            f"allocation = 'routed' needs a label on every prompt, but the prompt set has no column {column!r} (it "
            f"has {', '.join(dataset.column_names)}). Set domain_column, or use allocation = 'trust', which needs no "
            "labels."
        )
    unknown = [(row, label) for row, label in enumerate(dataset[column]) if label not in teachers]
    if unknown:
        row, label = unknown[0]
        raise ValueError(
            f"{len(unknown)} of {len(dataset)} prompts have a label that names no teacher, the first {label!r} in "
            f"row {row}; the teachers are {', '.join(teachers)}. Relabel or drop these rows, or use allocation = "
            "'trust', which needs no labels."
        )


def prompt_hash(dataset: Dataset) -> str:
    """Of the prompts alone, in order: other columns may change freely."""
    return hash_of(dataset["prompt"])


def hash_of(prompts: Iterable[Any]) -> str:
    digest = hashlib.sha256()
    for prompt in prompts:
        digest.update(json.dumps(prompt, ensure_ascii=False, sort_keys=True).encode() + b"\n")
    return digest.hexdigest()[:16]
