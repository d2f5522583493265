"""The verbs after training: evaluate, scores."""

import os
from collections.abc import Collection, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trustmopd.cli.common import app, errors, local_copies, say, show_table
from trustmopd.runs.layout import EVALUATION, TABLES

if TYPE_CHECKING:
    from trustmopd.evaluation.methods import Method
    from trustmopd.evaluation.sampling import Sampling
    from trustmopd.recipe import Recipe


@app.command(
    epilog="Examples: trustmopd evaluate path-or-hub-id --benchmarks ifeval,gsm8k --out runs/eval; "
    "trustmopd evaluate recipes/smollm3-3b/singlecap-trust.yaml --out runs/table-1"
)
def evaluate(
    what: Annotated[str, typer.Argument(metavar="MODEL|RECIPE", help="A checkpoint (path or Hub id), or a recipe.")],
    overrides: Annotated[list[str] | None, typer.Argument(help="Fields of the recipe to change.")] = None,
    benchmarks: Annotated[
        str | None, typer.Option(help="Names or files, by commas.", show_default="the recipe's, or the paper's six")
    ] = None,
    only: Annotated[list[str] | None, typer.Option(help="A row of the recipe; may be given several times.")] = None,
    samples: Annotated[
        int | None, typer.Option(min=1, help="Responses a prompt.", show_default="each benchmark's own")
    ] = None,
    temperature: Annotated[
        float | None, typer.Option(min=0, help="0 is greedy.", show_default="the recipe's, or 0.6")
    ] = None,
    top_p: Annotated[float | None, typer.Option(help="Nucleus.", show_default="the recipe's, or 1")] = None,
    max_new_tokens: Annotated[
        int | None, typer.Option(min=1, help="Longest response.", show_default="the recipe's, or 30000")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first so many prompts of each.")] = None,
    data: Annotated[list[str] | None, typer.Option(help="A local copy, as ifeval=FILE; may be repeated.")] = None,
    engine: Annotated[
        str | None,
        typer.Option(help="What samples: transformers or vllm.", show_default="the recipe's, or transformers"),
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Responses at a time, with transformers.")] = 16,
    tensor_parallel_size: Annotated[int, typer.Option(min=1, help="GPUs to a model, with vllm.")] = 1,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Responses graded at a time.", show_default="one a core")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the sampling.")] = 0,
    out: Annotated[
        Path | None, typer.Option(help="Folder of responses and scores.", show_default="<output>/evaluation")
    ] = None,
    allow_unsandboxed_code: Annotated[
        bool, typer.Option("--allow-unsandboxed-code", help="Run generated code without a sandbox, on your files.")
    ] = False,
) -> None:
    """Sample and grade a checkpoint, or every checkpoint that a recipe names. Interrupted, it goes on where it
    stopped."""
    with errors(again="the same command", kept="responses and grades"):
        from trustmopd.evaluation.checkpoint import check_checkpoint
        from trustmopd.evaluation.cost import counted
        from trustmopd.evaluation.evaluate import evaluate_checkpoint
        from trustmopd.evaluation.methods import AVERAGE, make_average
        from trustmopd.evaluation.run_record import check_run_folder, check_scores, load_benchmarks
        from trustmopd.evaluation.sampling import check_engine, make_sampler
        from trustmopd.evaluation.sandbox import UNSANDBOXED

        if allow_unsandboxed_code:
            os.environ[UNSANDBOXED] = "1"
        recipe, methods, names, files, sampling, folder = _plan(what, overrides or [], only, out)
        engine = engine or (recipe.evaluation.engine if recipe else "transformers")
        for method in methods:
            check_engine(engine, method.source)
            if method.name != AVERAGE:  # which is made
                check_checkpoint(method.source, method.base)
        given: dict[str, Any] = {"temperature": temperature, "top_p": top_p, "samples": samples, "seed": seed}
        given["max_new_tokens"] = max_new_tokens
        sampling = replace(sampling, **{name: value for name, value in given.items() if value is not None})
        files |= local_copies(data or [])
        loaded = load_benchmarks(
            [each.strip() for each in benchmarks.split(",")] if benchmarks else names, files, limit
        )
        handed = [recipe.run_directory(seed) / EVALUATION for seed in recipe.seeds] if recipe else []
        check_scores([folder, *handed], loaded)
        places = {method: folder / method.folder if recipe is not None else folder for method in methods}
        for method, place in places.items():
            check_run_folder(place, method, sampling, loaded)
        options = {"tensor_parallel_size": tensor_parallel_size} if engine == "vllm" else {}
        for method in methods:
            if recipe is not None and method.name == AVERAGE:
                make_average(recipe)
            trained = recipe.run_directory(method.seed) if recipe and method.name == recipe.name else None
            with counted(trained, tensor_parallel_size if engine == "vllm" else 1) if trained else nullcontext():
                evaluate_checkpoint(
                    method,
                    places[method],
                    loaded,
                    sampling,
                    partial(make_sampler, engine, method.source, method.base, batch_size=batch_size, options=options),
                    jobs=jobs or os.cpu_count() or 1,
                )
        asked = {each.benchmark.name for each in loaded}
        _report([folder], folder, benchmarks=asked)
        if recipe is not None:
            _hand_over(folder, recipe, asked)


