"""The verbs after training: evaluate, scores."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trustmopd.cli.common import app, errors, local_copies, say, show_table
from trustmopd.runs.layout import SCORES, TABLES
from trustmopd.util.files import check_writable

if TYPE_CHECKING:
    from trustmopd.evaluation.of_recipe import EvaluationResult
    from trustmopd.recipe import Recipe


@app.command(
    epilog="Examples: trustmopd evaluate path-or-hub-id --benchmarks ifeval,gsm8k --out runs/eval; "
    "trustmopd evaluate recipes/smollm3-3b/singlecap-trust.yaml --out runs/table-1"
)
def evaluate(
    what: Annotated[
        str, typer.Argument(metavar="MODEL|RUN|RECIPE", help="A checkpoint (path or Hub id), a run, or a recipe.")
    ],
    overrides: Annotated[list[str] | None, typer.Argument(help="Fields of the recipe to change.")] = None,
    benchmarks: Annotated[
        str | None,
        typer.Option(help="Names or files, separated by commas.", show_default="the recipe's, or the paper's six"),
    ] = None,
    only: Annotated[list[str] | None, typer.Option(help="A row of the recipe; may be given several times.")] = None,
    samples: Annotated[
        int | None, typer.Option(min=1, help="Responses per prompt.", show_default="each benchmark's own")
    ] = None,
    temperature: Annotated[
        float | None, typer.Option(min=0, help="0 is greedy.", show_default="the recipe's, or 0.6")
    ] = None,
    top_p: Annotated[float | None, typer.Option(help="Nucleus.", show_default="the recipe's, or 1")] = None,
    max_new_tokens: Annotated[
        int | None, typer.Option(min=1, help="Longest response.", show_default="the recipe's, or 30000")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Only this many prompts of each, the first ones.")] = None,
    data: Annotated[list[str] | None, typer.Option(help="A local copy, as ifeval=FILE; may be repeated.")] = None,
    engine: Annotated[
        str | None,
        typer.Option(help="What samples: transformers or vllm.", show_default="the recipe's, or transformers"),
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Responses at a time, with transformers.")] = 16,
    tensor_parallel_size: Annotated[int, typer.Option(min=1, help="GPUs to a model, with vllm.")] = 1,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Responses graded at a time.", show_default="one per core")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the sampling.")] = 0,
    out: Annotated[
        Path | None, typer.Option(help="Folder of responses and scores.", show_default="<output>/evaluation")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print checkpoints, benchmarks, graders and prompts; sample nothing.")
    ] = False,
    allow_unsandboxed_code: Annotated[
        bool, typer.Option("--allow-unsandboxed-code", help="Run generated code without a sandbox, on your files.")
    ] = False,
) -> None:
    """Sample and grade a checkpoint, or every checkpoint that a recipe names. Interrupted, it continues where it
    stopped."""
    with errors(again="the same command", kept="responses and grades"):
        from trustmopd.evaluation.entries import entries_of
        from trustmopd.evaluation.of_recipe import EvaluationOptions, evaluate_recipe
        from trustmopd.evaluation.of_recipe import evaluate as evaluate_one
        from trustmopd.evaluation.sandbox.sandbox import UNSANDBOXED

        if allow_unsandboxed_code:
            os.environ[UNSANDBOXED] = "1"
        sampling = {
            "temperature": temperature,
            "top_p": top_p,
            "max_new_tokens": max_new_tokens,
            "samples": samples,
            "engine": engine,
            "seed": seed,
        }
        options = EvaluationOptions(
            [name.strip() for name in benchmarks.split(",")] if benchmarks is not None else None,
            local_copies(data or []),
            limit,
            {name: value for name, value in sampling.items() if value is not None},
            batch_size,
            tensor_parallel_size,
            jobs,
            dry_run,
        )
        if recipe := _recipe(what, overrides or [], only):
            for note in entries_of(recipe, only)[1]:
                say(note)
            found = evaluate_recipe(recipe, out, options, only=only)
        else:
            found = evaluate_one(what, out=out, **vars(options))
        _show(found)


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
                f"{len(folders)} folders make one more table, besides each folder's own. Choose where it goes, for "
                "example --out runs/both."
            )
        check_writable(out or folders[0], "--out")
        from trustmopd.evaluation.of_recipe import scored

        _show(scored(folders, out or folders[0], against=against))


def _recipe(what: str, overrides: list[str], only: list[str] | None) -> "Recipe | None":
    """None if a checkpoint is meant."""
    from trustmopd.recipe import load_recipe

    if Path(what).suffix in (".yaml", ".yml"):
        return load_recipe(what, overrides)
    if Path(what).is_file():
        raise ValueError(
            f"{what} is a file, but neither a recipe (.yaml) nor the folder of a checkpoint. To evaluate a model on "
            f"its rows, write trustmopd evaluate MODEL --benchmarks {what}."
        )
    if overrides or only:
        raise ValueError(f"{what} is a checkpoint: overrides and --only are for recipes. Leave them out.")
    return None


def _show(found: "EvaluationResult") -> None:
    from trustmopd.evaluation.aggregation import score_table, without_routed

    for note in found.notes:
        say(note)
    if found.missing:
        raise ValueError("\n".join(found.missing))
    if not (summary := found.scores):
        return
    show_table(score_table(summary), "scores, %")
    if why := without_routed(summary):
        say(why)
    for name, row in summary.items():
        for benchmark, facts in row["benchmarks"].items():
            counts = {
                "cut short": facts["truncated"],
                "not sampled (prompt longer than the model's context)": facts["overlong"],
                "graded with an error, which is in their `details`": facts["grader_errors"],
            }
            if missing := facts.get("no_answer"):
                say(f"{name}, {benchmark}: no answer was found in {missing:g} of {facts['responses']:g} responses.")
            for what, count in counts.items():
                if count:
                    say(f"{name}, {benchmark}: {count:g} of {facts['responses']:g} responses were {what}.")
    say(f"Scores: {found.folder / SCORES}\nTables: {found.folder / TABLES / 'scores'}.md, .csv, .tex")
