"""What `trustmopd evaluate` does, as functions: every row that a recipe names, or one checkpoint, evaluated; and the
scores of each trained seed handed to its run."""

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from trustmopd.evaluation.aggregation import for_seed, score_entries, write_scores
from trustmopd.evaluation.benchmark import Benchmark
from trustmopd.evaluation.benchmarks import Questions, load_benchmarks
from trustmopd.evaluation.entries import Entry, check_checkpoint, entries_of, make_average, parts, trained_with
from trustmopd.evaluation.evaluate import evaluate_checkpoint
from trustmopd.evaluation.read_graded import collect, finished_entries
from trustmopd.evaluation.run_record import check_run_folder, read_record
from trustmopd.evaluation.sampling import Sampler, Sampling, check_engine, make_sampler, put, templated
from trustmopd.policies import load_tokenizer
from trustmopd.prompts.prompt_set import load_prompts
from trustmopd.prompts.reading.messages import common_system
from trustmopd.recipe import Asking, QuestionFile, Recipe, load_recipe
from trustmopd.recipe.sections import check_fields
from trustmopd.recipe.teacher_source import TeacherSource
from trustmopd.runs import RunDirectory, folder_of, located, newest_checkpoint
from trustmopd.runs.card_results import refresh_card
from trustmopd.runs.checkpoints import read_manifest
from trustmopd.runs.cost import counted_evaluation
from trustmopd.runs.layout import AVERAGE, EVALUATION, INITIAL, SCORES, TEACHER, student_folder
from trustmopd.runs.schemas import read_file

PAPER = ["aime25", "aime26", "lcb_v5", "lcb_v6", "ifeval", "ifbench"]


@dataclass(frozen=True)
class EvaluationResult:
    """The folder of responses and scores, the benchmarks that were asked, the rows of scores, and what they
    leave out. A dry run has no scores: notes say what would be done, and `missing` which checkpoints are not there."""

    folder: Path
    benchmarks: list[str]
    scores: dict[str, Any]
    notes: list[str]
    missing: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class EvaluationOptions:
    """How to evaluate. What is not given is as the recipe says; without one, the paper's benchmarks and the defaults of
    `Sampling`. `sampling` holds fields of `Sampling`, `data` local copies by benchmark, `limit` the most prompts of
    each."""

    benchmarks: Sequence[str | QuestionFile | Benchmark] | None = None
    data: Mapping[str, str] = field(default_factory=dict)
    limit: int | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)
    batch_size: int = 16
    tensor_parallel_size: int = 1
    jobs: int | None = None  # responses graded at a time; None: one a core
    dry_run: bool = False


def evaluate_recipe(
    recipe: Recipe,
    out: Path | None = None,
    options: EvaluationOptions | None = None,
    *,
    only: Sequence[str] | None = None,
) -> EvaluationResult:
    """Sample and grade every checkpoint that a recipe names, or those rows that are in `only`. What cannot be evaluated
    yet is left out; `entries_of` gives the reason. After an interruption it continues where it stopped."""
    wish, options, own = recipe.evaluation, options or EvaluationOptions(), recipe.output / EVALUATION
    entries, _ = entries_of(recipe, list(only or []))
    options = replace(options, benchmarks=options.benchmarks or wish.benchmarks, data={**wish.data, **options.data})
    found = _evaluate(recipe, entries, out or own, options, sampling_of(recipe))
    if not options.dry_run:
        found.notes.extend(hand_over(recipe, found.folder, found.benchmarks, own=own.resolve()))
    return found


