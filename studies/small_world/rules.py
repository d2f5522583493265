"""The comparison of the field's rules: rows, pools, and cells in the order in which they are run. What counts, and why
these cells, was written down before the first run: docs/results/rules.md."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from studies.small_world import pools
from studies.small_world.cells import METHODS, PROMPT_SETS, Cell
from studies.small_world.comparison import Comparison
from studies.small_world.reinforcement import REGIMES
from studies.small_world.workers import workers
from trustmopd.evaluation.journal import GRADED, Journal
from trustmopd.quickstart.experiment import Scale
from trustmopd.quickstart.prompts import evaluation_set, record
from trustmopd.quickstart.tasks import DOMAINS
from trustmopd.recipe import Recipe
from trustmopd.runs import EntryDirectory, RunDirectory
from trustmopd.runs.schemas import read_file
from trustmopd.util.files import write_json

SINGLECAP, MULTICAP = PROMPT_SETS
SHIPPED, SIX, DRIFTING = "shipped", "six", "drifting"
#: Pools of more and more drift. A pool drifted enough where a teacher leads on less than this share of its own prompts.
DRIFTS, LED = tuple(name for name in REGIMES if name.startswith("adrift-")), 0.6
#: What λ is swept over beside 1, and the λ of stage two.
FACTORS, FACTOR = (1.25, 1.5, 2, 3, 4), 2
#: In a run: nats a token between the student and where it started, on its own answers to the evaluation prompts.
DISTANCE = "distance.json"


def _extrapolated(settings: Mapping[str, Any], factor: float) -> dict[str, Any]:
    return {**settings, "target": {"rule": "extrapolated", "factor": float(factor)}}


def _by_leader(rule: str, **settings: float) -> dict[str, Any]:
    return {"emphasis": {"rule": rule, "by": "leader", **settings}}


#: Every rule, with its authors' parameters: an allocation, and a target or an emphasis where it is not the paper's.
RULES: dict[str, dict[str, Any]] = {
    **{name: METHODS[name] for name in ("trust", "uniform", "routed")},
    "argmax": {"rule": "argmax"},
    "directed": {"rule": "directed"},
    "expert-align": {"rule": "expert_align"},
    "expert-align-all": {"rule": "expert_align", "top": None},
    "entropy": {"rule": "entropy"},
    "novelty": {"rule": "novelty"},
    "consensus": {"rule": "consensus"},
    "shift": {"rule": "uniform", "target": {"rule": "shift"}},
    "shift-weighted": {"target": {"rule": "shift", "weighted": True}},
    "normalised-leader": _by_leader("domain_normalised"),
    "normalised-label": {"emphasis": {"rule": "domain_normalised"}},
    "shares-leader": _by_leader("equal_shares"),
}
EXTRAPOLATED = {
    f"{name}-x{factor}": _extrapolated(METHODS[name], factor)
    for name in ("trust", "uniform", "routed")
    for factor in FACTORS
} | {f"expert-align-x{FACTOR}": _extrapolated(RULES["expert-align"], FACTOR)}
#: One parameter of each rule that has one, at three values beside its authors' own.
SWEEPS: dict[str, dict[str, Any]] = {
    **{f"trust-{gamma}": {"gamma": float(gamma)} for gamma in (3, 5, 9)},
    **{f"directed-{gamma}": {"rule": "directed", "gamma": float(gamma)} for gamma in (3, 5, 9)},
    **{f"shift-weighted-{gamma}": {**RULES["shift-weighted"], "gamma": float(gamma)} for gamma in (3, 5, 9)},
    **{f"expert-align-{top}": {"rule": "expert_align", "top": top} for top in (4, 8, 24)},
    **{f"entropy-{tau}": {"rule": "entropy", "temperature": tau} for tau in (0.03, 0.3, 1.0)},
    **{f"novelty-{tau}": {"rule": "novelty", "temperature": tau} for tau in (0.03, 0.3, 1.0)},
    **{f"consensus-{nats}": {"rule": "consensus", "nats": nats} for nats in (0.1, 0.3, 3.0)},
    **{f"normalised-leader-{n}": _by_leader("domain_normalised", low=1 / n, high=float(n)) for n in (2, 8, 16)},
}
SWEPT = ("trust", "directed", "shift-weighted", "expert-align", "entropy", "novelty", "consensus", "normalised-leader")
SWEEP_SEED = 7
ROWS = RULES | EXTRAPOLATED | SWEEPS


def cell(prompts: str, method: str, seed: int) -> Cell | None:
    """None for rules that go by labels, on mixed prompts, which have none."""
    labelled = method.startswith(("routed", "consensus", "normalised-label"))
    return None if labelled and prompts == MULTICAP else Cell(prompts, method, seed)


class RulesComparison(Comparison):
    """Without token records, and with the student's distance from where it started."""

    def _recipe(self, *named: Any) -> Recipe:
        recipe = super()._recipe(*named)
        return recipe.model_copy(update={"training": recipe.training | {"record_allocation_every": 0}})

    def run(self, cell: Cell) -> None:
        super().run(cell)
        run = cell.run(self.out)
        answers = EntryDirectory(RunDirectory(self.out).evaluation / cell.responses)
        nats = distance(self.pool.student, run.checkpoint(self.scale.steps), answers)
        write_json(run.path / DISTANCE, {"nats": nats})


