"""Prompt sets as the trainer reads them: a `prompt` column, text or conversational, and what rides along (`id`,
`domain`, …)."""

import glob
import hashlib
import json
import re
import warnings
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
from datasets import Dataset, DatasetDict, Features, Json, concatenate_datasets, load_dataset, load_from_disk

from trustmopd.data.config import Source
from trustmopd.data.records import file_sha256, kind_of, local_files, read_file, unpacked
from trustmopd.files import read_json

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
_READERS = {".parquet": "parquet", ".json": "json", ".jsonl": "json", ".csv": "csv"}
#: How a conversation begins that was written out as text, by json.dumps or by str.
_WRITTEN_OUT = re.compile(r"""\s*\[\s*\{\s*["'](role|content)["']\s*:""")


def load_prompts(path: str | Path, split: str = "train") -> Dataset:
    """A Hub id, a file (Parquet, JSON, JSON Lines, CSV), a folder of such files, or what `Dataset.save_to_disk`
    wrote. Of a folder whose files name their split, those of `split`; a file is read whole. Prompts are of one kind,
    as `of_one_kind` makes them."""
    files = _files(path, split)
    if rows := _rows_if_mixed(files):
        columns = {
            name: [row.get(name) for row in rows] for name in dict.fromkeys(name for row in rows for name in row)
        }
        return Dataset.from_dict({**columns, "prompt": _turned(columns["prompt"])}, on_mixed_types="use_json")
    return of_one_kind(_read(path, files, split))


def of_one_kind(prompts: Any) -> Any:
    """A prompt set, or several by name, in which no plain text stands beside a conversation: such a text becomes one
    user turn, since TRL takes a batch to be all text or all conversations. Anything else is returned as it is."""
    if isinstance(prompts, Mapping):
        return {name: of_one_kind(dataset) for name, dataset in prompts.items()}
    if not isinstance(prompts, Dataset) or not isinstance(prompts.features.get("prompt"), Json):
        return prompts  # columns of other types cannot hold both
    column = prompts["prompt"][:]
    if not _are_mixed(column):
        return prompts
    turned = Dataset.from_dict({"prompt": _turned(column)}, on_mixed_types="use_json")
    return concatenate_datasets([prompts.remove_columns("prompt"), turned], axis=1)


def _are_mixed(prompts: Iterable[Any]) -> bool:
    return {str, list} <= {type(prompt) for prompt in prompts}


