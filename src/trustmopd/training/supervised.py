"""Supervised training on responses that the teachers write: a warm start before distillation, and the SeqKD baseline.
As many responses as distillation would use, each of one teacher."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from tqdm.auto import tqdm
from trl import SFTConfig, SFTTrainer

from trustmopd.evaluation.journal import SAMPLED, Journal, by_key
from trustmopd.evaluation.sampling import Request, Sampling, make_sampler
from trustmopd.method import calibrated_scores
from trustmopd.recipe import Recipe
from trustmopd.runs import RunDirectory
from trustmopd.training.calibrate import CALIBRATION_SEED, calibration_rows
from trustmopd.training.dry_run import steps_of
from trustmopd.training.prepare import Prepared, prepare
from trustmopd.training.probe import probe
from trustmopd.training.prompt_lengths import ROW

#: Of a run directory: the responses, and the student's checkpoints.
FOLDER, RESPONSES = "sft", "responses.jsonl"
#: Fields of a recipe's `training` that mean the same here.
_SHARED = (
    *("learning_rate", "lr_scheduler_type", "lr_scheduler_kwargs", "warmup_steps", "weight_decay", "max_grad_norm"),
    *("optim", "optim_args", "adam_beta1", "adam_beta2", "adam_epsilon", "bf16", "fp16", "use_cpu", "seed"),
    *("gradient_checkpointing", "per_device_train_batch_size", "gradient_accumulation_steps", "model_init_kwargs"),
    *("report_to", "logging_steps", "save_strategy", "save_steps", "save_total_limit", "save_only_model"),
)
#: Gets a row of the prompt set and a response, and says whether the student learns from it.
Accepts = Callable[[Mapping[str, Any], str], bool]


def sft_recipe(recipe: Recipe, accepts: Accepts = lambda row, response: True) -> Path:
    """The checkpoint of the first seed's student. What is sampled stays: a repeated call goes on from there, and from
    the last checkpoint."""
    prepared = prepare(recipe)
    prompts, args = prepared.ingredients.prompts, prepared.args
    folder = RunDirectory(Path(str(args.run_dir))).path / FOLDER
    if isinstance(prompts[0]["prompt"], str):
        raise ValueError("the prompts are plain text, but teachers are asked in conversations. Give them as messages.")
    rows = calibration_rows(len(prompts), steps_of(args, len(prompts)) * args.global_batch_size)
    owners = _owners(prepared, sorted(set(rows)))
    responses = list(_sampled(prepared, rows, owners, folder / RESPONSES))
    kept = [line for line in responses if not line["truncated"] and accepts(prompts[int(line["id"])], line["response"])]
    asked, accepted = (Counter(owners[int(line["id"])] for line in lines) for lines in (responses, kept))
    if refused := [name for name in asked if not accepted[name]]:
        raise ValueError(
            f"of {asked[refused[0]]} responses of teacher '{refused[0]}' none was whole and accepted, so its domain "
            "would not be learnt. Raise max_completion_length, or look at the responses in "
            f"{folder / RESPONSES}."
        )
    examples = [
        {
            "prompt": prompts[int(line["id"])]["prompt"],
            "completion": [{"role": "assistant", "content": line["response"]}],
            **({"chat_template_kwargs": args.chat_template_kwargs} if args.chat_template_kwargs else {}),
        }
        for line in kept
    ]
    return _trained(prepared, Dataset.from_list(examples), folder)


def _owners(prepared: Prepared, rows: Sequence[int]) -> dict[int, str]:
    """Who answers each prompt: the teacher that its label names, or else the one with the largest calibrated score on
    the initial student's response."""
    args, prompts, teachers = prepared.args, prepared.ingredients.prompts, [*prepared.graph.teachers]
    labels = prompts[args.domain_column] if args.domain_column in prompts.column_names else [None] * len(prompts)
    owners = {row: str(labels[row]) for row in rows if labels[row] in teachers}
    if others := [row for row in rows if row not in owners]:
        trainer = prepared.trainer(prepared.recipe.seeds[0], allocation="trust")
        trainer.ensure_calibration()
        assert trainer.mu is not None
        of_number = {rollout_row: row for row, rollout_row in enumerate(trainer.train_dataset[ROW])}
        for batch, scored, result in probe(trainer, others, seed=CALIBRATION_SEED + 1, description="Choosing teachers"):
            assert result.scores is not None
            scores = calibrated_scores(result.scores, trainer.mu)
            total = torch.where(scored.at.mask != 0, scores, 0.0).sum(dim=-1)
            for rollout, leader in zip(batch.rollouts, total.argmax(dim=0).tolist(), strict=True):
                owners[of_number[rollout.id.row]] = trainer.pool.teachers[leader]
        trainer.pool.close()
    return owners


def _sampled(
    prepared: Prepared, rows: Sequence[int], owners: Mapping[int, str], path: Path
) -> Iterator[dict[str, Any]]:
    """A response to each of `rows`, by its owner; those that are in the file are not sampled again."""
    recipe, args, prompts = prepared.recipe, prepared.args, prepared.ingredients.prompts
    journal, seen, requests = Journal(path, SAMPLED), Counter[int](), []
    for row in rows:
        view = prepared.ingredients.views.get(owners[row])
        prompt = view.prompt(prompts[row]) if view else prompts[row]["prompt"]
        requests.append(Request(str(row), seen[row], prompt, args.chat_template_kwargs or {}))
        seen[row] += 1
    done = by_key(journal.lines)
    assert args.max_completion_length is not None
    drawn = {name: getattr(args, name) for name in ("temperature", "top_p")}
    sampling = Sampling(**drawn, max_new_tokens=args.max_completion_length, seed=recipe.seeds[0])
    for name, source in recipe.teachers.items():
        own = [each for each in requests if owners[int(each.id)] == name]
        if missing := [each for each in own if each[:2] not in done]:
            base = recipe.reference or recipe.student
            sampler = make_sampler(recipe.evaluation.engine, source, base, batch_size=args.per_device_train_batch_size)
            found = sampler.sample(missing, sampling)
            for answer in tqdm(found, desc=f"Teacher {name} answers", total=len(missing), unit="response"):
                line = {"id": answer.request.id, "sample": answer.request.sample, "prompt_hash": "", "teacher": name}
                line |= {"response": answer.response, "tokens": answer.tokens, "truncated": answer.truncated}
                journal.append(line)
                done[answer.request.id, answer.request.sample] = line
        yield from (done[each[:2]] for each in own)


def _trained(prepared: Prepared, examples: Dataset, folder: Path) -> Path:
    args = prepared.args
    settings = {name: getattr(args, name) for name in _SHARED}
    trainer = SFTTrainer(
        model=prepared.recipe.student,
        args=SFTConfig(output_dir=str(folder), num_train_epochs=1, max_length=None, **settings),
        train_dataset=examples,
        processing_class=prepared.ingredients.tokenizer,
        peft_config=prepared.lora,
    )
    trainer.train(resume_from_checkpoint=any(folder.glob("checkpoint-*/optimizer.*")) or None)
    final = folder / "final"
    trainer.save_model(str(final))
    return final
