"""Every number of the study: what supervised training shows, how specialists are trained, what is evaluated."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

import yaml


@dataclass(frozen=True)
class Lora:
    rank: int = 8
    alpha: int = 16


@dataclass(frozen=True)
class Base:
    """Supervised training of the instruction model on solutions: how many of each kind, how often, how fast."""

    svamp: int = 400  # the other 300 of its train half are prompts of RL
    renumbered: int = 1500  # of those 400, with other numbers
    sums: int = 1000
    gsm8k: int = 400
    gsm8k_steps: int = 2  # longest solution, in lines
    stories: int = 1000
    functions: int = 120
    formats: int = 150
    epochs: float = 2.0
    batch_size: int = 64
    learning_rate: float = 1e-3


@dataclass(frozen=True)
class Specialist:
    """GRPO with rewards of 0 and 1. It ends as soon as the mean reward of the last `window` steps is `target_gain`
    above that of the first `window`, or after `max_steps`."""

    max_steps: int = 300
    target_gain: float = 0.3
    window: int = 8
    learning_rate: float = 2e-4
    warmup_steps: int = 5
    beta: float = 0.03
    prompts_per_step: int = 32
    generations: int = 8
    micro_batches: int = 2  # of 31,000 tokens, 25 GB
    max_new_tokens: int = 112
    save_every: int = 10
    pool: int = 3000  # prompts to draw from
    screen_samples: int = (
        0  # above 0: the base answers each prompt so often; those it always or never solves are left out
    )


#: Mathematics learns slowest: at the common settings, the reward rose by 0.14 in 210 steps.
MATHEMATICS = Specialist(
    max_steps=400,
    target_gain=0.35,
    learning_rate=4e-4,
    warmup_steps=0,
    beta=0.01,
    prompts_per_step=64,
    generations=16,
    micro_batches=8,
    max_new_tokens=64,
    pool=6000,
    screen_samples=4,
)


@dataclass(frozen=True)
class Scoring:
    """`prompts` is the most of each domain; SVAMP has 300 held out."""

    prompts: int = 300
    samples: int = 2
    batch_size: int = 300
    temperature: float = 0.6


@dataclass(frozen=True)
class Prompts:
    """How many prompts of each kind the two sets have; MultiCap has three kinds of one domain and three of two."""

    singlecap: int = 1000
    multicap_single: int = 200
    multicap_mixed: int = 800
    pool: float = 1.6  # as many times are made, because some repeat an evaluation prompt


@dataclass(frozen=True)
class Distil:
    """`learning_rate` holds for every rule; the stage `sweep` replaces it by the best of the sweep's, on uniform."""

    steps: int = 116
    batch_size: int = 64
    learning_rate: float = 5e-4
    full_learning_rate: float = 5e-5  # of the one student without an adapter
    num_candidates: int = 128
    calibration_batches: int = 8
    diagnosis_rollouts: int = 256
    seeds: int = 3  # of trust, uniform and routed; the others have one
    sweep_steps: int = 40
    sweep_lowest: float = 2e-4
    sweep_factor: float = 2.5  # between neighbours
    sweep_count: int = 3


@dataclass(frozen=True)
class Public:
    """MBPP and IFEval: responses are sampled on the GPU and graded later."""

    prompts: int = 541
    max_new_tokens: int = 256


@dataclass(frozen=True)
class Settings:
    seed: int = 0
    max_prompt_tokens: int = 144  # longer prompts are not trained on, nor longer solutions than max_new_tokens
    max_new_tokens: int = 112
    lora: Lora = field(default_factory=Lora)
    base: Base = field(default_factory=Base)
    specialist: Specialist = field(default_factory=Specialist)
    specialist_math: Specialist = MATHEMATICS
    scoring: Scoring = field(default_factory=Scoring)
    prompts: Prompts = field(default_factory=Prompts)
    distil: Distil = field(default_factory=Distil)
    public: Public = field(default_factory=Public)

    def of_specialist(self, domain: str) -> Specialist:
        return self.specialist_math if domain == "math" else self.specialist

    def with_changes(self, changes: Sequence[str]) -> "Settings":
        """`base.epochs=2` and the like, as on the command line."""
        settings = self
        for change in changes:
            name, equals, text = change.partition("=")
            value = yaml.safe_load(text) if equals else None
            value = float(value) if isinstance(value, str) and _is_float(value) else value
            settings = _changed(settings, name.split("."), value, change)
        return settings

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> "Settings":
        """What `to_dict` gave."""
        begun = {each.name: getattr(cls(), each.name) for each in fields(cls)}
        return cls(
            **{name: type(begun[name])(**value) if isinstance(value, dict) else value for name, value in stored.items()}
        )

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def _changed(section: Any, names: Sequence[str], value: Any, change: str) -> Any:
    known: Mapping[str, Any] = {each.name: getattr(section, each.name) for each in fields(section)}
    old = known.get(names[0])
    if old is None or (len(names) > 1) is not hasattr(old, "__dataclass_fields__"):
        raise ValueError(f"{change!r} changes no setting. Write NAME=VALUE, with one of {', '.join(known)}.")
    if len(names) > 1:
        return replace(section, **{names[0]: _changed(old, names[1:], value, change)})
    if isinstance(value, bool) or not isinstance(value, int | float) or (isinstance(old, int) and value != int(value)):
        raise ValueError(f"{change!r}: give a {'whole ' * isinstance(old, int)}number; it is {old} otherwise.")
    return replace(section, **{names[0]: type(old)(value)})


def _is_float(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
