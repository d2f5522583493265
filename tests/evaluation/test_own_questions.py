"""Questions of one's own: how they are put to a model, what grades them, and what is said of both."""

import json
from pathlib import Path
from typing import Any

import pytest
import small_runs
import tiny
import yaml
from command import run

from trustmopd import Benchmark, evaluate
from trustmopd.evaluation.benchmarks import get_benchmark, load_benchmarks
from trustmopd.evaluation.graders.answers import BY_NAME
from trustmopd.evaluation.of_recipe import sampling_of
from trustmopd.evaluation.sampling import Sampling, put
from trustmopd.recipe import QuestionFile, RecipeError, load_recipe
from trustmopd.recipe.names import GRADERS

THINKING = (
    "{% for tool in tools or [] %}tool {{ tool['name'] }}\n{% endfor %}" + tiny.TEMPLATE + "{% if enable_thinking is "
    "defined and not enable_thinking %}<think></think>{% endif %}"
)
TEXTS = [{"prompt": "rev(abc)", "answer": "cba"}, {"prompt": "rev(ab)", "answer": "ba"}]


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def answered(journal: Path, *responses: str) -> None:
    """Other responses in the place of those that were sampled."""
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    write(journal, [{**line, "response": text} for line, text in zip(lines, responses, strict=True)])


