"""Where rows are: a file, a folder of files, or a Hub dataset; and which of them are meant."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trustmopd.prompts.reading.formats import NoColumn, Row, is_readable, kind_of, read_rows, top_level
from trustmopd.recipe.names import SUFFIXES
from trustmopd.util.files import meant_here
from trustmopd.util.messages import first_line

if TYPE_CHECKING:
    from datasets import Dataset

EVERY_SPLIT = "all"  # what datasets calls them on the Hub
#: The split in a file's name: train rows must not be scored, nor test rows trained on.
_WORD = re.compile(r"(?<![a-z])(train|val|dev|test)(?:ing|set|id|idation)?(?![a-z])")
_SHARD = re.compile(r"(\w+)-\d{5}-of-\d{5}(?!\d)")


@dataclass(frozen=True)
class Location:
    """A file is read whole: `split`, `subset` and `files` choose inside a folder, as they do on the Hub. The last three
    are what messages ask the user to change: options of a verb, or fields of a file."""

    path: str
    split: str | None = None  # None: the only one; on the Hub, train
    subset: str | None = None
    files: str | None = None
    revision: str | None = None
    path_option: str = "give FILE"
    split_option: str = "split"
    column_option: str = "column"


@contextmanager
def named(name: str, location: Location | None = None) -> Iterator[None]:
    """Errors inside begin with the user's name for the source; one about a column adds where columns are named."""
    try:
        yield
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{name}: {error}") from None
    except NoColumn as error:
        remedy = f" Name the right one: {location.column_option}." if location else ""
        raise NoColumn(f"{name}: {error}{remedy}") from None
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def local_files(location: Location) -> list[Path]:
    """The files that a location means; none if it is a Hub dataset."""
    local = Path(location.path)
    if local.is_dir():
        return _in_folder(local, location)
    if local.is_file():
        if not is_readable(local):
            raise ValueError(f"{local} ends in {local.suffix!r}. Convert it to one of {', '.join(SUFFIXES)}.")
        return [local]
    if is_readable(local) or meant_here(location.path):
        built = "" if is_readable(local) else " A prompt set is built first: trustmopd data build CONFIG.yaml."
        raise FileNotFoundError(
            f"{location.path} does not exist. Give a file, a folder, or the id of a Hub dataset.{built}"
        )
    return []


def _in_folder(folder: Path, location: Location) -> list[Path]:
    if location.files:
        files = _matching(folder, location.files)
    else:
        if location.subset:
            folder /= location.subset
            if not folder.is_dir():
                subsets = [inner.name for inner in sorted(folder.parent.iterdir()) if inner.is_dir()]
                raise ValueError(
                    f"{location.path} has no subset {location.subset!r}, only {', '.join(subsets) or 'files'}. Write "
                    "the name of a folder in it as `subset`, or null for its own files."
                )
        there = _readable(folder)
        # A prompt set has its card, in JSON, in its folder: .json and .csv files count only if there are no others.
        files = [file for file in there if kind_of(file) in (".parquet", ".jsonl")] or there
        if not files:
            raise ValueError(f"{folder} holds no {', '.join(SUFFIXES)} file. Give the folder or the file of the rows.")
        files = _of_split(files, location, folder)
    kinds = sorted({kind_of(file) for file in files})
    if len(kinds) > 1 or not is_readable(files[0]):
        raise ValueError(
            f"{folder}: files must be of one kind that can be read, not {', '.join(kinds)}. Give one file."
        )
    return files


def _readable(folder: Path) -> list[Path]:
    return sorted(file for file in folder.iterdir() if is_readable(file))


def _matching(folder: Path, pattern: str) -> list[Path]:
    try:
        files = sorted(file for file in folder.glob(pattern) if file.is_file())
    except (ValueError, NotImplementedError) as error:
        raise ValueError(f"files = {pattern!r} is not a pattern inside {folder}: {error}.") from None
    if not files:
        raise ValueError(f"files = {pattern!r}: no file of {folder} matches. Fix the pattern, or write null.")
    return files


def _of_split(files: list[Path], location: Location, folder: Path) -> list[Path]:
    """The files of one split, if names give it: test rows must not be trained on, nor train rows scored."""
    split = location.split
    split_by_file = {file: its for file in files if (its := split_of(file.name))}
    splits = sorted(set(split_by_file.values()))
    unnamed = [file.name for file in files if file not in split_by_file]
    if not split_by_file or split == EVERY_SPLIT or (not unnamed and len(splits) == 1 and not is_known(splits[0])):
        return files  # also part-00000-of-00002: a word, but not a split
    if unnamed:
        raise ValueError(
            f"{folder} has files of split {', '.join(splits)} and {unnamed[0]}, whose name has no split. Move it "
            "elsewhere, or give a file instead of the folder."
        )
    if split is None and len(splits) > 1:
        raise ValueError(f"{folder} has files of splits {', '.join(splits)}. Choose one: {location.split_option}.")
    chosen = files if split is None else [file for file, its in split_by_file.items() if is_of(its, split)]
    if not chosen:
        raise ValueError(
            f"{folder} has no file of split {split!r}, only of {', '.join(splits)}. Choose another split "
            f"({location.split_option}), or give a file instead of the folder."
        )
    return chosen


def split_of(name: str) -> str | None:
    """The split in a file name: train for gsm8k_train_v1.jsonl; on shards, as the Hub has them, any word is a split. A
    name with two words, as train_dev.csv, is of neither: its split is train+dev."""
    words = "+".join(dict.fromkeys(found[0] for found in _WORD.finditer(name.lower())))
    shard = _SHARD.search(name.lower())
    if shard and (is_known(shard[1]) or not words):  # and not train_data-part-00000-of-00002
        return shard[1]
    return words or None


def is_of(name_split: str, split: str) -> bool:
    """Whether a file's split is the one that is asked for: training is train, validation is val, and train_sft train,
    but not the other way round."""
    kinds = {found[1] for found in _WORD.finditer(name_split)}
    asked = _WORD.fullmatch(split.lower())
    return name_split == split.lower() or (asked is not None and kinds == {asked[1]})


def is_known(name_split: str) -> bool:
    return _WORD.search(name_split) is not None


def read_source(location: Location, columns: Sequence[str] | None = None) -> Iterator[tuple[str, Row]]:
    """Every row with its place; none may be bad."""
    if not (files := local_files(location)):
        yield from hub_rows(location, columns)
    for where, row in read_rows(files, columns):
        if isinstance(row, ValueError):
            raise ValueError(f"{where}: {row}. Fix this row, or remove it.")
        yield where, row


def hub_dataset(location: Location) -> "Dataset":
    from datasets import load_dataset

    split = location.split or "train"
    try:
        return load_dataset(
            location.path, location.subset, data_files=location.files, split=split, revision=location.revision
        )
    except Exception as error:  # datasets and huggingface_hub have a class for each way to fail
        raise FileNotFoundError(
            f"{_hub_name(location)} (split {split}) is neither a file or folder here nor readable from the Hub: "
            f"{first_line(error)}. Check the name. Without network, {location.path_option}."
        ) from None


def hub_rows(location: Location, columns: Sequence[str] | None = None) -> Iterator[tuple[str, Row]]:
    dataset: Any = hub_dataset(location)
    where = f"Hub dataset {_hub_name(location)}"
    for number, row in enumerate(dataset.select_columns(top_level(columns, dataset.column_names, where))):
        yield f"{where}, row {number}", row


def _hub_name(location: Location) -> str:
    return location.path if location.subset is None else f"{location.path}, subset {location.subset}"
