"""The report and its verbs: what can be made is made, what is missing is said, and text stays text."""

import html
import json
import re
import shlex
import shutil
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import recorded
from command import run
from hypothesis import example, given
from hypothesis import strategies as st

from trustmopd.recipe import RecipeError
from trustmopd.report import tables
from trustmopd.report.page.report import write_report
from trustmopd.report.page.story import story
from trustmopd.report.page.viewer import choose, script_json
from trustmopd.report.readers.run import find_runs, open_run
from trustmopd.report.statistics.summary import summarise_run


def page_of(*paths: Path, out: Path) -> str:
    return write_report(find_runs(paths), out).read_text(encoding="utf-8")


def first_sentences(page: str) -> str:
    return "".join(re.findall("<p>.*?</p>", page))


def missing(page: str) -> str:
    (section,) = re.findall('<h2 id="missing">.*?</ul>', page, re.DOTALL)
    return section


class Links(HTMLParser):
    """Everything that a page would load or lead to, and every element and event handler in it."""

    def __init__(self) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.links: list[str] = []
        self.elements: list[str] = []
        self.handlers: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)
        self.loads += [value or "" for name, value in attrs if name == "src" or (name == "href" and tag != "a")]
        self.links += [value or "" for name, value in attrs if name == "href" and tag == "a"]
        self.handlers += [name for name, _ in attrs if name.startswith("on")]


def test_one_run_becomes_one_file_with_summary_figures_tables_recipe_and_manifest(
    trusting: Path, tmp_path: Path
) -> None:
    page = page_of(trusting, out=tmp_path)
    found = Links()
    found.feed(page)
    assert found.loads and all(link.startswith("data:image/svg+xml;base64,") for link in found.loads)
    assert all(link.startswith("#") for link in found.links)
    assert not found.handlers and "link" not in found.elements and "iframe" not in found.elements
    assert "default-src &#39;none&#39;" in page or "default-src 'none'" in page
    assert "80%" in first_sentences(page)  # (0.44 − 0.2) / (0.5 − 0.2)
    assert "manifest.json" in page and "viewer-data" in page
    assert json.loads((tmp_path / "analysis.json").read_text())["schema_version"] == 1
    assert (tmp_path / "tables" / "allocation.tex").is_file() and (tmp_path / "figures" / "margins.svg").is_file()


def test_several_runs_are_compared_and_a_folder_stands_for_its_runs(study: Path, tmp_path: Path) -> None:
    page = page_of(study, out=tmp_path)
    assert "multicap: " in first_sentences(page) and "uniform" in first_sentences(page)
    for name in ("main", "ablations", "gamma", "transfer"):
        assert f'id="table-{name}"' in page
    assert "One seed:" not in page


def test_a_comparison_names_the_prompts_of_each_sentence_and_the_run_of_each_document(
    study: Path, tmp_path: Path
) -> None:
    page = page_of(study, out=tmp_path)
    assert "<h1>14 runs on multicap, singlecap</h1>" in page
    for prompts in ("multicap", "singlecap"):
        assert first_sentences(page).count(f"<p>{prompts}: ") == 1
        for name in ("recipe.yaml", "manifest.json"):
            assert f"<summary>{study / prompts / 'uniform' / 'seed-0' / name}</summary>" in page
            assert str(study / prompts / "uniform" / "seed-1" / name) not in page  # as its first seed, but for the seed
    (said,) = re.findall("<li>([^<]*): [^<]*<code>trustmopd diagnose", page)
    assert [Path(each).parent.name for each in said.split(", ")] == ["uniform"] * 4


def test_what_many_runs_lack_is_said_once_and_briefly(tmp_path: Path) -> None:
    for seed in range(6):
        recorded.make_run(tmp_path / "runs" / str(seed), steps=1, seed=seed, record=seed == 5)
    page = page_of(tmp_path / "runs", out=tmp_path)
    (said,) = re.findall(r"<li>([^<]*): [^<]*\(allocation/\)", page)
    assert said == f"{', '.join(str(tmp_path / 'runs' / str(seed)) for seed in range(3))} and 2 more"