@torch.no_grad()
def distance(start: str, student: Path, answers: EntryDirectory, each: int = 100) -> float:
    """KL(student ‖ start), the mean over the tokens of the student's answers to `each` prompts of every domain."""
    tokenizer = AutoTokenizer.from_pretrained(student, padding_side="right")
    models = [AutoModelForCausalLM.from_pretrained(path).eval() for path in (student, start)]
    total = count = 0.0
    for domain in DOMAINS:
        tasks = {task.id: record(task)["prompt"] for task in evaluation_set(domain, each)}
        lines = [line for line in Journal(answers.graded(f"testbed_{domain}"), GRADED).lines if line["id"] in tasks]
        asked = [
            tokenizer.apply_chat_template(tasks[line["id"]], tokenize=False, add_generation_prompt=True)
            for line in lines
        ]
        ends = ["" if line["truncated"] else tokenizer.eos_token for line in lines]
        whole = [f"{prompt}{line['response']}{end}" for prompt, line, end in zip(asked, lines, ends, strict=True)]
        batch = tokenizer(whole, add_special_tokens=False, return_tensors="pt", padding=True)
        skipped = torch.tensor([len(tokenizer(prompt, add_special_tokens=False).input_ids) for prompt in asked])
        at = torch.arange(batch.input_ids.shape[1] - 1)
        answered = (at >= skipped[:, None] - 1) & (batch.attention_mask[:, 1:] != 0)
        ours, theirs = (torch.log_softmax(model(**batch).logits[:, :-1].double(), dim=-1) for model in models)
        total += float((ours.exp() * (ours - theirs)).sum(dim=-1)[answered].sum())
        count += int(answered.sum())
    return total / count


def prepared(out: Path, scale: Scale, stages: Iterable[str], jobs: int = 1) -> dict[str, Comparison]:
    """The comparison of each pool that these stages need, side by side: worlds that are not there yet are built; mu and
    diagnoses are measured. The drifting pool is the first of `DRIFTS` that drifted far enough, or else the last."""
    names = [SHIPPED] if {*stages} - {"pools"} else []
    names += [SIX, *DRIFTS] if {"pools", "two"} & {*stages} else []
    with workers(min(jobs, len(names))) as several:
        found = dict(zip(names, several.map(partial(_comparison, out, scale), names), strict=True))
    if SIX in found:
        enough = [name for name in DRIFTS if least_lead(found[name]) < LED]
        found[DRIFTING] = found[(*enough, DRIFTS[-1])[0]]
    return found