@pytest.fixture(scope="module")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recipe whose models have a template that can think, prompts with one system prompt, and training without
    thinking; one step is trained."""
    folder = tmp_path_factory.mktemp("thinker")
    models = small_runs.checkpoints(folder)
    for path in models.values():
        tiny.tokenizer(THINKING).save_pretrained(path)
    training = {"max_steps": 1, "save_steps": 1, "chat_template_kwargs": {"enable_thinking": False}}
    evaluation = {"benchmarks": [str(write(folder / "texts.jsonl", TEXTS))], "max_new_tokens": 4}
    recipe = small_runs.recipe(folder, models, training, evaluation=evaluation)
    prompts = [json.loads(line) for line in (folder / "prompts.jsonl").read_text().splitlines()]
    system = {"role": "system", "content": "Answer briefly."}
    write(folder / "prompts.jsonl", [{**row, "prompt": [system, *row["prompt"]]} for row in prompts])
    run("train", recipe)
    return recipe


@pytest.mark.parametrize(
    ("grader", "answer", "passing", "failing"),
    [
        ("exact", "cba", ["cba", " cba.\n", r"So \boxed{cba}"], ["It is cba", "cb", "", "Cba"]),
        ("exact", "two words", ["two  words"], ["two"]),
        ("contains", "cat", ["A Cat!", "cat"], ["concatenate", "dog", ""]),
        ("contains", "f(x)", ["so f(x)=1", "-f(x)g"], ["f(y)", "of(x)"]),
        ("contains", "東京", ["答えは東京です"], ["大阪"]),
        ("regex", r"\bgr[ae]y\b", ["a grey cat"], ["greyish"]),
        (
            "choice",
            "B",
            ["B", "(b)", "**B**.", "The answer is B.", r"\boxed{B}", "Answer: (B)", "B) Paris"],
            ["C", "By"],
        ),
        ("choice", "(A)", ["A. Yes", "I think the answer is A"], ["A good question", "", "(B)"]),
        ("number", "42", ["I get 42.", "42.0"], ["41"]),
    ],
)
def test_a_named_grader_reads_answers_as_its_name_says(
    tmp_path: Path, grader: str, answer: str, passing: list[str], failing: list[str]
) -> None:
    path = write(tmp_path / "own.jsonl", [{"prompt": "?", "answer": answer, "grader": grader}])
    benchmark = get_benchmark(str(path))
    (row,) = benchmark.load()
    assert benchmark.graders == grader
    assert [benchmark.grade(row, response).score for response in passing] == [1] * len(passing)
    assert [benchmark.grade(row, response).score for response in failing] == [0] * len(failing)


def test_the_graders_that_a_recipe_may_name_are_those_there_are() -> None:
    assert set(BY_NAME) == set(GRADERS)


@pytest.mark.filterwarnings("ignore:benchmark")
@pytest.mark.parametrize(
    ("answers", "graders", "domain"),
    [
        (["1", "2.5"], "number", "math"),
        (["A", "C"], "choice", "own"),
        (["cba", "A"], "exact", "own"),
        (["1", r"\frac{1}{2}", "3"], "math", "math"),
        (["1/2", "3"], "math", "math"),
        (["7", "seven"], "exact, number", "own"),
    ],
)
def test_without_a_name_the_form_of_the_answers_decides(
    tmp_path: Path, answers: list[str], graders: str, domain: str
) -> None:
    path = write(tmp_path / "own.jsonl", [{"prompt": "?", "answer": answer} for answer in answers])
    benchmark = get_benchmark(str(path))
    assert (benchmark.graders, benchmark.domain) == (graders, domain)


@pytest.mark.filterwarnings("ignore:benchmark")
@pytest.mark.parametrize(
    ("bad", "fact"),
    [
        ({"answer": "x", "grader": "exakt"}, "exact"),
        ({"answer": "(", "grader": "regex"}, "regex"),
        ({"answer": "BC", "grader": "choice"}, "'BC'"),
        ({"answer": "x", "grader": "number"}, "'x'"),
        ({"answer": "x", "tools": "search"}, "tools"),
        ({"answer": "x", "chat_template_kwargs": [1]}, "chat_template_kwargs"),
    ],
)
def test_a_row_that_its_grader_or_template_cannot_read_is_named(tmp_path: Path, bad: Any, fact: str) -> None:
    path = write(tmp_path / "own.jsonl", [{"prompt": "?", "answer": "x"}, {"prompt": "?", **bad}])
    rows = get_benchmark(str(path)).load()
    assert len(rows) == 1 and fact in rows.malformed[0] and "line 2" in rows.malformed[0]


def test_text_answers_are_graded_and_the_grader_is_told_and_recorded(world: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = ("evaluate", world / "student", "--benchmarks", write(tmp_path / "own.jsonl", TEXTS), "--out", out)
    with pytest.warns(UserWarning, match="'cba'.*exact.*contains"):
        said = run(*command, "--max-new-tokens", 4)
    assert "own is graded by exact" in said
    lines = [json.loads(line) for line in (out / "own.jsonl").read_text().splitlines()]
    assert all(line["extracted"] for line in lines) and [line["id"] for line in lines] == ["0", "1"]
    assert json.loads((out / "run.json").read_text())["benchmarks"]["own"]["graders"] == "exact"
    answered(out / "own.responses.jsonl", "cba", "It is ba")
    (out / "own.jsonl").unlink()
    with pytest.warns(UserWarning):
        run(*command, "--max-new-tokens", 4)
    assert json.loads((out / "scores.json").read_text())["student"]["overall"] == 0.5


def test_another_grader_or_a_corrected_answer_grades_again_what_was_sampled(world: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"

    def score(rows: list[dict[str, Any]]) -> float:
        path = write(tmp_path / "own.jsonl", rows)
        run("evaluate", world / "student", "--benchmarks", path, "--out", out, "--max-new-tokens", 4)
        return json.loads((out / "scores.json").read_text())["student"]["overall"]

    score([{**row, "grader": "exact"} for row in TEXTS])
    answered(out / "own.responses.jsonl", "It is cba", "It is b")
    sampled = (out / "own.responses.jsonl").read_bytes()
    assert score([{**row, "grader": "contains"} for row in TEXTS]) == 0.5
    assert score([TEXTS[0] | {"grader": "contains"}, TEXTS[1] | {"grader": "contains", "answer": "b"}]) == 1
    assert (out / "own.responses.jsonl").read_bytes() == sampled


def test_a_function_of_ones_own_grades_the_rows_of_a_recipe(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text("def grade(row, response):\n    return len(response) >= row['least']\n")
    write(tmp_path / "q.jsonl", [{"prompt": "Say more.", "least": least} for least in (0, 10**6)])
    given = ["evaluation.benchmarks=[{path: q.jsonl, grader: mine.py:grade}]", "--only", "initial", "--out", "out"]
    run("evaluate", world / "recipe.yaml", *given)
    assert json.loads(Path("out/scores.json").read_text())["initial"]["overall"] == 0.5
    assert json.loads(Path("out/initial/run.json").read_text())["benchmarks"]["q"]["graders"] == "mine.py:grade"
    said = run("evaluate", world / "recipe.yaml", given[0].replace(":grade", ":mark"), *given[1:], code=1)
    assert "mine.py" in said and "'mark'" in said


@pytest.mark.parametrize(
    ("benchmark", "fact"),
    [
        ("{path: q.jsonl, grader: exakt}", "exact"),
        ("{path: q.txt}", "q.txt"),
        ("{file: q.jsonl}", "benchmarks.0.path"),
        ("{path: q.jsonl, grade: exact}", "`grader`"),
        ("3", "benchmarks.0"),
    ],
)
def test_a_slip_in_a_recipes_benchmark_is_named(world: Path, benchmark: str, fact: str) -> None:
    with pytest.raises(RecipeError, match=fact):
        load_recipe(world / "recipe.yaml", [f"evaluation.benchmarks=[{benchmark}]"])


def test_a_recipe_with_a_grader_reads_back_as_it_is(world: Path, tmp_path: Path) -> None:
    recipe = load_recipe(world / "recipe.yaml", ["evaluation.benchmarks=[{path: q.jsonl, grader: contains}]"])
    (tmp_path / "again.yaml").write_text(recipe.to_yaml())
    assert load_recipe(tmp_path / "again.yaml") == recipe
    assert recipe.evaluation.benchmarks == [QuestionFile(path="q.jsonl", grader="contains")]


def test_a_benchmark_object_is_evaluated_from_python(world: Path, tmp_path: Path) -> None:
    own = Benchmark(
        name="own",
        domain="words",
        generated=lambda count: [{"word": "a"}, {"word": "b"}],
        row=lambda source, number: {"id": str(number), "prompt": source["word"]},
        grader=lambda row, response: get_benchmark("testbed_if").grade(row, response),
    )
    found = evaluate(world / "student", own, tmp_path / "out", sampling={"max_new_tokens": 2})
    assert found.benchmarks == ["own"] and found.scores["student"]["benchmarks"]["own"]["prompts"] == 2


def test_that_no_answer_was_found_is_said_below_the_table_and_in_the_report(thinker: Path, tmp_path: Path) -> None:
    pytest.importorskip("math_verify")
    path = write(tmp_path / "boxes.jsonl", [{"prompt": "?", "answer": rf"\frac{{{n}}}{{7}}"} for n in (1, 2, 3)])
    with pytest.warns(UserWarning, match="math"):
        said = run("evaluate", thinker, f"evaluation.benchmarks=[{path}]", "--only", "tiny")
    assert "tiny, boxes: no answer was found in 3 of 3 responses" in said
    output = load_recipe(thinker).output
    run("report", output)
    assert "no answer was found in 3 of 3 responses" in (output / "report.html").read_text()


def test_a_student_is_asked_as_it_was_trained_unless_the_recipe_says_otherwise(thinker: Path, tmp_path: Path) -> None:
    """The override of the training is in the checkpoint alone."""
    fields = yaml.safe_load(thinker.read_text())
    del fields["training"]["chat_template_kwargs"]
    (plain := tmp_path / "plain.yaml").write_text(yaml.safe_dump(fields))
    trained = load_recipe(thinker).output / "checkpoints" / "checkpoint-1"
    for what, row in ((plain, "tiny"), (trained, "checkpoint-1")):
        given = ["--only", "tiny"] if what == plain else ["--benchmarks", thinker.parent / "texts.jsonl"]
        with pytest.warns(UserWarning, match="texts"):
            run("evaluate", what, *given, "--out", tmp_path / row, "--max-new-tokens", 4)
        score = json.loads((tmp_path / row / "scores.json").read_text())[row]["benchmarks"]["texts"]
        assert (score["system"], score["chat_template_kwargs"]) == ("Answer briefly.", {"enable_thinking": False})
    own = load_recipe(thinker, ["evaluation.system=''", "evaluation.chat_template_kwargs={}"])
    assert (sampling_of(own).system, sampling_of(own).chat_template_kwargs) == (None, None)
    fresh = load_recipe(thinker, [f"output={tmp_path / 'none'}"])
    assert sampling_of(fresh) == sampling_of(load_recipe(thinker)), "before training, what it will use"


@pytest.mark.filterwarnings("ignore:benchmark")
def test_scores_of_two_ways_of_asking_are_not_compared(thinker: Path, tmp_path: Path) -> None:
    for row, change in (("initial", "evaluation.system=Think."), ("tiny", "evaluation.temperature=0.6")):
        run("evaluate", thinker, change, "--only", row, "--out", tmp_path / row)
    said = run("scores", tmp_path / "initial", tmp_path / "tiny", "--out", tmp_path / "both", code=1)
    assert "system = 'Think.'" in said and "'Answer briefly.'" in said
    said = run(
        "evaluate", thinker, "evaluation.chat_template_kwargs={}", "--only", "tiny", "--out", tmp_path / "tiny", code=1
    )
    assert "chat_template_kwargs" in said


@pytest.mark.filterwarnings("ignore:benchmark")
def test_an_evaluation_elsewhere_leaves_the_scores_of_the_run(thinker: Path, tmp_path: Path) -> None:
    output = tmp_path / "elsewhere"
    own = load_recipe(thinker).output / "evaluation" / "scores.json"
    run("evaluate", thinker, "--only", "tiny")
    before = own.read_bytes()
    other = write(tmp_path / "other.jsonl", [{"prompt": "?", "answer": 1}])
    said = run("evaluate", thinker, "--only", "tiny", "--benchmarks", other, "--out", output)
    assert own.read_bytes() == before and str(own) in said
    assert "other" in json.loads((output / "scores.json").read_text())["tiny"]["benchmarks"]
    own.unlink()
    for _ in range(2):  # a first evaluation elsewhere is the run's, and so is its continuation
        run("evaluate", thinker, "--only", "tiny", "--benchmarks", other, "--out", output)
        assert "other" in json.loads(own.read_text())["tiny"]["benchmarks"]


@pytest.mark.filterwarnings("ignore:benchmark")
def test_a_dry_run_shows_rows_prompts_and_graders_and_loads_no_model(thinker: Path, tmp_path: Path) -> None:
    row = {"prompt": "rev(abc)", "answer": "cba", "tools": [{"name": "search"}]}
    path = write(tmp_path / "own.jsonl", [row, {"prompt": "?"}])
    before = {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*")}
    given = ["--benchmarks", path, "--dry-run", "--out", tmp_path / "out"]
    said = run("evaluate", thinker, *given)
    assert "system: Answer briefly. user: rev(abc) assistant: <think></think>" in said
    assert "tool search" in said and "exact" in said and "teacher-math" in said
    assert {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*")} == before
    gone = [f"teachers.{name}={tmp_path / 'gone'}" for name in ("math", "code")]
    said = run("evaluate", thinker, *gone, *given, code=1)
    assert "teacher-math: " in said and said.count("is not a folder here") == 2 and "rev(abc)" in said


def test_a_row_s_own_system_prompt_and_arguments_go_before_those_of_the_evaluation(
    thinker: Path, tmp_path: Path
) -> None:
    own = {"prompt": [{"role": "system", "content": "Mine."}, {"role": "user", "content": "?"}], "answer": 1}
    path = write(tmp_path / "own.jsonl", [{**own, "chat_template_kwargs": {"enable_thinking": True, "of": None}}])
    said = run("evaluate", thinker, "--benchmarks", path, "--dry-run")
    assert said.endswith("as rendered: system: Mine. user: ? assistant:")
    ((benchmark, rows),) = [(each.benchmark, each.rows) for each in load_benchmarks([str(path)], {})]
    assert put(benchmark, rows[0], Sampling(chat_template_kwargs={"of": 1}))[1] == {"of": 1, "enable_thinking": True}


def test_two_forms_of_a_benchmark_load_together(world: Path, tmp_path: Path) -> None:
    other = write(tmp_path / "other.jsonl", TEXTS)
    loaded = load_benchmarks([str(world / "math_sums.jsonl"), QuestionFile(path=str(other), grader="contains")], {})
    assert [(each.benchmark.name, each.benchmark.graders) for each in loaded] == [
        ("math_sums", "number"),
        ("other", "contains"),
    ]
