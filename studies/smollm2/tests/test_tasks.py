"""Tasks have solutions that pass and wrong answers that do not, and nothing of the evaluation is trained on."""

import random
import re
from collections import Counter
from itertools import pairwise

import pytest
from bubblewrap import needs_sandbox
from shared_data import real

from studies.smollm2 import constraints, list_functions, renumbered, stories, word_problems
from studies.smollm2.domains import demonstrations, evaluation_tasks, training_tasks
from studies.smollm2.held_out import part
from studies.smollm2.settings import Base
from studies.smollm2.tasks import Check, Task, passes, verdicts
from studies.smollm2.worked_solutions import value_of, worked_equation
from trustmopd.evaluation.benchmark import Unavailable
from trustmopd.evaluation.graders.programs import grade_asserts
from trustmopd.evaluation.sandbox import sandbox


@pytest.fixture(scope="module")
def data():
    return {"svamp": str(real("svamp/SVAMP.json")), "gsm8k": str(real("gsm8k/train.jsonl"))}


def composition(task):
    return task.id.partition("/")[0]


def test_a_split_is_three_tenths_and_depends_on_the_names_alone():
    names = [f"row-{number}" for number in range(1000)]
    held_out = part(names, True)
    assert len(held_out) == 300
    assert part(names[::-1], True) == held_out
    assert set(part(names, False)) == set(names) - set(held_out)


def source(task):
    return task.solution.removeprefix("```python\n").removesuffix("\n```")


@needs_sandbox
def test_every_function_passes_with_its_solution():
    tasks = list_functions.tasks(False, 250, random.Random(3)) + list_functions.tasks(True, 250, random.Random(3))
    assert len({task.prompt for task in tasks}) == 500
    # All in one program, since each call of the sandbox costs 50 ms.
    code = "\n".join(source(task).replace("solve(", f"solve_{number}(") for number, task in enumerate(tasks))
    asserts = [
        f"assert solve_{number}({argument!r}) == {expected!r}"
        for number, task in enumerate(tasks)
        for argument, expected in task.checks[0].arguments["tests"]
    ]
    grade = grade_asserts({"tests": "\n".join(asserts)}, code)
    assert grade.score == 1.0, grade.details


@needs_sandbox
def test_functions_are_told_from_a_neighbours_and_from_those_that_leave_a_step_out():
    asked, responses = [], []
    for task, other in pairwise(list_functions.tasks(True, 6, random.Random(2))):
        lines = task.solution.split("\n")
        steps = [n for n, line in enumerate(lines) if line.startswith("    ") and "return" not in line]
        wrong = [other.solution, *("\n".join([*lines[:n], *lines[n + 1 :]]) for n in steps)]
        asked += [task] * (1 + len(wrong))
        responses += [task.solution, *wrong]
    passed = [response for response, right in zip(responses, verdicts(asked, responses), strict=True) if right]
    assert len(asked) > 12
    assert passed == list(dict.fromkeys(task.solution for task in asked))


@needs_sandbox
def test_functions_are_found_in_prose_and_in_open_blocks():
    task = list_functions.tasks(False, 1, random.Random(3))[0]
    code = source(task)
    right = [
        code,
        f"Here it is:\n```python\n{code}\n```\nUse it so:\n```python\nprint(solve([1]))\n```",
        f"```\n{code}",
    ]
    wrong = ["", code.replace("solve", "answer"), "def solve(numbers):\n    while True:\n        pass"]
    assert verdicts([task] * 6, [*right, *wrong]) == [True] * 3 + [False] * 3


