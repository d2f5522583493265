"""Run directories made without models: random opinions through the real objective and the real record writer."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trustmopd.files import write_json, write_text
from trustmopd.method import CandidateState, objective, renormalise, trust, uniform_weights
from trustmopd.method.objective import SCORES
from trustmopd.runs import RunDirectory
from trustmopd.training.records import TokenTexts, token_table, write_records
from trustmopd.training.scoring import ScoredCandidates

TEACHERS = ["math", "code", "if"]
MU = {"math": 2.0, "code": 3.0, "if": 1.5}
GROUPS: Sequence[list[str] | None] = (["math"], ["code"], ["if"], ["math", "if"], ["code", "if"])


class Vocabulary:
    """Stands where a tokenizer does in `TokenTexts`: any texts, any ids."""

    def __init__(self, texts: Mapping[int, str] | None = None):
        self.texts = texts or {}

    def encode(self, text: str, **_: Any) -> list[int]:
        return [-1]

    def decode(self, ids: list[int], **_: Any) -> str:
        return "".join(self.texts.get(token, f"t{token} ") for token in ids)


def opinions(
    tokens: int, teachers: Sequence[str], seed: int, candidates: int = 24, vocabulary: int = 500
) -> tuple[CandidateState, Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def logits(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    student = 3 * logits(1, tokens, candidates)
    reference = student + 0.3 * logits(1, tokens, candidates)
    # Each teacher moves from the reference by an amount that changes from token to token.
    moved = reference + logits(len(teachers), 1, tokens, 1).exp() * logits(len(teachers), 1, tokens, candidates)
    # As in a language, most candidates are common tokens; a quarter are rare, one of each stretch of the vocabulary.
    rare = candidates // 4
    often = 2 * candidates
    stretch = (vocabulary - often) // rare
    ids = torch.cat(
        [
            torch.rand(tokens, often, generator=generator).argsort(dim=-1)[:, : candidates - rare],
            often + stretch * torch.arange(rare) + torch.randint(stretch, (tokens, rare), generator=generator),
        ],
        dim=-1,
    )
    ids = ids.gather(-1, torch.rand(tokens, candidates, generator=generator).argsort(dim=-1))[None]
    state = CandidateState(
        renormalise(student), renormalise(moved), renormalise(reference), ids, ids[..., 0], torch.ones(1, tokens)
    )
    return state, torch.full((1, tokens), 0.97)


def make_run(
    folder: Path,
    *,
    rule: str = "trust",
    steps: int = 4,
    max_steps: int | None = None,
    rollouts: int = 8,
    tokens: int = 12,
    teachers: Sequence[str] = TEACHERS,
    groups: Sequence[list[str] | None] = GROUPS,
    vocabulary: Mapping[int, str] | None = None,
    prompt: str = "a prompt",
    seed: int = 0,
    candidates: int = 24,
    vocabulary_size: int = 500,
    record: bool = True,
    scores: Mapping[str, Mapping[str, float]] | None = None,
    **config: Any,
) -> Path:
    """A finished run, with `rollouts` recorded at each step; `scores` are rows of evaluation/scores.json."""
    mu = torch.tensor([MU.get(name, 1.0) for name in teachers])
    lines = []
    for step in range(1, steps + 1):
        tables = []
        for place in range(rollouts if record else 0):
            needs = groups[(step * rollouts + place) % len(groups)]
            state, mass = opinions(
                tokens + place % 3, teachers, seed * 10_000 + step * 100 + place, candidates, vocabulary_size
            )
            if rule == "trust":
                result = objective(state, trust(config.get("gamma", 7.0)), SCORES["displacement"], mu)
            else:
                result = objective(state, lambda at, _: uniform_weights(len(at.teacher_logp), tuple(at.mask.shape)))
            tables += token_table(
                ScoredCandidates(state, mass),
                result,
                rows=[place],
                meta=[
                    {
                        "id": f"p{place}",
                        "domain": needs[0] if needs and len(needs) == 1 else None,
                        "capabilities": needs,
                        "prompt": [{"role": "user", "content": f"{prompt} {place}"}],
                    }
                ],
                keep={place},
                teachers=teachers,
                texts=TokenTexts(Vocabulary(vocabulary)),
            )
        if tables:
            write_records(RunDirectory(folder).records(step), tables, step)
        lines.append(_metrics(step, teachers, rule, seed))
    write_text(folder / "metrics.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
    if rule == "trust":
        write_json(folder / "calibration.json", _calibration(teachers))
    write_json(
        folder / "manifest.json",
        {
            "models": {"student": {"source": "models/base"}, "teachers": {name: {} for name in teachers}},
            "prompts": {"fingerprint": "abcdef1234"},
            "config": {"allocation": rule, "gamma": 7.0, "seed": seed, "max_steps": max_steps or steps, **config},
        },
    )
    hours = {"seconds": 360.0 * (1 + seed), "device_hours": 0.1 * (1 + seed)}
    write_json(
        folder / "cost.json",
        {
            "device": "a device",
            "devices": 1,
            "scored": {"teachers": len(teachers), "reference": int(rule == "trust")},
            "training": {"steps": steps, **hours, "peak_memory_gib": 2.0 + seed},
            "calibration": {"seconds": 36.0, "device_hours": 0.01} if rule == "trust" else None,
        },
    )
    if scores is not None:
        write_json(folder / "evaluation" / "scores.json", dict(scores))
    return folder


def _metrics(step: int, teachers: Sequence[str], rule: str, seed: int) -> dict[str, float]:
    line = {
        "step": step,
        "loss": 1 / step,
        "completions/mean_length": 10.0 + step,
        "completions/clipped_ratio": 0.0,
        "agreement/max_weight": 0.5 + 0.01 * step + 0.1 * seed,
        "agreement/effective_teachers": 2.0,
        "candidates/student_mass": 0.99,
        "candidates/degenerate_tokens": 0.0,
        "seconds/rollout": 1.0,
        "seconds/records": 0.01,
    }
    line |= {f"weight/{name}": 1 / len(teachers) for name in teachers}
    return line | ({f"score/{name}": 1 + 0.01 * step for name in teachers} if rule == "trust" else {})


def _calibration(teachers: Sequence[str]) -> dict[str, Any]:
    return {
        "mu": {name: MU.get(name, 1.0) for name in teachers},
        "spread": dict.fromkeys(teachers, 0.5),
        "tokens": 1000,
        "batches": 8,
        "global_batch_size": 64,
        "depends_on": {"score": "displacement"},
    }


REFERENCES = {
    "initial": {"math": 0.2, "code": 0.1, "if": 0.3, "overall": 0.2, "recovery": 0.0},
    "teacher-math": {"math": 0.5, "code": 0.1, "if": 0.3, "overall": 0.3, "recovery": 1 / 3},
    "routed-teachers": {"math": 0.5, "code": 0.4, "if": 0.6, "overall": 0.5, "recovery": 1.0},
}


def scores_of(name: str, overall: float) -> dict[str, dict[str, float]]:
    own = {"math": overall + 0.01, "code": overall - 0.02, "if": overall + 0.01, "overall": overall}
    return {**REFERENCES, name: {**own, "recovery": (overall - 0.2) / 0.3}}
