"""The token viewer in a real browser, from disk and without a network, against the records and the method itself."""

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import recorded
import small_runs
import tiny
import torch

from trustmopd import Teacher
from trustmopd.method import mixed_target, trust_weights
from trustmopd.report.page.report import viewer, write_report
from trustmopd.report.readers.run import open_run
from trustmopd.report.readers.token_records import Rollout
from trustmopd.report.statistics.summary import summarise_run
from trustmopd.util.files import write_json

NASTY = [
    "<script>window.hacked = 1</script>",
    "</script><img src=x onerror='window.hacked = 1'>",
    "<b>bold</b> & &amp;",
    "a\u2028b\u2029c",
    "\ufffd",
    "🎉👩‍👩‍👧",
    "x" * 3000,
    "\n\n",
    "\u202egnirts desrever",
    " ",
    "",
    "{{ 7 * 7 }} ${1} \\u003c `",
]


@pytest.fixture(scope="module")
def page_file(trusting: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = shutil.copytree(trusting, tmp_path_factory.mktemp("viewer") / "trust")
    found = viewer(folder).path
    assert found is not None
    return found


@pytest.fixture(scope="module")
def rollouts(trusting: Path) -> list[Rollout]:
    return open_run(trusting).records(candidates=True).rollouts


def choose(page: Any, index: int) -> None:
    page.select_option("#viewer-response", str(index))
    page.wait_for_selector(f"html[data-shown='{index}']")


def weights(page: Any) -> np.ndarray:
    return np.array(page.evaluate("trustmopd.state.weights")).T


def test_tokens_and_weights_are_those_of_the_records(visit: Callable, page_file: Path, rollouts: list[Rollout]) -> None:
    page = visit(page_file)
    assert page.locator("#viewer-response option").count() == len(rollouts)
    for index in (0, 7, len(rollouts) - 1):
        choose(page, index)
        assert page.locator("#viewer-tokens .token").all_inner_texts() == rollouts[index].texts
        np.testing.assert_allclose(weights(page), rollouts[index].weights, atol=1e-7)
        assert page.locator(".row").count() == 3  # one row a teacher
        assert page.locator(".row-name").all_text_contents() == recorded.TEACHERS
    assert page.inner_text("#viewer-prompt") == f"a prompt {rollouts[-1].row}"


@pytest.mark.parametrize("gamma", [0.1, 3.0, 7.0, 20.0])
@pytest.mark.parametrize("rule", ["trust", "uncalibrated", "response", "uniform"])
def test_the_slider_and_the_switch_recompute_as_the_method_does(
    visit: Callable, page_file: Path, rollouts: list[Rollout], rule: str, gamma: float
) -> None:
    page = visit(page_file)
    choose(page, 3)
    page.select_option("#viewer-rule", rule)
    page.locator("#viewer-gamma").evaluate(
        "(slider, value) => { slider.value = value; slider.dispatchEvent(new Event('input')); }", str(gamma)
    )
    scores = torch.tensor(rollouts[3].scores)
    mu = None if rule == "uncalibrated" else torch.tensor([recorded.MU[name] for name in recorded.TEACHERS])
    expected = trust_weights(scores, mu, gamma)
    if rule == "response":
        expected = expected.mean(dim=1, keepdim=True).expand_as(expected)
    if rule == "uniform":
        expected = torch.full_like(expected, 1 / 3)
    np.testing.assert_allclose(weights(page), expected.numpy(), atol=1e-6)
    assert page.inner_text("#viewer-gamma-value") == f"{gamma:g}"
    assert page.locator("#viewer-gamma").is_disabled() == (rule == "uniform")
    shown = page.locator("#viewer-teachers td.bar").all_inner_texts()
    assert shown == [f"{value:.3f}" for value in expected[:, page.evaluate("trustmopd.state.position")].tolist()]


@pytest.mark.parametrize(
    ("config", "rule"),
    [({}, "trust"), ({"calibrated": False}, "uncalibrated"), ({"granularity": "response"}, "response")],
)
def test_moving_the_slider_asks_what_if_of_the_rule_that_the_run_trained_with(
    visit: Callable, tmp_path: Path, config: dict[str, Any], rule: str
) -> None:
    run = open_run(recorded.make_run(tmp_path, steps=1, rollouts=1, **config))
    page = visit(viewer(run.path).path)
    assert page.input_value("#viewer-rule") == "recorded" and page.locator("#viewer-gamma").is_enabled()
    page.focus("#viewer-gamma")
    page.keyboard.press("Home")  # to its least, by the keyboard
    assert page.input_value("#viewer-rule") == rule
    scores = torch.tensor(run.records().rollouts[0].scores)
    mu = None if rule == "uncalibrated" else torch.tensor([recorded.MU[name] for name in recorded.TEACHERS])
    expected = trust_weights(scores, mu, float(page.input_value("#viewer-gamma")))
    if rule == "response":
        expected = expected.mean(dim=1, keepdim=True).expand_as(expected)
    np.testing.assert_allclose(weights(page), expected.numpy(), atol=1e-6)


def test_a_calibration_without_one_of_the_teachers_is_not_used(visit: Callable, tmp_path: Path) -> None:
    folder = recorded.make_run(tmp_path, steps=1, rollouts=5)
    calibration = json.loads((folder / "calibration.json").read_text())
    del calibration["mu"]["code"]
    write_json(folder / "calibration.json", calibration)
    run = open_run(folder)
    page = visit(write_report([run], tmp_path))
    said = page.locator("#missing + ul").inner_text()
    assert "calibration.json" in said and " math, if" in said and " math, code, if" in said
    rules = [option.get_attribute("value") for option in page.locator("#viewer-rule option").all()]
    assert rules == ["recorded", "uncalibrated", "response", "uniform"]
    found = summarise_run(open_run(folder))
    raw = np.concatenate([each.scores[0] for each in run.records().rollouts if each.group == "math"])
    assert not found.calibrated and found.scores["math"]["math"].mean == pytest.approx(raw.mean(), rel=1e-5)


@pytest.mark.parametrize("gamma", [0.037, 3.14159, 64.0])
def test_the_slider_starts_at_the_runs_own_gamma(visit: Callable, tmp_path: Path, gamma: float) -> None:
    file = viewer(recorded.make_run(tmp_path, steps=1, rollouts=2, gamma=gamma)).path
    page = visit(file)
    recorded_weights = weights(page)
    page.select_option("#viewer-rule", "trust")
    np.testing.assert_allclose(weights(page), recorded_weights, atol=1e-5)
    assert float(page.input_value("#viewer-gamma")) == gamma
    assert page.inner_text("#viewer-gamma-value") == f"{gamma:.3g}"


def test_a_position_shows_scores_and_what_everyone_thought_of_the_candidates(
    visit: Callable, page_file: Path, rollouts: list[Rollout]
) -> None:
    page = visit(page_file)
    choose(page, 5)
    at, rollout = 4, rollouts[5]
    page.check("#viewer-all")
    page.locator("#viewer-tokens .token").nth(at).hover()
    table = [row.locator("td").all_inner_texts() for row in page.locator("#viewer-teachers tr").all()[1:]]
    assert rollout.scores is not None and rollout.candidates is not None
    for (name, rho, r, w), k in zip(table, range(3), strict=True):
        assert name == recorded.TEACHERS[k]
        assert float(rho) == pytest.approx(rollout.scores[k, at], abs=6e-4)
        assert float(r) == pytest.approx(rollout.scores[k, at] / recorded.MU[name], abs=6e-4)
        assert float(w) == pytest.approx(rollout.weights[k, at], abs=6e-4)
    rows = [row.locator("td").all_inner_texts() for row in page.locator("#viewer-candidates tr").all()[1:]]
    assert len(rows) == 17 and rows[-1][0] == "all others"
    everyone = ["student", "reference", *recorded.TEACHERS]
    found = np.array([[float(cell.rstrip("%")) for cell in row[1:]] for row in rows])
    lumped = {
        who: np.append(rollout.candidates.logp[who][at].astype(float), np.log(float(rollout.candidates.rest[who][at])))
        for who in everyone
    }
    for column, who in enumerate(everyone):
        np.testing.assert_allclose(found[:, column], 100 * np.exp(lumped[who]), atol=0.51)
    target = mixed_target(
        torch.tensor(np.array([lumped[name] for name in recorded.TEACHERS])),
        torch.tensor(rollout.weights[:, at].astype(float)),
    )
    np.testing.assert_allclose(found[:, -1], 100 * target.exp().numpy(), atol=0.51)
    assert rows[0][0].strip() == f"t{rollout.candidates.ids[at, 0]}"
    said = page.inner_text("#viewer-where")
    assert said.startswith(f"Token 5 of {len(rollout.texts)}, position 4: ")  # --case counts from 0
    assert said.endswith(f"student's entropy {rollout.entropy[at]:.3f}")
    moved = 0.5 * np.abs(np.diff(rollout.weights.astype(float), axis=1)).sum(axis=0)
    about = page.locator("#viewer-response option").nth(5).inner_text()
    assert about.startswith(f"step {rollout.step}, {rollout.row}, {rollout.group}, moves {moved.max():.2f}")


def distances(rollout: Rollout) -> np.ndarray:
    """Of the target from the student at each token, by torch."""

    def opinion(who: str) -> torch.Tensor:
        logp, rest = rollout.candidates.logp[who], rollout.candidates.rest[who]
        return torch.cat([torch.tensor(logp).double(), torch.tensor(rest).double()[:, None].log()], dim=-1)

    teachers = torch.stack([opinion(name) for name in recorded.TEACHERS])
    target = mixed_target(teachers, torch.tensor(rollout.weights).double()).exp()
    return ((target - opinion("student").exp()).abs().sum(dim=-1) / 2).numpy()


def learnt(rollout: Rollout) -> np.ndarray:
    """At each token the change of weights × the distance of the target from the student."""
    return np.r_[0, 0.5 * np.abs(np.diff(rollout.weights.astype(float), axis=1)).sum(axis=0)] * distances(rollout)


def test_the_page_opens_where_an_early_step_teaches_most(
    visit: Callable, page_file: Path, rollouts: list[Rollout]
) -> None:
    page = visit(page_file)
    last = np.median([rollout.step for rollout in rollouts]) / 2
    most = {
        n: learnt(rollout).max() for n, rollout in enumerate(rollouts) if rollout.step <= max(last, rollouts[0].step)
    }
    opening = max(most, key=most.__getitem__)
    assert page.get_attribute("html", "data-shown") == str(opening) == page.input_value("#viewer-response")
    chosen = page.locator("#viewer-tokens [aria-selected]")
    assert chosen.get_attribute("data-t") == str(int(learnt(rollouts[opening]).argmax()))
    assert page.evaluate("scrollY") == 0  # the page itself stays at its top


def test_a_long_response_opens_with_its_token_in_view(visit: Callable, tmp_path: Path) -> None:
    run = open_run(recorded.make_run(tmp_path / "run", steps=1, rollouts=1, tokens=2000))
    page = visit(write_report([run], tmp_path))
    t = page.evaluate("trustmopd.state.position")
    assert t > 100 and t == learnt(run.records(candidates=True).rollouts[0]).argmax()
    box, token = (page.locator(each).bounding_box() for each in ("#viewer-tokens", f"#token-{t}"))
    assert box["y"] <= token["y"] <= box["y"] + box["height"] - token["height"]
    assert page.evaluate("scrollY") == 0


def test_a_link_opens_the_page_at_its_token(visit: Callable, page_file: Path) -> None:
    page = visit(page_file)
    choose(page, 3)
    page.locator("#viewer-tokens .token").nth(2).click()
    link, where = page.get_attribute("#viewer-link", "href"), page.inner_text("#viewer-where")
    page.select_option("#viewer-response", "0")
    page.wait_for_selector("html[data-shown='0']")
    page.evaluate("link => { location.hash = link; }", link)
    page.wait_for_selector("html[data-shown='3']")
    page.wait_for_function("where => document.getElementById('viewer-where').textContent === where", arg=where)


def test_tokens_at_which_target_and_student_agree_can_be_passed_over(visit: Callable, tmp_path: Path) -> None:
    base = tiny.model(0)
    teachers = {name: tiny.specialist(base, seed, 0.02) for seed, name in enumerate(recorded.TEACHERS)}
    run = tmp_path / "run"
    small_runs.trainer(run, base, teachers, max_steps=1, record_allocation_every=1, max_completion_length=20).train()
    records, page = open_run(run).records(candidates=True), visit(viewer(run).path)
    page.check("#viewer-differ")
    count = 0
    for index, rollout in enumerate(records.rollouts):
        choose(page, index)
        faded = [int(token.get_attribute("data-t")) for token in page.locator("#viewer-tokens .token.same").all()]
        same = distances(rollout) < 0.1
        assert faded == np.flatnonzero(same).tolist()
        changes = page.evaluate("trustmopd.state.changes.map((change) => change.t)")
        assert not same[changes].any()
        count += len(faded)
    assert 0 < count < sum(len(rollout.texts) for rollout in records.rollouts)


def test_on_a_phone_the_details_of_a_tapped_token_are_in_sight(browser: Any, page_file: Path) -> None:
    context = browser.new_context(viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    page = context.new_page()
    page.goto(page_file.as_uri())
    page.wait_for_selector("html[data-shown]")
    page.locator("#viewer-tokens .token").nth(1).tap()
    token, detail = (page.locator(each).bounding_box() for each in ("#token-1", "#viewer-where"))
    assert token["y"] + token["height"] <= detail["y"] < 844 - 200
    context.close()


def test_candidates_that_nobody_likes_are_counted_with_all_others_until_asked_for(
    visit: Callable, page_file: Path, rollouts: list[Rollout]
) -> None:
    page = visit(page_file)

    def candidates() -> dict[str, list[str]]:
        rows = [row.locator("td").all_inner_texts() for row in page.locator("#viewer-candidates tr").all()[1:]]
        return {row[0].strip(): row[1:] for row in rows}

    folded = 0
    for index in (3, 9):
        choose(page, index)
        found = rollouts[index].candidates
        assert found is not None
        for at in range(len(rollouts[index].texts)):
            page.locator("#viewer-tokens .token").nth(at).click()
            page.check("#viewer-all")
            listed = candidates()
            page.uncheck("#viewer-all")
            short = candidates()
            away = [name for name in listed if name not in short]
            assert len(listed) == 17 and page.inner_text("#viewer-rare") == f"({len(away)} here)"
            everyone = np.array([found.logp[who][at] for who in found.logp], float)
            logp = {f"t{token}": everyone[:, i] for i, token in enumerate(found.ids[at])}
            for name in listed.keys() - {"all others"}:
                rare = np.exp(logp[name]).max() < 0.0005 and listed[name][-1] == "0.0%"
                assert (name in away) == (rare and name != rollouts[index].texts[at].strip())
            others = sum(np.exp(logp[name][0]) for name in away) + found.rest["student"][at]
            assert float(short["all others"][0].rstrip("%")) == pytest.approx(100 * others, abs=0.51)
            folded += len(away)
    assert folded > 0


def test_the_keyboard_goes_everywhere(visit: Callable, page_file: Path, rollouts: list[Rollout]) -> None:
    page = visit(page_file)
    choose(page, 0)
    page.focus("#viewer-tokens")
    page.keyboard.press("Home")

    def press(key: str) -> int:
        page.keyboard.press(key)
        chosen = page.locator("#viewer-tokens [aria-selected]")
        assert chosen.count() == 1
        assert page.get_attribute("#viewer-tokens", "aria-activedescendant") == chosen.get_attribute("id")
        return int(chosen.get_attribute("data-t") or -1)

    last = len(rollouts[0].texts) - 1
    assert [press(key) for key in ("ArrowRight", "ArrowRight", "ArrowLeft")] == [1, 2, 1]
    assert [press(key) for key in ("End", "ArrowRight", "Home", "ArrowLeft")] == [last, last, 0, 0]
    assert [press(key) for key in ("ArrowDown", "ArrowUp", "PageDown", "PageUp")] == [10, 0, last, 0]
    w = rollouts[0].weights.astype(float)
    moved = 0.5 * np.abs(np.diff(w, axis=1)).sum(axis=0)
    sharp = sorted((np.argsort(-moved, kind="stable")[:20] + 1)[np.sort(-moved)[:20] < -0.01].tolist())
    assert [press("n") for _ in sharp] == sharp
    assert press("p") == sharp[-2]
    page.keyboard.press("]")
    page.wait_for_selector("html[data-shown='1']")
    page.keyboard.press("[")
    page.wait_for_selector("html[data-shown='0']")
    page.keyboard.press("Tab")  # and out of it again
    assert page.evaluate("document.activeElement.id") != "viewer-tokens"


def test_filters_keep_what_was_asked_for(visit: Callable, page_file: Path, rollouts: list[Rollout]) -> None:
    page = visit(page_file)
    page.select_option("#viewer-group", "math+if")
    expected = [index for index, rollout in enumerate(rollouts) if rollout.group == "math+if"]
    options = page.locator("#viewer-response option")
    assert [int(option.get_attribute("value")) for option in options.all()] == expected
    page.fill("#viewer-search", "prompt 3")
    expected = [index for index in expected if rollouts[index].row == 3]
    assert [int(option.get_attribute("value")) for option in options.all()] == expected
    page.fill("#viewer-search", "no such prompt")
    assert options.count() == 0 and page.inner_text("#viewer-count") == f"0 of {len(rollouts)} responses"
    assert page.inner_text("#viewer-about") == "No response matches."
    for each in ("prompt", "tokens", "rows", "where", "teachers", "candidates", "rare", "changes"):
        assert page.text_content(f"#viewer-{each}") == ""
    page.select_option("#viewer-rule", "uniform")  # nothing to draw, and nothing goes wrong
    page.click("#viewer-next")
    page.focus("#viewer-tokens")
    page.keyboard.press("End")
    page.fill("#viewer-search", "")
    page.wait_for_selector("html[data-shown]")
    shown = next(rollout for rollout in rollouts if rollout.group == "math+if")
    assert page.locator("#viewer-tokens .token").count() == len(shown.texts)
    np.testing.assert_allclose(weights(page), 1 / 3)


def test_text_from_models_is_shown_and_never_run(visit: Callable, tmp_path: Path) -> None:
    vocabulary = {token: NASTY[token % len(NASTY)] for token in range(500)}
    run = recorded.make_run(
        tmp_path / "run", vocabulary=vocabulary, prompt=NASTY[1], groups=[[NASTY[0]]], steps=1, rollouts=2, tokens=40
    )
    page = visit(write_report([open_run(run)], tmp_path))
    choose(page, 0)
    assert page.evaluate("window.hacked") is None
    assert page.locator("img[src=x]").count() == 0 and page.locator("section b").count() == 0
    assert page.inner_text("#viewer-prompt").startswith(NASTY[1])
    said = page.locator("#viewer-tokens .token").all_text_contents()
    rollout = open_run(run).records().rollouts[0]
    shown = {"a\u2028b\u2029c": "a⟨U+2028⟩b⟨U+2029⟩c", "\n\n": "⏎\n⏎\n", " ": "␣", "": "∅"}
    shown["\u202egnirts desrever"] = "⟨U+202E⟩gnirts desrever"
    assert said == [shown.get(text, text.replace("\u200d", "⟨U+200D⟩")) for text in rollout.texts]
    for at in range(len(said)):
        page.locator("#viewer-tokens .token").nth(at).dispatch_event("mouseover")
    assert page.evaluate("window.hacked") is None
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")  # a long token does not widen the page


def test_a_teacher_that_was_not_asked_has_no_opinion_and_the_target_is_without_it(
    visit: Callable, tmp_path: Path
) -> None:
    """As `allocation: single` leaves it: the others are named, and neither they nor the reference were loaded."""
    run, rule = tmp_path / "run", {"allocation": "single", "single_teacher": "code"}
    small_runs.trainer(run, max_steps=1, num_candidates=20, record_allocation_every=1, **rule).train()
    file = viewer(run).path
    assert file is not None
    page = visit(file)
    assert page.locator("#viewer-teachers td.bar").all_inner_texts() == ["0.000", "1.000", "0.000"]
    page.check("#viewer-all")
    header = page.locator("#viewer-candidates th").all_inner_texts()
    assert header == ["candidate", "student", "code", "target"]
    rows = [row.locator("td").all_inner_texts() for row in page.locator("#viewer-candidates tr").all()[1:]]
    assert all(row[2] == row[3] for row in rows)  # one teacher: the target is its opinion
    page.select_option("#viewer-rule", "uniform")  # what if the others were heard: not known
    assert page.locator("#viewer-candidates th").all_inner_texts() == ["candidate", "student", "code"]


def test_every_reference_is_shown_once_with_its_teachers(visit: Callable, tmp_path: Path) -> None:
    """`math` grew from the student, the others from a second base."""
    run, base, second = tmp_path / "run", tiny.model(0), tiny.model(5, hidden=48)
    start = tiny.save(second, tmp_path / "bases" / "second")
    grown = {name: Teacher(tiny.specialist(second, seed), reference=start) for seed, name in ((2, "code"), (3, "if"))}
    pool = {"math": tiny.specialist(base, 1), **grown}
    small_runs.trainer(run, base, pool, max_steps=1, num_candidates=20, record_allocation_every=1).train()
    opened = open_run(run)
    page = visit(write_report([opened], tmp_path))
    page.check("#viewer-all")
    header = [text.replace("\u00a0", " ") for text in page.locator("#viewer-candidates th").all_inner_texts()]
    assert header == ["candidate", "student", "ref. of math", "ref. of code, if", "math", "code", "if", "target"]
    rollout = opened.records(candidates=True).rollouts[int(page.get_attribute("html", "data-shown"))]
    at = int(page.get_attribute("#viewer-tokens [aria-selected]", "data-t"))
    assert rollout.candidates is not None
    rows = [row.locator("td").all_inner_texts() for row in page.locator("#viewer-candidates tr").all()[1:-1]]
    for column, policy in ((2, "reference:math"), (3, "reference:code"), (3, "reference:if"), (5, "code")):
        shown = [float(row[column].rstrip("%")) for row in rows]
        np.testing.assert_allclose(shown, 100 * np.exp(rollout.candidates.logp[policy][at].astype(float)), atol=0.51)
    assert page.locator("section.viewer", has_text="bases/second").count() == 1
    assert "bases/second" in (tmp_path / "tables" / "calibration.md").read_text()


@pytest.mark.parametrize("rule", ["uniform", "trust"])
def test_runs_without_scores_or_with_one_teacher_can_be_read(visit: Callable, tmp_path: Path, rule: str) -> None:
    teachers = ["math"] if rule == "trust" else recorded.TEACHERS
    run = recorded.make_run(tmp_path / "run", rule=rule, teachers=teachers, steps=1, rollouts=2)
    file = viewer(run).path
    assert file is not None
    page = visit(file)
    rules = [option.get_attribute("value") for option in page.locator("#viewer-rule option").all()]
    assert ("trust" in rules) == (rule == "trust")
    for each in rules:
        page.select_option("#viewer-rule", each)
        np.testing.assert_allclose(weights(page), 1 / len(teachers), atol=1e-6)


SLIDE = """() => {
    const slider = document.getElementById("viewer-gamma"), began = performance.now();
    slider.value = 5;
    slider.dispatchEvent(new Event("input"));
    document.body.offsetHeight;  // laid out
    return performance.now() - began;
}"""


def test_sixty_four_responses_of_two_thousand_tokens_open_in_two_seconds(visit: Callable, tmp_path: Path) -> None:
    run = recorded.make_run(tmp_path / "run", steps=8, tokens=2047, candidates=128, vocabulary_size=50_000)
    file = viewer(run).path
    assert file is not None
    opened = []
    for _ in range(3):  # the best of three: the machine may be busy
        began = time.perf_counter()
        page = visit(file, wait_until="commit")
        opened.append(time.perf_counter() - began)
        page.select_option("#viewer-response", "63")  # may still be loading
        page.wait_for_selector("html[data-shown='63']")
        everything = time.perf_counter() - began
    assert page.locator("#viewer-tokens .token").count() >= 2047
    page.select_option("#viewer-rule", "trust")
    recomputed = min(page.evaluate(SLIDE) for _ in range(2))
    page.focus("#viewer-tokens")
    began = time.perf_counter()
    for _ in range(20):
        page.keyboard.press("ArrowRight")
    moved = (time.perf_counter() - began) / 20
    print(f"{file.stat().st_size / 1e6:.0f} MB, first response after {opened} s, all after {everything:.2f} s")
    print(f"slider {recomputed:.0f} ms, key {1000 * moved:.0f} ms")
    assert min(opened) < 2 and recomputed < 500 and moved < 0.2


def test_cut_and_repeated_responses_and_conflicting_tokens_are_marked(visit: Callable, tmp_path: Path) -> None:
    run = open_run(recorded.make_run(tmp_path, steps=1, rollouts=3, max_completion_length=5))
    page = visit(viewer(run.path).path)
    records = run.records(candidates=True)
    told = page.evaluate("window.trustmopd.run.responses.map(({ marks, conflicts }) => [marks, conflicts])")
    for rollout, (marks, conflicts) in zip(records.rollouts, told, strict=True):
        first = np.stack([rollout.candidates.logp[name][:, 0] for name in records.teachers]).astype(float)
        assert conflicts == [t for t, apart in enumerate(first.std(axis=0)) if apart > 1]
        assert ("cut off" in marks) == (len(rollout.positions) >= 5)
    index = int(page.input_value("#viewer-response"))
    assert page.locator("#viewer-tokens .token.conflict").count() == len(told[index][1])
    assert all(mark in page.inner_text("#viewer-about") for mark in told[index][0])