def test_a_seed_without_records_leaves_the_figures_to_another(tmp_path: Path) -> None:
    for seed in (0, 1):
        recorded.make_run(tmp_path / str(seed), steps=1, seed=seed, record=bool(seed))
    page = page_of(tmp_path, out=tmp_path)
    assert "trust on prompts abcdef, seed 1." in page and 'id="viewer-data"' in page


def test_a_report_lies_where_the_runs_do(study: Path, tmp_path: Path) -> None:
    copied = shutil.copytree(study / "multicap" / "trust", tmp_path / "runs" / "trust")
    shutil.copytree(study / "multicap" / "uniform" / "seed-0", tmp_path / "runs" / "uniform")
    assert str(copied / "report.html") in run("report", copied)
    run("report", copied / "seed-0", tmp_path / "runs" / "uniform")
    assert (tmp_path / "runs" / "report.html").is_file()
    run("report", copied, "--out", tmp_path / "elsewhere")
    assert (tmp_path / "elsewhere" / "figures" / "allocation.png").is_file()


def test_runs_far_apart_need_a_folder_for_their_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [recorded.make_run(tmp_path / place / "run", steps=1, seed=seed) for seed, place in enumerate("ab")]
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    for folder in (tmp_path / "here", tmp_path):  # above where one works, and right there
        monkeypatch.chdir(folder)
        said = run("report", *runs, code=1)
        assert "--out FOLDER" in said and str(tmp_path) in said
    monkeypatch.chdir(tmp_path / "here")
    assert not (tmp_path / "report.html").exists() and not (tmp_path / "tables").exists()
    run("report", *runs, "--out", "both")
    assert (tmp_path / "here" / "both" / "report.html").is_file()


def test_a_run_by_epochs_that_was_killed_is_not_finished(tmp_path: Path) -> None:
    folder = recorded.make_run(tmp_path / "run", steps=3, max_steps=-1)
    damaged(folder, "manifest.json", "planned_steps", 40)
    assert summarise_run(open_run(folder)).stopped == "step 3 of 40"
    damaged(folder, "manifest.json", "planned_steps", 3)
    assert summarise_run(open_run(folder)).finished


@pytest.mark.parametrize("named", [True, False])
def test_advice_names_the_recipe_of_the_run_where_it_has_one(tmp_path: Path, named: bool) -> None:
    folder = recorded.make_run(tmp_path / "my run", steps=1, max_steps=3)
    (folder / "checkpoints" / "checkpoint-1").mkdir(parents=True)
    shutil.copy(folder / "manifest.json", folder / "checkpoints" / "checkpoint-1")
    if named:
        (folder / "recipe.yaml").write_text("name: mine\n")
    recipe = shlex.quote(str(folder / "recipe.yaml"))
    commands = [f"trustmopd train {recipe} --resume", f"trustmopd evaluate {recipe}"]
    if not named:  # a run of a script
        commands = ["train --resume", f"trustmopd evaluate {shlex.quote(str(folder))} --benchmarks FILE"]
    page, said = html.unescape(page_of(folder, out=tmp_path)), run("analyze", folder)
    for command in commands:
        assert f"<code>{command}</code>" in page and f"`{command}`" in said


# ---- Bad input


def test_without_token_records_the_rest_is_made_and_the_way_to_get_them_is_said(tmp_path: Path) -> None:
    folder = recorded.make_run(tmp_path / "run", record=False)
    said = run("analyze", folder)
    assert "allocation/" in said and "record_allocation_every" in said
    no_case = run("analyze", folder, "--case", "1:1", "--tokens", "a=b", code=1)
    assert "record_allocation_every" in no_case
    assert "viewer.html" not in said and (folder / "figures" / "training.png").is_file()
    page = page_of(folder, out=tmp_path)
    assert "record_allocation_every" in missing(page) and 'id="viewer-data"' not in page


def test_without_labels_weights_are_shown_and_margins_are_not(tmp_path: Path) -> None:
    folder = recorded.make_run(tmp_path / "run", groups=[None])
    page = page_of(folder, out=tmp_path)
    assert "<code>capabilities</code>" in missing(page) and not (tmp_path / "figures" / "margins.png").exists()
    assert 'id="table-allocation"' in page


