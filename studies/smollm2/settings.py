"""Every number of the study: what supervised training shows, how specialists are trained, what is evaluated."""

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field, PositiveFloat, PositiveInt

from trustmopd.recipe.sections import Section, check_fields
from trustmopd.recipe.yaml_layers import overridden


class Lora(Section):
    rank: int = 8
    alpha: int = 16


class Base(Section):
    """Supervised training of the instruction model on solutions: how many of each kind, how often, how fast."""

    svamp: Annotated[int, Field(ge=0, lt=700)] = 400  # the others of its 700 for training are prompts of RL
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


class Specialist(Section):
    """GRPO with rewards of 0 and 1. It ends as soon as the mean reward of the last `window` steps is `target_gain`
    above that of the first `window`, or after `max_steps`. What the finished adapter adds to the weights is multiplied
    by `scale`."""

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
    scale: Annotated[float, Field(gt=0, le=1)] = 1.0


#: Mathematics learns slowest, so it has four times the samples a step; and no prompt is asked twice in 250 steps, since
#: 2,100 prompts were learnt by heart: reward 0.43 to 0.78, held-out problems 21 to 28%. Six tenths of the way, it
#: solves about as many stories as at the end, and code falls by about 5 points instead of 10.
MATHEMATICS = Specialist(
    max_steps=255,
    target_gain=0.25,
    learning_rate=3e-4,
    beta=0.02,
    prompts_per_step=64,
    generations=16,
    micro_batches=8,
    max_new_tokens=64,
    pool=16000,
    scale=0.6,
)


class Scoring(Section):
    """`prompts` is the most of each domain; SVAMP has 300 held out."""

    prompts: PositiveInt = 300
    samples: PositiveInt = 2
    batch_size: PositiveInt = 300
    temperature: Annotated[float, Field(ge=0)] = 0.6


class Prompts(Section):
    """How many prompts of each kind the two sets have; MultiCap has three kinds of one domain and three of two."""

    singlecap: PositiveInt = 1000
    multicap_single: PositiveInt = 200
    multicap_mixed: PositiveInt = 800
    pool: float = 1.6  # as many times are made, because some repeat an evaluation prompt


class Distil(Section):
    """`learning_rate` holds for every rule; the stage `sweep` replaces it by the best of the sweep's, on uniform."""

    steps: PositiveInt = 116
    batch_size: PositiveInt = 64
    learning_rate: PositiveFloat = 5e-4
    full_learning_rate: PositiveFloat = 5e-5  # of the one student without an adapter
    num_candidates: PositiveInt = 128
    calibration_batches: PositiveInt = 8
    diagnosis_rollouts: PositiveInt = 256
    seeds: PositiveInt = 3  # of trust, uniform and routed; the others have one
    sweep_steps: PositiveInt = 40
    sweep_lowest: PositiveFloat = 2e-4
    sweep_factor: Annotated[float, Field(gt=1)] = 2.5  # between neighbours
    sweep_count: PositiveInt = 3


class Public(Section):
    """SVAMP, MBPP and IFEval: responses are sampled on the GPU and graded later."""

    prompts: PositiveInt = 541
    max_new_tokens: PositiveInt = 256


#: Sections that a folder does not remember: they are given with each command.
OF_A_COMMAND = {"scoring", "distil", "public"}


class Settings(Section):
    """`model` is an instruction model, of the Hub or a folder, in place of the package's weights: shipped adapters do
    not fit it."""

    model: str | None = None
    seed: int = 0
    max_prompt_tokens: int = 144  # longer prompts are not trained on, nor longer solutions than max_new_tokens
    max_new_tokens: int = 112
    lora: Lora = Lora()
    base: Base = Base()
    specialist: Specialist = Specialist()
    specialist_math: Specialist = MATHEMATICS
    scoring: Scoring = Scoring()
    prompts: Prompts = Prompts()
    distil: Distil = Distil()
    public: Public = Public()

    def of_specialist(self, domain: str) -> Specialist:
        return self.specialist_math if domain == "math" else self.specialist

    def with_changes(self, changes: Sequence[str]) -> "Settings":
        """`base.epochs=2` and the like, as on the command line."""
        return check_fields(Settings, overridden(self.model_dump(), changes), "settings")
