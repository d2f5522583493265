"""The base of everything that is read from YAML: strict sections, and errors that name field, value, reason, remedy."""

import difflib
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar, get_args, get_origin

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PlainSerializer, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from trustmopd.recipe.yaml_layers import Fields, RecipeError
from trustmopd.util.messages import choose_from


def _from_home(place: Any) -> Any:
    """A shell expands ~ only at the start of a word, not after `output=`; and a file has no shell."""
    return type(place)(os.path.expanduser(place))


def _no_variable(folder: Path) -> Path:
    if "$" in str(folder):
        raise ValueError(
            "variables are not expanded here, and a folder of this name would be made. Write the whole path."
        )
    return folder


Text = Annotated[str, Field(min_length=1)]
Place = Annotated[Text, AfterValidator(_from_home)]
Folder = Annotated[
    Path, Field(strict=False), AfterValidator(_from_home), AfterValidator(_no_variable), PlainSerializer(Path.as_posix)
]
_QUOTED = re.compile(r"'([^']*)'")
_REASONS = {
    "extra_forbidden": "there is no such field",
    **dict.fromkeys(("dict_type", "model_type", "model_attributes_type"), "it should be a mapping of fields"),
    **dict.fromkeys(("too_short", "string_too_short"), "it is empty"),
    "path_type": "it should be a path",
    "string_type": "it should be text. YAML reads a bare number, date, yes or no as something else: use quotes",
}


class Section(BaseModel):
    """Strict: `gamma: true` is a mistake, not the number 1. A field's description is the remedy in its errors."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)
    #: Fields that a user may look for here, and where they are.
    elsewhere: ClassVar[Mapping[str, str]] = {}
    #: More about an unknown field.
    hint: ClassVar[str] = ""


Model = TypeVar("Model", bound=Section)


def check_fields(model: type[Model], fields: Fields, path: str | Path) -> Model:
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        problems = error.errors(include_url=False)
        raise RecipeError("\n".join(f"{path}: {_explain(model, each)}" for each in problems)) from None


def _explain(model: type[Section], problem: ErrorDetails) -> str:
    kind, value = problem["type"], problem["input"]
    place, section, info = _locate(model, problem["loc"])
    field = ".".join(place)
    remedy = info.description if info and info.description else "Write a mapping of fields."
    if info and not info.description and isinstance(info.default, int | float):
        remedy = f"The default is {info.default}."
    if kind == "value_error":
        reason = str(problem["ctx"]["error"])
        return (
            f"{field} = {value!r:.80}: {reason}" if field else reason
        )  # checks of the whole name the fields themselves
    if kind == "missing":
        return f"{field} is missing. {remedy}"
    if kind.startswith("union_tag") and info:
        (key,) = _QUOTED.findall(problem["ctx"]["discriminator"])
        if key not in value:
            return f"{field}.{key} is missing. {remedy}"
        known = _QUOTED.findall(problem["ctx"]["expected_tags"])
        return f"{field}.{key} = {value[key]!r} is unknown. {choose_from(known, value[key])}."
    if kind == "literal_error":
        return f"{field} = {value!r:.80} is unknown. {choose_from(_QUOTED.findall(problem['ctx']['expected']), value)}."
    if kind == "extra_forbidden":
        known_fields = [*section.model_fields, *(["extends"] if section is model else [])]
        owner = section.elsewhere.get(place[-1])
        close = [owner] if owner else difflib.get_close_matches(place[-1], known_fields, n=1)
        remedy = f"The fields here are {', '.join(known_fields)}.{section.hint.format(field=field)}"
        remedy = f"Did you mean `{close[0]}`?" if close else remedy
    reason = _REASONS.get(kind) or problem["msg"].replace("Input", "it")
    if not field:
        return f"{value!r:.80}: {reason}. The fields are {', '.join(model.model_fields)}."
    return f"{field} = {value!r:.80}: {reason}. {remedy}"


def _locate(model: type[Section], loc: Sequence[int | str]) -> tuple[list[str], type[Section], FieldInfo | None]:
    """The place of an error without what pydantic adds (tags of unions, names of validators), the section that it is
    in, and the innermost field on the way."""
    place: list[str] = []
    section, inner, info, keyed = model, [model], None, False
    for part in map(str, loc):
        if part == "[key]" or part.startswith(("function-", "list[")):
            continue
        if keyed:  # the name of a teacher, a pool, a category
            keyed, section = False, inner[0] if inner else section
        elif len(inner) > 1 and (named := [each for each in inner if _tag(each) == part]):
            section, inner = named[0], named
            continue
        else:
            section = inner[0] if inner else section
            found = section.model_fields.get(part)
            if found is not None and inner:
                info, inner, keyed = found, _sections_in(found.annotation), get_origin(found.annotation) is dict
        place.append(part)
    return place, section, info


def _tag(section: type[Section]) -> Any:
    """What names this kind where a field has one of several."""
    return next(iter(section.model_fields.values())).default


def _sections_in(annotation: Any) -> list[type[Section]]:
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return [annotation]
    return [found for each in get_args(annotation) for found in _sections_in(each)]
