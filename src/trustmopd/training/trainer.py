"""`TrustMOPDTrainer`: TRL's `DistillationTrainer` with a pool of teachers instead of one.

TRL generates, shuffles, splits, wraps, checkpoints and logs. This class changes three things. Every frozen policy reads
a batch of rollouts once, before it is split (`_generate_and_score_completions`). The loss is the method's objective on
the student's candidates (`_compute_loss`, by `step/ask.py`). And it is a mean over responses, not over tokens.

The rest has a file of its own: calibration (`calibrate.py`), sampling (`rollout_engine.py`), the log of a step
(`step/step_log.py`), and in `run/` the run directory, saving and loading the student, and resuming.
"""

import logging
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from peft import PeftConfig, PeftModel
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainerCallback
from transformers.trainer_utils import EvalLoopOutput, TrainOutput

from trustmopd.checkpoints.full_weights import whole_student
from trustmopd.method import Objective, response_means
from trustmopd.policies import Teacher
from trustmopd.prompts.prompt_set import of_one_kind
from trustmopd.runs import RunDirectory
from trustmopd.training.calibrate import Calibrator
from trustmopd.training.calibration import Calibration
from trustmopd.training.calibration_rollouts import Judged, judge_rollouts
from trustmopd.training.config import TrustMOPDConfig
from trustmopd.training.dropout import settle_dropout
from trustmopd.training.parallelism import Parallelism
from trustmopd.training.prompt_lengths import SURPLUS, fit_prompts, truncate, with_rows
from trustmopd.training.prompt_order import EpochSampler
from trustmopd.training.rollout_engine import Turns, rollout_dtype, rollout_engine
from trustmopd.training.run.across_ranks import check_same, first_decides
from trustmopd.training.run.checkpointing import CheckpointingTrainer
from trustmopd.training.run.cost import Bill
from trustmopd.training.run.identity import identity_of
from trustmopd.training.run.run_files import RunFiles
from trustmopd.training.setup import check_ingredients, check_trainable, load_pool
from trustmopd.training.step.ask import Judge
from trustmopd.training.step.batch import draws_of, labels_of, num_responses, padded_logprobs, prompt_columns
from trustmopd.training.step.candidates import ScoredCandidates, check_loss
from trustmopd.training.step.records import TokenRecorder
from trustmopd.training.step.rollout_gap import MEAN as GAP
from trustmopd.training.step.step_log import StepLog
from trustmopd.training.step.timing import PhaseClock
from trustmopd.training.step.token_budget import loss_in_passes, micro_batches
from trustmopd.util.files import locked

logger = logging.getLogger(__name__)


