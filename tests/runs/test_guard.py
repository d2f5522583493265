"""The guard as a function of logged lines: what it says, from which step, and when it stays silent."""

import re
from pathlib import Path

import pytest

from trustmopd.runs.guard import NAMES, RULES, Guard, actions_of, still_moving

pytestmark = pytest.mark.unit

SYMPTOMS = Path(__file__).parents[2] / "docs" / "symptoms.md"


def lines(metric, values, every=1):
    return [{"step": 1 + every * place, metric: value} for place, value in enumerate(values)]


#: A sick series of each rule, and the step at which it must have spoken.
SICK = {
    "clipped": ("completions/clipped_ratio", [0.0] * 10 + [0.3] * 12),
    "length": ("completions/mean_length", [5.0] * 10 + [11.0] * 12),
    "loss": ("loss", [0.03] * 5 + [0.3] * 12),
    "repetition": ("completions/repetition", [0.0] * 6 + [0.6] * 12),
    "entropy": ("entropy", [0.14] * 6 + [0.01] * 12),
    "mass": ("candidates/student_mass", [0.9] * 12),
    "drift": ("score/code", [1.0] * 6 + [1.7] * 12),
    "late": ("position/4/gap", [0.8] * 12),
    "balance": ("domain/math/gradient", [0.4] * 6 + [0.94] * 12),
    "overlap": ("overlap/if", [0.95, 0.9, 0.6, 0.5]),
    "conflict": ("conflict/cancelled", [0.6, 0.5, 0.6]),
    "far": ("overlap/if", [0.4, 0.4, 0.4]),
    "uncertain": ("mu_error/if", [0.1] * 12),
    "unsolved": ("watch/held-out", [0.0] * 4),
    "watch": ("watch/held-out", [0.6, 0.62, 0.35, 0.36]),
}


@pytest.mark.parametrize("name", NAMES)
def test_each_rule_speaks_once_of_a_sick_series_and_names_its_first_step(name):
    metric, values = SICK[name]
    (alarm,) = Guard().read(lines(metric, values))
    patience = alarm.rule.patience
    bad = [line["step"] for line in lines(metric, values) if line[metric] in (values[-1], values[-2], max(values[2:]))]
    assert (alarm.rule.name, alarm.metric, alarm.action) == (name, metric, "warn")
    assert alarm.step - alarm.since == patience - 1 and alarm.since in bad
    assert f"docs/symptoms.md#{name}" in str(alarm) and metric in str(alarm)


@pytest.mark.parametrize("name", NAMES)
def test_no_rule_speaks_of_a_series_that_stays_where_it_began(name):
    metric, values = SICK[name]
    healthy = (
        0.99
        if name in ("mass", "far", "unsolved")
        else 0.04
        if name in ("late", "conflict", "uncertain")
        else values[0]
    )
    assert Guard().read(lines(metric, [healthy] * 40)) == []


def test_one_good_line_begins_the_count_again():
    values = [0.03] * 5 + [0.3] * 9 + [0.03] + [0.3] * 9
    assert Guard().read(lines("loss", values)) == []


def test_entropy_is_judged_both_ways():
    up, down = (Guard().read(lines("entropy", [0.1] * 6 + [value] * 12)) for value in (0.5, 0.01))
    assert [alarm.rule.rises for alarm in (*up, *down)] == [True, False]


def test_a_metric_of_several_teachers_is_judged_for_each():
    both = [{"step": s, "score/math": 1 + (s > 5), "score/code": 1.0, "score/if": 1 / (1 + (s > 5))} for s in range(20)]
    assert {alarm.metric for alarm in Guard().read(both)} == {"score/math", "score/if"}


def test_lines_without_a_metric_and_values_that_are_no_numbers_are_passed_over():
    mixed = [{"step": 1}, {"step": 2, "loss": float("nan")}, {"step": 3, "loss": "none"}, *lines("loss", [0.1] * 20)]
    assert Guard().read(mixed) == []


@pytest.mark.parametrize(
    ("metric", "bad", "good"),
    [
        ("overlap/a", 0.55, 0.85),
        ("domain/a/gradient", 0.94, 0.5),
        ("conflict/cancelled", 0.6, 0.1),
        ("mu_error/a", 0.1, 0.01),
    ],
)
def test_one_line_again_and_again_is_judged_by_levels_alone(metric, bad, good):
    (alarm,) = Guard().read([{"step": 0, "loss": 1.0, metric: bad}] * 10)
    assert alarm.metric == metric and "step" not in str(alarm)
    assert Guard().read([{"step": 0, "loss": 1.0, metric: good}] * 10) == []


def test_a_resumed_guard_does_not_say_again_what_its_history_said():
    history = lines("loss", [0.03] * 5 + [0.3] * 20)
    guard = Guard()
    assert len(guard.read(history[:20])) == 1
    assert guard.read(history[20:]) == []


def test_actions_by_rule_and_for_all():
    assert set(actions_of("stop").values()) == {"stop"}
    found = actions_of({"clipped": "stop", "drift": False, "mass": "off"})
    assert (found["clipped"], found["drift"], found["mass"], found["loss"]) == ("stop", "off", "off", "warn")
    assert Guard({"loss": False}).read(lines(*SICK["loss"])) == []
    for wrong in ({"cliped": "stop"}, {"clipped": "shout"}, "loud", 3, {"clipped": True}):
        with pytest.raises(ValueError):
            actions_of(wrong)
    with pytest.raises(ValueError, match=r"^guard\.clipped = 0\.3"):
        actions_of({"clipped": 0.3})


def test_every_rule_has_its_heading_and_its_metric_on_the_page_that_warnings_name():
    page = SYMPTOMS.read_text(encoding="utf-8")
    assert set(re.findall(r"^## `?(\w+)`?$", page, re.MULTILINE)) >= set(NAMES)
    for rule in RULES:
        assert rule.metric.partition("*")[0] in page


def test_a_loss_that_still_falls_is_moving_and_a_flat_or_noisy_one_is_not():
    falling = [1.0 - 0.02 * step for step in range(40)]
    before, after = still_moving(falling)
    assert before == pytest.approx(1 - 0.02 * 24.5) and after == pytest.approx(1 - 0.02 * 34.5)
    noisy = [0.5 + (0.2 if step % 2 else -0.2) for step in range(40)]
    assert still_moving([0.5] * 40) is None and still_moving(noisy) is None
    assert still_moving(falling[:7]) is None and still_moving([float("nan"), *falling]) is None
