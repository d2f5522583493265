"""A case study, against plain transformers: full logits of each model, the definition of every number written out."""

import csv
import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import pyarrow.parquet as pq
import pytest
import small_runs
import tiny
import torch
import yaml
from command import run
from transformers import AutoModelForCausalLM, AutoTokenizer

from trustmopd.report.page.case_studies import read_cases
from trustmopd.report.readers.run import find_runs

NAMES = ("math", "code", "if")
C = 20


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """Trained from its own folder, with relative paths, of references too, and asked from another."""
    folder = tmp_path_factory.mktemp("case")
    teachers = small_runs.checkpoints(folder)
    student = teachers.pop("base")
    shutil.copytree(student, folder / "start")
    own = {"code": {"model": "code", "reference": "start"}, "if": {"model": "if", "reference": "base"}}
    training = {"max_steps": 3, "learning_rate": 1e-2, "num_candidates": C, "record_allocation_every": 1}
    training |= {"max_completion_length": 8, "calibration_batches": 2}
    relative = {"teachers": {"math": "math", **own}, "prompts": {"path": "prompts.jsonl"}, "output": "run"}
    small_runs.recipe(folder, {"base": "base"}, training, name="case", **relative)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        run("train", "recipe.yaml")
    return SimpleNamespace(run=folder / "run", student=student, teachers=teachers)


def recorded(trained: SimpleNamespace, step: int) -> list[dict]:
    """The longest response of a step."""
    rows = pq.read_table(trained.run / "allocation" / f"step-{step:06d}.parquet").to_pylist()
    longest = max({row["rollout"] for row in rows}, key=lambda rollout: sum(row["rollout"] == rollout for row in rows))
    return [row for row in rows if row["rollout"] == longest]


def by_hand(trained: SimpleNamespace, response: list[dict], student: str, at: int, wanted: set[str]) -> dict:
    tokenizer = AutoTokenizer.from_pretrained(trained.student)
    prompt = tiny.prompts(24)[response[0]["rollout"]]["prompt"]
    head = tokenizer.apply_chat_template(prompt, add_generation_prompt=True, tokenize=False)
    prompt_ids = tokenizer(head, add_special_tokens=False)["input_ids"]
    ids = torch.tensor([prompt_ids + [row["token_id"] for row in response]])

    def logits(path: str) -> torch.Tensor:
        model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
        with torch.no_grad():
            return model(ids).logits[0, len(prompt_ids) - 1 : -1].double()

    student_logits = logits(student)
    mu = json.loads((trained.run / "calibration.json").read_text())["mu"]
    candidates = student_logits.topk(C, dim=-1).indices

    def logp(path: str) -> torch.Tensor:
        return logits(path).gather(-1, candidates).log_softmax(-1)

    reference = logp(trained.student)
    teachers = {name: logp(path) for name, path in trained.teachers.items()}
    r = {}
    for name, teacher in teachers.items():
        moved = teacher - reference
        r[name] = (moved - moved.mean(-1, keepdim=True)).norm(dim=-1) / mu[name]
    total = sum(value**7 for value in r.values())
    w = {name: value**7 / total for name, value in r.items()}
    texts = [tokenizer.decode([token]) for token in candidates[at].tolist()]
    inside = torch.tensor([text in wanted for text in texts])

    def target(weights: dict[str, torch.Tensor]) -> float:
        mixed = sum(weights[name] * teachers[name][at] for name in NAMES).softmax(-1)
        return float(mixed[inside].sum())

    own = student_logits.gather(-1, candidates).log_softmax(-1)[at].exp()
    return {
        "r": {name: float(r[name][at]) for name in NAMES},
        "w": {name: float(w[name][at]) for name in NAMES},
        "mean w": {name: float(w[name].mean()) for name in NAMES},
        "top": {name: texts[int(teachers[name][at].argmax())] for name in NAMES},
        "mass": {name: float(teachers[name][at].exp()[inside].sum()) for name in NAMES},
        "student": (texts[int(own.argmax())], float(own[inside].sum())),
        "token": target({name: w[name][at] for name in NAMES}),
        "response": target({name: w[name].mean() for name in NAMES}),
        "texts": texts,
    }


@pytest.mark.parametrize("step", [1, 3])  # the initial student wrote step 1; checkpoint-2 wrote step 3
def test_a_case_is_what_the_definitions_give(trained: SimpleNamespace, step: int) -> None:
    response = recorded(trained, step)
    at, rollout = len(response) - 2, response[0]["rollout"]
    student = trained.student if step == 1 else str(trained.run / "checkpoints" / "checkpoint-2")
    named = by_hand(trained, response, student, at, set())["texts"][1:4]
    expected = by_hand(trained, response, student, at, set(named))
    tokens = [argument for text in named for argument in ("--tokens", f"right={text}")]
    said = run("analyze", trained.run, "--case", f"{step}/{rollout}:{response[at]['position']}", *tokens)
    place = f"case-{step}-{rollout}-{response[at]['position']}"
    case = json.loads((trained.run / "cases" / f"{place}.json").read_text())
    for name in NAMES:
        found = case["policies"][name]
        assert found["r"] == pytest.approx(expected["r"][name], rel=1e-3)
        assert found["w"] == pytest.approx(expected["w"][name], abs=1e-3)
        assert found["top"] == expected["top"][name]
        assert found["mass"]["right"] == pytest.approx(expected["mass"][name], abs=1e-4)
        assert f"{found['w']:.3f}" in said
    assert case["policies"]["student"]["top"] == expected["student"][0]
    assert case["policies"]["student"]["mass"]["right"] == pytest.approx(expected["student"][1], abs=1e-4)
    for kind in ("token", "response"):
        assert case["target"][kind]["right"] == pytest.approx(expected[kind], abs=1e-3)
        assert f"{case['target'][kind]['right']:.3f}" in said
    assert case["difference"] < 1e-3 and case["sampled"] == response[at]["token_text"]
    with (trained.run / "cases" / f"{place}.csv").open() as file:
        cells = {row[""]: row for row in csv.DictReader(file)}
    for name in NAMES:
        found = cells[name]
        assert float(found["r"]) == pytest.approx(expected["r"][name], abs=0.006, rel=1e-3)
        assert float(found["P(right)"]) == pytest.approx(expected["mass"][name], abs=0.0006)
        assert float(found["mean w"]) == pytest.approx(expected["mean w"][name], abs=0.0015)
    for suffix in (".tex", "-text.md", "-target.csv"):
        assert (trained.run / "cases" / f"{place}{suffix}").is_file()


