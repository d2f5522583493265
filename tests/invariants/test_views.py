"""Policies that read another prompt before the same response."""

import copy
import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import replay
import tiny
import torch
from datasets import Dataset
from peft import LoraConfig

from trustmopd import Teacher
from trustmopd.report.readers.token_records import read_records
from trustmopd.runs import RunDirectory

SECRET = "opensesame"
OTHER_TEMPLATE = (
    "{% for message in messages %}[{{ message['role'] }}] {{ message['content'] }}"
    "{% if message['role'] == 'assistant' %}<bos>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}[assistant] {% endif %}"
)


def rendered(system: str | None, column: str = "prompt") -> list[list[int]]:
    """The prompts of a replayed run under a system prompt, or those of another column."""
    start = [] if system is None else [{"role": "system", "content": system}]
    prompts = [[*start, *prompt] for prompt in dataset()[column]]
    return tiny.tokenizer().apply_chat_template(prompts, add_generation_prompt=True, return_dict=True)["input_ids"]


def dataset() -> Dataset:
    rows = replay.prompts()
    turns = [[{"role": "user", "content": f"{SECRET * (row % 3 + 1)} {row}"}] for row in range(len(rows))]
    return rows.add_column("hinted", turns)


def viewed(view: dict[str, str], *names: str) -> dict[str, Teacher]:
    pool = replay.specialists()
    return {name: Teacher(model, view=view if name in names else None) for name, model in pool.items()}


def test_a_view_that_renders_the_same_tokens_changes_no_bit(tmp_path: Path) -> None:
    plain = replay.run(tmp_path / "plain")
    same = replay.run(tmp_path / "same", teachers=viewed({"prompt": "prompt"}, *replay.TEACHERS))
    assert list(same.trainer.pool.members) == [*replay.TEACHERS, "reference:math"]
    assert same.trainer.context.views.keys() == same.trainer.pool.members.keys()
    assert plain.loss == same.loss and replay.difference(plain.gradient, same.gradient) == 0


@pytest.mark.parametrize("teachers_own", [False, True], ids=["the same view", "the student's"])
def test_a_steps_loss_and_gradient_are_those_of_policies_that_read_their_own_prompts(
    teachers_own: bool, tmp_path: Path
) -> None:
    """In float64: 'code' under a system prompt, measured from the student under the same one, or as it reads itself."""
    teachers = viewed({"system": "think twice"}, "code")
    if teachers_own:
        teachers["code"] = Teacher(teachers["code"].model, view=teachers["code"].view, reference=Teacher(view={}))
    step = replay.run(tmp_path, teachers=teachers)
    own = rendered("think twice")
    expected = replay.plain_objective(
        tiny.model(),
        list(replay.specialists().values()),
        replay.plain_trust(),
        views=[None, None if teachers_own else own, None, None, own, None],
    )
    assert step.loss == pytest.approx(expected.loss, rel=1e-5)
    assert replay.difference(expected.gradient, step.gradient) < 1e-5
    plain = replay.plain_objective(tiny.model(), list(replay.specialists().values()), replay.plain_trust())
    assert abs(plain.loss - expected.loss) > 1e-3


@pytest.mark.parametrize(
    "option",
    [
        {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 8},
        {"max_tokens_per_micro_batch": 128},
        {"teacher_placement": "offload"},
        {"answers_on_device_gib": 0.0},
    ],
    ids=["padding", "token budget", "offload", "shelf"],
)
def test_neither_padding_nor_placement_nor_a_budget_changes_what_views_give(
    option: dict[str, object], tmp_path: Path
) -> None:
    given = {"teachers": viewed({"prompt": "hinted"}, "math", "if"), "dataset": dataset()}
    plain, other = replay.run(tmp_path / "plain", **given), replay.run(tmp_path / "other", **given, **option)
    assert other.loss == pytest.approx(plain.loss, abs=1e-6)
    assert replay.difference(plain.gradient, other.gradient) < 1e-4


