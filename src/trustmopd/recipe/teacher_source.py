"""A specialist as a recipe or an evaluation names it: its name, and where its weights are. No torch; `policies.Teacher`
is the record that loads them."""

import re
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from trustmopd.recipe.sections import Place, Section, Text

#: The pool's name for the shared reference policy; no teacher may take it.
REFERENCE = "reference"
#: As a reference: the initial student.
STUDENT = "student"
#: Where a policy's weights live: on every GPU that trains, in its host memory, spread over the processes, in an actor.
On = Literal["resident", "offload", "sharded", "ray"]
RESIDENT, OFFLOAD, SHARDED, RAY = PLACES = get_args(On)
#: What computes hidden states in an actor on Ray, and how vLLM may round the weights.
Engine = Literal["transformers", "vllm"]
POLICY_ENGINES = get_args(Engine)
Quantization = Literal["fp8"]
QUANTIZATIONS = get_args(Quantization)


#: A policy's own chat template, in place of the student's.
OWN = "own"


def place_named(on: Any) -> Any:
    """Recipes of 0.1.0 have another word for resident."""
    return RESIDENT if on == "local" else on


def check_not_endpoint(model: Any) -> Any:
    if str(model).startswith(("http://", "https://")):
        raise ValueError(
            "a server (vLLM's, SGLang's) tells the log-probabilities of tokens that it chooses, not of the student's "
            "candidates at each position. Give the checkpoint, with on: ray and engine: vllm: it then runs in vLLM."
        )
    return model


def check_teacher_name(name: Any) -> Any:
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9_-]+", name) or name == REFERENCE:
        raise ValueError(
            f"a teacher's name becomes part of metrics and columns (weight/<name>), and {REFERENCE!r} is taken. Use "
            "letters, digits, '_' and '-'."
        )
    return name


TeacherName = Annotated[str, AfterValidator(check_teacher_name)]


class View(Section):
    """How a policy reads the prompts. Only the prompt differs: the response is the student's. What is left out is as
    the student reads it."""

    template: Annotated[Literal["student", "own"], Field(description="Give student or own.")] = "student"
    system: Annotated[str | None, Field(description="Give a system prompt; '' is none, null the prompt's own.")] = None
    prompt: Annotated[Text | None, Field(description="Give the column that it reads in place of `prompt`.")] = None
    chat_template_kwargs: Annotated[
        dict[str, Any] | None, Field(description="Give arguments of the chat template; null: the student's; {}: none.")
    ] = None

    def __str__(self) -> str:
        """What differs from the student's; nothing if nothing does."""
        return ", ".join(f"{field} {value!r}" for field, value in self.model_dump(exclude_defaults=True).items())


class TeacherSource(Section):
    """A checkpoint, a LoRA adapter, or an adapter on a checkpoint of its own; what it was grown from, if that is not
    the common reference; how it reads the prompts, and where it lives. With a view alone, it is the common reference
    under that view."""

    model: Annotated[
        Place | None, AfterValidator(check_not_endpoint), Field(description="Give a Hub id or a path.")
    ] = None
    adapter: Annotated[Place | None, Field(description="Give the Hub id or the path of a LoRA adapter.")] = None
    reference: Annotated[
        "TeacherSource | None", Field(description="Give what this teacher was grown from, or student.")
    ] = None
    revision: Annotated[Text | None, Field(description="Give a branch, a tag or a commit.")] = None
    dtype: Annotated[Text | None, Field(description="Give the name of a torch dtype, such as bfloat16.")] = None
    view: Annotated[View | None, Field(description="Write {system: …}, or {template: own}.")] = None
    on: Annotated[On | None, BeforeValidator(place_named), Field(description=f"Choose from {', '.join(PLACES)}.")] = (
        None
    )
    gpus: Annotated[float | None, Field(ge=0, description="GPUs of one replica on Ray: 0.25, 1, 2, …")] = None
    replicas: Annotated[int | None, Field(ge=1, description="Copies on Ray that share a batch.")] = None
    engine: Annotated[Engine | None, Field(description=f"On Ray: {' or '.join(POLICY_ENGINES)}.")] = None
    quantization: Annotated[Quantization | None, Field(description="With engine vllm: fp8, or leave it out.")] = None

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        return {"model": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _can_be_loaded(self) -> "TeacherSource":
        if self.model is None and self.adapter is None and self.view is None:
            raise ValueError(
                "there is nothing to load. Give `model` (a Hub id or a path), `adapter`, or both; or a `view` alone, "
                "for the common reference under it."
            )
        if self.reference is not None and self.reference.model is None and self.reference.adapter is not None:
            raise ValueError("its reference is an adapter alone. Give `model` too, or a Hub id or path, or student.")
        if self.reference is not None and self.reference.reference is not None:
            raise ValueError("its reference has a `reference` of its own, which would not be read. Leave that out.")
        return self
