"""Accuracy while training, of the rollouts of every step and of held-out prompts every so many steps; and the best
checkpoint by it. Nothing here changes what is learnt: not the weights, nor the random state."""

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

from accelerate.utils import gather_object
from transformers import TrainerCallback, TrainerControl, TrainerState

from trustmopd.evaluation.graders.reasoning import OPEN
from trustmopd.evaluation.grading import Graded
from trustmopd.evaluation.user_sets import grade_by_fields, is_graded
from trustmopd.recipe.recipe import Watch
from trustmopd.runs.watched import LOST, PROMPTS, ROLLOUTS, SCORE, accuracy
from trustmopd.training.probe import fixed_random_state
from trustmopd.training.step.batch import Batch
from trustmopd.training.step.sample import Examples, rollout_params
from trustmopd.training.watched_prompts import HeldOut

if TYPE_CHECKING:
    from trustmopd.training.trainer import TrustMOPDTrainer

logger = logging.getLogger(__name__)


class _Waiting(NamedTuple):
    """A response that is being graded, and what its score counts for."""

    benchmark: str
    domain: str | None
    graded: Future[Graded]


class Watcher(TrainerCallback):
    def __init__(self, trainer: "TrustMOPDTrainer", watch: Watch, held_out: Sequence[HeldOut]) -> None:
        self.trainer = trainer
        self.watch = watch
        self.held_out = held_out
        self._rollouts: list[_Waiting] = []
        self._told: set[str] = set()

    def submit(self, batch: Batch, inputs: Examples) -> None:
        """Have the rollouts of a step graded whose prompts carry answers."""
        self._rollouts = []
        for row, (rollout, example) in enumerate(zip(batch.rollouts, inputs, strict=True)):
            if is_graded(example):
                response = self._text(batch.response_ids[row][batch.mask[row] != 0].tolist())
                if self._text(batch.prompt_ids[row][-16:].tolist()).rstrip().endswith(OPEN):
                    response = OPEN + response
                graded = self.trainer.grading.submit(partial(grade_by_fields, dict(example)), response)
                self._rollouts.append(_Waiting(ROLLOUTS, rollout.domain, graded))

    def on_step_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if state.global_step == 0 and self.held_out:
            self.trainer.log(self._of_held_out())

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        trainer, step = self.trainer, state.global_step
        with trainer.context.clock("watch"):
            metrics = self._means(self._rollouts)
            if self.held_out and (step % self.watch.every == 0 or step >= state.max_steps):
                metrics |= self._of_held_out()
                control.should_log = True  # a line of its own: a mean of several samples would name no checkpoint
        best = -1.0 if state.best_metric is None else state.best_metric
        if self.watch.save_best and metrics.get(SCORE, -1.0) > best:
            # transformers' own record of the best: `RunFiles` keeps this checkpoint, and a resumed run goes on with it
            state.best_metric, state.best_global_step = metrics[SCORE], step
            control.should_save = True
        trainer._log_later("train", {**metrics, "seconds/watch": trainer.context.clock.take()["watch"]})

    def _of_held_out(self) -> dict[str, float]:
        metrics = self._means(self._sampled())
        scores = [metrics.get(accuracy(name)) for name in {each.benchmark for each in self.held_out}]
        known = [score for score in scores if score is not None]
        return metrics | ({SCORE: fmean(known)} if len(known) == len(scores) else {})

    def _sampled(self) -> list[_Waiting]:
        """Responses to this process's share of the held-out prompts, drawn with the same random numbers every time."""
        trainer, args, accelerator = self.trainer, self.trainer.args, self.trainer.accelerator
        training, waiting = trainer.model.training, []
        trainer.model.eval()
        try:
            with fixed_random_state(0):
                for start in range(0, len(self.held_out), args.global_batch_size):
                    block = self.held_out[start : start + args.global_batch_size]
                    # Engines take the same number of prompts from every process.
                    filled = -(-len(block) // accelerator.num_processes) * accelerator.num_processes
                    places = range(accelerator.process_index, filled, accelerator.num_processes)
                    mine = [block[place % len(block)] for place in places]
                    draws = [f"watch/{each.benchmark}/{each.id}" for each in mine]
                    made = trainer.rollout_engine.sample([each.ids for each in mine], rollout_params(args, draws))
                    for place, each, completion in zip(places, mine, made, strict=True):
                        if place < len(block):
                            text = each.opened + self._text(completion.ids)
                            waiting.append(
                                _Waiting(each.benchmark, each.domain, trainer.grading.submit(each.grader, text))
                            )
        finally:
            trainer.model.train(training)
        return waiting

    def _text(self, ids: list[int]) -> str:
        return self.trainer._tokenizer.decode(ids, skip_special_tokens=True)

    def _means(self, waiting: Sequence[_Waiting]) -> dict[str, float]:
        """Over all processes: accuracy by benchmark and domain, and of how many responses; how many have no grade."""
        everyone = gather_object([(each.benchmark, each.domain, *each.graded.result()) for each in waiting])
        scores: dict[str, list[float]] = defaultdict(list)
        lost: dict[str, str] = {}
        for name, domain, score, problem in everyone:
            if score is None:
                lost[name] = problem
                continue
            scores[name].append(score)
            if domain is not None:
                scores[f"{name}/{domain}"].append(score)
        self._tell(lost)
        metrics: dict[str, float] = {accuracy(key): fmean(values) for key, values in sorted(scores.items())}
        metrics |= {f"{PROMPTS}/{key}": len(values) for key, values in sorted(scores.items())}
        return metrics | ({LOST: sum(score is None for _, _, score, _ in everyone)} if everyone else {})

    def _tell(self, lost: Mapping[str, str]) -> None:
        for name in lost.keys() - self._told:
            self._told.add(name)
            logger.warning("watch: a response of %s has no grade, and does not count: %s.", name, lost[name])
