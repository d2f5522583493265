"""YAML files that extend one another, and overrides such as "training.max_steps=10": their fields, unchecked."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

import yaml

Fields = dict[str, Any]
#: What a YAML file can be: the fields that it alone has, and the verb that takes it.
KINDS = {
    "a recipe": ({"student", "teachers", "prompts"}, "trustmopd train"),
    "the config of a prompt set": ({"pools", "categories", "comparison"}, "trustmopd data build"),
}
#: Where a teacher lives, whichever checkpoint it is.
_PLACE = ("on", "gpus", "replicas")
_DROPPABLE = ("teachers", "categories", "comparison")
_DATA = (".jsonl", ".csv", ".tsv", ".parquet", ".arrow", ".gz")


class RecipeError(ValueError):
    """A recipe that cannot be used: the file, the field, its value, why, and what to write instead."""


@dataclass(frozen=True)
class Layers:
    """The fields of each file, the one that extends no other first, then each override; and all of them together."""

    path: str | Path
    each: Sequence[Fields]
    fields: Fields


def read_layers(path: str | Path, overrides: Sequence[str], kind: str) -> Layers:
    """Overrides are merged one after another: `training={}` empties what is there, and `training.a=1` then fills it.
    What is replaced as a whole is decided by all of them together: `allocation.teacher=code allocation.rule=single`."""
    files, changes = _read(Path(path)), [_parse_override(override) for override in overrides]
    fields = reduce(lambda base, child: _merge(_start_afresh(base, child), child), files)
    fields = reduce(_merge, changes, _start_afresh(fields, reduce(_merge, changes, {})))
    for other, (own, verb) in KINDS.items():  # field by field, everything in it would be unknown
        if (found := sorted(own & fields.keys())) and not KINDS[kind][0] & fields.keys():
            raise RecipeError(f"{path} is {other} (it has {', '.join(found)}), not {kind}. Use `{verb} {path}`.")
    return Layers(path, [*files, *changes], fields)


def without_dropped(layers: Layers, section: str) -> Fields:
    """The fields without the members of a section that are null: null drops what another layer gave."""
    given = layers.fields.get(section)
    if not isinstance(given, dict):
        return layers.fields  # missing, or a slip, reported when the section is checked
    check_droppable(layers, section, given)
    kept = {name: value for name, value in given.items() if value is not None}
    if given and not kept:
        raise RecipeError(f"{layers.path}: {section}: all of them are null. Keep at least one.")
    return layers.fields | {section: kept}


def check_droppable(layers: Layers, section: str, given: Fields) -> list[str]:
    """The names that the layers gave a value. A null under any other name drops nothing, so it is a slip."""
    there = [layer[section] for layer in layers.each if isinstance(layer.get(section), dict)]
    known = list(dict.fromkeys(name for each in there for name, value in each.items() if value))
    for name, value in given.items():
        if value is None and name not in known:
            raise RecipeError(
                f"{layers.path}: {section}.{name} = null: there is no {name!r} to leave out. Choose from "
                f"{', '.join(map(str, known)) or 'none'}."
            )
    return known


class _Loader(yaml.SafeLoader):
    """Refuses a key given twice, of which the standard loader silently keeps the last, and `{a:b}`, which is a key
    `a:b`. The key `on` is a name, which YAML 1.1 takes for `true`."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        keys = [key for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        for key, value in node.value if node.flow_style else ():
            if key in keys and key.style is None and ":" in key.value and value.value == "":
                raise yaml.MarkedYAMLError(
                    problem=f"no space follows the colon of {key.value!r}", problem_mark=key.start_mark
                )
        for i, key in enumerate(keys):
            if key.value == "on":
                key.tag = "tag:yaml.org,2002:str"
            if key.value in [earlier.value for earlier in keys[:i]]:
                raise yaml.MarkedYAMLError(problem=f"the key {key.value!r} appears twice", problem_mark=key.start_mark)
        return node


class Dumper(yaml.SafeDumper):
    """Quotes text that `_Loader` would take for a float."""


# YAML 1.1 reads 1e-6 as text. An exponent of more than three digits stays text: it may be a short commit hash.
_FLOAT = re.compile(r"[-+]?([0-9]+(\.[0-9]*)?|\.[0-9]+)[eE][-+]?[0-9]{1,3}$")
for _either in (_Loader, Dumper):
    _either.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+.0123456789"))


