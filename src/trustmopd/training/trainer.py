"""`TrustMOPDTrainer`: TRL's `DistillationTrainer` with a pool of teachers instead of one.

TRL generates, shuffles, splits, wraps and logs. This is the one file that knows its hooks, which only call: a step is
made by the functions of `step/` (sample → ask → candidates → objective → note). What transformers calls to save, load
and resume is in `run/checkpointing.py`.
"""

import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from accelerate.utils import gather_object
from datasets import Dataset
from peft import PeftConfig
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainerCallback
from transformers.trainer_utils import EvalLoopOutput
from trl import DistillationTrainer
from trl.extras.profiling import profiling_context
from trl.models import unwrap_model_for_generation

from trustmopd.checkpoints.loading import whole_student
from trustmopd.evaluation.grading import GradingPool
from trustmopd.method import Objective
from trustmopd.policies import Teacher
from trustmopd.prompts.prompt_set import of_one_kind
from trustmopd.prompts.views import PromptViews, truncate
from trustmopd.recipe.rules import Grouped
from trustmopd.training import step
from trustmopd.training.calibrate import Calibrator
from trustmopd.training.calibration import Calibration
from trustmopd.training.config import TrustMOPDConfig
from trustmopd.training.dropout import settle_dropout
from trustmopd.training.parallelism import Parallelism
from trustmopd.training.probe import probe
from trustmopd.training.prompt_order import EpochSampler
from trustmopd.training.rollout_engine import rollout_dtype, rollout_engine
from trustmopd.training.run.across_ranks import check_same, first_decides
from trustmopd.training.run.checkpointing import CheckpointingTrainer
from trustmopd.training.run.guarding import Guarding
from trustmopd.training.run.identity import identity_of
from trustmopd.training.run.model_card import PAPER
from trustmopd.training.run.preemption import Preemption
from trustmopd.training.run.progress import show_progress
from trustmopd.training.run.run_files import RunFiles
from trustmopd.training.setup import Ingredients, check_ingredients, check_trainable, graph_of, load_pool
from trustmopd.training.step.records import TokenRecorder, TokenTexts
from trustmopd.training.step.timing import PhaseClock
from trustmopd.training.watch import Watcher


