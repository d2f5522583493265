"""Pools: the records of a source as rows of one shape, checked. What is wrong is named with file and line."""

import hashlib
import json
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, NamedTuple

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from tqdm.auto import tqdm

from trustmopd.prompts.build_config import PoolSource
from trustmopd.prompts.ngrams import words_of
from trustmopd.prompts.reading.formats import no_column
from trustmopd.prompts.reading.messages import Messages, malformed, plain, user_text
from trustmopd.prompts.reading.sources import Location, local_files, named, read_source
from trustmopd.util.files import file_sha256


class Constraint(NamedTuple):
    checker: str
    arguments: str  # JSON, without nulls: those come from tables that give every checker every argument


@dataclass(frozen=True)
class PoolRow:
    source: str
    source_id: str
    messages: Messages
    parent: str | None = None
    constraints: tuple[Constraint, ...] = ()
    block: str | None = None

    @cached_property
    def words(self) -> int:
        return len(words_of(self.text))

    @property
    def text(self) -> str:
        """What is screened and measured."""
        return user_text(self.messages)


@dataclass(frozen=True)
class Pool:
    rows: list[PoolRow]
    read: int  # before `where`
    sha256: str  # of the rows in order
    files: dict[str, str]  # local files and their sha256

    @property
    def donors(self) -> list[PoolRow]:
        """The rows that have a block to copy."""
        return [row for row in self.rows if row.block]


def _encodable(text: str) -> str:
    text.encode()  # JSON can hold half a character, a lone surrogate
    return text


def _unpacked(value: Any) -> Any:
    """Of text, the JSON that it holds, if it does: CSV has no other lists and mappings."""
    if isinstance(value, str):
        with suppress(json.JSONDecodeError, RecursionError):
            return json.loads(value)
    return value


def _list(value: Any) -> Any:
    value = _unpacked(value)
    return [] if value is None else value


def _conversation(prompt: Any) -> Any:
    if reason := malformed(prompt):
        raise ValueError(f"{reason}. Give text, or a list such as [{{'role': 'user', 'content': '…'}}]")
    if isinstance(prompt, str):
        return [{"role": "user", "content": prompt}]
    if not any(message["role"] == "user" for message in prompt):
        raise ValueError("it has no user message, so there is no prompt")
    if any(message.get("tool_calls") for message in prompt):
        raise ValueError("it calls tools, and sets are made of texts alone")
    return [{"role": message["role"], "content": message["content"]} for message in plain(prompt)]


_Text = Annotated[str, AfterValidator(_encodable)]


class _Fields(BaseModel):
    """What a row has in the columns that its source names."""

    model_config = ConfigDict(strict=True)

    prompt: Annotated[list[dict[str, _Text]], BeforeValidator(_conversation)]
    id: Annotated[_Text, Field(min_length=1)] | int = ""
    parent: _Text | None = None
    checkers: Annotated[list[Annotated[_Text, Field(pattern=r"\S")]], BeforeValidator(_list)] = []
    arguments: Annotated[
        list[Annotated[dict[str, Any] | None, BeforeValidator(_unpacked)]], BeforeValidator(_list)
    ] = []
    block: _Text | None = None


def read_pool(name: str, source: PoolSource, location: Location | None = None, *, answered: bool = True) -> Pool:
    """Every row of a source, checked. `name` is what errors call it, such as pools.math; `location` is for a source
    that no config names. `answered` allows conversations that end with the assistant: they can be compared with, but a
    student has nothing to answer in them."""
    location = location or source.location(name)
    with named(name, location):
        return _read_pool(name, source, location, answered)


def _read_pool(name: str, source: PoolSource, location: Location, answered: bool) -> Pool:
    columns = source.columns
    files = local_files(location)
    rows: list[PoolRow] = []
    seen: dict[str, str] = {}
    digest = hashlib.sha256()
    number = -1
    records = read_source(location, [*columns.model_dump(exclude_none=True).values(), *source.where])
    for number, (where, record) in enumerate(tqdm(records, desc=f"reading {name}", disable=None)):
        if not all(_is_one_of(_at(record, column, where), value) for column, value in source.where.items()):
            continue
        row = _row(record, source, number, where)
        if row.source_id in seen:
            raise ValueError(
                f"{where}: the id {row.source_id!r} is also that of {seen[row.source_id]}. Make ids differ, or set "
                "columns.id to null to number the rows."
            )
        seen[row.source_id] = where
        if not answered and row.messages[-1]["role"] == "assistant":
            raise ValueError(
                f"{where}, column {columns.prompt!r} ends with a turn of the assistant, so there is nothing to answer. "
                f"Choose another column ({location.column_option}), or remove the last turn."
            )
        rows.append(row)
        digest.update(json.dumps([row.source_id, row.messages, row.constraints], ensure_ascii=False).encode() + b"\n")
    if not rows:
        found = f"none of its {number + 1} rows has {source.where}" if number >= 0 else "it is empty"
        raise ValueError(f"{source.path} gives no prompt: {found}. Check path, split and `where`.")
    hashes = {str(file): file_sha256(file) for file in files}
    return Pool(rows, number + 1, digest.hexdigest(), hashes)


def _row(record: dict[str, Any], source: PoolSource, number: int, where: str) -> PoolRow:
    columns = source.columns
    values = {field: _at(record, column, where) for field, column in columns if column is not None}
    try:
        fields = _Fields.model_validate(values)
    except ValidationError as error:
        problem = error.errors()[0]
        column, value = getattr(columns, str(problem["loc"][0])), problem["input"]
        raise ValueError(
            f"{where}, column {column!r} holds {str(value)[:80]!r} ({type(value).__name__}): {problem['msg']}. Fix "
            "this row, or remove it."
        ) from None
    block = fields.block
    if block is None and source.block_after:
        contents = [message["content"] for message in fields.prompt if message["role"] == "user"]
        _, found, after = contents[-1].rpartition(source.block_after)
        block = after if found else None
    arguments = fields.arguments if columns.arguments else [None] * len(fields.checkers)
    if len(arguments) != len(fields.checkers):
        raise ValueError(
            f"{where}: {len(fields.checkers)} checkers in {columns.checkers!r} and {len(arguments)} in "
            f"{columns.arguments!r}. Each checker needs its arguments, {{}} for none."
        )
    constraints = tuple(map(_constraint, fields.checkers, arguments))
    source_id = str(number if columns.id is None else fields.id)
    return PoolRow(source.path, source_id, fields.prompt, fields.parent, constraints, block or None)


def _constraint(checker: str, arguments: dict[str, Any] | None) -> Constraint:
    given = {name: argument for name, argument in (arguments or {}).items() if argument is not None}
    return Constraint(checker, json.dumps(given, ensure_ascii=False, sort_keys=True))


def _at(record: dict[str, Any], column: str, where: str) -> Any:
    """The value of a column, or of a field inside one; of a list of structs, the list of that field."""
    if column in record:
        return record[column]
    value: Any = record
    for part in column.split("."):
        if isinstance(value, list) and all(isinstance(each, dict) and part in each for each in value):
            value = [each[part] for each in value]
        elif isinstance(value, dict) and part in value:
            value = value[part]
        elif value is None and part != column.split(".")[0]:
            return None  # a struct that is null has null fields
        else:
            raise no_column(where, column, list(value) if isinstance(value, dict) else [repr(value)[:80]])
    return value


def _is_one_of(value: Any, wanted: Any) -> bool:
    """In CSV, 5 is written "5"."""
    values = wanted if isinstance(wanted, list) else [wanted]
    return value in values or value in [str(each) for each in values]
