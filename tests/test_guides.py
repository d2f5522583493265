"""The commands of the guides are run on the small world: those of docs/guides in order, in one folder, and those of
each other page that the site calls a guide in a folder of its own.

A fence with a title is a file. What a page marks as needing a GPU or a cluster is checked by `--dry-run`."""

import json
import re
import shlex
import tomllib
from pathlib import Path

import page_commands
import pytest
import tiny
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

from trustmopd.cli import app
from trustmopd.prompts.build_config import load_config
from trustmopd.quickstart.shipped import checkpoint
from trustmopd.recipe import load_recipe
from trustmopd.training.prepare import config_of

ROOT = Path(__file__).parents[1]
GUIDES = ROOT / "docs" / "guides"
#: Later guides read what earlier ones trained.
ORDER = ["own-models", "own-benchmarks", "reading-the-report", "publishing", "trackers", "lora", "examples"]
NAVIGATION = tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf-8"))["project"]["nav"]
OTHERS = [page for part in NAVIGATION for page in part.get("Guides", ()) if not page.startswith("guides/")]
#: What commands may need that is not here. With the first, `--dry-run` checks them;
DRY = {"a GPU", "a cluster", "a recipe"}
#: with these, only options and overrides are checked (tests/remote has Ray).
ABSENT = {"the Hub", "Ray"}
#: Programs that are not ours.
PROGRAMS = {"pip", "python", "export", "mkdir", "ray", "vllm"}
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
#: The verbs that compute with a recipe.
COMPUTING = ("train", "diagnose", "evaluate")


def shortened(words: list[str]) -> list[str]:
    """The same command for seconds: few steps, and the last checkpoint of those."""
    verb, *rest = [re.sub(r"checkpoint-\d+$", f"checkpoint-{STEPS}", word) for word in words]
    rest = [word for word in rest if not word.startswith("training.max_steps=")]
    if verb in COMPUTING and any(word.endswith(".yaml") for word in rest):
        rest += SMALL
    return [verb, *rest]


def test_every_guide_is_run() -> None:
    assert {path.stem for path in GUIDES.glob("*.md")} == set(ORDER)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader's folder: a base model and its specialists."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    Path("models").mkdir()
    for name, folder in {"base": "reference", "math": "math", "code": "code", "if": "if"}.items():
        Path("models", name).symlink_to(checkpoint(folder))


def write_files(page: str) -> None:
    for fence in page_commands.fences(page):
        if fence.title:
            Path(fence.title).write_text(fence.body, encoding="utf-8")


def call(page: str, arguments: list[str]) -> None:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, f"{page}: {shlex.join(arguments)}\n{result.output[-2000:]}"


def follow(page: str) -> list[str]:
    """Do what a page says; the verbs that were run."""
    write_files(page)
    ran = []
    for fence in page_commands.fences(page):
        assert not fence.needs or fence.needs in DRY | ABSENT, fence.needs
        for words in page_commands.commands(fence.body) if fence.language == "bash" else ():
            arguments = page_commands.arguments(words)
            if arguments is None:
                assert words[0] in PROGRAMS, words  # test_examples.py runs the scripts
                continue
            arguments = ["recipe.yaml" if word == "RECIPE" else word for word in arguments]
            given = page_commands.parsed(arguments)
            if not fence.needs:
                call(page, shortened(arguments))
                ran.append(arguments[0])
                continue
            if path := given.get("recipe"):
                recipe = load_recipe(path, given["overrides"] or [])
                config_of(recipe, recipe.seeds[0])
            elif path := given.get("config"):
                load_config(path, given["overrides"] or [])
            if fence.needs in DRY and "dry_run" in given:
                call(page, [*shortened(arguments), "output=runs/elsewhere", "--dry-run"])
    return ran


@pytest.mark.filterwarnings("ignore")
def test_the_commands_of_the_guides_run(world: None) -> None:
    base = AutoModelForCausalLM.from_pretrained("models/base")
    for seed, name in enumerate(("math", "code")):
        tiny.adapter(base, Path("adapters", name), seed)
    ran = [verb for guide in ORDER for verb in follow(f"guides/{guide}.md")]
    assert {"train", "plan", "diagnose", "evaluate", "report", "merge"} <= set(ran)
    assert Path("runs/mine/report.html").is_file() and Path("runs/comparison/report.html").is_file()
    card = Path("runs/mine/checkpoints/README.md").read_text()
    assert [fact for fact in ("# mine\n", "| mine (checkpoint-2) |", "`prompts.jsonl`") if fact not in card] == []
    assert Path("student/model.safetensors").is_file()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("page", OTHERS)
def test_the_commands_of_the_other_guides_run(page: str, world: None) -> None:
    write_files("guides/own-models.md")
    Path("mine.yaml").rename("recipe.yaml")
    Path("recipes").symlink_to(ROOT / "recipes")
    problems = [{"question": f"{number}+7", "prompt": f"square:{number}+7"} for number in range(100, 320)]
    for name in ("pool.jsonl", "writing.jsonl"):
        Path(name).write_text("".join(f"{json.dumps(row)}\n" for row in problems))
    Path("problems.csv").write_text("\n".join(["question", *(row["question"] for row in problems)]))
    Path("exam.json").write_text(json.dumps([{"problem": "105+7"}]))
    Path("eval.jsonl").write_text('{"problem": "105+7"}\n')
    follow(page)