class TrustMOPDTrainer(CheckpointingTrainer, DistillationTrainer):
    """Distil several specialists of one base model into one student. Each is trusted where it has moved away from the
    reference.

    ```python
    trainer = TrustMOPDTrainer(
        model="student",
        teachers={"math": "path-or-hub-id", "code": model, "if": Teacher(adapter="path")},
        args=TrustMOPDConfig(output_dir="runs/student"),
        train_dataset=prompts,
    )
    trainer.train()
    ```

    `teachers` maps names to a path or Hub id, a loaded model, or a `Teacher`. `reference` is the policy that they were
    all trained from; None means the initial student. Everything is checked here, before anything is written;
    `ingredients` are what `prepare` has checked of a recipe. The other arguments are TRL's.
    """

    args: TrustMOPDConfig
    _tag_names: ClassVar[list[str]] = ["trl", "distillation", "trustmopd"]
    _paper: ClassVar[dict[str, str]] = PAPER

    def __init__(
        self,
        model: Any,
        teachers: Mapping[str, str | Path | PreTrainedModel | Teacher],
        reference: str | Path | PreTrainedModel | Teacher | None = None,
        args: TrustMOPDConfig | None = None,
        train_dataset: Dataset | None = None,
        eval_dataset: Dataset | dict[str, Dataset] | None = None,
        processing_class: PreTrainedTokenizerBase | None = None,
        callbacks: list[TrainerCallback] | None = None,
        optimizers: tuple = (None, None),
        quantization_config: Any = None,
        peft_config: PeftConfig | None = None,
        tools: list[Callable] | None = None,
        ingredients: Ingredients | None = None,
    ):
        args = args or TrustMOPDConfig(output_dir="TrustMOPD")
        if not isinstance(args, TrustMOPDConfig):
            raise TypeError(
                f"args is a {type(args).__name__}, which lacks the method's fields. Give a TrustMOPDConfig: it has "
                "every field of transformers.TrainingArguments and trl.DistillationConfig too."
            )
        train_dataset, eval_dataset = of_one_kind(train_dataset), of_one_kind(eval_dataset)
        given = ingredients or check_ingredients(
            *(model, graph_of(model, teachers, reference, args), args, train_dataset),
            *(processing_class, eval_dataset, tools),
        )
        use_vllm, args.use_vllm = args.use_vllm, False  # TRL must not start vLLM: `rollout_engine` does
        disable_dropout, args.disable_dropout = args.disable_dropout, False  # TRL would miss what is no module
        try:
            super().__init__(
                model=str(model) if isinstance(model, Path) else model,
                args=args,
                train_dataset=given.prompts,
                eval_dataset=eval_dataset,
                processing_class=given.tokenizer,
                callbacks=callbacks,
                optimizers=optimizers,
                quantization_config=quantization_config,
                peft_config=peft_config,
                tools=tools,
            )
        finally:
            args.use_vllm, args.disable_dropout = use_vllm, disable_dropout
        check_trainable(self.model)
        self.preemption = Preemption(self.accelerator)
        self.guarding = Guarding(args.guard)
        self.callback_handler.callbacks.insert(0, self.guarding)
        has_dropout = settle_dropout(self.model, disable=args.disable_dropout)
        self.rollout_engine = rollout_engine(self, given.longest)
        self.teachers = given.graph.teachers
        self.parallelism = Parallelism.of(self.accelerator)
        self.parallelism.check(args)
        with whole_student(self.model, self.accelerator):
            run_id = first_decides(lambda: uuid.uuid4().hex)
            self.pool = load_pool(given, self.model, args, self.accelerator, run_id)
            self.identity = identity_of(self.model, self.pool, given, self.parallelism, has_dropout=has_dropout)
        check_same(self.identity.fingerprints)
        self.files = RunFiles(args, self, run_id)
        self.calibrator = Calibrator(args, self.accelerator, self.files.bill, self.pool.teachers)
        mixed = args.mixed_dtype if self.accelerator.native_amp else None
        device, emphasis = self.accelerator.device, None
        if isinstance(args.rules.emphasis, Grouped):
            emphasis = step.GroupEmphasis(args.rules.emphasis, [*self.teachers], device)
            self.add_callback(emphasis)
        views = PromptViews({name: view for name, view in given.views.items() if name in self.pool.members})
        self.context = step.StepContext(args, self.pool, given.vocab_size, PhaseClock(device), mixed, emphasis, views)
        recorder = TokenRecorder(self.files.run, self._tokenizer, args.record_allocation_every)
        self.step_log = step.StepLog(
            self.context, self.accelerator, [*self.teachers], recorder, rollout_dtype(args, self.model)
        )
        show_progress(self)
        self.grading = GradingPool()
        self.watcher = None if args.watching is None else Watcher(self, args.watching, given.held_out)
        for callback in (self.files, self.preemption, self.watcher):
            if callback is not None:
                self.add_callback(callback)

    # ---- Rollouts

    def _get_train_sampler(self, dataset: Dataset | None = None) -> EpochSampler:
        repeats: Any = super()._get_train_sampler(dataset)  # of one response to a prompt
        repeats.mini_repeat_count, repeats.batch_size = self.args.num_generations, self.args.prompts_per_step
        sampler = EpochSampler(repeats)
        self.remove_callback(EpochSampler)  # of an earlier `train()`
        self.add_callback(sampler)
        return sampler

    def _tokenize_prompts(self, prompts: list) -> tuple:
        prompt_ids, images, fields = super()._tokenize_prompts(prompts)
        limit, truncation = self.args.max_prompt_length, self.args.prompt_truncation
        return [truncate(ids, limit, truncation) for ids in prompt_ids], images, fields

    def _generate_single_turn(self, prompt_ids: list, *args: Any, **kwargs: Any) -> list[list[int]]:
        return step.next_turn(prompt_ids)

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        """TRL's rollouts, and the rows of the batch that they are, which the frozen policies have read."""
        rollouts = step.rollouts_of(
            *(inputs, gather_object([step.rows_of(inputs)]), self.args),
            teachers=[*self.teachers],
            views=self.context.views,
            step=self.state.global_step,
            process=self.accelerator.process_index,
        )
        turns = step.Turns(self.rollout_engine, self.args, rollouts, self._tokenizer.pad_token_id)
        with self.context.clock("rollout"), turns.current():
            generated = super()._generate_and_score_completions(inputs)
        self.preemption.check()
        with_logp = self.args.rules.rollouts.beside and not self.tools  # a tool's tokens were not sampled
        batch = step.sampled(generated, inputs, rollouts, turns, with_logp=with_logp)
        if self.watcher is not None and self.model.training:
            self.watcher.submit(batch, inputs)  # graded while the frozen policies read
        if self.args.mask_reasoning:
            batch = step.without_reasoning(batch, TokenTexts(self._tokenizer))
        batch = step.ask(self.context, batch)
        self.preemption.check()
        # The loss is a mean over responses, so these are the items; TRL counts tokens.
        items = self.accelerator.gather(batch.num_responses).sum()
        return {**generated, "num_items_in_batch": items, step.ENTRIES: batch.entries()}

    @contextmanager
    def lent_student(self) -> Iterator[Any]:
        """The student, gathered and without its wrappers, as TRL passes it to `generate`."""
        with (
            profiling_context(self, "transformers.generate"),
            unwrap_model_for_generation(
                self.model_wrapped,
                self.accelerator,
                gather_deepspeed3_params=self.args.ds3_gather_for_generation,
                generation_kwargs=self.generation_kwargs,
                gradient_checkpointing_kwargs=self.args.gradient_checkpointing_kwargs,
            ) as student,
            self._dist.summon_full_params(self.model_wrapped, recurse=False),
        ):
            yield student

    # ---- The objective

    def objective(self, batch: step.Batch) -> tuple[step.ScoredCandidates, Objective]:
        """The student's candidates with every policy's log-probabilities, and the objective."""
        student = self.accelerator.unwrap_model(self.model_wrapped)
        with self.compute_loss_context_manager():
            return self._forward_redirection(self.model_wrapped, student, self._objective, student, batch)

    def _objective(self, student: Any, batch: step.Batch) -> tuple[step.ScoredCandidates, Objective]:
        batch = batch if batch.answers else step.ask(self.context, batch)
        with self.context.clock("student"):
            scored = step.candidates_of(self.context, student, batch, self.state.global_step + 1)
            return scored, step.objective_of(self.context, scored, batch, self.mu, self.state.global_step)

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """TRL's loss. Under a token budget, the sum over several passes; all but the last go backward here."""
        trls, budget = partial(super().compute_loss, model), self.args.max_tokens_per_micro_batch
        if budget is None:
            loss = trls(inputs, num_items_in_batch=num_items_in_batch)
        else:
            batch = step.batch_of(inputs)
            items = batch.num_responses.clamp_min(1)
            loss = step.loss_in_passes(
                lambda part: trls({**inputs, step.ENTRIES: part.entries()}, num_items_in_batch=items),
                *(step.micro_batches(batch, budget, self.accelerator), model, self.accelerator),
            )
        if not self.model.training:  # an evaluation uses its batch once
            step.batch_of(inputs).release()
        return (loss, None) if return_outputs else loss

    def _compute_loss(self, unwrapped_student: Any, inputs: dict[str, Any], num_items_in_batch: Any) -> tuple:
        if self.args.calibrates and self.calibration is None:
            raise RuntimeError("the scores are not calibrated yet. Call calibrate() first; train() does so itself.")
        batch, done = step.batch_of(inputs), self.state.global_step
        scored, result = self._objective(unwrapped_student, batch)
        items = batch.num_responses.clamp_min(1) if num_items_in_batch is None else num_items_in_batch
        loss = step.loss_of(result, batch, items, done + 1)
        self.step_log.note(scored, result, batch, self.mu, done if self.model.training else None)
        return loss, step.entropy_of(scored), (batch.mask != 0).sum()

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        with self.context.clock("backward"):  # the time that no other phase counts
            loss = super().training_step(model, inputs, num_items_in_batch)
        if self._step % self.current_gradient_accumulation_steps == 0:
            self._buffered_inputs[0][step.ENTRIES][0].batch.release()
            self._log_later("train", self.step_log.finish(self.state.global_step))
        return loss

    def evaluation_loop(self, *args: Any, **kwargs: Any) -> EvalLoopOutput:
        """TRL's loop, plus the metrics of allocation: `eval_weight/<teacher>`, …"""
        output = super().evaluation_loop(*args, **kwargs)
        self._log_later("eval", self.step_log.means())
        return output

    def _log_later(self, mode: str, metrics: Mapping[str, float]) -> None:
        """Add to the next line of metrics."""
        for metric, value in metrics.items():
            self._metrics[mode][metric].append(value)

    def unlogged(self) -> dict[str, float]:
        """Means of the steps since the last line of metrics, the number of steps made, and the peak of memory."""
        return self.step_log.unlogged(self._metrics["train"], self.state.global_step)

    # ---- Calibration

    def calibrate(self) -> Calibration | None:
        """Measure mu on rollouts of the initial student (Algorithm 1), keep it for training, and save it in the run
        directory. Random state and model are left unchanged. None if the rule uses no calibrated scores."""
        if not self.args.calibrates:
            return None
        if self.state.global_step > 0:
            raise RuntimeError(
                f"calibrate() was called after {self.state.global_step} training steps, but mu is measured on the "
                "initial student. Call it before train(). A resumed run uses the calibration that it began with."
            )
        return self.calibrator.measure(lambda *args, **kwargs: probe(self, *args, **kwargs))

    def ensure_calibration(self) -> None:
        """Use the calibration in the run directory if it fits; otherwise measure one."""
        if not self.calibrator.find():
            self.calibrate()

    @property
    def calibration(self) -> Calibration | None:
        return self.calibrator.calibration

    @property
    def mu(self) -> Tensor | None:
        if self.calibration is None:
            return None
        return self.calibration.mu_of(self.pool.teachers).to(self.accelerator.device)
