"""`TrustMOPDTrainer`: TRL's `DistillationTrainer` with a pool of teachers in place of one.

TRL generates, shuffles, splits, wraps, checkpoints and logs. What differs is here: before a rollout batch is split,
every frozen policy reads it once (`_generate_and_score_completions`); in each micro-batch the student's candidates are
scored and the method's objective taken (`_compute_loss`); and the loss is a mean over responses, not over tokens.
`run.py` has the rest of a run's life: calibration, checkpoints, resuming.
"""

import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
from accelerate.utils import gather_object
from datasets import Dataset
from peft import PeftConfig
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainerCallback
from trl import DistillationTrainer

from trustmopd.data import of_one_kind, prompt_hash
from trustmopd.heads import Head, trust_objective
from trustmopd.method import SCORES, Calibration, Objective, objective, response_means
from trustmopd.teachers import Teacher, fingerprint
from trustmopd.teachers.backbone import backbone_of, last_hidden_states
from trustmopd.training.batch import response_mask, sequences, text, texts
from trustmopd.training.clock import PhaseClock
from trustmopd.training.config import TrustMOPDConfig
from trustmopd.training.manifest import describe_machine
from trustmopd.training.metrics import StepTotals, allocation_metrics, peak_memory_gib
from trustmopd.training.prompts import ROW, fit_prompts, prompt_lengths, truncate, with_rows
from trustmopd.training.records import TokenTexts, chosen_rows, token_table, write_records
from trustmopd.training.rules import allocation_rule
from trustmopd.training.run import CalibratedRun
from trustmopd.training.run_files import RunFiles
from trustmopd.training.scoring import ScoredCandidates, score_candidates
from trustmopd.training.setup import check_ingredients, load_pool


