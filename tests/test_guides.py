"""The commands of docs/guides are run, in order, in one folder, on the small world.

A fence with a title is a file. What follows `<!-- needs a GPU -->` is checked by `--dry-run`."""

import itertools
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import tiny
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

from trustmopd.cli import app
from trustmopd.recipe import load_recipe
from trustmopd.testbed.shipped import checkpoint

GUIDES = Path(__file__).parents[1] / "docs" / "guides"
#: Later guides read what earlier ones trained.
ORDER = ["own-models", "own-benchmarks", "reading-the-report", "publishing", "trackers", "lora", "examples"]
FENCE = re.compile(r'^(<!-- needs a GPU -->\n+)?```(\w+)(?: title="(.*?)")?\n(.*?)^```', re.MULTILINE | re.DOTALL)
STEPS = 2
#: What makes a recipe take seconds.
SMALL = [
    f"training.max_steps={STEPS}",
    "training.global_batch_size=4",
    "training.max_completion_length=8",
    "training.num_candidates=16",
    "training.calibration_batches=1",
    "training.bf16=false",
    "evaluation.max_new_tokens=8",
]
#: The verbs that take overrides of a recipe.
WITH_OVERRIDES = ("train", "diagnose", "evaluate", "plan")


def commands(text: str) -> Iterator[tuple[list[str], bool]]:
    """The words of each command, and whether it needs a GPU. Files are written on the way."""
    for gpu, language, title, body in FENCE.findall(text):
        if title:
            Path(title).write_text(body, encoding="utf-8")
            if language == "yaml":
                load_recipe(title)
        elif language == "bash":
            for line in body.replace("\\\n", " ").splitlines():
                words = shlex.split(line, comments=True)
                if words := list(itertools.dropwhile(lambda word: re.match("[A-Z_]+=", word), words)):
                    yield words, bool(gpu)


def shortened(words: list[str]) -> list[str]:
    """The same command for seconds: few steps, and the last checkpoint of those."""
    verb, *rest = [re.sub(r"checkpoint-\d+$", f"checkpoint-{STEPS}", word) for word in words]
    rest = [word for word in rest if not word.startswith("training.max_steps=")]
    if verb in WITH_OVERRIDES and any(word.endswith(".yaml") for word in rest):
        rest += SMALL
    return [verb, *rest]


def test_every_guide_is_run() -> None:
    assert {path.stem for path in GUIDES.glob("*.md")} == set(ORDER)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_commands_of_the_guides_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    for name, folder in {"base": "reference", "math": "math", "code": "code", "if": "if"}.items():
        Path("models").mkdir(exist_ok=True)
        Path("models", name).symlink_to(checkpoint(folder))
    base = AutoModelForCausalLM.from_pretrained("models/base")
    for seed, name in enumerate(("math", "code")):
        tiny.adapter(base, Path("adapters", name), seed)
    ran = []
    for guide in ORDER:
        for words, gpu in commands((GUIDES / f"{guide}.md").read_text(encoding="utf-8")):
            if "trustmopd" not in words:
                assert words[0] in ("pip", "python"), words  # test_examples.py runs the scripts
                continue
            arguments = shortened(words[words.index("trustmopd") + 1 :]) + ["--dry-run"] * gpu  # without its launcher
            result = CliRunner().invoke(app, arguments)
            assert result.exit_code == 0, f"{guide}: {shlex.join(arguments)}\n{result.output[-2000:]}"
            ran.append(arguments[0])
    assert {"train", "plan", "diagnose", "evaluate", "report", "merge"} <= set(ran)
    assert Path("runs/mine/report.html").is_file() and Path("runs/comparison/report.html").is_file()
    card = Path("runs/mine/checkpoints/README.md").read_text()
    assert [fact for fact in ("# mine\n", "| mine (checkpoint-2) |", "`prompts.jsonl`") if fact not in card] == []
    assert Path("student/model.safetensors").is_file()
