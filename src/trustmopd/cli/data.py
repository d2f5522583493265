"""The verbs of prompt sets: data build, data decontaminate, data show."""

from pathlib import Path
from typing import Annotated

import typer

from trustmopd.cli.common import app, console, errors, plain, say, show_table

data = typer.Typer(no_args_is_help=True, help="Prompt sets: build, screen, look at them.")
app.add_typer(data, name="data")
_KEPT = "nothing was written, and files that were there"


@data.command(epilog="Example: trustmopd data build recipes/data/transfer-singlecap.yaml pools.tulu.path=tulu.jsonl")
def build(
    config: Annotated[Path, typer.Argument(help="What to build, a YAML file.", show_default=False)],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(help="Fields to change, as seed=1 comparison.aime26=null.", show_default=False),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a set that is there already.")] = False,
) -> None:
    """Read pools, screen them, fill quotas, compose: a prompt set with its card, the same from the same seed."""
    with errors(again=f"trustmopd data build {config} {' '.join(overrides or [])}", kept=_KEPT):
        from trustmopd.prompts.build import build as make
        from trustmopd.prompts.build_config import load_config
        from trustmopd.prompts.decontaminate import removal_table
        from trustmopd.prompts.prompt_card import check_output, write_prompt_set

        settings = load_config(config, overrides or [])
        check_output(settings, overwrite=overwrite)  # before minutes are spent
        built = make(settings)
        folder = write_prompt_set(built, overwrite=overwrite)
        show_table(removal_table(built.screenings), "screening")
        for name in dict.fromkeys(category.blocks for category in settings.categories.values() if category.blocks):
            donors = built.pools[name].donors
            rows = f"{len(donors):,} of the {len(built.pools[name].rows):,} rows of {name!r}"
            say(f"Blocks: {rows} have one, such as {donors[0].block!r}. Read a few.")
        if settings.left_out:
            say(f"Left out of the comparison: {', '.join(settings.left_out)}.")
        counts = ", ".join(f"{category.count:,} {name}" for name, category in settings.categories.items())
        say(f": {counts}.", lead=f"Built {len(built.records):,} prompts")
        say(f"Set:  {folder}\nCard: {folder / 'README.md'}")


@data.command(
    epilog="Example: trustmopd data decontaminate pool.jsonl --column question "
    "--against eval/aime.jsonl:problem --out kept.jsonl"
)
def decontaminate(
    candidates: Annotated[str, typer.Argument(help="File, folder or Hub id of the candidates.", show_default=False)],
    against: Annotated[
        list[str], typer.Option(help="A comparison corpus, all its splits, as PATH or PATH:COLUMN; may be repeated.")
    ],
    out: Annotated[Path, typer.Option(help="File for what is kept, .jsonl or .parquet.")],
    column: Annotated[str, typer.Option(help="Column of the candidates' texts.")] = "prompt",
    parent: Annotated[
        str | None, typer.Option(help="Column of the texts that candidates were made from.", show_default=False)
    ] = None,
    split: Annotated[str | None, typer.Option(help="Split of the candidates (Hub: train).", show_default=False)] = None,
    ngram: Annotated[int, typer.Option(help="Words in an n-gram.")] = 5,
    threshold: Annotated[float, typer.Option(help="Jaccard similarity from which two texts match.")] = 0.8,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace --out if it is there already.")] = False,
) -> None:
    """Drop candidates that repeat a comparison text or an earlier candidate, exactly: equal, or similar n-grams."""
    with errors(kept=_KEPT):
        from trustmopd.prompts.decontaminate import removal_table
        from trustmopd.prompts.screen import screen_file

        screening, listing, compared = screen_file(
            candidates,
            against,
            out,
            column=column,
            parent=parent,
            split=split,
            ngram=ngram,
            threshold=threshold,
            overwrite=overwrite,
        )
        show_table(removal_table({Path(candidates).name: screening}), "screening")
        for path, pool in compared:
            files = f" ({', '.join(Path(file).name for file in pool.files)})" if Path(path).is_dir() else ""
            say(f"Compared with {len(pool.rows):,} texts of {path}{files}.")
        say(f"Kept:    {out}\nRemoved: {listing}")


@data.command(epilog="Example: trustmopd data show data/singlecap --examples 2")
def show(
    path: Annotated[str, typer.Argument(help="A prompt set: file, folder or Hub id.", show_default=False)],
    column: Annotated[str, typer.Option(help="Column of the prompts.")] = "prompt",
    examples: Annotated[int, typer.Option(min=0, help="Prompts to print of each category.")] = 1,
    split: Annotated[str, typer.Option(help="Split to read, where there are several.")] = "train",
) -> None:
    """Counts, lengths and examples of a prompt set, by category."""
    with errors(kept=_KEPT):
        from trustmopd.prompts.overview import overview

        seen = overview(path, column=column, split=split, examples=examples)
        show_table(seen.counts, f"{seen.prompts:,} prompts in {path}")
        show_table(seen.lengths, "words in a prompt")
        for category, texts in seen.examples.items():
            for text in texts:
                console.rule(plain(category), align="left")
                console.print(plain(text))
