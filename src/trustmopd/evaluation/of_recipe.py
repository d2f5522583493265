"""Every row that a recipe names, evaluated; and the scores of each trained seed handed to its run."""

from collections.abc import Callable, Collection, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path

from trustmopd.evaluation.benchmarks import Loaded
from trustmopd.evaluation.evaluate import evaluate_checkpoint
from trustmopd.evaluation.graded import collect
from trustmopd.evaluation.methods import AVERAGE, INITIAL, TEACHER, Method, make_average
from trustmopd.evaluation.run_record import check_run_folder, check_scores, read_record
from trustmopd.evaluation.sampling import Engine, Sampling
from trustmopd.evaluation.scores import for_seed, write_scores
from trustmopd.recipe import Recipe
from trustmopd.runs import RunDirectory
from trustmopd.runs.cost import counted_evaluation


def sampling_of(recipe: Recipe) -> Sampling:
    wish = recipe.evaluation
    return Sampling(wish.temperature, wish.top_p, wish.max_new_tokens, samples=wish.samples)


def evaluate_rows(
    recipe: Recipe | None,
    methods: Sequence[Method],
    out: Path,
    benchmarks: Sequence[Loaded],
    sampling: Sampling,
    make_engine: Callable[[Method], Engine],
    *,
    devices: int = 1,
    jobs: int = 1,
    quiet: bool = False,
) -> None:
    """Each row in a folder of its own below `out`; without a recipe, the one checkpoint in `out` itself. What cannot be
    written is refused before anything is sampled."""
    runs = {seed: RunDirectory(recipe.run_directory(seed)) for seed in recipe.seeds} if recipe else {}
    check_scores([out, *(run.evaluation for run in runs.values())], benchmarks)
    folders = {method: out / method.folder if recipe else out for method in methods}
    for method, folder in folders.items():
        check_run_folder(folder, method, sampling, benchmarks)
    for method, folder in folders.items():
        if recipe and method.name == AVERAGE:
            make_average(recipe)
        trained = recipe is not None and method.name == recipe.name
        with counted_evaluation(runs[method.seed], devices) if trained else nullcontext():
            engine = partial(make_engine, method)
            evaluate_checkpoint(method, folder, benchmarks, sampling, engine, jobs=jobs, quiet=quiet)


def hand_over(recipe: Recipe, out: Path, benchmarks: Collection[str]) -> None:
    """Each seed's scores into its run directory, where `analyze` and `report` look for them."""
    rows = [INITIAL, AVERAGE, *(TEACHER + name for name in recipe.teachers), recipe.name]
    methods, _ = collect([out / row for row in rows], benchmarks)
    for seed in methods.get(recipe.name, {}).keys() & set(recipe.seeds):
        scores = for_seed(methods, recipe.name, seed)
        record = read_record(out / recipe.name / f"seed-{seed}")
        scores[recipe.name]["checkpoint"] = Path(record["adapter"] or record["model"]).name
        write_scores(RunDirectory(recipe.run_directory(seed)).evaluation, scores)
