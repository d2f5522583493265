"""Every number of the study: what supervised training shows, how specialists are trained, what is evaluated."""

from collections.abc import Sequence

from trustmopd.sections import Section, check_fields
from trustmopd.yaml_layers import overridden


class Lora(Section):
    rank: int = 8
    alpha: int = 16


class Base(Section):
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


class Specialist(Section):
    """GRPO with rewards of 0 and 1. It ends as soon as the mean reward of the last `window` steps is `target_gain`
    above that of the first `window`, or after `max_steps`."""

    max_steps: int = 300
    target_gain: float = 0.3
    window: int = 8
    learning_rate: float = 2e-4
    beta: float = 0.03
    prompts_per_step: int = 32
    generations: int = 8
    micro_batches: int = 2  # of 31,000 tokens, 25 GB
    save_every: int = 10


class Scoring(Section):
    """`prompts` is the most of each domain; SVAMP has 300 held out."""

    prompts: int = 300
    samples: int = 2
    batch_size: int = 300
    temperature: float = 0.6


class Settings(Section):
    seed: int = 0
    max_prompt_tokens: int = 144  # longer prompts are not trained on, nor longer solutions than max_new_tokens
    max_new_tokens: int = 112
    lora: Lora = Lora()
    base: Base = Base()
    specialist: Specialist = Specialist()
    scoring: Scoring = Scoring()

    def with_changes(self, changes: Sequence[str]) -> "Settings":
        """`base.epochs=2` and the like, as on the command line."""
        return check_fields(Settings, overridden(self.model_dump(), changes), "settings")
