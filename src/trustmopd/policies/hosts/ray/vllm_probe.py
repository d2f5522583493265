"""Whether vLLM is the policy that transformers reads from the same files: the difference of their log-probabilities."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from trustmopd.policies.answers import Answer, Answers, Rollouts, Top
from trustmopd.policies.graph import role_of
from trustmopd.policies.pool import LocalMember, TeacherPool

#: Tokens that are compared, and how many of the likeliest at each.
TOKENS, LIKELIEST = 64, 32
#: Nats that rounding may make of it: by the bytes of a weight, and of quantised ones.
LIMITS = {4: 2e-3, 2: 0.1}
QUANTISED = 0.3


@dataclass(frozen=True)
class Probe:
    """`expected` is by policy what transformers thinks of one made-up response."""

    rollouts: Rollouts
    expected: Mapping[str, Top]
    itemsize: int

    @property
    def tokens(self) -> int:
        return self.rollouts.input_ids.shape[1]

    @classmethod
    def of(cls, loaded: Mapping[str, LocalMember], vocab_size: int | None) -> "Probe":
        weight = next(iter(loaded.values())).head.weight
        generator = torch.Generator().manual_seed(0)
        ids = torch.randint(0, vocab_size or len(weight), (1, 1 + TOKENS), generator=generator)
        rollouts = Rollouts(ids, torch.ones_like(ids), torch.ones_like(ids[:, 1:]), at_a_time=1)
        answers = TeacherPool(loaded, {}, vocab_size=vocab_size).ask(rollouts)
        likeliest = min(LIKELIEST, len(weight))
        return cls(rollouts, {name: answer.top([0], likeliest) for name, answer in answers.items()}, weight.itemsize)

    def gaps(self, ask: Callable[[Rollouts], Answers], quantization: str | None) -> dict[str, float]:
        """Nats by policy, or an error that names the first which is another policy."""
        limit = QUANTISED if quantization else LIMITS[self.itemsize]
        gaps = {name: _gap(self.expected[name], answer) for name, answer in ask(self.rollouts).items()}
        for name, gap in gaps.items():
            if not gap <= limit:
                raise ValueError(
                    f"{role_of(name)}: vLLM's log-probabilities differ from those of transformers by {gap:.3g} nats on "
                    f"average, and rounding gives at most {limit:g}. It computes another policy. Leave engine out, and "
                    "report the architecture as a bug of vLLM."
                )
        return gaps


def _gap(expected: Top, answer: Answer) -> float:
    """|log p − log q| at the likeliest tokens, as often as they would be sampled."""
    log_partition = answer.top([0], 1).log_partition.cpu()
    logp = answer.logits_at([0], expected.ids) - log_partition.unsqueeze(-1)
    p = expected.logp.softmax(dim=-1)
    return float((p * (logp - expected.logp).abs()).sum(dim=-1).mean())