class TrustMOPDTrainer(CalibratedRun):
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
        given = check_ingredients(model, teachers, reference, args, train_dataset, processing_class, eval_dataset)
        assert train_dataset is not None
        super().__init__(
            model=str(model) if isinstance(model, Path) else model,
            args=args,
            train_dataset=with_rows(train_dataset),
            eval_dataset=eval_dataset,
            processing_class=given.tokenizer,
            callbacks=callbacks,
            optimizers=optimizers,
            quantization_config=quantization_config,
            peft_config=peft_config,
            tools=tools,
        )
        compiled = args.cache_implementation is not None
        lengths = (
            prompt_lengths(
                self.train_dataset,
                lambda prompts: [len(ids) for ids in DistillationTrainer._tokenize_prompts(self, prompts)[0]],
            )
            if compiled or args.max_prompt_length is not None
            else []
        )
        self.train_dataset, self.overlong_prompts = fit_prompts(
            self.train_dataset, lengths, args.max_prompt_length, args.prompt_truncation
        )
        if compiled:
            # A cache of fixed size is there to be compiled, which TRL forbids; sized once, it is compiled once.
            self.generation_config.disable_compile = False
            longest = min(max(lengths), args.max_prompt_length or max(lengths))
            self.generation_config.max_cache_len = longest + self.max_completion_length
        if len(self.train_dataset) < args.global_batch_size:
            raise ValueError(
                f"the prompt set has {len(self.train_dataset)} prompts to train on, fewer than one batch of "
                f"global_batch_size = {args.global_batch_size}. Add prompts, or lower global_batch_size."
            )
        if not any(parameter.requires_grad for parameter in self.model.parameters()):
            raise ValueError(
                "the student has no trainable parameter (requires_grad is False for all): nothing would be learnt. "
                "Call model.requires_grad_(True), or pass peft_config."
            )
        self.teachers = given.teachers
        self.vocab_size = given.vocab_size
        self.student_source = given.source
        self.student_fingerprint = fingerprint(self.model)
        self.pool = load_pool(given, self.model, args, self.accelerator)
        self.run_dir = Path(args.run_dir or args.output_dir)
        self.clock = PhaseClock(self.accelerator.device)
        self.calibration: Calibration | None = None
        self._score = args.score if callable(args.score) else SCORES[args.score]
        self.prompt_hash = prompt_hash(self.train_dataset)
        self.run_id = uuid.uuid4().hex
        self.machine = describe_machine(self.accelerator.num_processes)
        self._totals = StepTotals()
        self._recorded_rows: set[int] = set()
        self._tables: list = []
        self._texts = TokenTexts(self._tokenizer)
        self._empty: list[int] | None = None
        if args.calibrates and args.calibration_path is not None:
            self.calibration = self._loaded(Path(args.calibration_path))
        self.add_callback(RunFiles(self))

    # ---- Rollouts

    def _tokenize_prompts(self, prompts: list) -> tuple:
        prompt_ids, images, fields = super()._tokenize_prompts(prompts)
        limit, truncation = self.args.max_prompt_length, self.args.prompt_truncation
        return [truncate(ids, limit, truncation) for ids in prompt_ids], images, fields

    def _generate_single_turn(self, prompt_ids: list, *args: Any, **kwargs: Any) -> list[list[int]]:
        completions = super()._generate_single_turn(prompt_ids, *args, **kwargs)
        if self._empty is not None:  # a later turn, after tools, of some rows only: TRL expects empty ones there
            return completions
        # TRL reads the last token of every completion. An engine may return none: put in one, and mask it out below.
        self._empty = [row for row, ids in enumerate(completions) if not ids]
        return [ids or [self._tokenizer.pad_token_id] for ids in completions]

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        """TRL's rollouts, with all that a shuffle of them must carry along: rows, labels, and what every frozen
        policy says."""
        self._empty = None
        with self.clock("rollout"):
            batch = super()._generate_and_score_completions(inputs)
        batch["completion_mask"][self._empty or []] = 0
        batch["row"] = torch.tensor([example.get(ROW, index) for index, example in enumerate(inputs)])
        batch["meta"] = [
            {
                "id": text(example.get("id")) or str(example.get(ROW)),
                "prompt": example["prompt"],
                "domain": text(example.get(self.args.domain_column or "")),
                "capabilities": texts(example.get("capabilities")),
            }
            for example in inputs
        ]
        if self.args.allocation == "routed":
            names = list(self.teachers)
            if strangers := [meta["domain"] for meta in batch["meta"] if meta["domain"] not in names]:
                raise ValueError(f"label {strangers[0]!r} names no teacher; the teachers are {', '.join(names)}.")
            batch["label"] = torch.tensor([names.index(meta["domain"]) for meta in batch["meta"]])
        # The loss is a mean over responses: they, not tokens, are the items.
        count = (response_mask(batch) != 0).any(dim=1).sum()
        batch["num_items_in_batch"] = self.accelerator.gather(count).sum()
        batch["answers"] = self._ask(batch)
        step = self.state.global_step
        every = self.args.record_allocation_every
        record = self.model.training and every > 0 and step % every == 0
        self._recorded_rows = (
            chosen_rows(gather_object(batch["row"].tolist()), self.args.seed, step) if record else set()
        )
        return batch

    def _ask(self, batch: dict[str, Any]) -> list[dict[str, Tensor]]:
        rows = None
        if "label" in batch:
            labels = batch["label"].tolist()
            rows = {name: [i for i, label in enumerate(labels) if label == k] for k, name in enumerate(self.teachers)}
        return self.pool.ask(
            *sequences(batch),
            response_mask(batch),
            micro_batch=self.args.per_device_train_batch_size,
            rows=rows,
            timer=self.clock,
        )

    # ---- The objective

    def _judge(self, student: Any, inputs: dict[str, Any]) -> tuple[ScoredCandidates, Objective]:
        """Score the micro-batch's response tokens and take the method's objective on them."""
        args = self.args
        answers = inputs["answers"] if "answers" in inputs else self._ask(inputs)
        with self.clock("student"):
            sampled_ids = inputs["completion_ids"]
            states = last_hidden_states(backbone_of(student), *sequences(inputs))
            hidden = states[:, -sampled_ids.shape[1] - 1 : -1]  # the state before a token predicts it
            scored = score_candidates(
                hidden,
                Head.of(student),
                self.pool,
                answers,
                sampled_ids,
                response_mask(inputs),
                num_candidates=args.num_candidates,
                vocab_size=self.vocab_size,
                temperature=args.distillation_temperature,
                step=self.state.global_step + 1,
            )
            if (args.allocation, args.score, args.granularity) == ("trust", "displacement", "token"):
                return scored, trust_objective(scored.at, self.mu, args.gamma)
            rows = inputs["row"] if "row" in inputs else torch.arange(len(sampled_ids))
            rule = allocation_rule(
                args, self.pool.teachers, step=self.state.global_step, rows=rows, labels=inputs.get("label")
            )
            score = self._score if args.scored else None
            return scored, objective(scored.at, rule, score, self.mu, args.granularity)

    @property
    def mu(self) -> Tensor | None:
        if self.calibration is None:
            return None
        return self.calibration.mu_of(self.pool.teachers).to(self.accelerator.device)

    def _compute_loss(self, unwrapped_student: Any, inputs: dict[str, Any], num_items_in_batch: Any) -> tuple:
        if self.args.calibrates and self.calibration is None:
            raise RuntimeError("the scores are not calibrated yet. Call calibrate() first; train() does it by itself.")
        scored, result = self._judge(unwrapped_student, inputs)
        valid = scored.at.mask != 0
        if num_items_in_batch is None:
            num_items_in_batch = valid.any(dim=1).sum().clamp_min(1)
        loss = response_means(result.token_loss, valid).sum() / num_items_in_batch
        if not bool(loss.isfinite()):
            raise FloatingPointError(
                f"the loss is {loss.item()} at step {self.state.global_step + 1}; training stopped before it reached "
                "the student, and the last checkpoint is whole. Look at the score and allocation rules, and at the "
                "models' dtype."
            )
        student_logp = scored.at.student_logp.detach()[valid]
        entropy = torch.special.entr(student_logp.exp()).sum()
        if self.model.training:
            self._note(scored, result, inputs)
        return loss, entropy, valid.sum()

    def _note(self, scored: ScoredCandidates, result: Objective, inputs: dict[str, Any]) -> None:
        for metric, values in allocation_metrics(scored, result, self.mu, self.pool.teachers, self.teachers).items():
            self._totals.add(metric, values)
        self._totals.add("candidates/degenerate_tokens", result.degenerate, count=0)
        if self._recorded_rows and "row" in inputs:
            with self.clock("records"):
                self._tables += token_table(
                    scored,
                    result,
                    step=self.state.global_step + 1,
                    rows=inputs["row"].tolist(),
                    meta=inputs["meta"],
                    keep=self._recorded_rows,
                    teachers=self.pool.teachers,
                    texts=self._texts,
                )

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        with self.clock("backward"):  # what the other phases do not claim
            loss = super().training_step(model, inputs, num_items_in_batch)
        if self._step % self.current_gradient_accumulation_steps == 0:
            self._finish_step()
        return loss

    def _finish_step(self) -> None:
        """After the last micro-batch of a step: the token records if this step keeps them, and one line of metrics."""
        if self._recorded_rows:
            with self.clock("records"):
                tables, self._tables = gather_object(self._tables), []
                if self.accelerator.is_main_process and tables:
                    file = f"step-{self.state.global_step + 1:06d}.parquet"
                    write_records(self.run_dir / "allocation" / file, tables)
        metrics = self._totals.reduce(self.accelerator)
        seconds = {"records": 0.0} if self.args.record_allocation_every else {}
        metrics |= {f"seconds/{phase}": value for phase, value in (seconds | self.clock.take()).items()}
        metrics["memory/peak_gib"] = peak_memory_gib(self.accelerator.device)
        for metric, value in metrics.items():
            self._metrics["train"][metric].append(value)
