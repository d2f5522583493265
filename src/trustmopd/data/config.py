"""One YAML file describes one prompt set: pools, categories and their quotas, comparison corpora."""

import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    ValidationError,
    model_validator,
)
from pydantic_core import ErrorDetails

from trustmopd.layers import (
    Fields,
    RecipeError,
    check_droppable,
    check_kind,
    combine,
    read_layers,
    without_dropped,
)
from trustmopd.recipe import REASONS

Text = Annotated[str, Field(min_length=1)]
Folder = Annotated[Path, Field(strict=False), PlainSerializer(Path.as_posix)]
Column = Annotated[Text | None, Field(description="Give a column, dotted for a field inside one; null: none.")]
Scalar = str | int | float | bool
EVERY_SPLIT = "all"  # what datasets calls them on the Hub
LENGTH_EDGES = [32, 64, 128, 256, 512]  # of buckets of prompt length, in words


class _Section(BaseModel):
    # A field's description is the remedy that its errors give.
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class Columns(_Section):
    """Where a source has what a prompt set needs. Dots reach into structs, `metadata.original_instruction`, and into
    lists of them, `constraints.checker`."""

    prompt: Annotated[Text, Field(description="Give the column of the prompts: text, or messages.")] = "prompt"
    id: Column = None  # null: rows are numbered
    parent: Column = None
    checkers: Column = None  # a list of checker ids
    arguments: Column = None  # a list as long, of mappings or of JSON texts
    block: Column = None


class Source(_Section):
    """A pool: a Hub dataset, a file (JSON, JSON Lines, Parquet, CSV) or a folder of files of one kind."""

    path: Annotated[Text, Field(description="Give a Hub id, a file or a folder.")]
    subset: Annotated[Text | None, Field(description="Give a configuration, or a folder inside the path.")] = None
    split: Annotated[Text | None, Field(description="Give the name of a split.")] = None  # null: train on the Hub
    revision: Annotated[Text | None, Field(description="Give a branch, a tag or a commit on the Hub.")] = None
    files: Annotated[Text | None, Field(description="Give a file, or a pattern, inside the dataset.")] = None
    licence: Annotated[Text | None, Field(description="Give the licence; the card states it.")] = None
    columns: Annotated[Columns, Field(description="Write {prompt: question}.")] = Columns()
    where: Annotated[
        dict[Text, Scalar | list[Scalar | list[Scalar]]],
        Field(description="Write {column: value}, or {column: [value, value]} for any of several."),
    ] = {}
    block_after: Annotated[
        Text | None, Field(description="Give what the constraint block follows at its last occurrence, as '\\n\\n'.")
    ] = None


class Category(_Section):
    """So many prompts of one pool, as they are or followed by a block."""

    pool: Annotated[Text, Field(description="Give the name of one of the pools.")]
    count: Annotated[int, Field(gt=0, description="Give the number of prompts.")]
    capabilities: Annotated[list[Text], Field(min_length=1, description="Write [math] or [math, if].")]
    blocks: Annotated[Text | None, Field(description="Give the pool whose constraint blocks are copied.")] = None
    reuse_blocks: Annotated[bool, Field(description="Write true to copy a block more than once.")] = False
    derivation: Annotated[bool, Field(description="Write true to append the mathematical derivation block.")] = False
    constraints: Annotated[
        dict[int, Annotated[int, Field(ge=0)]] | None,
        Field(description="Write {1: 20, 2: 10}: prompts by number of constraints."),
    ] = None
    like: Annotated[Text | None, Field(description="Give the pool whose proportions are matched.")] = None
    match: Annotated[
        list[Literal["constraints", "length"]], Field(min_length=1, description="Write [constraints, length].")
    ] = ["constraints", "length"]

    @model_validator(mode="after")
    def _one_shape(self) -> "Category":
        if self.blocks and self.derivation:
            raise ValueError("`blocks` and `derivation` are both given, and a prompt gets one block. Drop one.")
        if self.blocks and self.like not in (None, self.blocks):
            raise ValueError(
                f"like = {self.like!r} and blocks = {self.blocks!r}: a composed prompt is matched to the prompt that "
                f"its block is from. Write like: {self.blocks}, or leave it out."
            )
        if self.constraints is not None:
            if self.like and "constraints" in self.match:
                raise ValueError("its `like` fixes the numbers of constraints. Drop `constraints`, or match: [length].")
            if sum(self.constraints.values()) != self.count:
                raise ValueError(
                    f"its `constraints` add up to {sum(self.constraints.values())}, not to count = {self.count}. "
                    "Change one."
                )
        return self


def _none_if_empty(value: Any) -> Any:
    return None if value == {} else value


def _no_slash(name: str) -> str:
    if "/" in name:
        raise ValueError("the ids of its prompts begin with its name and a slash, so it has none itself. Rename it.")
    return name


class Decontamination(_Section):
    ngram: Annotated[int, Field(ge=1, description="The paper uses 5.")] = 5
    threshold: Annotated[float, Field(gt=0, le=1, description="The paper uses 0.8.")] = 0.8
    within: Annotated[bool, Field(description="Write false to leave duplicates inside the pools.")] = True


