"""`TrustMOPDTrainer`: TRL's `DistillationTrainer` with a pool of teachers in place of one.

TRL generates, shuffles, splits, wraps, checkpoints and logs. What differs is here: before a rollout batch is split,
every frozen policy reads it once (`_generate_and_score_completions`); in each micro-batch the student's candidates are
scored and the method's objective taken (`_compute_loss`, by `judging.py`); and the loss is a mean over responses, not
over tokens. Then the life of a run: calibrated before it begins, whole at every checkpoint, resumed as what it was.
"""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import torch
from datasets import Dataset
from peft import PeftConfig
from safetensors import SafetensorError
from torch import Tensor
from torch.distributed.fsdp import StateDictType
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainerCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, EvalLoopOutput, TrainOutput
from trl import DistillationTrainer

from trustmopd.data import of_one_kind
from trustmopd.engines import Completion
from trustmopd.files import locked, write_text
from trustmopd.method import Calibration, Objective, response_means
from trustmopd.runs import RunDirectory
from trustmopd.teachers import Teacher
from trustmopd.teachers.whole import whole_student
from trustmopd.training.agreement import check_same, first_decides
from trustmopd.training.batch import draws_of, labels_of, num_responses, padded_logprobs, prompt_columns
from trustmopd.training.calibrating import check_habits, measure_calibration
from trustmopd.training.card import model_card
from trustmopd.training.clock import PhaseClock
from trustmopd.training.config import TrustMOPDConfig
from trustmopd.training.engine import Engine
from trustmopd.training.identity import identity_of
from trustmopd.training.judging import Judge
from trustmopd.training.manifest import dependencies
from trustmopd.training.metrics import StepTotals, allocation_metrics, peak_memory_gib
from trustmopd.training.passes import loss_in_passes, micro_batches
from trustmopd.training.prompts import SURPLUS, fit_prompts, truncate, with_rows
from trustmopd.training.records import TokenRecorder
from trustmopd.training.resuming import apply_changes, fresh_groups
from trustmopd.training.rollout_engine import rollout_engine, rollout_params
from trustmopd.training.rollout_gap import MEAN as GAP
from trustmopd.training.rollout_gap import LogprobGap
from trustmopd.training.rollouts import compile_cache, judge_rollouts
from trustmopd.training.run_files import RunFiles, keep_newest
from trustmopd.training.sampler import EpochSampler
from trustmopd.training.scoring import ScoredCandidates, check_loss
from trustmopd.training.setup import check_ingredients, check_trainable, load_pool

logger = logging.getLogger(__name__)


