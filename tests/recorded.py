"""Run directories with any numbers in them, in the shape that the real writers give. Token records are random opinions
through the real objective and record writer; manifest, metrics, calibration and cost are those of a real training step
of small models, with other values in the fields that are there; scores are summarised by the evaluation."""

import copy
import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import small_runs
import torch
from torch import Tensor

from trustmopd.evaluation.aggregation import score_entries, write_scores
from trustmopd.evaluation.read_graded import Graded
from trustmopd.method import CandidateState, objective, renormalise, trust, uniform_weights
from trustmopd.method.objective import SCORES
from trustmopd.report.readers.run import find_runs
from trustmopd.report.statistics.comparison import Comparison, compare
from trustmopd.report.statistics.summary import summarise_run
from trustmopd.runs import RunDirectory
from trustmopd.runs.cost import counted_evaluation
from trustmopd.runs.schemas import Diagnosis, DomainDiagnosis, write_file
from trustmopd.training.step.batch import Rollout, RolloutId
from trustmopd.training.step.candidates import ScoredCandidates
from trustmopd.training.step.records import TokenTexts, token_table, write_records
from trustmopd.util.files import write_json, write_text

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
    scores: Mapping[str, Mapping[str, Any]] | None = None,
    **config: Any,
) -> Path:
    """A finished run, with `rollouts` recorded at each step; `scores` are rows of evaluation/scores.json, as `rows_of`
    gives them; `config` are fields of TrustMOPDConfig."""
    mu = torch.tensor([MU.get(name, 1.0) for name in teachers])
    lines = []
    for step in range(1, steps + 1):
        tables = []
        for place in range(rollouts if record else 0):
            needs = groups[(step * rollouts + place) % len(groups)]
            state, mass = opinions(
                tokens + place % 3, teachers, seed * 10_000 + step * 100 + place, candidates, vocabulary_size
            )
            if rule != "trust":  # which alone asks the reference
                state = replace(state, reference_logp=None)
            if rule == "trust":
                result = objective(state, trust(config.get("gamma", 7.0)), SCORES["displacement"], mu)
            else:
                result = objective(state, lambda at, _: uniform_weights(len(at.teacher_logp), tuple(at.mask.shape)))
            tables += token_table(
                ScoredCandidates(state, mass),
                result,
                [
                    Rollout(
                        RolloutId(place),
                        draw=f"{seed}/{step}/{place}",
                        prompt=[{"role": "user", "content": f"{prompt} {place}"}],
                        prompt_id=f"p{place}",
                        domain=needs[0] if needs and len(needs) == 1 else None,
                        capabilities=needs,
                        recorded=True,
                    )
                ],
                teachers,
                TokenTexts(Vocabulary(vocabulary)),
            )
        if tables:
            write_records(RunDirectory(folder).records(step), tables, step)
        lines.append(_metrics(step, teachers, rule, seed))
    write_text(folder / "metrics.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
    mould = _trained(rule)
    if rule == "trust":
        calibration = _of(teachers, mould["calibration.json"], "mu", "spread")
        measured = {"mu": {name: MU.get(name, 1.0) for name in teachers}, "spread": dict.fromkeys(teachers, 0.5)}
        write_json(folder / "calibration.json", _filled(calibration, tokens=1000, **measured))
    write_json(folder / "manifest.json", _manifest(folder, rule, teachers, max_steps or steps, seed, config))
    hours = {"seconds": 360.0 * (1 + seed), "device_hours": 0.1 * (1 + seed)}
    cost = _filled(mould["cost.json"], device="a device", scored={"teachers": len(teachers), "parameters": 1_234_000})
    cost = _filled(cost, training={"steps": steps, **hours, "peak_memory_gib": 2.0 + seed})
    if rule == "trust":
        cost = _filled(cost, calibration={"seconds": 36.0, "device_hours": 0.01})
    write_json(folder / "cost.json", cost)
    if scores is not None:
        write_scores(folder / "evaluation", scores)
    return folder


def change(run: Path, path: str, value: object, name: str = "manifest.json") -> None:
    """Another value in a field that is there, at `path` with dots; a mapping changes the fields that it has."""
    content = value
    for part in reversed(path.split(".")):
        content = {part: content}
    assert isinstance(content, dict)
    write_json(run / name, _filled(json.loads((run / name).read_text()), **content))


def compared(*paths: Path) -> Comparison:
    """All runs under these folders."""
    return compare(summarise_run(run) for run in find_runs(paths))


def evaluate(run: Path, device_hours: float) -> None:
    """What `trustmopd evaluate` adds to the run's cost."""
    with counted_evaluation(RunDirectory(run), devices=1):
        pass
    change(run, "evaluation", {"seconds": 3600 * device_hours, "device_hours": device_hours}, "cost.json")


def write_diagnosis(run: Path, domain: str, score: dict[str, float], spread: dict[str, float]) -> None:
    """As `trustmopd diagnose` writes it, of one domain."""
    counts = {"domain": domain, "rollouts": 9, "tokens": 100}
    found = DomainDiagnosis(**counts, raw=score, score=score, spread=spread, weight=score, leads=1.0)
    verdict = Diagnosis(domains=[found], held_out=True, separates=True, verdict="It separates.")
    write_file(run / "diagnosis.json", verdict.model_dump())


@cache
def _trained(rule: str) -> dict[str, dict[str, Any]]:
    """The files of one real training step: trust, or a rule without scores, which all write the same fields."""
    with tempfile.TemporaryDirectory() as folder:
        settings = {"max_steps": 1, "global_batch_size": 4, "num_candidates": 8, "max_completion_length": 4}
        allocation = "trust" if rule == "trust" else "uniform"
        trainer = small_runs.trainer(Path(folder), allocation=allocation, record_allocation_every=1, **settings)
        trainer.train()
        files = {path.name: json.loads(path.read_text()) for path in Path(folder).glob("*.json")}
        line = json.loads((Path(folder) / "metrics.jsonl").read_text().splitlines()[0])
    return {**files, "metrics.jsonl": line}


def _filled(written: Mapping[str, Any], **values: Any) -> dict[str, Any]:
    """What a writer wrote, with other values in some of its fields. A field that it does not write is a mistake."""
    assert not values.keys() - written.keys(), f"no writer writes {values.keys() - written.keys()}"
    merged = copy.deepcopy(dict(written))
    for name, value in values.items():
        merged[name] = _filled(merged[name], **value) if isinstance(value, Mapping) else value
    return merged


def _of(teachers: Sequence[str], written: Mapping[str, Any], *fields: str) -> dict[str, Any]:
    """With other teachers in the fields that have an entry for each."""
    return {**written, **{field: dict.fromkeys(teachers, written[field][TEACHERS[0]]) for field in fields}}


def _manifest(
    folder: Path, rule: str, teachers: Sequence[str], max_steps: int, seed: int, config: Mapping[str, Any]
) -> dict[str, Any]:
    written = _trained(rule)["manifest.json"]
    settings = {"allocation": rule, "seed": seed, "max_steps": max_steps}
    settings |= {"run_dir": str(folder), "output_dir": str(folder / "checkpoints")}
    models = {"student": {"source": "models/base"}, "teachers": {t: {"source": f"models/{t}"} for t in teachers}}
    return _filled(
        {**written, "models": _of(teachers, written["models"], "teachers")},
        models=models,
        prompts={"fingerprint": "abcdef1234"},
        planned_steps=max_steps,
        config={**settings, "gamma": 7.0, **config},
    )


def _metrics(step: int, teachers: Sequence[str], rule: str, seed: int) -> dict[str, float]:
    written = _trained(rule)["metrics.jsonl"]
    values = {
        "step": step,
        "loss": 1 / step,
        "completions/mean_length": 10.0 + step,
        "completions/clipped_ratio": 0.0,
        "agreement/max_weight": 0.5 + 0.01 * step + 0.1 * seed,
        "agreement/effective_teachers": 2.0,
        "candidates/student_mass": 0.99,
    }
    by_teacher = {"weight": 1 / len(teachers), "score": 1 + 0.01 * step}
    kinds = [kind for kind in by_teacher if f"{kind}/{TEACHERS[0]}" in written]
    plain = {name: value for name, value in written.items() if name.split("/")[0] not in by_teacher}
    return _filled(plain, **values) | {f"{kind}/{name}": by_teacher[kind] for kind in kinds for name in teachers}


#: Domain scores of the rows that no distillation made.
REFERENCES = {
    "initial": {"math": 0.2, "code": 0.1, "if": 0.3},
    "teacher-math": {"math": 0.5, "code": 0.1, "if": 0.3},
    "teacher-code": {"math": 0.2, "code": 0.4, "if": 0.3},
    "teacher-if": {"math": 0.2, "code": 0.1, "if": 0.6},
}


def rows_of(scores: Mapping[str, Mapping[str, float]], prompts: int = 2) -> dict[str, Any]:
    """Rows of scores.json as `trustmopd evaluate` writes them, from domain scores by row. Routed teachers are added;
    every prompt of a domain has its score, so that there is nothing to resample."""

    def checkpoint(row: Mapping[str, float]) -> dict[str, Graded]:
        facts = {"prompts": prompts, "responses": prompts}
        return {f"{d}_set": Graded(d, {str(p): score for p in range(prompts)}, facts) for d, score in row.items()}

    return score_entries({name: {0: checkpoint(row)} for name, row in scores.items()})


def scores_of(name: str, overall: float) -> dict[str, Any]:
    own = {"math": overall + 0.01, "code": overall - 0.02, "if": overall + 0.01}
    return rows_of({**REFERENCES, name: own})