class DataConfig(_Section):
    """Paths start from the current directory, as in a recipe; only `extends` starts from its own file."""

    name: Annotated[Text, Field(description="Give the prompt set a name.")]
    output: Annotated[Folder, Field(description="Give a folder.")]
    format: Annotated[Literal["parquet", "jsonl"], Field(description="Write parquet or jsonl.")] = "parquet"
    seed: Annotated[int, Field(ge=0, description="Give a whole number.")] = 0
    pools: Annotated[dict[Text, Source], Field(min_length=1, description="Write {math: {path: ...}}.")]
    categories: Annotated[
        dict[Annotated[Text, AfterValidator(_no_slash)], Category],
        Field(min_length=1, description="Write {math: {pool: math, ...}}; {math: null} drops one."),
    ]
    comparison: Annotated[
        dict[Text, Annotated[Source | None, BeforeValidator(_none_if_empty)]],
        Field(description="Write {aime25: {path: ...}}; {aime25: null} leaves a set out."),
    ] = {}
    decontamination: Annotated[Decontamination, Field(description="Write {threshold: 0.8}.")] = Decontamination()
    length_edges: Annotated[
        list[Annotated[int, Field(gt=0)]], Field(description="Give word counts in ascending order.")
    ] = LENGTH_EDGES

    @model_validator(mode="after")
    def _names_agree(self) -> "DataConfig":
        if sorted(set(self.length_edges)) != self.length_edges:
            raise ValueError(f"length_edges = {self.length_edges}: not in ascending order. Sort it.")
        for name, category in self.categories.items():
            for field in ("pool", "blocks", "like"):
                given = getattr(category, field)
                if given is not None and given not in self.pools:
                    raise ValueError(
                        f"categories.{name}.{field} = {given!r}: no pool has this name. Choose from "
                        f"{', '.join(self.pools)}."
                    )
        lending = {category.blocks for category in self.categories.values()}
        for name, pool in self.pools.items():
            if pool.licence is None and (name in self.candidate_pools or name in lending):
                what = "blocks" if name in lending else "prompts"
                raise ValueError(f"pools.{name}.licence is missing, and its {what} go into the set. Give the licence.")
        return self

    @property
    def compared(self) -> dict[str, Source]:
        """The comparison corpora but for those that are null."""
        return {name: source for name, source in self.comparison.items() if source is not None}

    @property
    def left_out(self) -> list[str]:
        return [name for name, source in self.comparison.items() if source is None]

    @property
    def used_pools(self) -> list[str]:
        """The pools that a category names, in the order of the file; no other is read."""
        used = {name for each in self.categories.values() for name in (each.pool, each.blocks, each.like)}
        return [name for name in self.pools if name in used]

    @property
    def candidate_pools(self) -> list[str]:
        """Those that give prompts; the others lend blocks or proportions."""
        used = {category.pool for category in self.categories.values()}
        return [name for name in self.pools if name in used]


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> DataConfig:
    files, changes = read_layers(path, overrides)
    fields = combine(files, changes)
    check_kind(path, fields, "the config of a prompt set")
    try:
        return DataConfig.model_validate(_without_dropped(fields, [*files, *changes], path))
    except ValidationError as error:
        raise RecipeError("\n".join(f"{path}: {_explain(each)}" for each in error.errors(include_url=False))) from None


def _without_dropped(fields: Fields, layers: Sequence[Fields], path: str | Path) -> Fields:
    """A null drops the category, or leaves out the comparison set, that a file gave; `comparison={}` leaves out all of
    them. What is left out stays there as null: the card names it."""
    fields = without_dropped(fields, "categories", layers, path)
    given = fields.get("comparison")
    if not isinstance(given, dict):
        return fields  # missing, or a slip that is told below
    given = {name: _none_if_empty(value) for name, value in given.items()}
    known = check_droppable(given, "comparison", layers, path)
    return fields | {"comparison": dict.fromkeys(known) | given}


_REMEDY = {
    name: field.description
    for section in (Columns, Source, Category, Decontamination, DataConfig)
    for name, field in section.model_fields.items()
}


def _explain(problem: ErrorDetails) -> str:
    """The field and its value, the reason, the remedy, from pydantic's record of one error."""
    kind, value = problem["type"], problem["input"]
    place = [str(part) for part in problem["loc"] if part != "[key]"]
    place = [part for part in place if not part.startswith(("function-", "list["))]
    if kind == "value_error":
        reason = str(problem["ctx"]["error"])
        return f"{'.'.join(place)}: {reason}" if place else reason
    field = ".".join(place)
    remedy = next((_REMEDY[part] for part in reversed(place) if _REMEDY.get(part)), "Write a mapping of fields.")
    if kind == "missing":
        return f"{field} is missing. {remedy}"
    if kind == "extra_forbidden":
        close = difflib.get_close_matches(place[-1], _REMEDY, n=1)
        remedy = f"Did you mean `{close[0]}`?" if close else "Remove it."
    shown = f"{{{', '.join(map(str, value))}}}" if isinstance(value, Mapping) else repr(value)
    reason = REASONS.get(kind) or problem["msg"].replace("Input", "it")
    return f"{field} = {shown:.80}: {reason}. {remedy}"