def parse(text: str, source: str) -> Any:
    """What is no YAML is named with its place."""
    try:
        return yaml.load(text, Loader=_Loader)
    except (yaml.YAMLError, ValueError) as error:  # ValueError: 2026-02-30 looks like a date
        mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None) or error
        where = f"{source}, line {mark.line + 1}, column {mark.column + 1}" if mark else source
        raise RecipeError(f"{where}: not valid YAML: {problem}. Check indentation, colons and quotes there.") from None


def _read(path: Path, children: tuple[Path, ...] = ()) -> list[Fields]:
    """The fields of a file, after those of the files that it extends."""
    chain = " extends ".join(map(str, (*children, path)))
    if path.resolve() in [child.resolve() for child in children]:
        raise RecipeError(f"{chain}: these files extend one another in a circle. Remove one `extends`.")
    if path.suffix in _DATA:
        raise RecipeError(
            f"{chain}: {path} is a data file. Give a YAML file that names it: a recipe as prompts: {{path: {path}}}, "
            f"the config of a prompt set as a pool's path. `trustmopd data show {path}` shows what is in it."
        )
    try:
        fields = parse(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        reasons: dict[type, str] = {FileNotFoundError: "does not exist", IsADirectoryError: "is a folder"}
        reason = reasons.get(type(error), f"cannot be read ({error})")
        if not children:
            raise RecipeError(f"{path} {reason}. Give a YAML file.") from None
        raise RecipeError(
            f"{chain}: {path} {reason}. The path in `extends` is relative to the file that it is in."
        ) from None
    if not isinstance(fields, dict):
        found = "is empty" if fields is None else f"holds {fields!r:.80}"
        where = f"{chain}: {path}" if children else path
        raise RecipeError(f"{where} {found}, not fields. Start with `name:`, or `extends:` another recipe.")
    base = fields.pop("extends", None)
    if base is None:
        return [fields]
    if not isinstance(base, str):
        raise RecipeError(f"{path}: extends = {base!r:.80}: it should be text. Give one path, relative to this file.")
    return [*_read(path.parent / base, (*children, path)), fields]


def _parse_override(override: str) -> Fields:
    dotted, equals, text = override.partition("=")
    keys = dotted.strip().split(".")
    if not equals or not all(keys) or keys[0] == "extends":
        raise RecipeError(f"override {override!r}: not a field and its value. Write it as training.max_steps=10.")
    if not text.strip() and len(keys) == 2 and keys[0] in _DROPPABLE:  # teachers.math=$MATH, and MATH is not set
        raise RecipeError(f"override {override!r}: no value follows the =. Write null there to drop {keys[1]}.")
    value = parse(text, f"override {override!r}")
    return reduce(lambda inner, key: {key: inner}, reversed(keys), value)


def _start_afresh(base: Mapping[str, Any], child: Mapping[str, Any]) -> Fields:
    """What the child is merged with. Another rule inherits nothing: `single` has no gamma. A teacher's other
    checkpoint inherits its place alone: a revision, or a reference, belongs to one checkpoint."""
    kept = dict(base)
    old, new = base.get("allocation"), child.get("allocation")
    if isinstance(old, Mapping) and isinstance(new, Mapping) and new.get("rule", old.get("rule")) != old.get("rule"):
        del kept["allocation"]
    old, new = base.get("teachers"), child.get("teachers")
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        kept["teachers"] = {name: {"model": was} if isinstance(was, str) else was for name, was in old.items()}
        for name, source in new.items():
            if isinstance(source, Mapping) and {"model", "adapter"} & {*source}:
                was = kept["teachers"].get(name)
                kept["teachers"][name] = {k: was[k] for k in _PLACE if k in was} if isinstance(was, Mapping) else {}
    return kept


def _merge(base: Mapping[str, Any], child: Mapping[str, Any]) -> Fields:
    """Deep, and the child wins. An empty mapping replaces a full one: {} means nothing is wanted there."""
    merged = dict(base)
    for key, value in child.items():
        both = isinstance(merged.get(key), Mapping) and isinstance(value, Mapping)
        merged[key] = _merge(merged[key], value) if both and value else value
    return merged
