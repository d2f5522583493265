"""One YAML file describes one experiment. Read and checked without torch: a slip costs a second, not a GPU hour."""

import difflib
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PlainSerializer, ValidationError, model_validator
from pydantic_core import ErrorDetails

from trustmopd.layers import Dumper, RecipeError, check_kind, combine, read_layers, without_dropped
from trustmopd.rules import RULES, SCORES, UNSCORED
from trustmopd.runs.layout import AVERAGE


def _teacher_name(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_-]+", name) or name == "reference":
        raise ValueError(
            "it names metrics (weight/<name>), and 'reference' is taken. Use letters, digits, '_' and '-'."
        )
    return name


def _distinct(values: list[Any]) -> list[Any]:
    if len(set(values)) < len(values):
        raise ValueError("one appears twice, and would do the same work again. Name each one once.")
    return values


def _benchmark(name: str) -> str:
    from trustmopd.evaluation import benchmark_names  # light, and the only list of them
    from trustmopd.evaluation.rows import SUFFIXES

    if name not in benchmark_names() and not name.endswith(SUFFIXES):
        raise ValueError(
            f"there is no such benchmark. Choose from {', '.join(benchmark_names())}, or give a file, whose name must "
            f"end in {', '.join(SUFFIXES)}."
        )
    return name


def _score(name: str) -> str:
    if name not in SCORES:
        raise ValueError(f"there is no such score. Choose from {', '.join(SCORES)}; the paper's own is displacement.")
    return name


def _from_home(place: Any) -> Any:
    """A shell expands ~ at the start of a word alone, not after `output=`, and a file has no shell."""
    return type(place)(os.path.expanduser(place))


TeacherName = Annotated[str, AfterValidator(_teacher_name)]
Text = Annotated[str, Field(min_length=1)]
Place = Annotated[Text, AfterValidator(_from_home)]


def _no_variable(place: Path) -> Path:
    if "$" in str(place):
        raise ValueError(
            "a variable is not filled in here, and a folder of this very name would be made. Write it out."
        )
    return place


Location = Annotated[
    Path, Field(strict=False), AfterValidator(_from_home), AfterValidator(_no_variable), PlainSerializer(Path.as_posix)
]
Benchmark = Annotated[str, AfterValidator(_benchmark)]
Score = Annotated[str, AfterValidator(_score)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]