def evaluate(what: Any, benchmarks: Any = None, out: str | Path | None = None, **options: Any) -> EvaluationResult:
    """Sample and grade one checkpoint, a path or a Hub id. Or a run, given by its folder or its trainer, which gets the
    scores: its newest checkpoint, and the models that it began from and learnt from, except those that were in memory
    alone. `benchmarks` are names, files and `Benchmark`s; `options` are the other fields of `EvaluationOptions`."""
    if isinstance(what, Recipe) or str(what).endswith((".yaml", ".yml")):
        raise ValueError(
            f"evaluate takes a checkpoint or a run, not the recipe {getattr(what, 'name', what)}. Use "
            "evaluate_recipe(recipe), or load_recipe and then that."
        )
    one = isinstance(benchmarks, str | QuestionFile | Benchmark)
    wish, folder = EvaluationOptions([benchmarks] if one else benchmarks, **options), folder_of(what)
    run, checkpoint = RunDirectory(folder), newest_checkpoint(folder)
    if checkpoint is None or not run.manifest.is_file():
        if run.metrics.exists():
            raise ValueError(f"the run {folder} has saved no checkpoint. Set save_strategy, or give a model's folder.")
        places, own = {folder.name: str(what)}, Path("runs", "evaluation", folder.name)
    elif run.recipe.is_file():
        return evaluate_recipe(load_recipe(run.recipe), None if out is None else Path(out), wish)
    else:
        places, own = {**_origins(run), run.path.name: str(checkpoint)}, run.evaluation
    entries = [Entry(name, TeacherSource(model=place), name) for name, place in places.items()]
    found = _evaluate(None, entries, Path(out or own), wish, Sampling(**trained_with(checkpoint or folder)))
    refresh_card(run, run.path)
    return found


def _origins(run: RunDirectory) -> dict[str, str]:
    """Where the initial student and the teachers of a run are, by the names of their rows."""
    manifest = read_manifest(run.path)
    models = manifest["models"]
    sources = {INITIAL: models["student"], **{TEACHER + name: model for name, model in models["teachers"].items()}}
    places = {name: located(model["source"], run.path, manifest) for name, model in sources.items()}
    return {name: str(place) for name, place in places.items() if place}


def _evaluate(
    recipe: Recipe | None, entries: Sequence[Entry], folder: Path, options: EvaluationOptions, sampling: Sampling
) -> EvaluationResult:
    sampling = check_fields(Sampling, {**sampling.model_dump(), **options.sampling}, "how to evaluate")
    missing: dict[Entry, str] = {}
    for entry in entries:
        check_engine(sampling.engine, entry.source)
        try:
            if entry.name != AVERAGE:  # which is made
                check_checkpoint(entry.source, entry.base)
        except (ValueError, OSError) as error:
            if not options.dry_run:
                raise
            missing[entry] = f"{entry.folder}: {error}"
    benchmarks = load_benchmarks(options.benchmarks or PAPER, options.data, options.limit)
    names = [loaded.benchmark.name for loaded in benchmarks]
    if options.dry_run:
        there = [entry for entry in entries if entry not in missing]
        return EvaluationResult(folder, names, {}, _explained(there, benchmarks, sampling), list(missing.values()))
    joined = {"tensor_parallel_size": options.tensor_parallel_size} if sampling.engine == "vllm" else {}

    def sampler_of(entry: Entry) -> Sampler:
        return make_sampler(sampling.engine, entry.source, entry.base, batch_size=options.batch_size, options=joined)

    jobs = options.jobs or os.cpu_count() or 1
    devices = joined.get("tensor_parallel_size", 1)
    evaluate_entries(recipe, entries, folder, benchmarks, sampling, sampler_of, devices=devices, jobs=jobs)
    found = scored([*(folder / entry.folder for entry in entries), folder], folder, benchmarks=names)
    own = [loaded.benchmark for loaded in benchmarks if loaded.benchmark.graders]
    found.notes.extend(f"{benchmark.name} is graded by {benchmark.graders}." for benchmark in own)
    return found


def _explained(entries: Sequence[Entry], benchmarks: Sequence[Questions], sampling: Sampling) -> list[str]:
    """Rows, how they are asked, and each benchmark with its first prompt, as the first checkpoint reads it."""
    settings = ", ".join(f"{name} {value}" for name, value in sampling if value is not None)
    lines = [f"Rows: {', '.join(entry.folder for entry in entries) or 'none'}", f"Asked with: {settings}"]
    first = next((entry for entry in entries if entry.name != AVERAGE), None)
    place, revision = parts(first.source, first.base)[0] if first else ("", None)
    tokenizer = load_tokenizer(place, role=first.name, revision=revision) if first else None
    for benchmark, rows in ((loaded.benchmark, loaded.rows) for loaded in benchmarks):
        prompt = templated(tokenizer, *put(benchmark, rows[0], sampling)) if first else "unknown without a checkpoint"
        lines.append(
            f"{benchmark.name}: {len(rows)} prompts × {sampling.samples or benchmark.samples}, {len(rows.malformed)} "
            f"left out, graded by {benchmark.graders or 'its own grader'}. The first prompt, as rendered:\n{prompt}"
        )
    return lines


