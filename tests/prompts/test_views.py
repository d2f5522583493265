"""What policies with a view of their own read, and the views that are refused before anything is loaded."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tiny
from datasets import Dataset

from trustmopd import Teacher, TrustMOPDConfig
from trustmopd.policies import resolve
from trustmopd.training.setup import Ingredients, check_ingredients

pytestmark = pytest.mark.unit

ROWS = [
    {"id": "a", "prompt": [{"role": "user", "content": "one"}], "hint": "one is 1"},
    {"id": "b", "prompt": [{"role": "system", "content": "be"}, {"role": "user", "content": "two"}], "hint": "2"},
]
CHATTY = (
    "{% for m in messages %}{{ m['role'] }} says {{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}>{% endif %}"
)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("world")
    base = tiny.model(0)
    made = {"student": tiny.save(base, folder / "student")}
    templates = {
        "own": CHATTY,
        "switched": tiny.TEMPLATE + "{% if enable_thinking %}<pad>{% endif %}",
        "fails": "{{ raise_exception('no') }}",
        "drops": "{% for m in messages %}{% if m['role'] != 'user' %}{{ m['content'] }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}>{% endif %}",
        "adds": CHATTY.replace("\n", "\n-- the end"),
        "ends": tiny.TEMPLATE + "<eos>",
    }
    for seed, (name, template) in enumerate(templates.items(), 1):
        made[name] = tiny.save(tiny.specialist(base, seed), folder / name, tiny.tokenizer(template))
    bare = tiny.specialist(base, 9)
    bare.save_pretrained(folder / "bare")
    return SimpleNamespace(**made, bare=str(folder / "bare"), folder=folder)


@pytest.fixture
def prepared(world: Any, tmp_path: Path) -> Any:
    def make(teachers: dict[str, Any], rows: list[dict[str, Any]] = ROWS, **settings: Any) -> Ingredients:
        given = {
            "global_batch_size": 2,
            "per_device_train_batch_size": 2,
            "num_candidates": 8,
            "use_cpu": True,
            "max_steps": 1,
        }
        args = TrustMOPDConfig(str(tmp_path), max_completion_length=4, **given | settings)
        return check_ingredients(world.student, resolve(teachers, None, world.student), args, Dataset.from_list(rows))

    return make


def read(given: Ingredients, name: str, row: int = 0) -> str:
    return given.views[name].text(given.views.read(given.prompts[row], None, "left")[name])


def test_a_view_changes_what_it_names_and_nothing_else(prepared: Any, world: Any) -> None:
    views = {
        "system": {"system": "think"},
        "none": {"system": ""},
        "column": {"prompt": "hint"},
        "both": {"prompt": "hint", "system": "think"},
    }
    given = prepared({name: Teacher(view=view) for name, view in views.items()})
    assert [read(given, "system", row) for row in (0, 1)] == [
        "system: think\nuser: one\nassistant: ",
        "system: think\nuser: two\nassistant: ",
    ]
    assert read(given, "none", 1) == "user: two\nassistant: "
    assert [read(given, "column", row) for row in (0, 1)] == ["user: one is 1\nassistant: ", "user: 2\nassistant: "]
    assert read(given, "both", 1) == "system: think\nuser: 2\nassistant: "
    assert len(set(given.view_marks.values())) == 4 and given.longest_prompt == len(
        "system: think\nuser: one is 1\nassistant: "
    )


def test_the_own_template_is_the_teachers_and_its_references_too(prepared: Any, world: Any) -> None:
    given = prepared({"a": Teacher(world.own, view={"template": "own"}), "b": world.bare})
    assert read(given, "a") == read(given, "reference:a") == "user says one\n>"
    assert given.views["a"] is given.views["reference:a"] and given.views["a"].swap is None
    assert "b" not in given.views and "reference" not in given.views


def test_options_of_the_template_are_the_students_unless_a_view_has_its_own(prepared: Any, world: Any) -> None:
    thinking = {"template": "own", "chat_template_kwargs": {"enable_thinking": True}}
    teachers = {
        "thinks": Teacher(world.switched, view=thinking),
        "not": Teacher(world.switched, view={**thinking, "chat_template_kwargs": {}}),
    }
    given = prepared(teachers)
    assert read(given, "thinks").endswith("<pad>") and not read(given, "not").endswith("<pad>")


@pytest.mark.parametrize(
    ("name", "view", "told"),
    [
        ("fails", {"template": "own"}, ["teacher 'x'", "row 0", "no"]),
        ("drops", {"template": "own"}, ["teacher 'x'", "user's turn", "one"]),
        ("adds", {"template": "own"}, ["teacher 'x'", "-- the end"]),
        ("ends", {"template": "own"}, ["teacher 'x'", "<eos>", "add_generation_prompt"]),
        ("bare", {"template": "own"}, ["teacher 'x'", "no chat template of its own"]),
        ("bare", {"prompt": "missing"}, ["teacher 'x'", "view.prompt 'missing'", "hint"]),
        ("bare", {"prompt": "half"}, ["teacher 'x'", "'half'", "row 1"]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_view_that_asks_another_question_or_none_is_refused(
    name: str, view: dict[str, str], told: list[str], prepared: Any, world: Any
) -> None:
    rows = [{**row, "half": text} for row, text in zip(ROWS, ("whole", ""), strict=True)]
    with pytest.raises(ValueError, match=re.escape(told[0])) as error:
        prepared({"x": Teacher(getattr(world, name), view=view)}, rows)
    assert all(part in str(error.value) for part in told)


def test_plain_text_has_no_template_but_may_have_another_column(prepared: Any, world: Any) -> None:
    rows = [{"id": row["id"], "prompt": row["id"], "hint": row["hint"]} for row in ROWS]
    given = prepared({"x": Teacher(world.bare, view={"prompt": "hint"})}, rows)
    assert read(given, "x") == "one is 1"
    with pytest.raises(ValueError, match="plain text"):
        prepared({"x": Teacher(world.bare, view={"system": "think"})}, rows)


def test_an_own_template_and_an_allowed_mismatch_are_two_remedies_for_one_thing(prepared: Any, world: Any) -> None:
    teachers = {"x": Teacher(world.own, view={"template": "own"})}
    assert prepared(teachers).views
    with pytest.raises(ValueError, match="allow_template_mismatch"):
        prepared(teachers, allow_template_mismatch=True)
    with pytest.raises(ValueError, match="chat template"):
        prepared({"x": world.own})
    with pytest.raises(ValueError, match="chat template"):  # a system prompt does not change the template
        prepared({"x": Teacher(world.own, view={"system": "think"})})


def test_ends_that_cannot_be_mapped_are_refused_by_name(prepared: Any, world: Any, tmp_path: Path) -> None:
    student = tiny.model(0)
    student.generation_config.eos_token_id = [2, 7]
    folder = tiny.save(student, tmp_path / "two-ends")
    teachers = {"x": Teacher(world.own, view={"template": "own"})}
    args = TrustMOPDConfig(str(tmp_path), global_batch_size=2, per_device_train_batch_size=2, num_candidates=8)
    args.max_completion_length = 4
    with pytest.raises(ValueError, match=r"teacher 'x' ends .*\[7\] would be no end"):
        check_ingredients(folder, resolve(teachers, None, folder), args, Dataset.from_list(ROWS))


def test_prompts_that_are_too_long_under_one_view_are_told_with_its_policy(prepared: Any, world: Any) -> None:
    teachers = {"x": Teacher(world.bare, view={"system": "think " * 9})}
    with pytest.raises(ValueError, match="2 of 2 prompts, as teacher 'x' reads them,"):
        prepared(teachers, max_prompt_length=48, prompt_truncation="error")
    with pytest.raises(ValueError, match=r"teacher 'x' .* 256 positions"):
        prepared({"x": Teacher(world.bare, view={"system": "think " * 60})})


def test_two_views_that_render_the_same_are_one_policy_twice(prepared: Any, world: Any) -> None:
    teachers = {"x": Teacher(world.bare, view={"system": "a"}), "y": Teacher(world.bare, view={"system": "a"})}
    with pytest.raises(ValueError, match="same model"):
        prepared(teachers)
