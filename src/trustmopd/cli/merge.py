"""The verb merge: the mean of a recipe's teachers, or an adapter as full weights."""

from pathlib import Path
from typing import Annotated

import typer

from trustmopd.cli.common import app, errors, say
from trustmopd.cli.training import Overrides, load
from trustmopd.runs.layout import CHECKPOINT, CHECKPOINTS, MERGED


@app.command(
    epilog="Examples: trustmopd merge recipes/smollm3-3b/singlecap-trust.yaml --out runs/soup; "
    f"trustmopd merge runs/mine/{CHECKPOINTS}/{CHECKPOINT}116 --out student"
)
def merge(
    what: Annotated[
        str, typer.Argument(metavar="RECIPE|ADAPTER", help="A recipe, or a LoRA adapter: its folder or Hub id.")
    ],
    overrides: Overrides = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the new checkpoint.", show_default=f"<output>/{MERGED}, of a recipe")
    ] = None,
    base: Annotated[
        str | None, typer.Option(help="The model that the adapter is for.", show_default="the one it names")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a checkpoint that is there already.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print what would happen.")] = False,
) -> None:
    """Average the parameters of a recipe's teachers: the merging reference, with no training. Or turn a LoRA adapter,
    such as a student's checkpoint, into full weights."""
    with errors():
        from trustmopd.checkpoints.merge import merge_adapter, merge_checkpoints
        from trustmopd.evaluation.entries import several_bases

        if Path(what).suffix in (".yaml", ".yml") or Path(what).is_file():
            if base:
                raise ValueError(f"--base {base}: a recipe names its models itself. Leave it out.")
            recipe = load(Path(what), overrides)
            if bases := several_bases(recipe):
                raise ValueError(
                    f"{bases}, and models of different bases cannot be averaged. Keep those of one base: "
                    "teachers.NAME=null drops the others."
                )
            folder = out or recipe.average
            teachers = list(recipe.teachers.values())
            sources = [" + ".join(filter(None, (teacher.model, teacher.adapter))) for teacher in teachers]
            task, done = f"average {len(sources)} checkpoints", f"Averaged {len(sources)} checkpoints"
        else:
            if overrides:
                raise ValueError(f"{what} is an adapter: overrides ({overrides[0]}) are for recipes. Leave them out.")
            if out is None:
                raise ValueError(f"{what} is an adapter: choose the folder of its full weights with --out FOLDER.")
            folder, sources, teachers = out, [what], []
            task, done = "merge an adapter into its base", "Merged the adapter into its base"
        if overwrite and folder.is_dir() and any(folder.iterdir()) and not (folder / "config.json").is_file():
            raise ValueError(f"{folder} holds no checkpoint, so --overwrite does not delete it. Choose another --out.")
        if dry_run:
            say("\n".join([f"Would {task}, into {folder}:", *(f"  {source}" for source in sources)]))
            return
        if teachers:
            merge_checkpoints(teachers, folder, base=recipe.reference or recipe.student, overwrite=overwrite)
        else:
            merge_adapter(what, folder, base, overwrite=overwrite)
        say(f"{done}.\nCheckpoint: {folder}")