def scored(
    folders: Sequence[Path], out: Path, *, against: str | None = None, benchmarks: Collection[str] | None = None
) -> EvaluationResult:
    """The scores of all rows below `folders`, written to `out`. `against` is the row that differences are taken
    from."""
    entries, notes = collect(folders, benchmarks)
    rows = score_entries(entries, against)
    write_scores(out, rows)
    return EvaluationResult(out, list(benchmarks or []), rows, notes)


def sampling_of(recipe: Recipe) -> Sampling:
    """System prompt and arguments of the chat template are training's, unless the recipe says otherwise."""
    wish = recipe.evaluation.model_dump(include={*Asking.model_fields})
    checkpoints = filter(None, (newest_checkpoint(recipe.run_directory(seed)) for seed in recipe.seeds))
    trained = next(filter(None, map(trained_with, checkpoints)), {})
    if not trained:
        trained["chat_template_kwargs"] = recipe.training.get("chat_template_kwargs")
        with suppress(OSError, ValueError):  # prompts that are not here yet
            trained["system"] = common_system(load_prompts(recipe.prompts.path, recipe.prompts.split)["prompt"])
    return Sampling(**wish | {name: value for name, value in trained.items() if wish[name] is None})


def evaluate_entries(
    recipe: Recipe | None,
    entries: Sequence[Entry],
    out: Path,
    benchmarks: Sequence[Questions],
    sampling: Sampling,
    make_sampler: Callable[[Entry], Sampler],
    *,
    devices: int = 1,
    jobs: int = 1,
    quiet: bool = False,
) -> None:
    """Each row in a folder of its own below `out`; a single checkpoint in `out` itself. What cannot be written is
    refused before anything is sampled."""
    runs = {seed: RunDirectory(recipe.run_directory(seed)) for seed in recipe.seeds} if recipe else {}
    folders = {entry: out / entry.folder if recipe or len(entries) > 1 else out for entry in entries}
    for entry, folder in folders.items():
        check_run_folder(folder, entry, sampling, benchmarks)
    for entry, folder in folders.items():
        if recipe and entry.name == AVERAGE:
            make_average(recipe)
        trained = recipe is not None and entry.name == recipe.name
        with counted_evaluation(runs[entry.seed], devices) if trained else nullcontext():
            sampler = partial(make_sampler, entry)
            evaluate_checkpoint(entry, folder, benchmarks, sampling, sampler, jobs=jobs, quiet=quiet)


def hand_over(recipe: Recipe, out: Path, benchmarks: Collection[str], *, own: Path | None = None) -> list[str]:
    """Each seed's scores into its run directory, where `analyze` and `report` look for them, and into its card. Scores
    from another folder are kept, with a sentence on each, unless `out` is the run's `own`, or that is not given."""
    references = [INITIAL, AVERAGE, *(TEACHER + name for name in recipe.teachers)]
    students = [student_folder(recipe.name, seed) for seed in recipe.seeds]
    whole = finished_entries(out, [*references, *students], benchmarks)
    entries, _ = collect([out / row for row in whole], benchmarks)
    kept = []
    for seed in entries.get(recipe.name, {}):
        scores = for_seed(entries, recipe.name, seed)
        record = read_record(out / student_folder(recipe.name, seed))
        run = RunDirectory(recipe.run_directory(seed))
        row = scores[recipe.name]
        row |= {"checkpoint": Path(record["adapter"] or record["model"]).name, "folder": os.path.relpath(out, run.path)}
        if own not in (None, out.resolve()) and run.scores.exists():
            before = read_file(run.scores, what="scores", remedy="Remove them.").get(recipe.name, {})
            if before.get("folder") != row["folder"]:
                kept.append(f"{run.scores} keeps the scores of another folder. These are in {out / SCORES} alone.")
                continue
        write_scores(run.evaluation, scores)
        refresh_card(run, run.checkpoints)
    return kept