def test_with_one_teacher_allocation_is_left_out(tmp_path: Path) -> None:
    folder = recorded.make_run(tmp_path / "run", teachers=["math"], groups=[["math"]])
    page = page_of(folder, out=tmp_path)
    assert "one teacher" in missing(page) and not (tmp_path / "figures" / "allocation.png").exists()
    assert not (tmp_path / "tables" / "allocation.md").exists()
    assert 'id="viewer-data"' in page


def test_a_single_seed_has_no_spread_and_the_reader_is_told(trusting: Path, tmp_path: Path) -> None:
    page = page_of(trusting, out=tmp_path)
    assert "One seed: no error bars" in page
    assert "±" not in (tmp_path / "tables" / "main.md").read_text()


def test_an_unfinished_run_is_reported_as_far_as_it_went(tmp_path: Path) -> None:
    folder = recorded.make_run(tmp_path / "run", steps=3, max_steps=116)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "lo')
    page = page_of(folder, out=tmp_path)
    assert "step 3 of 116" in first_sentences(page)
    assert "<code>train</code>" in missing(page) and "resume" not in missing(page)  # there is no checkpoint
    assert "metrics.jsonl has lines that cannot be read: 4." in missing(page)


def test_a_rule_without_scores_says_what_cannot_be_shown(tmp_path: Path) -> None:
    folder = recorded.make_run(tmp_path / "run", rule="uniform")
    said = run("analyze", folder)
    assert "diagnose" in said
    assert "calibration.json" not in said  # this rule needs none


@pytest.mark.parametrize("damage", [b"PAR1 half a table", b"", None])
def test_a_damaged_record_file_is_named_and_skipped(tmp_path: Path, damage: bytes | None) -> None:
    folder = recorded.make_run(tmp_path / "run", steps=3)
    file = folder / "allocation" / "step-000002.parquet"
    file.write_bytes(file.read_bytes()[:-200] if damage is None else damage)
    said = run("analyze", folder)
    assert said.count("step-000002.parquet") == 1  # the reason does not repeat it
    assert json.loads((folder / "analysis.json").read_text())["rollouts"] == 16


@pytest.mark.parametrize("name", ["calibration.json", "cost.json", "manifest.json", "evaluation/scores.json"])
def test_a_damaged_json_is_named_and_the_rest_is_made(tmp_path: Path, name: str) -> None:
    folder = recorded.make_run(tmp_path / "run", scores=recorded.scores_of("trust", 0.4))
    (folder / name).write_text('{"schema_version": 1, "mu')
    page = page_of(folder, out=tmp_path)
    assert f"{name} is not whole JSON" in missing(page)
    assert (tmp_path / "figures" / "allocation.svg").is_file()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["analyze", "nowhere"], "nowhere"),
        (["analyze", "empty"], "empty.*manifest.json"),
        (["report", "empty"], "empty.*trustmopd train"),
        (["report", "nowhere"], "nowhere"),
        (["analyze", "run", "--tokens", "a=b"], "--case"),
        (["analyze", "run", "--case", "seven"], "'seven'.*STEP/ROLLOUT:POSITION"),
        (["analyze", "run", "--case", "99:1"], "rollout 99.* 1/0"),
        (["analyze", "run", "--case", "9/1:1"], "rollout 1 .*step 9"),
        (["analyze", "run", "--case", "1:999"], "999.* 0 to 12"),
        (["analyze", "run", "--case", "1:1"], "set of tokens"),
        (["analyze", "run", "--case", "1:1", "--tokens", "nonsense"], "NAME=TOKEN"),
        (["analyze", "run", "--case", "1:1", "--tokens", "a=b"], "recipe.yaml"),
    ],
)
def test_a_slip_is_told_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    recorded.make_run(tmp_path / "run", steps=1, rollouts=3)
    found = run(*arguments, code=1)
    assert re.search(said, found) and "Traceback" not in found


# ---- Text is data


@pytest.mark.unit
@given(
    st.dictionaries(st.text(st.characters()), st.text(st.characters(categories=["Cs", "Cc", "Zl", "Zp", "Sm", "L"])))
)
@example({"</script><script>alert(1)</script>": "<!-- \u2028\u2029 \ud800 🎉 \x00 ]]>"})
def test_no_text_can_leave_its_script_element(nasty: dict[str, str]) -> None:
    text = script_json(nasty)
    # Two halves of a pair side by side are read back as one character, by any reader of JSON.
    assert "<" not in text and text.isascii() and json.loads(text) == json.loads(json.dumps(nasty))


