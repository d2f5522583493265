"""One YAML file describes one experiment. Read and checked without torch: a mistake costs a second, not a GPU hour."""

import os
from collections.abc import Mapping, Sequence
from functools import reduce
from operator import or_
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import yaml
from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from trustmopd.recipe.names import check_benchmark_name, check_engine_name, check_grader_name
from trustmopd.recipe.rollout_engines import ROLLOUTS
from trustmopd.recipe.rules import DEFAULTS, FLAT, PARTS, TRUST, Even, GeometricMean, Scored, Single, Trust
from trustmopd.recipe.sections import Folder, Place, Section, Text, check_fields
from trustmopd.recipe.teacher_source import STUDENT, TeacherName
from trustmopd.recipe.teacher_source import TeacherSource as TeacherSource
from trustmopd.recipe.yaml_layers import Dumper, RecipeError, read_layers, without_dropped
from trustmopd.runs.layout import CALIBRATION, MERGED, seed_folder


def _distinct(values: list[Any]) -> list[Any]:
    if len(set(values)) < len(values):
        raise ValueError("one appears twice. Name each one once.")
    return values


def _stays_inside(name: str) -> str:
    path = PurePosixPath(name.replace("\\", "/"))
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise ValueError("it would leave runs/<name>, where the run is written. Write a plain name; output= is a path.")
    return name


def _common(reference: str | None) -> str | None:
    return None if reference == STUDENT else reference


class QuestionFile(Section):
    """A benchmark of one's own: rows, and what grades them unless it follows from the answers."""

    path: Annotated[Place, AfterValidator(check_benchmark_name), Field(description="Give a file of rows.")]
    grader: Annotated[str, AfterValidator(check_grader_name), Field(description="Give a grader's name.")] | None = None


def _source(benchmark: str | QuestionFile) -> str:
    """What two mentions of one benchmark have in common."""
    return os.path.normpath(benchmark if isinstance(benchmark, str) else benchmark.path)


def _benchmark(value: Any) -> Any:
    return check_benchmark_name(value) if isinstance(value, str) else QuestionFile.model_validate(value)


Benchmark = Annotated[str | QuestionFile, BeforeValidator(_benchmark)]
EngineName = Annotated[str, AfterValidator(check_engine_name)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]


class Prompts(Section):
    path: Annotated[Place, Field(description="Give a Hub id, a folder or a file.")]
    domain_column: Annotated[Text | None, Field(description="Give the column of each prompt's domain.")] = "domain"
    split: Annotated[Text, Field(description="Give the name of a split.")] = "train"


#: `training` takes any field of TrustMOPDConfig except these, for which a recipe has other fields.
OWNED_ELSEWHERE = {
    **{field: f"allocation.{parameter}" for parameter, field in FLAT.items()},
    **{part: f"{part}.rule" for part in ("allocation", "target", "emphasis")},
    "domain_column": "prompts.domain_column",
    "rollouts": "rollouts",
    **dict.fromkeys(("calibration_path", "calibration"), "calibration"),
    "seed": "seeds",
    **dict.fromkeys(("output_dir", "run_dir"), "output"),
}


def _union(kinds: Mapping[str, type], tag: str, default: str) -> Any:
    """One of these kinds, told apart by `tag`."""
    discriminator = tag if len(kinds) > 1 else None
    field = Field(discriminator=discriminator, description=f"Write {{{tag}: {default}}}.")
    return Annotated[reduce(or_, kinds.values()), field]


if TYPE_CHECKING:  # which cannot follow a union that is made of a table
    from trustmopd.recipe.rollout_engines import Rollouts
    from trustmopd.recipe.rules import Allocation, Emphasis, Target
else:
    Allocation, Target, Emphasis = (_union(PARTS[part], "rule", DEFAULTS[part]) for part in PARTS)
    Rollouts = _union(ROLLOUTS, "engine", "vllm")


class Asking(Section):
    """How responses to score are drawn. The paper states the temperature alone; the others are Open-MOPD's, whose
    models it uses."""

    samples: Annotated[int | None, Field(gt=0, description="Responses per problem; null: each benchmark's own.")] = None
    temperature: Annotated[float, Field(ge=0, description="The paper samples at 0.6; 0 is greedy.")] = 0.6
    top_p: Annotated[float, Field(gt=0, le=1, description="The share of the likeliest tokens; 1 is all.")] = 1.0
    max_new_tokens: Annotated[int, Field(gt=0, description="Give the longest response, in tokens.")] = 30000
    engine: Annotated[EngineName, Field(description="What samples: transformers or vllm.")] = "transformers"
    system: Annotated[str | None, Field(description="Give a system prompt; null: training's; '': none.")] = None
    chat_template_kwargs: Annotated[
        dict[str, Any] | None, Field(description="Give arguments of the chat template; null: training's; {}: none.")
    ] = None


class Evaluation(Asking):
    benchmarks: Annotated[list[Benchmark], AfterValidator(_distinct), Field(description="Give a list of these.")] = []
    data: Annotated[dict[str, Place], Field(description="Give local files by benchmark, {aime25: path}.")] = {}


