"""The verb init: a recipe that runs, with the settings that people change first."""

import json
import re
import shlex
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from trustmopd.cli.common import app, errors, say
from trustmopd.util.files import meant_here, write_text

_PROMPTS = "prompts.jsonl"
_TEXT = """\
# yaml-language-server: $schema={schema}
# The line above is for editors on this machine: they complete and check fields, which docs/recipes.md explains.
{fields}  # {todo}rows with a `prompt`: text, or messages
allocation: {{rule: trust, gamma: 7.0}}  # or {{rule: uniform}}, or another of docs/rules.md
# peft: {{r: 16, lora_alpha: 32, target_modules: all-linear}}  # docs/guides/lora.md; vLLM: docs/rollouts.md
training:  # what people change first; docs/configuration.md has all fields
  max_steps: 116
  learning_rate: 1.0e-6  # of full weights; with peft usually 1.0e-5
  global_batch_size: {batch}  # prompts a step; there must be as many
  max_completion_length: {response}  # longest response, in tokens
  num_candidates: {candidates}  # likeliest tokens that are compared
  # chat_template_kwargs: {{enable_thinking: false}}  # switches of the chat template
evaluation: {{benchmarks: []}}  # []: the paper's six; or [gsm8k, questions.jsonl]: docs/guides/own-benchmarks.md
"""


@app.command(
    epilog="Examples: trustmopd init models/base models/math code=adapters/b; trustmopd init org/b org/m --out my.yaml"
)
def init(
    base: Annotated[str, typer.Argument(help="The model to train: its folder or Hub id.", show_default=False)],
    teachers: Annotated[
        list[str], typer.Argument(metavar="[NAME=]TEACHER...", help="Models or LoRA adapters that grew from it.")
    ],
    prompts: Annotated[
        str | None, typer.Option(help="Their file, folder or Hub id.", show_default=f"{_PROMPTS}, to be made")
    ] = None,
    out: Annotated[Path, typer.Option(help="The recipe. It names the run.")] = Path("recipe.yaml"),
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a recipe that is there already.")] = False,
) -> None:
    """Write a recipe for your own models, with comments, ready for a dry run."""
    with errors():
        if out.suffix not in (".yaml", ".yml"):
            raise ValueError(f"--out {out}: a recipe is a YAML file. Give a name that ends in .yaml.")
        if out.exists() and not overwrite:
            raise FileExistsError(f"--out {out} exists. Choose another name, or replace it with --overwrite.")
        student, named = _source("base", base), [_named(teacher) for teacher in teachers]
        if not isinstance(student, str):
            raise ValueError(f"base {base} is a LoRA adapter. Merge it first: trustmopd merge {base} --out FOLDER.")
        sources = {name: _source(f"teacher {name!r}", path) for name, path in named}
        if len(sources) < len(named):
            raise ValueError(f"teachers {' '.join(teachers)}: two have one name. Give each its own, as math=PATH.")
        prompts = prompts or (_PROMPTS if Path(_PROMPTS).is_file() else None)
        write_text(out, _recipe(out, student, sources, prompts))
        say(f" {out}. Next{'' if prompts else f', once {_PROMPTS} is there'}:", lead="Wrote")
        say(shlex.join(["trustmopd", "train", str(out), "--dry-run"]))


def _named(argument: str) -> tuple[str, str]:
    """NAME=PATH, or a path alone, which may have a = of its own."""
    name, equals, path = argument.partition("=")
    own_name = re.sub(r"[^A-Za-z0-9_-]+", "-", Path(argument).absolute().name)
    return (name, path) if equals and not Path(argument).exists() else (own_name, argument)


def _source(role: str, source: str) -> str | dict[str, str]:
    """As a recipe names it. ./ marks a folder: models/base could be a Hub id."""
    folder, marked = Path(source).expanduser(), source if meant_here(source) else f"./{source}"
    if not folder.is_dir():
        if meant_here(source) or folder.exists() or (folder.parent.name and folder.parent.is_dir()):
            raise ValueError(f"{role}: there is no folder {source}. Check the path; a Hub model's id is org/name.")
        return source
    is_adapter = (folder / "adapter_config.json").is_file() and not (folder / "config.json").is_file()
    return {"adapter": marked} if is_adapter else marked


def _recipe(out: Path, student: str, teachers: dict[str, Any], prompts: str | None) -> str:
    """A short prompt set and a small model set lower limits. A config that cannot be read is the dry run's matter."""
    from trustmopd.prompts.reading.formats import read_rows
    from trustmopd.prompts.reading.sources import Location, local_files
    from trustmopd.recipe import Recipe
    from trustmopd.recipe.sections import check_fields

    files = local_files(Location(prompts)) if prompts and not Path(prompts).is_dir() else []
    count = sum(1 for _ in read_rows(files)) if files else 64
    config: dict[str, Any] = {}
    with suppress(OSError, ValueError):
        config = json.loads((Path(student).expanduser() / "config.json").read_text(encoding="utf-8"))
    name = f"{Path(student).absolute().name}-trust" if out.stem == "recipe" else out.stem
    fields = {"name": name, "student": student, "teachers": teachers, "prompts": {"path": prompts or _PROMPTS}}
    text = _TEXT.format(
        schema=(Path(__file__).parents[1] / "recipe" / "schemas" / "recipe.json").as_uri(),
        fields=yaml.safe_dump(fields, default_flow_style=None, sort_keys=False, allow_unicode=True, width=9999).strip(),
        todo="" if prompts else "FILL IN: ",
        batch=min(64, max(4, count // 4 * 4)),
        response=min(2048, (config.get("max_position_embeddings") or config.get("n_positions") or 4096) // 2),
        candidates=min(128, (config.get("vocab_size") or 256) // 2),
    )
    check_fields(Recipe, yaml.safe_load(text), out)
    return text