def test_half_a_surrogate_pair_can_be_recorded(tmp_path: Path) -> None:
    run = recorded.make_run(tmp_path, vocabulary=dict.fromkeys(range(500), "a\ud800b"), steps=1, rollouts=1)
    records = open_run(run).records()
    assert set(records.rollouts[0].texts) == set(records.texts.values()) == {"a?b"}


def test_labels_prompts_and_recipes_with_markup_are_escaped(tmp_path: Path) -> None:
    evil = "<img src=x onerror=alert(1)>"
    folder = recorded.make_run(tmp_path / "run", groups=[[evil]], teachers=[evil, "if"], prompt=evil, steps=1)
    (folder / "recipe.yaml").write_text(f'name: "{evil}"\n')
    found = Links()
    found.feed(page_of(folder, out=tmp_path))
    assert not found.handlers and all(link.startswith("data:") for link in found.loads)


def test_the_viewer_takes_responses_evenly_and_both_ends(trusting: Path) -> None:
    rollouts = open_run(trusting).records().rollouts
    chosen = choose(rollouts, 5)
    assert len(chosen) == 5 and chosen[0] is rollouts[0] and chosen[-1] is rollouts[-1]
    assert choose(rollouts, 1000) is rollouts and choose(rollouts, 1) == rollouts[:1]


# ---- Files that are JSON, and not what they should be


def damaged(folder: Path, name: str, path: str, value: object) -> None:
    """The file's field at `path` becomes `value`; … deletes it."""
    payload = json.loads((folder / name).read_text())
    *parents, last = path.split(".")
    holder = payload
    for parent in parents:
        holder = holder[parent]
    if value is ...:
        del holder[last]
    else:
        holder[last] = value
    (folder / name).write_text(json.dumps(payload))


@pytest.mark.parametrize("value", [-1, ...])
@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("manifest.json", "models.teachers"),
        ("manifest.json", "config"),
        ("calibration.json", "mu"),
        ("cost.json", "training.steps"),
        ("diagnosis.json", "domains"),
        ("evaluation/scores.json", "trust.interval"),
    ],
)
def test_a_field_of_any_other_shape_ends_nothing(
    trusting: Path, tmp_path: Path, name: str, path: str, value: object
) -> None:
    """All but the figures, which are drawn from the same numbers and take long."""
    folder = tmp_path / "run"
    shutil.copytree(trusting, folder, ignore=shutil.ignore_patterns("step-00000[234].parquet", "figures", "tables"))
    recorded.write_diagnosis(folder, "math", {"math": 1.25}, {"math": 0.1})
    damaged(folder, name, path, value)
    comparison = recorded.compared(folder)
    made = tables.all_tables(comparison)
    assert {"scores", "displacement", "allocation"} <= {table.name for table in made}
    assert story(comparison) is not None


def test_what_is_left_out_for_its_shape_is_said(tmp_path: Path) -> None:
    folder = recorded.make_run(tmp_path / "run", steps=1)
    damaged(folder, "calibration.json", "mu", None)
    damaged(folder, "cost.json", "training.peak_memory_gib", "much")
    damaged(folder, "manifest.json", "models.teachers", None)
    (folder / "metrics.jsonl").write_bytes(b'{"step": 1, "loss": null}\n{"step": 2, "loss": 0.5}\n\xff\xfe\n7\n')
    page = page_of(folder, out=tmp_path)
    for said in (
        "calibration.json has mu = None",
        "cost.json has training.peak_memory_gib = &#39;much&#39;",
        "manifest.json has models.teachers = None",
        "metrics.jsonl has lines that cannot be read: 1, 3, 4.",
    ):
        assert said in page
    assert (tmp_path / "figures" / "training.svg").is_file()