def _comparison(out: Path, scale: Scale, name: str) -> Comparison:
    if name == SHIPPED:
        pool = pools.one_base(methods=ROWS)
    else:
        pool = pools.six_teachers(out, ROWS) if name == SIX else pools.drifting(out, name, ROWS)
    comparison = RulesComparison(out / name, pool, scale)
    comparison.prepare([Cell(prompts, "trust", 0) for prompts in (PROMPT_SETS if name == SHIPPED else (MULTICAP,))])
    return comparison


def least_lead(comparison: Comparison) -> float:
    """The share of its own prompts on which a teacher leads, of the teacher that leads least."""
    diagnosis = read_file(comparison.diagnosis(MULTICAP, "trust"), what="diagnosis", remedy="")
    return min(domain["leads"] for domain in diagnosis["domains"] if domain["leads"] is not None)


def work(comparisons: Mapping[str, Comparison], stages: Iterable[str]) -> Iterator[tuple[Comparison, Cell]]:
    """The cells of these stages, each once, in the order of the protocol."""
    seen = set()
    for stage in stages:
        for pool, prompts, method, seed in STAGES[stage](comparisons):
            if (one := cell(prompts, method, seed)) is not None and (pool, one) not in seen:
                seen.add((pool, one))
                yield comparisons[pool], one


def _one(comparisons: Mapping[str, Comparison]) -> Iterator[tuple[str, str, str, int]]:
    for seed in range(3):
        for prompts in reversed(PROMPT_SETS):
            yield from ((SHIPPED, prompts, method, seed) for method in RULES)


def _factors(comparisons: Mapping[str, Comparison]) -> Iterator[tuple[str, str, str, int]]:
    for seed in range(2):
        for factor in FACTORS:
            for prompts, name in (
                (MULTICAP, "trust"),
                (MULTICAP, "uniform"),
                (SINGLECAP, "trust"),
                (SINGLECAP, "routed"),
            ):
                yield SHIPPED, prompts, f"{name}-x{factor}", seed


def _two(comparisons: Mapping[str, Comparison]) -> Iterator[tuple[str, str, str, int]]:
    best = best_others(comparisons[SHIPPED])
    few = ("trust", f"trust-x{FACTOR}", "uniform", "shift", *best)
    many = (*few, "routed", *(f"{name}-x{FACTOR}" for name in ("uniform", "routed", "expert-align")))
    for seed in range(5):
        for pool in (DRIFTING, SIX):
            yield from ((pool, MULTICAP, method, seed) for method in few)
        for prompts in reversed(PROMPT_SETS):
            yield from ((SHIPPED, prompts, method, seed) for method in many)


def _sweeps(comparisons: Mapping[str, Comparison]) -> Iterator[tuple[str, str, str, int]]:
    for method in (*SWEPT, *SWEEPS):
        yield SHIPPED, SINGLECAP if method.startswith("consensus") else MULTICAP, method, SWEEP_SEED


STAGES: dict[str, Callable[[Mapping[str, Comparison]], Iterator[tuple[str, str, str, int]]]] = {
    "pools": lambda comparisons: iter(()),
    "one": _one,
    "factors": _factors,
    "two": _two,
    "sweeps": _sweeps,
}


def best_others(comparison: Comparison, count: int = 2) -> list[str]:
    """The rules with the largest recovery in stage one, the mean over both prompt sets and its seeds, among those that
    need no labels and are not in stage two anyway."""
    found = {}
    for method in RULES.keys() - {"trust", "uniform", "shift"}:
        cells = [cell(prompts, method, seed) for prompts in PROMPT_SETS for seed in range(3)]
        scores = [one.scores(comparison.out) for one in cells if one is not None]
        if len(scores) == 6 and (done := [row["recovery"] for row in scores if row is not None]):
            found[method] = mean(done)
    return sorted(found, key=found.__getitem__, reverse=True)[:count]