@app.command(epilog="Example: trustmopd scores runs/trust/evaluation runs/uniform/evaluation --out runs/both")
def scores(
    folders: Annotated[list[Path], typer.Argument(help="Folders that `evaluate` wrote.", show_default=False)],
    against: Annotated[
        str | None, typer.Option(help="The row that differences are taken from.", show_default="initial, if there")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the tables.", show_default="the one folder")] = None,
) -> None:
    """One table of several evaluations: spread over seeds, differences, recovery, intervals."""
    with errors():
        if missing := [folder for folder in folders if not folder.is_dir()]:
            raise ValueError(f"{missing[0]} is not a folder. Give folders that `trustmopd evaluate` wrote.")
        if len(folders) > 1 and out is None:
            raise ValueError(
                f"{len(folders)} folders make a table of their own, and each keeps its own. Say where it should be, as "
                "with --out runs/both."
            )
        _report(folders, out or folders[0], against)


def _plan(
    what: str, overrides: list[str], only: list[str] | None, out: Path | None
) -> tuple["Recipe | None", "list[Method]", list[str], dict[str, str], "Sampling", Path]:
    """Recipe, checkpoints, benchmarks, their local files, sampling and folder, as the recipe has them, or by
    default."""
    from trustmopd.evaluation.methods import Method, methods_of
    from trustmopd.evaluation.sampling import Sampling
    from trustmopd.recipe import TeacherSource, load_recipe

    paper = ["aime25", "aime26", "lcb_v5", "lcb_v6", "ifeval", "ifbench"]
    if Path(what).suffix not in (".yaml", ".yml"):
        if Path(what).is_file():
            raise ValueError(
                f"{what} is a file, but neither a recipe (.yaml) nor the folder of a checkpoint. To put its rows to a "
                f"model, write trustmopd evaluate MODEL --benchmarks {what}."
            )
        if overrides or only:
            raise ValueError(f"{what} is a checkpoint: overrides and --only are for recipes. Leave them out.")
        name = Path(what).name
        method = Method(name, TeacherSource(model=what), name)
        return None, [method], paper, {}, Sampling(), out or Path("runs", "evaluation", name)
    recipe = load_recipe(what, overrides)
    methods, notes = methods_of(recipe, only)
    for note in notes:
        say(note)
    wish = recipe.evaluation
    sampling = Sampling(wish.temperature, wish.top_p, wish.max_new_tokens, samples=wish.samples)
    return recipe, methods, wish.benchmarks or paper, dict(wish.data), sampling, out or recipe.output / EVALUATION


def _hand_over(folder: Path, recipe: "Recipe", benchmarks: Collection[str]) -> None:
    """Each seed's scores into its run directory, where `analyze` and `report` look for them."""
    from trustmopd.evaluation.answers import collect
    from trustmopd.evaluation.run_record import read_record
    from trustmopd.evaluation.scores import for_seed, write_scores

    methods, _ = collect([folder], benchmarks)
    for seed in methods.get(recipe.name, {}).keys() & set(recipe.seeds):
        rows = for_seed(methods, recipe.name, seed)
        record = read_record(folder / recipe.name / f"seed-{seed}")
        rows[recipe.name]["checkpoint"] = Path(record["adapter"] or record["model"]).name
        write_scores(recipe.run_directory(seed) / EVALUATION, rows)


def _report(
    folders: Sequence[Path], out: Path, against: str | None = None, benchmarks: Collection[str] | None = None
) -> None:
    from trustmopd.evaluation.answers import collect
    from trustmopd.evaluation.scores import score_table, summarise, without_routed, write_scores

    methods, notes = collect(folders, benchmarks)
    for note in notes:
        say(note)
    summary = summarise(methods, against)
    show_table(score_table(summary), "scores, %")
    if why := without_routed(summary):
        say(why)
    for name, row in summary.items():
        for benchmark, facts in row["benchmarks"].items():
            counts = {
                "cut short": facts["truncated"],
                "not sampled (prompt longer than the model's context)": facts["overlong"],
                "with an error of the grader": facts["grader_errors"],
            }
            if said := ", ".join(f"{count:g} {what}" for what, count in counts.items() if count):
                say(f"{name}, {benchmark}: of {facts['responses']:g} responses {said}.")
    say(f"Scores: {write_scores(out, summary)}\nTables: {out / TABLES / 'scores'}.md, .csv, .tex")