def test_a_missing_field_is_named_and_a_broken_diagnosis_has_a_remedy(tmp_path: Path) -> None:
    folder = recorded.make_run(tmp_path / "run", steps=1)
    recorded.write_diagnosis(folder, "math", {"math": 1.25}, {"math": 0.1})
    lost = {"manifest.json": "config.gamma", "calibration.json": "mu", "cost.json": "training.steps"}
    for name, field in {**lost, "diagnosis.json": "verdict"}.items():
        damaged(folder, name, field, ...)
    said = missing(page_of(folder, out=tmp_path))
    for name, field in {**lost, "diagnosis.json": "verdict"}.items():
        assert f"{name} has no {field}." in said
    assert "<code>diagnose</code>" in said
    (folder / "diagnosis.json").write_text("{")
    assert "<code>diagnose</code>" in missing(page_of(folder, out=tmp_path))
    (folder / "diagnosis.json").unlink()
    assert "<code>diagnose</code>" not in missing(page_of(folder, out=tmp_path))


def strictly(path: Path) -> dict:
    """JSON as it is defined, which has no NaN."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{path} holds {constant}")

    return json.loads(path.read_text(), parse_constant=refuse)


def test_what_is_not_a_number_is_said_and_left_out(tmp_path: Path) -> None:
    folder = recorded.make_run(tmp_path / "run", steps=3, scores=recorded.scores_of("trust", 0.44))
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    lines[1] |= {"loss": float("nan"), "score/math": float("inf"), "candidates/student_mass": float("nan")}
    lines[2] |= {"score/math": float("nan")}
    (folder / "metrics.jsonl").write_text(
        "".join(json.dumps(line) + "\n" for line in [*lines, {**lines[0], "step": float("nan")}])
    )
    damaged(folder, "evaluation/scores.json", "trust.math", float("nan"))
    damaged(folder, "cost.json", "training.device_hours", float("inf"))
    damaged(folder, "calibration.json", "mu.if", float("inf"))
    page = page_of(folder, out=tmp_path)
    for said in (
        "The loss of step 2 ",
        "&#39;math&#39; of steps 2, 3 ",
        "scores.json has trust.math = nan",
        "cost.json has training.device_hours = inf",
        "calibration.json has mu.if = inf",
        "metrics.jsonl has lines that cannot be read: 4.",
    ):
        assert said in page
    found = strictly(tmp_path / "analysis.json")
    assert found["series"]["loss"] == [1.0, None, pytest.approx(1 / 3)]
    assert found["own_scores"] == {}  # a row is whole, or left out
    for file in (tmp_path / "tables").iterdir():
        assert "nan" not in file.read_text().lower()


def test_scores_that_are_not_numbers_are_no_scores(tmp_path: Path) -> None:
    folder = recorded.make_run(tmp_path / "run", steps=3, scores=recorded.scores_of("trust", 0.44))
    damaged(folder, "evaluation/scores.json", "trust.overall", float("nan"))
    page = page_of(folder, out=tmp_path)
    assert "no scores" in first_sentences(page) and 'id="table-main"' not in page
    assert "scores.json has trust.overall = nan" in missing(page)


def test_recorded_weights_that_are_not_numbers_are_skipped_and_counted(tmp_path: Path) -> None:
    folder = recorded.make_run(tmp_path / "run", steps=2, rollouts=4)
    file = folder / "allocation" / "step-000002.parquet"
    table = pq.read_table(file)
    weights = table["weight_math"].to_numpy().copy()
    weights[0] = np.nan  # of the first response
    place = table.column_names.index("weight_math")
    pq.write_table(table.set_column(place, "weight_math", pa.array(weights)), file)
    said = run("analyze", folder)
    assert re.search("step-000002.parquet: .* 1 of 4 responses", said)
    assert strictly(folder / "analysis.json")["rollouts"] == 7


def test_metrics_without_some_series_draw_the_others(tmp_path: Path) -> None:
    folder = recorded.make_run(tmp_path / "run", steps=2)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    del lines[0]["agreement/max_weight"], lines[1]["completions/mean_length"]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    page_of(folder, out=tmp_path)
    assert (tmp_path / "figures" / "weights.svg").is_file()


def test_a_recipe_that_is_no_yaml_is_named_with_its_line(tmp_path: Path) -> None:
    folder = recorded.make_run(tmp_path / "run", steps=1)
    (folder / "recipe.yaml").write_text("name: one\nprompts: [")
    with pytest.raises(RecipeError, match=r"recipe\.yaml, line 2"):
        page_of(folder, out=tmp_path)