def test_without_a_sandbox_functions_are_not_judged_and_the_reason_is_told(monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv(sandbox.UNSANDBOXED, raising=False)
    sandbox._probed.cache_clear()
    task = list_functions.tasks(False, 1, random.Random(3))[0]
    with pytest.raises(Unavailable, match="bwrap"):
        verdicts([task], [task.solution])


def test_compositions_of_the_evaluation_are_not_trained_on():
    train = {composition(task) for task in list_functions.tasks(False, 400, random.Random(4))}
    held_out = {composition(task) for task in list_functions.tasks(True, 400, random.Random(4))}
    assert train.isdisjoint(held_out)
    assert len(train) > 200


def test_topics_forms_and_pairs_of_the_evaluation_are_not_trained_on():
    train = constraints.tasks(False, 2000, random.Random(5))
    held_out = constraints.tasks(True, 300, random.Random(5))
    pairs = [{task.id.partition("/")[0] for task in tasks if len(task.checks) == 2} for tasks in (train, held_out)]
    assert pairs[0].isdisjoint(pairs[1])
    assert {task.prompt for task in train}.isdisjoint(task.prompt for task in held_out)
    asked = {form.split("{")[0] for form in part(constraints._FORMS, True)}
    assert all(any(task.prompt.startswith(start) for start in asked) for task in held_out)
    assert not any(task.prompt.startswith(start) for start in asked for task in train)
    kinds = {check.kind for task in train for check in task.checks}
    assert kinds == set(constraints.CHECKS)


FOLLOWED = [
    ("bullets", {"n": 2}, "- one\n- two", "- one\n- two\n- three"),
    ("numbered", {"n": 3}, "1. a\n2. b\n3. c", "1. a\n3. b\n2. c"),
    ("sentences", {"n": 2}, "One is 3.5 long. Two!", "One. Two. Three."),
    ("paragraphs", {"n": 2}, "a\n***\nb", "a\n\nb"),
    ("json", {"a": "title", "b": "text"}, '```json\n{"title": "x", "text": "y"}\n```', '{"title": "x"}'),
    ("json", {"a": "title", "b": "text"}, '{"text": 1, "title": []}', "[" * 100_000),
    ("lower", {}, "all lower, 3 times.", "Not all."),
    ("upper", {}, "LOUD AND CLEAR.", "LOUD and clear."),
    ("no-commas", {}, "There is not one comma here.", "Here, there is one of them."),
    ("starts", {"word": "Today"}, "today it rains.", "Todays rain."),
    ("title", {}, "[[The sea]]\nIt is wide.", "The sea\nIt is wide."),
    ("ends", {"words": "Try it yourself."}, "It is easy. Try it yourself.", "Try it yourself. It is easy."),
    ("postscript", {}, "Dear Kim.\nP.S. Write back.", "Dear Kim. P.S. is what I add"),
    ("keyword", {"word": "old", "n": 2}, "Old and old.", "Old and bold and cold."),
    (
        "avoid",
        {"word": "is"},
        "This sentence of ten words has nothing of the kind here.",
        "It is a sentence of ten words or some more words.",
    ),
    ("short", {"n": 15}, "Only a few words.", "word " * 16),
    ("quoted", {}, '"Said the bird."', '"Said" the "bird."'),
]


@pytest.mark.parametrize(("kind", "given", "right", "wrong"), FOLLOWED)
def test_a_constraint_is_followed_or_not(kind, given, right, wrong):
    task = Task("id", "if", "prompt", (Check(kind, given),))
    assert passes(task, right)
    assert not passes(task, wrong)
    assert not passes(task, "")


def test_every_constraint_has_its_example():
    assert {kind for kind, *_ in FOLLOWED} == set(constraints.CHECKS)


def test_all_checks_of_a_mixed_task_must_pass():
    number = Check("number", {"prompt": "How many?", "answer": "5"})
    task = Task("id", "math", "prompt", (number, Check("lower", {})))
    assert passes(task, "the answer is \\boxed{5}.")
    assert not passes(task, "The answer is \\boxed{5}.")
    assert not passes(task, "the answer is \\boxed{6}.")


def test_an_equation_is_worked_step_by_step():
    assert worked_equation("( ( 4.0 + 13.0 ) * 15.0 )").split("\n") == [
        "4 + 13 = 17",
        "17 * 15 = 255",
        "The answer is \\boxed{255}.",
    ]
    assert value_of("30 / 4") == 7.5
    with pytest.raises(ValueError, match="calculation"):
        worked_equation("__import__('os').getcwd()")


def test_stories_come_out_whole_and_pass_with_their_solutions():
    tasks = stories.tasks(300, random.Random(6))
    assert all(passes(task, task.solution) for task in tasks)
    answers = [float(task.checks[0].arguments["answer"]) for task in tasks]
    assert all(answer > 0 and answer == int(answer) for answer in answers)


def test_stories_held_out_are_about_others():
    trained, held_out = (stories.tasks(2000, random.Random(6), side) for side in (False, True))
    assert all(passes(task, task.solution) for task in held_out)
    words = [set(re.findall(r"[A-Za-z]+", " ".join(task.prompt for task in side))) for side in (trained, held_out)]
    assert words[0] - words[1] >= {"Anna", "apples", "school", "bus"}
    assert words[1] - words[0] == {
        *("Nora", "Oscar", "Paula", "Ravi", "Sofia"),
        *("bottles", "ribbons", "tickets", "stones", "zoo", "hotel", "cinema"),
    }


def test_stories_held_out_have_numbers_that_they_do_not_have_in_training():
    trained, held_out = (stories.tasks(count, random.Random(6), side) for count, side in ((6000, False), (300, True)))
    words = "|".join(
        word for side in (stories._TRAINED, stories._HELD_OUT) for each in vars(side).values() for word in each
    )

    def told(tasks):
        return {re.sub(rf"\b({words})\b", "…", task.prompt) for task in tasks}

    assert len(told(held_out)) > 250
    assert told(trained).isdisjoint(told(held_out))


def test_mathematics_asks_sums_svamp_and_stories_once_each(data):
    tasks = training_tasks("math", 16000, Base(), data, 0)
    assert len({task.prompt for task in tasks}) == len(tasks) == 16000
    kinds = Counter(task.id.partition("/")[0] for task in tasks)
    assert set(kinds) == {"sum", "svamp", "svamp-renumbered", "story"}
    assert kinds["svamp-renumbered"] == 4000
    assert kinds["sum"] > 4000
    assert kinds["story"] > 6000


def test_svamp_is_split_and_solved(data):
    train, held_out = (word_problems.svamp(word_problems.svamp_rows(side, data["svamp"])) for side in (False, True))
    assert (len(train), len(held_out)) == (700, 300)
    assert {task.prompt for task in train}.isdisjoint(task.prompt for task in held_out)
    assert sum(passes(task, task.solution) for task in train) >= 698  # one row's answer is not its equation's


def test_renumbered_problems_keep_the_text_and_have_the_answer_of_their_equation(data):
    rows = word_problems.svamp_rows(False, data["svamp"])
    tasks = renumbered.renumbered(rows, 1000, random.Random(0), {row["prompt"] for row in rows})
    assert len({task.prompt for task in tasks}) == len(tasks) == 1000
    assert all(passes(task, task.solution) for task in tasks)
    texts = {re.sub(r"\d+", "#", row["prompt"]) for row in rows}
    assert {re.sub(r"\d+", "#", task.prompt) for task in tasks} <= texts
    assert {task.prompt for task in tasks}.isdisjoint(row["prompt"] for row in rows)
    assert not any(re.search(r"\d\.\d|= -", task.solution) for task in tasks)  # whole numbers on the way, none below 0


def test_a_problem_whose_numbers_cannot_be_unambiguous_is_not_renumbered():
    def row(text, equation):
        return {"id": text, "prompt": text, "Equation": equation}

    clear = row("5 apples and 3 pears?", "( 5.0 + 3.0 )")
    others = [row("3 apples and 3 pears?", "( 3.0 + 3.0 )"), row("2.5 apples and 3 pears?", "( 2.5 + 3.0 )")]
    others.append(row("five apples and 3 pears?", "( 5.0 + 3.0 )"))
    assert renumbered.renumbered(others, 5, random.Random(0)) == []
    made = renumbered.renumbered([clear, *others], 5, random.Random(0))
    assert len(made) == 5
    assert all(task.prompt.endswith("pears?") and passes(task, task.solution) for task in made)


def test_sums_are_right_and_whole():
    tasks = renumbered.sums(200, random.Random(0))
    assert len({task.prompt for task in tasks}) == 200
    assert all(passes(task, task.solution) and "." not in task.solution.partition("The")[0] for task in tasks)


def test_responses_shown_for_formats_follow_every_constraint_of_train():
    tasks = constraints.solved_tasks(1500, random.Random(0))
    assert len(tasks) == 1500
    assert all(passes(task, task.solution) for task in tasks)
    held_out = set(part([constraints.name_of(each) for each in constraints.mixtures() if len(each) == 2], True))
    shown = {composition(task) for task in tasks}
    assert shown.isdisjoint(held_out)
    assert {name for name in shown if "+" not in name} == set(constraints.CHECKS)


def test_gsm8k_solutions_pass_without_the_calculators_notes(data):
    tasks = word_problems.gsm8k(data["gsm8k"], 3)[:200]
    assert all(passes(task, task.solution) for task in tasks)
    assert not any("<<" in task.solution for task in tasks)


def test_nothing_shown_or_asked_in_training_is_evaluated(data):
    settings = Base(svamp=300, gsm8k=200, stories=50, functions=50)
    shown = demonstrations(settings, data, 0)
    assert {task.domain for task in shown} == {"math", "code", "if"}
    evaluated = {kind: evaluation_tasks(kind, 300, data) for kind in ("math", "code", "if", "svamp")}
    assert [len(tasks) for tasks in evaluated.values()] == [300, 300, 300, 300]
    for kind, tasks in evaluated.items():
        asked = training_tasks("math" if kind == "svamp" else kind, 3000, settings, data, 0)
        trained = {task.prompt for task in [*shown, *asked]}
        assert trained.isdisjoint(task.prompt for task in tasks)
    solved = {task.id for task in shown}
    assert solved.isdisjoint(task.id for task in training_tasks("math", 3000, settings, data, 0))


def test_tasks_follow_from_the_seed_alone(data):
    for domain in ("math", "code", "if"):
        again = [[task.id for task in training_tasks(domain, 300, Base(), data, seed)] for seed in (0, 0, 1)]
        assert again[0] == again[1]
        assert again[0] != again[2]