class TrustMOPDTrainer(CheckpointingTrainer):
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
    all trained from; None means the initial student. The other arguments are TRL's. Everything is checked here, before
    anything is written.
    """

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
    ):
        args = args or TrustMOPDConfig(output_dir="TrustMOPD")
        train_dataset, eval_dataset = of_one_kind(train_dataset), of_one_kind(eval_dataset)
        given = check_ingredients(
            *(model, teachers, reference, args, train_dataset, processing_class, eval_dataset, tools),
            trains_adapter=peft_config is not None or isinstance(model, PeftModel),
        )
        assert train_dataset is not None
        train_dataset, overlong = fit_prompts(with_rows(train_dataset), given.prompt_lengths, args)
        use_vllm, args.use_vllm = args.use_vllm, False  # TRL must not start vLLM: `rollout_engine` does
        disable_dropout, args.disable_dropout = args.disable_dropout, False  # TRL would miss what is no module
        try:
            super().__init__(
                model=str(model) if isinstance(model, Path) else model,
                args=args,
                train_dataset=train_dataset,
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
        has_dropout = settle_dropout(self.model, disable=args.disable_dropout)
        self.rollout_engine = rollout_engine(self, given.longest)
        self.turns = Turns(args, self._tokenizer.pad_token_id)
        self.teachers = given.teachers
        self.engine = Parallelism.of(self.accelerator)
        self.engine.check(args)
        with whole_student(self.model, self.accelerator):
            run_id = first_decides(lambda: uuid.uuid4().hex)
            self.pool = load_pool(given, self.model, args, self.accelerator, run_id)
            self.identity = identity_of(
                *(self.model, self.pool, given, self.train_dataset),
                overlong=overlong,
                engine=self.engine,
                has_dropout=has_dropout,
            )
        check_same(self.identity.fingerprints)
        run = RunDirectory(Path(args.run_dir or args.output_dir))
        elsewhere = self.pool.elsewhere.devices if self.pool.elsewhere else {}
        bill = Bill(run, self.identity, self.accelerator.num_processes, elsewhere)
        self.files = RunFiles(run, self.identity, args, self, bill, run_id)
        self.clock = PhaseClock(self.accelerator.device)
        mixed = args.mixed_dtype if self.accelerator.native_amp else None
        self.judge_of_step = Judge(args, self.pool, given.vocab_size, self.clock, mixed)
        recorder = TokenRecorder(run, self._tokenizer, every=args.record_allocation_every, seed=args.seed)
        self.step_log = StepLog(
            args, self.accelerator, self.clock, recorder, self.pool, [*given.teachers], rollout_dtype(args, self.model)
        )
        self.calibrator = Calibrator(args, self.accelerator, bill, self.pool.teachers)
        self.add_callback(self.files)

    # ---- Rollouts

    def _get_train_sampler(self, dataset: Dataset | None = None) -> EpochSampler:
        sampler = EpochSampler(super()._get_train_sampler(dataset))
        self.remove_callback(EpochSampler)  # of an earlier `train()`
        self.add_callback(sampler)
        return sampler

    def _tokenize_prompts(self, prompts: list) -> tuple:
        prompt_ids, images, fields = super()._tokenize_prompts(prompts)
        limit, truncation = self.args.max_prompt_length, self.args.prompt_truncation
        return [truncate(ids, limit, truncation) for ids in prompt_ids], images, fields

    def _generate_single_turn(self, prompt_ids: list, *args: Any, **kwargs: Any) -> list[list[int]]:
        return self.turns.sample(self.rollout_engine, prompt_ids)

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        """TRL's rollouts, plus what must go with each row through TRL's shuffle: its place in the dataset, its label,
        and its number in the question to the frozen policies."""
        step, process = self.state.global_step, self.accelerator.process_index
        self.turns.begin(draws_of(inputs, seed=self.args.seed, step=step, process=process))
        with self.clock("rollout"):
            batch = super()._generate_and_score_completions(inputs)
        if self.args.use_vllm and not self.tools:  # a tool's tokens were not sampled
            batch["rollout_logp"] = padded_logprobs(self.turns.first or [], batch["completion_ids"])
        surplus = [index for index, example in enumerate(inputs) if example.get(SURPLUS)]
        batch["completion_mask"][[*self.turns.empty, *surplus]] = 0
        batch |= prompt_columns(inputs, self.args.domain_column)
        if self.args.rules.allocation.rule == "routed":
            batch["label"] = labels_of(batch["meta"], list(self.teachers))
        # The loss is a mean over responses, so these are the items; TRL counts tokens.
        batch["num_items_in_batch"] = self.accelerator.gather(num_responses(batch)).sum()
        batch["asked"] = self.judge_of_step.ask(batch)
        if self.model.training:
            self.step_log.recorder.choose(batch["row"].tolist(), step)
        return batch

    # ---- The objective

    def _judge(self, student: Any, batch: dict[str, Any]) -> tuple[ScoredCandidates, Objective]:
        return self.judge_of_step.judge(student, batch, mu=self.mu, step=self.state.global_step)

    def judge(self, batch: dict[str, Any]) -> tuple[ScoredCandidates, Objective]:
        """The student's candidates with every policy's log-probabilities, and the objective, for a batch with TRL's
        keys."""
        student = self.accelerator.unwrap_model(self.model_wrapped)
        with self.compute_loss_context_manager():
            return self._forward_redirection(self.model_wrapped, student, self._judge, student, batch)

    def judge_rollouts(self, rows: Sequence[int], *, seed: int, description: str) -> Iterator[Judged]:
        """Let the student answer the prompts of `rows`, and judge every answer."""
        return judge_rollouts(self, rows, seed=seed, description=description)

    @property
    def mu(self) -> Tensor | None:
        if self.calibration is None:
            return None
        return self.calibration.mu_of(self.pool.teachers).to(self.accelerator.device)

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """TRL's loss. Under a token budget, the sum over several passes; all but the last go backward here."""
        if (budget := self.args.max_tokens_per_micro_batch) is None:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        loss_of = partial(super().compute_loss, model, num_items_in_batch=num_responses(inputs).clamp_min(1))
        loss = loss_in_passes(loss_of, micro_batches(inputs, budget, self.accelerator), model, self.accelerator)
        return (loss, None) if return_outputs else loss

    def _compute_loss(self, unwrapped_student: Any, inputs: dict[str, Any], num_items_in_batch: Any) -> tuple:
        if self.args.calibrates and self.calibration is None:
            raise RuntimeError("the scores are not calibrated yet. Call calibrate() first; train() does so itself.")
        scored, result = self._judge(unwrapped_student, inputs)
        valid = scored.at.mask != 0
        if num_items_in_batch is None:
            num_items_in_batch = num_responses(inputs).clamp_min(1)
        loss = response_means(result.token_loss, valid).sum() / num_items_in_batch
        check_loss(loss, self.state.global_step + 1)
        entropy = torch.special.entr(scored.at.student_logp.detach()[valid].exp()).sum()
        self.step_log.note(scored, result, inputs, self.mu, training=self.model.training)
        return loss, entropy, valid.sum()

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        with self.clock("backward"):  # the time that no other phase counts
            loss = super().training_step(model, inputs, num_items_in_batch)
        if self._step % self.current_gradient_accumulation_steps == 0:
            self.judge_of_step.release()
            self._log_later("train", self.step_log.finish(self.state.global_step))
        return loss

    def _log_later(self, mode: str, metrics: Mapping[str, float]) -> None:
        """Add to the next line of metrics."""
        for metric, value in metrics.items():
            self._metrics[mode][metric].append(value)

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
        return self.calibrator.measure(self.judge_rollouts)

    def ensure_calibration(self) -> None:
        """Use the calibration in the run directory if it fits; otherwise measure one."""
        if not self.calibrator.find():
            self.calibrate()

    @property
    def calibration(self) -> Calibration | None:
        return self.calibrator.calibration

    # ---- The life of a run

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        alone = locked(self.files.run.path, "Wait for it, or choose another output_dir.")
        with alone if self.accelerator.is_main_process else nullcontext():
            if not resume_from_checkpoint:
                return super().train(None, *args, **kwargs)
            resume = self.files.resume_from(resume_from_checkpoint)
            self.step_log.gap.first = next((line[GAP] for line in resume.state.log_history if GAP in line), None)
            self.calibrator.resume(RunDirectory(resume.checkpoint).calibration)
            step, last = resume.state.global_step, self.args.max_steps
            if step >= last > 0:  # transformers would train one step too many
                logger.warning("nothing is left to train: %s has %d of %d steps.", resume.checkpoint, step, last)
                self.load_student(resume.checkpoint)
                self.state = resume.state
                return TrainOutput(step, float("nan"), {})
            return super().train(str(resume.checkpoint), *args, **kwargs)

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        self.ensure_calibration()
        try:
            return super().evaluate(*args, **kwargs)
        finally:
            self.step_log.forget_time()

    def evaluation_loop(self, *args: Any, **kwargs: Any) -> EvalLoopOutput:
        """TRL's loop, plus the metrics of allocation: `eval_weight/<teacher>`, …"""
        output = super().evaluation_loop(*args, **kwargs)
        self._log_later("eval", self.step_log.means())
        return output

    def unlogged(self) -> dict[str, float]:
        """Means of the steps since the last line of metrics, the number of steps made, and the peak of memory."""
        return self.step_log.unlogged(self._metrics["train"], self.state.global_step)