def _turned(prompts: Sequence[Any]) -> list[Any]:
    _check_rows(prompts)
    texts = sum(isinstance(prompt, str) for prompt in prompts)
    warnings.warn(
        f"some prompts are conversations, and {texts} of {len(prompts)} plain text. Each plain text is turned into a "
        "conversation of one user turn.",
        stacklevel=4,
    )
    return [[{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt for prompt in prompts]


def _read(path: str | Path, files: list[Path], split: str) -> Dataset:
    try:
        if files:
            return _load(files)
        if _is_stored(path):
            stored = load_from_disk(str(path))
            return stored[split] if isinstance(stored, DatasetDict) else stored
        return load_dataset(str(path), split=split)
    except Exception as error:  # datasets raises a different class for each of its readers and for the Hub
        # datasets says "an error occurred while generating the dataset"; why is in the cause
        reason = ": ".join(str(each).strip().split("\n")[0] for each in (error, error.__cause__) if each)
        if "corresponds to no data" in reason:
            reason = "it has no rows"
        remedy = (
            "Fix the file, or give another."
            if files
            else "It must be a prompt file or folder here, or a Hub dataset id. Sets of recipes/data are built first: "
            "trustmopd data build CONFIG.yaml."
        )
        raise ValueError(f"cannot read prompts from {str(path)!r}: {reason}. {remedy}") from error


def card_of(path: str | Path, split: str = "train") -> dict[str, Any] | None:
    """The card of a set that is still as `data build` wrote it."""
    files = _files(path, split)
    return _card_beside(files) if files else None


def _is_stored(path: str | Path) -> bool:
    return any((Path(path) / name).is_file() for name in ("dataset_info.json", "dataset_dict.json"))


def _files(path: str | Path, split: str) -> list[Path]:
    """The files of a prompt set; none if it is on the Hub, or if datasets stored it in its own way."""
    return [] if _is_stored(path) else local_files(Source.model_construct(path=str(path), split=split), "prompts")


def _load(files: list[Path]) -> Dataset:
    """Types are read from the first 10 MB of JSON, where a column may yet be empty: what we wrote has our types."""
    for file in files:
        with unpacked(file) as opened:
            if not any(part.strip() for part in iter(partial(opened.read, 2**16), b"")):
                raise ValueError(f"{file.name} is empty")
    kind = _READERS[kind_of(files[0])]
    options: dict[str, Any] = {"features": Features.from_arrow_schema(SCHEMA) if _card_beside(files) else None}
    if kind == "csv":
        options["keep_default_na"] = False  # "NA" and "null" are text, here as in a pool
    with _no_bars():
        return load_dataset(kind, data_files=[glob.escape(str(file)) for file in files], split="train", **options)


def _rows_if_mixed(files: list[Path]) -> list[dict[str, Any]] | None:
    """All rows of JSON files, if some prompts are text and some are conversations. datasets takes types from the first
    10 MB, so that prompts of the other kind after that would be an error or JSON as text; and even before, it takes a
    text such as "42" for a number."""
    if not files or _READERS.get(kind_of(files[0])) != "json" or _card_beside(files):
        return None
    try:
        # Read twice, so that a large file of one kind is never in memory as Python objects.
        mixed = _are_mixed(row.get("prompt") for file in files for _, row in read_file(file))
        return [row for file in files for _, row in read_file(file)] if mixed else None
    except (OSError, ValueError, EOFError, zlib.error):
        return None  # damaged, or JSON of another shape: datasets says so, or can read it


@contextmanager
def _no_bars() -> Iterator[None]:
    """Without the bars that datasets draws while it reads files that lie here."""
    drawn = not datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        if drawn:
            datasets.enable_progress_bars()


def _card_beside(files: list[Path]) -> dict[str, Any] | None:
    """The card in their folder, if they are the files that it lists."""
    try:
        card = read_json(files[0].with_name("card.json"), what="card", remedy="")
    except (OSError, ValueError):
        return None
    written = card.get("files")
    same = isinstance(written, dict) and all(written.get(file.name) == file_sha256(file) for file in files)
    return card if same else None


def check_prompts(dataset: Dataset) -> None:
    """Every row has a prompt that a chat template can render."""
    if len(dataset) == 0:
        raise ValueError("the prompt set is empty: there is nothing to roll out. Check its path and filters.")
    if "prompt" not in dataset.column_names:
        raise ValueError(
            f"the prompt set has no column 'prompt', only {', '.join(dataset.column_names)}. Rename the column that "
            "holds the prompts: text, or a list of {'role', 'content'} messages."
        )
    try:
        _check_rows(dataset["prompt"])
    except UnicodeDecodeError as error:
        raise ValueError(f"the prompt set is not UTF-8 ({error}). Save its files as UTF-8.") from error


def _check_rows(prompts: Iterable[Any]) -> None:
    for row, prompt in enumerate(prompts):
        if reason := _malformed(prompt):
            raise ValueError(
                f"row {row} of the prompt set has a malformed prompt, {str(prompt)[:80]!r}: {reason}. A prompt is "
                "non-empty text, or a list of messages such as [{'role': 'user', 'content': '…'}]."
            )


def _malformed(prompt: Any) -> str | None:
    if isinstance(prompt, str):
        if _WRITTEN_OUT.match(prompt):
            return (
                "it is a conversation written out as text, so the student would read its brackets and quotes. Store it "
                "as a list, in JSON Lines or Parquet; CSV cannot hold one"
            )
        return None if prompt.strip() else "it is blank"
    if not isinstance(prompt, list) or not prompt:
        return "it is neither text nor a list of messages"
    for message in prompt:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str) or not message.get("content"):
            return "a message lacks 'role' or 'content'"
        if isinstance(message["content"], str) and not message["content"].strip():
            return "the 'content' of a message is blank"
    return None


def check_labels(dataset: Dataset, column: str | None, teachers: Sequence[str]) -> None:
    """Every row's label names a teacher: what `allocation='routed'` routes by."""
    if column is None or column not in dataset.column_names:
        raise ValueError(
            f"allocation = 'routed' needs a label on every prompt, but the prompt set has no column {column!r} (it "
            f"has {', '.join(dataset.column_names)}). Set domain_column, or use allocation = 'trust', which needs no "
            "labels."
        )
    strangers = [(row, label) for row, label in enumerate(dataset[column]) if label not in teachers]
    if strangers:
        row, label = strangers[0]
        raise ValueError(
            f"{len(strangers)} of {len(dataset)} prompts have a label that names no teacher, the first {label!r} in "
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