class _Section(BaseModel):
    # Strict: `gamma: true` is a slip and not the number 1. A field's description is the remedy that its errors give.
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class TeacherSource(_Section):
    """Where one specialist's weights are: a checkpoint, a LoRA adapter, or an adapter on a checkpoint of its own; and
    what it was grown from, if that is not the common reference."""

    model: Annotated[Place | None, Field(description="Give a Hub id or a path.")] = None
    adapter: Annotated[Place | None, Field(description="Give the Hub id or the path of a LoRA adapter.")] = None
    reference: Annotated[
        "TeacherSource | None", Field(description="Give what this teacher was grown from, or student.")
    ] = None
    revision: Annotated[Text | None, Field(description="Give a branch, a tag or a commit.")] = None
    dtype: Annotated[Text | None, Field(description="Give the name of a torch dtype, such as bfloat16.")] = None

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        return {"model": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _can_be_loaded(self) -> "TeacherSource":
        if self.model is None and self.adapter is None:
            raise ValueError("there is nothing to load. Give `model` (a Hub id or a path), `adapter`, or both.")
        if self.reference is not None and (self.reference.model is None or self.reference.reference is not None):
            raise ValueError("its reference is not a model by itself. Give the Hub id or the path of one, or student.")
        return self


class Prompts(_Section):
    path: Annotated[Place, Field(description="Give a Hub id, a folder or a file.")]
    domain_column: Annotated[Text | None, Field(description="Give the column of each prompt's domain.")] = "domain"
    split: Annotated[Text, Field(description="Give the name of a split.")] = "train"


class Trust(_Section):
    """Weights from the teachers' scores: the paper's method, and its ablations."""

    rule: Literal["trust"] = "trust"
    gamma: Annotated[float, Field(gt=0, description="The paper uses 7; for equal weights write rule: uniform.")] = 7.0
    score: Annotated[Score, Field(description="The paper's own is displacement.")] = "displacement"
    granularity: Annotated[Literal["token", "response"], Field(description="The paper's own is token.")] = "token"
    calibrated: Annotated[bool, Field(description="Write true, or false for raw scores.")] = True


class Single(_Section):
    rule: Literal["single"] = "single"
    teacher: Annotated[Text, Field(description="Give the name of one of the teachers.")]


class Unscored(_Section):
    """A rule with nothing more to set."""

    rule: Literal[tuple(name for name in UNSCORED if name != "single")]  # type: ignore[valid-type]


#: `training` takes any field of TrustMOPDConfig but these, which a recipe says elsewhere.
OWNED_ELSEWHERE = {
    **{field: f"allocation.{field}" for field in ("gamma", "score", "granularity", "calibrated")},
    "allocation": "allocation.rule",
    "single_teacher": "allocation.teacher",
    "domain_column": "prompts.domain_column",
    **dict.fromkeys(("calibration_path", "calibration"), "calibration"),
    "seed": "seeds",
    **dict.fromkeys(("output_dir", "run_dir"), "output"),
}
SECTIONS: dict[str, type[_Section]] = {**dict.fromkeys(RULES, Unscored), "trust": Trust, "single": Single}
Allocation = Annotated[Trust | Single | Unscored, Field(discriminator="rule", description="Write {rule: trust}.")]


class Evaluation(_Section):
    benchmarks: Annotated[list[Benchmark], AfterValidator(_distinct), Field(description="Give a list of these.")] = []
    samples: Annotated[int | None, Field(gt=0, description="Responses per problem; null: each benchmark's own.")] = None
    temperature: Annotated[float, Field(ge=0, description="The paper samples at 0.6; 0 is greedy.")] = 0.6
    top_p: Annotated[float, Field(gt=0, le=1, description="The share of the likeliest tokens; 1 is all.")] = 1.0
    max_new_tokens: Annotated[int, Field(gt=0, description="Give the longest response, in tokens.")] = 30000
    data: Annotated[dict[str, Place], Field(description="Give local files by benchmark, {aime25: path}.")] = {}


class Recipe(_Section):
    """One experiment. Its paths start from the current directory, as Hub tools do."""

    name: Annotated[Text, Field(description="Give the experiment a name.")]
    student: Annotated[Place, Field(description="Give the Hub id or the path of the model to train.")]
    reference: Annotated[Place | None, Field(description="Give a Hub id or a path; null is the initial student.")] = (
        None
    )
    teachers: Annotated[dict[TeacherName, TeacherSource], Field(min_length=1, description="Write {math: path-or-id}.")]
    prompts: Annotated[Prompts, Field(description="Write prompts: {path: ...}.")]
    allocation: Allocation = Trust()
    training: Annotated[dict[str, Any], Field(description="Give fields of TrustMOPDConfig: {max_steps: 116}.")] = {}
    peft: Annotated[dict[str, Any] | None, Field(description="Give peft.LoraConfig's arguments, or null.")] = None
    calibration: Annotated[Location | None, Field(description="Give the path of a calibration.json, or null.")] = None
    evaluation: Annotated[Evaluation, Field(description="Write evaluation: {benchmarks: [...]}.")] = Evaluation()
    seeds: Annotated[list[Seed], AfterValidator(_distinct), Field(min_length=1, description="Write [0, 1, 2].")] = [0]
    output: Annotated[Location, Field(description="Give a folder, or leave it out: runs/<name>.")] = Path("runs")

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, data: Any) -> Any:
        """The output folder follows the name, and `allocation.gamma=5` alone speaks of the trust rule."""
        if not isinstance(data, Mapping):
            return data
        given = data.get("allocation")
        defaults = {"output": f"runs/{data['name']}"} if isinstance(data.get("name"), str) else {}
        filled = {"allocation": {"rule": "trust", **given}} if isinstance(given, Mapping) else {}
        return {**defaults, **data, **filled}

    @model_validator(mode="after")
    def _sections_agree(self) -> "Recipe":
        for field, value in self.training.items():
            if owner := OWNED_ELSEWHERE.get(field):
                raise ValueError(
                    f"training.{field} = {value!r:.80}: the recipe's field for this is `{owner}`, outside of "
                    "`training`. Move it there."
                )
        if isinstance(self.allocation, Single) and self.allocation.teacher not in self.teachers:
            given, names = self.allocation.teacher, ", ".join(self.teachers)
            raise ValueError(f"allocation.teacher = {given!r}: no teacher has this name. Choose from {names}.")
        if self.allocation.rule == "routed" and self.prompts.domain_column is None:
            raise ValueError("prompts.domain_column = None: routing goes by it. Give the column of teachers' names.")
        return self

    def config_fields(self) -> dict[str, Any]:
        """The fields of TrustMOPDConfig that this recipe sets, but for the seed and the folder, which differ by run."""
        fields = {"allocation": self.allocation.rule, "domain_column": self.prompts.domain_column}
        if isinstance(self.allocation, Single):
            fields["single_teacher"] = self.allocation.teacher
        elif isinstance(self.allocation, Trust):
            fields |= self.allocation.model_dump(exclude={"rule"})
            if self.allocation.calibrated and self.calibration is not None:
                fields["calibration_path"] = str(self.calibration)
        return fields | self.training

    def run_directory(self, seed: int) -> Path:
        if seed not in self.seeds:
            raise RecipeError(f"recipe {self.name}: seed {seed} is not one of seeds = {self.seeds}. Add it there.")
        return self.output if len(self.seeds) == 1 else self.output / f"seed-{seed}"

    @property
    def average(self) -> Path:
        """Where the parameter average of the teachers goes."""
        return self.output / AVERAGE

    def to_yaml(self) -> str:
        """Every field, inherited and default ones too. `load_recipe` reads it back as an equal recipe."""
        return yaml.dump(self.model_dump(), Dumper=Dumper, sort_keys=False, allow_unicode=True, width=120)


