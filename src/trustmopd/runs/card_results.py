"""The part of a model card that grows with a run: scores and cost, from the run's files."""

import os
import re
from collections.abc import Sequence
from pathlib import Path

import yaml
from huggingface_hub import ModelCardData

from trustmopd.runs.cost import read_cost
from trustmopd.runs.layout import CHECKPOINT, TITLES, RunDirectory, as_commands
from trustmopd.runs.schemas import read_file
from trustmopd.runs.watched import described
from trustmopd.util.files import write_text
from trustmopd.util.text_tables import text_table

#: The model card beside the checkpoints and in each, under the name that the Hub shows.
MODEL_CARD = "README.md"
USAGE = """\
```python
from transformers import pipeline

generate = pipeline("text-generation", model="{model}")
print(generate([{{"role": "user", "content": "…"}}], max_new_tokens=256)[0]["generated_text"][-1]["content"])
```
"""
_BEGIN, _END = "<!-- results of the run -->\n", "<!-- end of results -->\n"


def results(run: RunDirectory) -> str:
    """Scores, if this run was evaluated or watched; the prompts, if it has a recipe; cost as far as it is known."""
    parts = [part for part in (_scores(run), _watched(run), _data(run), _cost(run)) if part]
    return _BEGIN + "\n".join(parts) + _END


def refresh_card(run: RunDirectory, checkpoints: Path) -> None:
    """Bring the results in the cards of a run up to date; a card without them is left alone."""
    for card in (checkpoints / MODEL_CARD, *checkpoints.glob(f"{CHECKPOINT}*/{MODEL_CARD}")):
        text = card.read_text(encoding="utf-8") if card.is_file() else ""
        before, begin, rest = text.partition(_BEGIN)
        _, end, after = rest.partition(_END)
        if begin and end:
            write_text(card, before + results(run) + after)


def merged_card(output: Path, sources: Sequence[str], adapter: Path | None) -> str:
    """Of a merged checkpoint: that of a student's adapter, if it has one, as a card of full weights."""
    own = adapter / MODEL_CARD if adapter else None
    if own and own.is_file() and _BEGIN in (text := own.read_text(encoding="utf-8")):
        text = text.replace("library_name: peft", "library_name: transformers").replace("LoRA adapter", "model")
        return re.sub(r'(?<="text-generation", model=)"[^"]*"', f'"{os.path.relpath(output)}"', text)
    hub = [source for source in sources if not Path(source).exists()]
    tags = ["merge", "trustmopd"]
    data = ModelCardData(base_model=hub or None, library_name="transformers", pipeline_tag="text-generation", tags=tags)
    made, usage = "\n".join(f"- `{source}`" for source in sources), USAGE.format(model=os.path.relpath(output))
    return f"---\n{data.to_yaml()}\n---\n\n# {output.name}\n\nMerged by trustmopd:\n\n{made}\n\n{usage}"


def _scores(run: RunDirectory) -> str:
    # Scores that are older than the manifest are of a run that was in this folder before.
    if not run.scores.is_file() or run.scores.stat().st_mtime < run.manifest.stat().st_mtime:
        return as_commands("**Scores.** Not evaluated yet: `trustmopd evaluate RECIPE` adds them.\n", run.path)
    rows = read_file(run.scores, what="scores", remedy="Evaluate again.")
    domains = list(dict.fromkeys(each["domain"] for row in rows.values() for each in row["benchmarks"].values()))
    benchmarks = sorted({name for row in rows.values() for name in row["benchmarks"]})
    table = text_table(
        ("", *domains, "overall", "recovery"),
        [
            (
                f"{name} ({row['checkpoint']})" if row.get("checkpoint") else TITLES.get(name, name),
                *("" if row.get(of) is None else f"{100 * row[of]:.1f}" for of in (*domains, "overall", "recovery")),
            )
            for name, row in rows.items()
        ],
    )
    return f"**Scores** in percent, on {', '.join(benchmarks)}:\n\n{table.to_markdown()}"


def _watched(run: RunDirectory) -> str:
    return f"**While training**: {found}.\n" if (found := described(run)) else ""


def _data(run: RunDirectory) -> str:
    if not run.recipe.is_file():
        return ""
    prompts = yaml.safe_load(run.recipe.read_text(encoding="utf-8"))["prompts"]
    return f"**Data.** The prompts of `{prompts['path']}`, split `{prompts['split']}`.\n"


def _cost(run: RunDirectory) -> str:
    cost = read_cost(run)
    if not (training := cost.get("training")):
        return ""
    calibration = cost.get("calibration")
    also = f", calibration {calibration['device_hours']:.3g}" if calibration else ""
    return (
        f"**Cost.** {training['steps']} steps took {training['device_hours']:.3g} device-hours on {cost['devices']} × "
        f"{cost['device']}{also}; peak memory "
        f"{training['peak_memory_gib']:.3g} GiB.\n"
    )