@pytest.fixture(scope="module")
def case(trained: SimpleNamespace) -> Path:
    """The file of a case with two sets, at the first token of the longest response of step 1."""
    rollout = recorded(trained, 1)[0]["rollout"]
    run("analyze", trained.run, "--case", f"{rollout}:0", "--tokens", "any=/(?s)./", "--tokens", "letters=/[a-z]/")
    return trained.run / "cases" / f"case-1-{rollout}-0.json"


def test_cases_of_several_runs_say_whose_they_are(trained: SimpleNamespace, case: Path, tmp_path: Path) -> None:
    runs = [shutil.copytree(trained.run, tmp_path / name) for name in "ab"]
    title = f"Step 1, rollout {json.loads(case.read_text())['rollout']}, position 0"
    run("report", *runs, "--out", tmp_path)
    page = (tmp_path / "report.html").read_text()
    for folder in runs:
        assert f">{folder}: {title}</h3>" in page
    run("report", runs[0])
    assert f">{title}</h3>" in (runs[0] / "report.html").read_text()


def test_a_regular_expression_names_candidates_and_the_report_shows_the_case(
    trained: SimpleNamespace, case: Path
) -> None:
    stored = json.loads(case.read_text())
    assert stored["target"]["token"]["any"] == pytest.approx(1.0, abs=1e-5)
    assert all(any(letter.islower() for letter in text) for text in stored["sets"]["letters"])
    run("report", trained.run)
    page = (trained.run / "report.html").read_text()
    assert 'id="case-1"' in page and f"Step 1, rollout {stored['rollout']}, position 0" in page


def test_a_case_whose_file_lacks_something_is_named(trained: SimpleNamespace, case: Path, tmp_path: Path) -> None:
    for part in ("gamma", "target", "letters"):
        folder = shutil.copytree(trained.run, tmp_path / part)
        file = folder / "cases" / case.name
        for other in {*file.parent.glob("*.json")} - {file}:  # which other tests have made
            other.unlink()
        stored = json.loads(file.read_text())
        del (stored if part in stored else stored["target"]["token"])[part]
        file.write_text(json.dumps(stored))
        (read,) = find_runs([folder])
        with pytest.raises(ValueError, match="--case") as error:
            read_cases([read])
        assert str(file) in str(error.value) and part in str(error.value)


@pytest.mark.parametrize(("missing", "askable"), [([], [1, 3]), ([3], [1]), ([1, 3], [])])
def test_the_steps_that_are_advised_have_rollouts_and_a_student(
    trained: SimpleNamespace, tmp_path: Path, missing: list[int], askable: list[int]
) -> None:
    """Three steps were recorded, and checkpoint-2 and checkpoint-3 kept: nothing was recorded at step 4."""
    folder = shutil.copytree(trained.run, tmp_path / "run")
    for step in missing:
        (folder / "allocation" / f"step-{step:06d}.parquet").unlink()
    rollout = recorded(trained, 2)[0]["rollout"]
    said = run("analyze", folder, "--case", f"2/{rollout}:0", "--tokens", "a=b", code=1)
    advised = re.search(r"a rollout of step ([\d, ]+), or", said)
    assert [int(step) for step in (advised[1].split(", ") if advised else [])] == askable
    assert str(folder / "checkpoints" / "checkpoint-1") in said and "save_steps" in said


def test_what_cannot_be_asked_again_is_said(trained: SimpleNamespace) -> None:
    one = recorded(trained, 1)[0]["rollout"]
    unknown = run("analyze", trained.run, "--case", f"1/{one}:0", "--tokens", "a=nothing like it", code=1)
    assert "20 candidates" in unknown and "'a'" in unknown
    broken = run("analyze", trained.run, "--case", f"1/{one}:0", "--tokens", "a=/(/", code=1)
    assert "regular expression" in broken
    recipe = trained.run / "recipe.yaml"
    prompts = trained.run.parent / "prompts.jsonl"
    prompts.rename(prompts.with_suffix(".away"))
    try:
        lost = run("analyze", trained.run, "--case", f"1/{one}:0", "--tokens", "a=b", code=1)
        assert all(str(each) in lost for each in (recipe, "prompts.jsonl", prompts.parent, Path.cwd()))
    finally:
        prompts.with_suffix(".away").rename(prompts)
    text = recipe.read_text()
    changed = yaml.safe_load(text) | {"allocation": {"rule": "uniform"}}
    recipe.write_text(yaml.safe_dump(changed))
    try:
        assert "uniform" in run("analyze", trained.run, "--case", f"1/{one}:0", "--tokens", "a=b", code=1)
    finally:
        recipe.write_text(text)
