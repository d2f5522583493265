"""One YAML file describes one prompt set: pools, categories and their quotas, comparison corpora."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from trustmopd.prompts.reading.sources import Location
from trustmopd.recipe.sections import Folder, Section, Text, check_fields
from trustmopd.recipe.yaml_layers import Fields, Layers, check_droppable, read_layers, without_dropped

Column = Annotated[Text | None, Field(description="Give a column, dotted for a field inside one; null: none.")]
Scalar = str | int | float | bool
LENGTH_EDGES = [32, 64, 128, 256, 512]  # of buckets of prompt length, in words


class Columns(Section):
    """Where a source has what a prompt set needs. Dots reach into structs, `metadata.original_instruction`, and into
    lists of them, `constraints.checker`."""

    prompt: Annotated[Text, Field(description="Give the column of the prompts: text, or messages.")] = "prompt"
    id: Column = None  # null: rows are numbered
    parent: Column = None
    checkers: Column = None  # a list of checker ids
    arguments: Column = None  # a list as long, of mappings or of JSON texts
    block: Column = None


class PoolSource(Section):
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
        Text | None, Field(description="Give the text whose last occurrence the constraint block follows, as '\\n\\n'.")
    ] = None

    def location(self, name: str) -> Location:
        """`name`: what the config calls it, such as pools.math."""
        leave_out = f", or leave it out: {name}=null" if name.startswith("comparison.") else ""
        options = (
            f"give a copy: {name}.path=FILE{leave_out}",
            f"{name}.split",
            f"{name}.columns or {name}.where",
        )
        return Location(self.path, self.split, self.subset, self.files, self.revision, *options)


class Category(Section):
    """`count` prompts of one pool, as they are or followed by a block."""

    pool: Annotated[Text, Field(description="Give the name of one of the pools.")]
    count: Annotated[int, Field(gt=0, description="Give the number of prompts.")]
    capabilities: Annotated[list[Text], Field(min_length=1, description="Write [math] or [math, if].")]
    blocks: Annotated[Text | None, Field(description="Give the pool whose constraint blocks are copied.")] = None
    derivation: Annotated[bool, Field(description="Write true to append the mathematical derivation block.")] = False
    like: Annotated[Text | None, Field(description="Give the pool whose proportions are matched.")] = None

    @model_validator(mode="after")
    def _one_shape(self) -> "Category":
        if self.blocks and self.derivation:
            raise ValueError("`blocks` and `derivation` are both given, and a prompt gets one block. Drop one.")
        if self.blocks and self.like not in (None, self.blocks):
            raise ValueError(
                f"like = {self.like!r} and blocks = {self.blocks!r}: a composed prompt is matched to the prompt that "
                f"its block is from. Write like: {self.blocks}, or leave it out."
            )
        return self


def _none_if_empty(value: Any) -> Any:
    return None if value == {} else value


def _no_slash(name: str) -> str:
    if "/" in name:
        raise ValueError(
            "the ids of its prompts begin with its name and a slash, so the name cannot contain one. Rename it."
        )
    return name


class Decontamination(Section):
    ngram: Annotated[int, Field(ge=1, description="The paper uses 5.")] = 5
    threshold: Annotated[float, Field(gt=0, le=1, description="The paper uses 0.8.")] = 0.8
    within: Annotated[bool, Field(description="Write false to leave duplicates inside the pools.")] = True


class DataConfig(Section):
    """Paths start from the current directory, as in a recipe; only `extends` starts from its own file."""

    name: Annotated[Text, Field(description="Give the prompt set a name.")]
    output: Annotated[Folder, Field(description="Give a folder.")]
    format: Annotated[Literal["parquet", "jsonl"], Field(description="Write parquet or jsonl.")] = "parquet"
    seed: Annotated[int, Field(ge=0, description="Give a whole number.")] = 0
    pools: Annotated[dict[Text, PoolSource], Field(min_length=1, description="Write {math: {path: ...}}.")]
    categories: Annotated[
        dict[Annotated[Text, AfterValidator(_no_slash)], Category],
        Field(min_length=1, description="Write {math: {pool: math, ...}}; {math: null} drops one."),
    ]
    comparison: Annotated[
        dict[Text, Annotated[PoolSource | None, BeforeValidator(_none_if_empty)]],
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
    def compared(self) -> dict[str, PoolSource]:
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
    layers = read_layers(path, overrides, "the config of a prompt set")
    fields = without_dropped(layers, "categories") | _compared(layers)
    return check_fields(DataConfig, fields, path)


def _compared(layers: Layers) -> Fields:
    """A null leaves out a comparison set that a file gave, and `comparison={}` all of them. They stay in the config as
    null: the card names what was left out."""
    given = layers.fields.get("comparison")
    if not isinstance(given, dict):
        return {}  # missing, or a slip, reported when the section is checked
    given = {name: _none_if_empty(value) for name, value in given.items()}
    return {"comparison": dict.fromkeys(check_droppable(layers, "comparison", given)) | given}