def load_recipe(path: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    files, changes = read_layers(path, overrides)
    fields = combine(files, changes)
    check_kind(path, fields, "a recipe")
    kept = without_dropped(fields, "teachers", [*files, *changes], path)
    given, rule = fields.get("teachers"), fields.get("allocation")
    dropped = [name for name, source in given.items() if source is None] if isinstance(given, dict) else []
    if isinstance(rule, dict) and (name := rule.get("teacher")) in dropped:
        raise RecipeError(
            f"{path}: allocation.teacher = {name!r}, and teachers.{name} = null drops this teacher. Name another one, "
            "or keep it."
        )
    try:
        return Recipe.model_validate(kept)
    except ValidationError as error:
        raise RecipeError("\n".join(f"{path}: {_explain(each)}" for each in error.errors(include_url=False))) from None


_INNER: dict[str, type[_Section]] = {"teachers": TeacherSource, "prompts": Prompts, "evaluation": Evaluation}
REASONS = {
    "extra_forbidden": "there is no such field",
    **dict.fromkeys(("dict_type", "model_type", "model_attributes_type"), "it should be a mapping of fields"),
    **dict.fromkeys(("too_short", "string_too_short"), "it is empty"),
    "path_type": "it should be a path",
    "string_type": "it should be text, and YAML takes a bare number, date, yes or no for more than that: use quotes",
}


def _explain(problem: ErrorDetails) -> str:
    """A field and its value, the reason, the remedy, from pydantic's record of one error."""
    kind, value, place = problem["type"], problem["input"], [str(part) for part in problem["loc"] if part != "[key]"]
    if not place:  # _sections_agree names the fields itself
        return str(problem["ctx"]["error"])
    section: type[_Section] = Recipe
    if len(place) > 1 and place[0] == "allocation":
        section = SECTIONS[place.pop(1)]  # pydantic puts the rule before the field
    elif len(place) > 1:
        section = _INNER.get(place[0], Recipe)
    field = ".".join(place)
    info = section.model_fields.get(place[-1]) or Recipe.model_fields.get(place[0])
    remedy = info.description if info else "Remove it."
    if kind == "missing":
        return f"{field} is missing. {remedy}"
    if kind == "value_error":
        return f"{field} = {value!r:.80}: {problem['ctx']['error']}"
    if kind.startswith("union_tag"):
        return f"{field}.rule = {value['rule']!r}: there is no such rule. Choose from {', '.join(RULES)}."
    if kind == "extra_forbidden":
        known = [*section.model_fields, *(["extends"] if section is Recipe else [])]
        owner = OWNED_ELSEWHERE.get(field)
        close = [owner] if owner else difflib.get_close_matches(place[-1], known, n=1)
        remedy = f"Did you mean `{close[0]}`?" if close else f"The fields here are {', '.join(known)}."
        if not close and len(place) == 1:
            remedy += f" A setting of training is written as training.{field}."
    reason = REASONS.get(kind) or problem["msg"].replace("Input", "it")
    return f"{field} = {value!r:.80}: {reason}. {remedy}"