class TrustMOPDTrainer(DistillationTrainer):
    """Distil several specialists of one base model into one student, trusting each where it has moved from the
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

    `teachers` maps names to a path or Hub id, a loaded model, or a `Teacher`. `reference` is the policy they were all
    grown from; None is the initial student. The rest is TRL's. Everything is checked here, before anything is written.
    """

    args: TrustMOPDConfig

    _tag_names: ClassVar[list[str]] = ["trl", "distillation", "trustmopd"]
    _name = "TrustMOPD"
    _paper: ClassVar[dict[str, str]] = {
        "title": "Distill What You Trust: Reliability-Aware Multi-Teacher On-Policy Distillation"
    }

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
            model, teachers, reference, args, train_dataset, processing_class, eval_dataset, tools
        )
        assert train_dataset is not None
        train_dataset, overlong = fit_prompts(with_rows(train_dataset), given.prompt_lengths, args)
        use_vllm, args.use_vllm = args.use_vllm, False  # the engine is made below, and is not TRL's
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
            args.use_vllm = use_vllm
        check_trainable(self.model)
        longest = max(given.prompt_lengths)
        longest = min(longest, args.max_prompt_length or longest) + self.max_completion_length
        if args.cache_implementation is not None:
            compile_cache(self.generation_config, longest)
        self.rollout_engine = rollout_engine(self, longest)
        self.gap = LogprobGap(args.logprob_gap_limit)
        self.teachers = given.teachers
        self.engine = Engine.of(self.accelerator)
        self.engine.check(args, self.accelerator)
        with whole_student(self.model, self.accelerator):
            self.pool = load_pool(given, self.model, args, self.accelerator)
            self.identity = identity_of(
                self.model,
                given.source,
                self.pool,
                given.teachers,
                self._tokenizer,
                self.train_dataset,
                vocab_size=given.vocab_size,
                overlong_prompts=overlong,
                engine=self.engine,
            )
        check_same(self.identity.fingerprints)
        self.run_dir = Path(args.run_dir or args.output_dir)
        run = RunDirectory(self.run_dir)
        self.files = RunFiles(run, self.identity, args, self, self.accelerator.num_processes)
        self.clock = PhaseClock(self.accelerator.device)
        self.totals = StepTotals()
        self.judge_of_step = Judge(args, self.pool, given.vocab_size, self.clock)
        self.recorder = TokenRecorder(run, self._tokenizer, every=args.record_allocation_every, seed=args.seed)
        self.calibration: Calibration | None = None
        self._empty: list[int] | None = None
        self._draws: list[str] = []
        self._made: list[Completion] = []
        if args.calibrates and args.calibration_path is not None:
            self.calibration = first_decides(partial(self._loaded, Path(args.calibration_path)))
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
        later = self._empty is not None  # a turn after tools, of some rows only
        draws = [f"{self._draws[0]}, later turn {place}" for place in range(len(prompt_ids))] if later else self._draws
        made = self.rollout_engine.sample(prompt_ids, rollout_params(self.args, draws))
        completions = [each.ids for each in made]
        if later:  # TRL expects empty ones there
            return completions
        self._made = made
        # TRL reads the last token of every completion. An engine may return none: put in one, and mask it out below.
        self._empty = [row for row, ids in enumerate(completions) if not ids]
        return [ids or [self._tokenizer.pad_token_id] for ids in completions]

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        """TRL's rollouts, with all that a shuffle of them must carry along: rows, labels, and what every frozen
        policy says."""
        self._empty = None
        self._draws = draws_of(
            inputs, seed=self.args.seed, step=self.state.global_step, process=self.accelerator.process_index
        )
        with self.clock("rollout"):
            batch = super()._generate_and_score_completions(inputs)
        if self.args.use_vllm and not self.tools:  # with tools, a response has tokens that nobody sampled
            batch["rollout_logp"] = padded_logprobs(self._made, batch["completion_ids"])
        surplus = [index for index, example in enumerate(inputs) if example.get(SURPLUS)]
        batch["completion_mask"][[*(self._empty or []), *surplus]] = 0
        batch |= prompt_columns(inputs, self.args.domain_column)
        if self.args.allocation == "routed":
            batch["label"] = labels_of(batch["meta"], list(self.teachers))
        # The loss is a mean over responses: they, not tokens, are the items.
        batch["num_items_in_batch"] = self.accelerator.gather(num_responses(batch)).sum()
        batch["asked"] = self.judge_of_step.ask(batch)
        if self.model.training:
            self.recorder.choose(batch["row"].tolist(), self.state.global_step)
        return batch

    # ---- The objective

    def _judge(self, student: Any, batch: dict[str, Any]) -> tuple[ScoredCandidates, Objective]:
        return self.judge_of_step.judge(student, batch, mu=self.mu, step=self.state.global_step)

    def judge(self, batch: dict[str, Any]) -> tuple[ScoredCandidates, Objective]:
        """What the student's candidates, the frozen policies and the rule say of a batch with TRL's keys."""
        student = self.accelerator.unwrap_model(self.model_wrapped)
        with self.compute_loss_context_manager():
            return self._forward_redirection(self.model_wrapped, student, self._judge, student, batch)

    def judge_rollouts(
        self, rows: Sequence[int], *, seed: int, description: str
    ) -> Iterator[tuple[dict[str, Any], ScoredCandidates, Objective]]:
        """The student answers the prompts of `rows`, and every answer is judged."""
        return judge_rollouts(self, rows, seed=seed, description=description)

    @property
    def mu(self) -> Tensor | None:
        if self.calibration is None:
            return None
        return self.calibration.mu_of(self.pool.teachers).to(self.accelerator.device)

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """TRL's; under a token budget the sum over several passes, of which all but the last go backward here."""
        if (budget := self.args.max_tokens_per_micro_batch) is None:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        loss_of = partial(super().compute_loss, model, num_items_in_batch=num_responses(inputs).clamp_min(1))
        loss = loss_in_passes(loss_of, micro_batches(inputs, budget, self.accelerator), model, self.accelerator)
        return (loss, None) if return_outputs else loss

    def _compute_loss(self, unwrapped_student: Any, inputs: dict[str, Any], num_items_in_batch: Any) -> tuple:
        if self.args.calibrates and self.calibration is None:
            raise RuntimeError("the scores are not calibrated yet. Call calibrate() first; train() does it by itself.")
        scored, result = self._judge(unwrapped_student, inputs)
        valid = scored.at.mask != 0
        if num_items_in_batch is None:
            num_items_in_batch = num_responses(inputs).clamp_min(1)
        loss = response_means(result.token_loss, valid).sum() / num_items_in_batch
        check_loss(loss, self.state.global_step + 1)
        entropy = torch.special.entr(scored.at.student_logp.detach()[valid].exp()).sum()
        self._note(scored, result, inputs)
        if scored.sampled_logp is not None and self.model.training:
            self.gap.add(inputs["rollout_logp"][valid], scored.sampled_logp)
        return loss, entropy, valid.sum()

    def _note(self, scored: ScoredCandidates, result: Objective, inputs: dict[str, Any]) -> None:
        for metric, values in allocation_metrics(scored, result, self.mu, self.pool.teachers, self.teachers).items():
            self.totals.add(metric, values)
        self.totals.add("candidates/degenerate_tokens", result.degenerate, count=0)
        if self.model.training and self.recorder.active:
            with self.clock("records"):
                self.recorder.note(scored, result, inputs, self.pool.teachers)

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        with self.clock("backward"):  # what the other phases do not claim
            loss = super().training_step(model, inputs, num_items_in_batch)
        if self._step % self.current_gradient_accumulation_steps == 0:
            self._finish_step()
        return loss

    def _finish_step(self) -> None:
        """After the last micro-batch of a step: the token records if this step keeps them, and one line of metrics."""
        self.judge_of_step.release()
        if self.recorder.active:
            with self.clock("records"):
                self.recorder.finish(self.state.global_step + 1, writes=self.accelerator.is_main_process)
        metrics = self.totals.reduce(self.accelerator)
        if self.args.use_vllm:
            metrics |= self.gap.finish(self.accelerator, self.state.global_step)
        seconds = {"records": 0.0} if self.args.record_allocation_every else {}
        metrics |= {f"seconds/{phase}": value for phase, value in (seconds | self.clock.take()).items()}
        metrics["memory/peak_gib"] = peak_memory_gib(self.accelerator.device)
        for metric, value in metrics.items():
            self._metrics["train"][metric].append(value)

    # ---- Calibration

    def calibrate(self) -> Calibration | None:
        """Measure mu on rollouts of the initial student (Algorithm 1), keep it for training and save it in the run
        directory. Random state and model are left as they were. None where the rule uses no calibrated scores."""
        if not self.args.calibrates:
            return None
        if self.state.global_step > 0:
            raise RuntimeError(
                f"calibrate() was called after {self.state.global_step} training steps, but mu is a property of the "
                "initial student. Call it before train(); a resumed run uses the calibration it began with."
            )
        began = time.perf_counter()
        measured = measure_calibration(
            self.judge_rollouts,
            self.accelerator,
            self.args,
            teachers=self.pool.teachers,
            num_prompts=len(self.train_dataset),
            depends_on=dependencies(self.identity, self.args),
        )
        check_habits(measured, self.args.min_relative_mu)
        self.calibration = measured
        if self.accelerator.is_main_process:
            measured.save(self.files.run.calibration)
            self.files.bill.calibrated(time.perf_counter() - began)
        return measured

    def ensure_calibration(self) -> None:
        """Use what `calibrate` left in the run directory if it fits, measure otherwise."""
        if not self.args.calibrates or self.calibration is not None:
            return
        self.calibration = first_decides(self._found_calibration)
        if self.calibration is None:
            self.calibrate()

    def _found_calibration(self) -> Calibration | None:
        saved = self.files.run.calibration
        try:
            return self._loaded(saved) if saved.is_file() else None
        except ValueError as error:
            logger.warning("%s is not used, and will be replaced: %s", saved, error)
            return None

    def _loaded(self, path: Path) -> Calibration:
        calibration = Calibration.load(path)
        calibration.check(dependencies(self.identity, self.args))
        check_habits(calibration, self.args.min_relative_mu)
        return calibration

    # ---- The life of a run

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        alone = locked(self.run_dir, "Wait for it, or choose another output_dir.")
        with alone if self.accelerator.is_main_process else nullcontext():
            if not resume_from_checkpoint:
                return super().train(None, *args, **kwargs)
            resume = self.files.resume_from(resume_from_checkpoint)
            self.gap.first = next((line[GAP] for line in resume.state.log_history if GAP in line), None)
            if self.args.calibrates:
                self.calibration = first_decides(lambda: self._loaded(RunDirectory(resume.checkpoint).calibration))
            if resume.state.global_step >= self.args.max_steps > 0:  # transformers would train one step too many
                logger.warning(
                    "nothing is left to train: %s is at step %d, and max_steps is %d.",
                    resume.checkpoint, resume.state.global_step, self.args.max_steps,
                )  # fmt: skip
                self.load_student(resume.checkpoint)
                self.state = resume.state
                return TrainOutput(resume.state.global_step, float("nan"), {})
            return super().train(str(resume.checkpoint), *args, **kwargs)

    def load_student(self, checkpoint: Path) -> None:
        """The student's weights as a checkpoint has them; the frozen policies stay."""
        self._load_from_checkpoint(str(checkpoint))

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        fresh = fresh_groups(self.optimizer)
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None and self.files.resume is not None and self.files.resume.changed:
            apply_changes(self.files.resume.changed, fresh, self.optimizer, self.lr_scheduler)

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        self.ensure_calibration()
        try:
            return super().evaluate(*args, **kwargs)
        finally:
            self.clock.take()  # the next step's seconds are its own

    def evaluation_loop(self, *args: Any, **kwargs: Any) -> EvalLoopOutput:
        """TRL's, with the metrics of allocation beside the loss: `eval_weight/<teacher>`, …"""
        output = super().evaluation_loop(*args, **kwargs)
        for metric, value in self.totals.reduce(self.accelerator).items():
            self._metrics["eval"][metric].append(value)
        return output

    def unlogged(self) -> dict[str, float]:
        """Means of the steps since the last line of metrics, the number of steps made, and the peak of memory."""
        waiting = self._metrics["train"].items()
        means = {name: sum(v) / len(v) for name, v in waiting if v and name.startswith(("seconds/", "memory/"))}
        return {**means, "step": self.state.global_step, "peak_gib": peak_memory_gib(self.accelerator.device)}

    def create_model_card(
        self, model_name: str | None = None, dataset_name: str | None = None, tags: str | list[str] | None = None
    ) -> None:
        if self.is_world_process_zero():
            card = model_card(
                self.identity,
                self.args,
                self.calibration.mu if self.calibration else {},
                planned_steps=self.state.max_steps,
                name=model_name,
                dataset=dataset_name,
                tags=[*([tags] if isinstance(tags, str) else tags or []), *self._tag_names],
                paper=self._paper["title"],
            )
            write_text(Path(self.args.output_dir) / "README.md", card)

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        """A tied output layer is saved once, under its other name: it is not missing."""
        tied = getattr(self.model, "all_tied_weights_keys", {})
        missing = [key for key in load_result.missing_keys if key not in tied]
        super()._issue_warnings_after_load(
            SimpleNamespace(missing_keys=missing, unexpected_keys=load_result.unexpected_keys)
        )

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Weights that transformers can load, also where FSDP keeps its own in shards."""
        plugin = getattr(self.accelerator.state, "fsdp_plugin", None)
        if plugin is None:
            return super().save_model(output_dir, _internal_call)
        kept, plugin.state_dict_type = plugin.state_dict_type, StateDictType.FULL_STATE_DICT
        try:
            super().save_model(output_dir, _internal_call)
        finally:
            plugin.state_dict_type = kept

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """Whole once its manifest is there: an old one of the same name loses its manifest first, and older checkpoints
        are deleted only after the new one is whole."""
        output_dir = Path(self._get_output_dir(trial=trial))
        checkpoint = RunDirectory(output_dir / f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}")
        if self.accelerator.is_main_process:
            checkpoint.manifest.unlink(missing_ok=True)
        limit, self.args.save_total_limit = self.args.save_total_limit, None
        try:
            super()._save_checkpoint(model, trial)
        except (SafetensorError, RuntimeError, OSError) as error:  # safetensors and torch have errors of their own
            raise OSError(
                f"checkpoint {checkpoint.path} cannot be written ({str(error).strip().splitlines()[0]}). Earlier ones "
                "are whole: make room on the disk, and resume."
            ) from error
        finally:
            self.args.save_total_limit = limit
        self.accelerator.wait_for_everyone()  # every process has written its random state
        if self.accelerator.is_main_process:
            self.files.save_beside(checkpoint)
            keep_newest(output_dir, self.files.run_id, limit, self.state.best_model_checkpoint)
