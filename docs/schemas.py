"""Writes the JSON schemas by which editors complete and check recipes and rows, into the package: `make schemas`.

That of a recipe is generated from the models that read it and the fields of `TrustMOPDConfig`, those of rows from the
models below, which say what readers ask of a row. Readers check more; a schema refuses nothing that they take.
"""

import json
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter
from pydantic.errors import PydanticSchemaGenerationError

from trustmopd.evaluation.user_sets import _KINDS
from trustmopd.recipe import OWNED_ELSEWHERE, Recipe
from trustmopd.recipe.names import BENCHMARKS, ENGINES
from trustmopd.recipe.rules import SCORES
from trustmopd.training.config import TrustMOPDConfig

FOLDER = Path(__file__).parents[1] / "src" / "trustmopd" / "recipe" / "schemas"
Text = Annotated[str, Field(min_length=1)]
Schema = dict[str, Any]


class Row(BaseModel):
    """Other columns are the user's own."""

    model_config = ConfigDict(extra="allow")


class Part(Row):
    type: Literal["text"] | None = None
    text: Text


class Message(Row):
    role: Text
    content: str | list[Part] | None = Field(None, description="Text, or parts with text; empty beside tool calls.")


class Asked(Row):
    prompt: Text | Annotated[list[Message], Field(min_length=1)] = Field(description="Text, or messages.")
    id: str | int | None = Field(None, description="A name for records.")
    tools: list[dict[str, Any]] | str | None = Field(None, description="What the chat template may offer.")
    chat_template_kwargs: dict[str, Any] | str | None = Field(None, description="This row's switches of the template.")


class PromptRow(Asked):
    """What a student is asked in training."""

    domain: str | None = Field(None, description="A teacher's name: routed goes by it, all other rules record it.")
    capabilities: list[str] | None = Field(None, description="What the prompt needs, for records.")


class QuestionRow(Asked):
    """What is asked in an evaluation. Its fields say how it is graded."""

    domain: str | None = Field(None, description="Whose mean the set counts in.")
    answer: str | float = Field(None, description="The right answer.")
    tests: str | list[str] = Field(None, description="Python asserts.")
    input_output: str | dict[str, Any] = Field(None, description="{inputs: [...], outputs: [...]} of a program.")
    instruction_id_list: list[str] = Field(None, description="IFEval's instructions; their arguments are kwargs.")
    kwargs: list[dict[str, Any] | None] = Field(None, description="The arguments of each instruction.")


def schemas() -> dict[str, Schema]:
    """By the name of their file."""
    question = TypeAdapter(QuestionRow | list[QuestionRow]).json_schema()
    question["$defs"]["QuestionRow"]["anyOf"] = [{"required": [field]} for field in _KINDS]
    made = {
        "recipe": _recipe(),
        "prompts": TypeAdapter(PromptRow | list[PromptRow]).json_schema(),
        "questions": question,
    }
    draft = {"$schema": "http://json-schema.org/draft-07/schema#"}
    return {f"{name}.json": draft | _short(schema) for name, schema in made.items()}


def _recipe() -> Schema:
    """What a file may leave out depends on what it extends."""
    schema = Recipe.model_json_schema()
    defs, properties = schema["$defs"], schema["properties"]
    for section in defs.values():
        section.pop("required", None)
        if "score" in section["properties"]:
            section["properties"]["score"]["enum"] = list(SCORES)
    either = [{"required": ["extends"]}, {"required": schema.pop("required")}]
    text = {"type": "string", "minLength": 1}
    properties["extends"] = text | {"description": "Give a recipe whose fields this one takes over, relative to it."}
    teacher = {"$ref": "#/$defs/TeacherSource"}
    properties["teachers"]["additionalProperties"] = {"anyOf": [teacher, {"type": "null"}]}
    properties["training"] |= {"properties": _training(), "additionalProperties": False}
    defs["TeacherSource"] = {"anyOf": [text, defs["TeacherSource"]]}
    evaluation = defs["Evaluation"]["properties"]
    evaluation["engine"]["enum"] = list(ENGINES)
    evaluation["benchmarks"]["items"] = {"anyOf": [{"enum": list(BENCHMARKS)}, evaluation["benchmarks"]["items"]]}
    return schema | {"anyOf": either}


def _training() -> Schema:
    """The fields that a recipe may set, with our own descriptions; of types that are not data, any value."""
    hints = get_type_hints(TrustMOPDConfig)
    made = {}
    for field in fields(TrustMOPDConfig):
        if not field.init or field.name in OWNED_ELSEWHERE:
            continue
        try:
            made[field.name] = TypeAdapter(hints[field.name]).json_schema()
        except PydanticSchemaGenerationError:
            made[field.name] = {}
        if "$defs" in made[field.name]:
            made[field.name] = {}
        if field.name in TrustMOPDConfig.__annotations__:
            made[field.name]["description"] = field.metadata["help"]
    return made


def _short(schema: Any) -> Any:
    """Without the titles that pydantic writes for each field, and null as a default. Where a file inherits the rule and
    changes a parameter, several rules may fit: any of them will do."""
    if isinstance(schema, list):
        return [_short(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    dropped = {"title", "discriminator"} | ({"default"} if schema.get("default", 0) is None else set())
    is_schema = "type" in schema or "anyOf" in schema or "oneOf" in schema or "$ref" in schema
    kept = {key: value for key, value in schema.items() if not (is_schema and key in dropped)}
    return {"anyOf" if key == "oneOf" else key: _short(value) for key, value in kept.items()}


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, schema in schemas().items():
        (FOLDER / name).write_text(json.dumps(schema, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