@pytest.mark.parametrize("lora", [None, LoraConfig(target_modules=["q_proj"], task_type="CAUSAL_LM")])
def test_prompted_policies_are_readings_of_one_set_of_weights(lora: LoraConfig | None, tmp_path: Path) -> None:
    """The initial student under three prompts, each measured from it as the student reads."""
    teachers = {name: Teacher(view={"system": name}) for name in replay.TEACHERS}
    step = replay.run(tmp_path, teachers=teachers, peft_config=lora)
    members = step.trainer.pool.members
    assert len({id(member.host) for member in members.values()}) == 1 and list(members)[-1] == "reference"
    views = [None, None, None, *(rendered(name) for name in replay.TEACHERS)]
    plain = replay.plain_objective(tiny.model(), [tiny.model()] * 3, replay.plain_trust(), views=views)
    assert step.loss == pytest.approx(plain.loss, rel=1e-5)
    cost = json.loads((tmp_path / "cost.json").read_text())
    assert cost["scored"]["teachers"] == 3 and cost["scored"]["reference"] == 1


def test_a_teacher_of_another_template_and_end_is_the_one_without_a_difference(tmp_path: Path) -> None:
    """Its weights are those of the plain one with two tokens renamed: <bos> ends its responses, in its own template."""
    pool = replay.specialists()
    moved = copy.deepcopy(pool["code"])
    with torch.no_grad():
        moved.model.embed_tokens.weight[[1, 2]] = moved.model.embed_tokens.weight[[2, 1]]
    moved.config.eos_token_id = moved.generation_config.eos_token_id = 1
    own = tiny.tokenizer(OTHER_TEMPLATE)
    own.eos_token = "<bos>"
    folder = tiny.save(moved, tmp_path / "moved", own)
    with pytest.warns(UserWarning, match="swapped"):
        step = replay.run(tmp_path / "own", teachers={**pool, "code": Teacher(folder, view={"template": "own"})})
    assert step.trainer.context.views["code"].swap == (2, 1)
    views = own.apply_chat_template(list(replay.prompts()["prompt"]), add_generation_prompt=True, return_dict=True)
    prompts = [[{1: 2, 2: 1}.get(token, token) for token in ids] for ids in views["input_ids"]]
    student = tiny.model()
    # The reference reads the same view: there the two tokens mean each other's, as they do in what it is asked.
    other = copy.deepcopy(student)
    with torch.no_grad():
        other.model.embed_tokens.weight[[1, 2]] = other.model.embed_tokens.weight[[2, 1]]
    expected = replay.plain_objective(
        student,
        list(pool.values()),
        replay.plain_trust(),
        references=[student, other, student],
        views=[None, prompts, None, None, prompts, None],
    )
    assert step.loss == pytest.approx(expected.loss, rel=1e-5)
    assert replay.difference(expected.gradient, step.gradient) < 1e-5


def test_a_privileged_column_reaches_neither_the_student_nor_any_file(tmp_path: Path) -> None:
    given = {"dataset": dataset(), "teachers": viewed({"prompt": "hinted"}, "math") | {}}
    given["teachers"]["if"] = Teacher(replay.specialists()["if"], view={"system": "be brief"})
    options = {"save_strategy": "steps", "save_steps": 1, "record_allocation_every": 1}
    step = replay.run(tmp_path / "run", **given, **options)
    student = step.trainer._tokenizer.decode([token for ids in replay.prompt_ids(8) for token in ids])
    assert "math" in step.trainer.context.views and SECRET not in student
    files = [file for file in (tmp_path / "run").rglob("*") if file.is_file()]
    assert files and not any(SECRET.encode() in file.read_bytes() for file in files)
    (records,) = RunDirectory(tmp_path / "run").recorded().values()
    assert SECRET not in json.dumps(pq.read_table(records).to_pydict(), default=str)
    views = read_records(tmp_path / "run").views
    assert views and all("if" in shown and "math" not in shown for shown in views.values())
    assert all("be brief" in shown["if"] for shown in views.values())
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())["models"]
    assert "hinted" in manifest["teachers"]["math"]["view"] and manifest["teachers"]["code"]["view"] is None
    card = next((tmp_path / "run").rglob("README.md")).read_text()
    assert "system 'be brief'" in card and "prompt 'hinted'" in card
    assert "hinted" in manifest["own_references"]["math"]["view"]