class Watch(Section):
    """What is graded while a student is trained: its rollouts, where prompts carry answers, and benchmarks."""

    benchmarks: Annotated[list[Benchmark], AfterValidator(_distinct), Field(description="Give a list of these.")] = []
    every: Annotated[int, Field(gt=0, description="Steps between two samples of the benchmarks.")] = 20
    prompts: Annotated[int, Field(gt=0, description="Prompts of each benchmark.")] = 64
    save_best: Annotated[bool, Field(description="Write true to keep the checkpoint with the best score.")] = False

    @model_validator(mode="after")
    def _can_choose(self) -> "Watch":
        if self.save_best and not self.benchmarks:
            raise ValueError(
                "save_best = True, but no benchmark is watched, and the rollouts of two steps have other prompts. Name "
                "benchmarks, or leave save_best out."
            )
        return self


class Recipe(Section):
    """One experiment. Paths are relative to the current directory."""

    elsewhere: ClassVar[Mapping[str, str]] = OWNED_ELSEWHERE
    hint: ClassVar[str] = " A setting of training is written as training.{field}."

    name: Annotated[Text, AfterValidator(_stays_inside), Field(description="Give the experiment a name.")]
    student: Annotated[Place, Field(description="Give the Hub id or the path of the model to train.")]
    reference: Annotated[
        Place | None,
        AfterValidator(_common),
        Field(
            description="Give a Hub id or a path; null, or student, is the initial student. One of a teacher's own, or "
            "with a revision or dtype, is teachers.NAME.reference."
        ),
    ] = None
    teachers: Annotated[dict[TeacherName, TeacherSource], Field(min_length=1, description="Write {math: path-or-id}.")]
    prompts: Annotated[Prompts, Field(description="Write prompts: {path: ...}.")]
    rollouts: Annotated[Rollouts | None, Field(description="Write {engine: vllm}; null: as `training` says.")] = None
    allocation: Allocation = Trust()
    target: Target = GeometricMean()
    emphasis: Emphasis = Even()
    training: Annotated[dict[str, Any], Field(description="Give fields of TrustMOPDConfig: {max_steps: 116}.")] = {}
    peft: Annotated[dict[str, Any] | None, Field(description="Give peft.LoraConfig's arguments, or null.")] = None
    calibration: Annotated[Folder | None, Field(description=f"Give the path of a {CALIBRATION}, or null.")] = None
    evaluation: Annotated[Evaluation, Field(description="Write evaluation: {benchmarks: [...]}.")] = Evaluation()
    seeds: Annotated[list[Seed], AfterValidator(_distinct), Field(min_length=1, description="Write [0, 1, 2].")] = [0]
    output: Annotated[Folder, Field(description="Give a folder, or leave it out: runs/<name>.")] = Path("runs")

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, data: Any) -> Any:
        """The output folder follows the name, and `allocation.gamma=5` alone means the trust rule."""
        if not isinstance(data, Mapping):
            return data
        given = data.get("allocation")
        defaults = {"output": f"runs/{data['name']}"} if isinstance(data.get("name"), str) else {}
        filled = {"allocation": {"rule": TRUST, **given}} if isinstance(given, Mapping) else {}
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
        if self.allocation.labelled and self.prompts.domain_column is None:
            raise ValueError("prompts.domain_column = None, but routing needs it. Give the column of teachers' names.")
        wish = self.training.get("watch")
        watch = Watch() if wish is None else check_fields(Watch, wish, "training.watch")
        if both := {*map(_source, watch.benchmarks)} & {*map(_source, self.evaluation.benchmarks)}:
            raise ValueError(
                f"{min(both)} is in both training.watch and evaluation: a checkpoint that was chosen by a score cannot "
                "be judged by it. Watch other prompts, such as a file of your own."
            )
        return self

    def config_fields(self) -> dict[str, Any]:
        """The fields of TrustMOPDConfig that this recipe sets, except the seed and the folder, which differ by run."""
        fields = {part: getattr(self, part).model_dump() for part in PARTS}
        fields["domain_column"] = self.prompts.domain_column
        if self.rollouts is not None:
            fields["rollouts"] = self.rollouts.model_dump(exclude_unset=True) | {"engine": self.rollouts.engine}
        if isinstance(self.allocation, Scored) and self.allocation.calibrated and self.calibration is not None:
            fields["calibration_path"] = str(self.calibration)
        return fields | self.training

    def run_directory(self, seed: int) -> Path:
        if seed not in self.seeds:
            raise RecipeError(f"recipe {self.name}: seed {seed} is not one of seeds = {self.seeds}. Add it there.")
        return self.output if len(self.seeds) == 1 else self.output / seed_folder(seed)

    @property
    def average(self) -> Path:
        """Where the parameter average of the teachers goes."""
        return self.output / MERGED

    def to_yaml(self) -> str:
        """Every field, inherited and default ones too. `load_recipe` reads it back as an equal recipe."""
        return yaml.dump(self.model_dump(), Dumper=Dumper, sort_keys=False, allow_unicode=True, width=120)


def load_recipe(path: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    layers = read_layers(path, overrides, "a recipe")
    kept = without_dropped(layers, "teachers")
    given, rule = layers.fields.get("teachers"), layers.fields.get("allocation")
    dropped = [name for name, source in given.items() if source is None] if isinstance(given, dict) else []
    if isinstance(rule, dict) and (name := rule.get("teacher")) in dropped:
        raise RecipeError(
            f"{path}: allocation.teacher = {name!r}, but teachers.{name} = null drops this teacher. Name another "
            "teacher, or keep this one."
        )
    return check_fields(Recipe, kept, path)
