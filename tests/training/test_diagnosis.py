"""`diagnose`: the numbers behind its tables, and the sentence it draws from them."""

import pytest
import tiny
import torch

from trustmopd import Teacher, TrustMOPDTrainer
from trustmopd.runs.schemas import DomainDiagnosis, ReferenceDiagnosis
from trustmopd.training.calibrate import calibration_rows
from trustmopd.training.diagnose import diagnose
from trustmopd.training.diagnosis_verdict import judge, judge_references, judge_views, moved_everywhere

SETTINGS = {"num_candidates": 12, "global_batch_size": 8, "max_completion_length": 8}


@pytest.fixture(scope="module")
def trainer(make, tmp_path_factory) -> TrustMOPDTrainer:
    return make(tmp_path_factory.mktemp("diagnose"), prompts=tiny.prompts(60), **SETTINGS)


def test_scores_of_all_domains_together_average_to_what_calibration_expects(trainer: TrustMOPDTrainer) -> None:
    found = diagnose(trainer, rollouts_per_domain=10)
    mu = trainer.calibration.mu
    for domain in found.domains:
        assert domain.rollouts == 10
        assert sum(domain.weight.values()) == pytest.approx(1, abs=1e-6)
        for name in mu:  # calibrated is raw over mu, and both are means over the same tokens
            assert domain.score[name] == pytest.approx(domain.raw[name] / mu[name], rel=1e-5)
            assert domain.spread[name] > 0
    assert found.held_out


def test_diagnosis_prompts_are_held_out_of_calibration_where_there_are_enough(trainer: TrustMOPDTrainer) -> None:
    from trustmopd.training.diagnose import _choose

    groups, held_out = _choose(trainer, 10)
    assert held_out
    assert not set(calibration_rows(60, 16)) & {row for rows in groups.values() for row in rows}
    assert not _choose(trainer, 256)[1]  # 60 prompts cannot give 256 a domain: calibration's are taken as well


def test_diagnosis_leaves_weights_mode_and_random_state_alone(trainer: TrustMOPDTrainer) -> None:
    trainer.model.train()
    before = torch.get_rng_state(), [parameter.clone() for parameter in trainer.model.parameters()]
    diagnose(trainer, rollouts_per_domain=3)
    assert trainer.model.training
    assert torch.equal(before[0], torch.get_rng_state())
    assert all(torch.equal(a, b) for a, b in zip(before[1], trainer.model.parameters(), strict=True))


def domain(name: str, math: float, code: float, leads: float | None) -> DomainDiagnosis:
    scores, spread = {"math": math, "code": code}, {"math": 0.03, "code": 0.03}
    counts = {"domain": name, "rollouts": 9, "tokens": 90}
    return DomainDiagnosis(**counts, raw=scores, score=scores, spread=spread, weight=scores, leads=leads)


@pytest.mark.unit
def test_the_verdict_names_the_teacher_that_outshines_the_matched_one() -> None:
    separates, words = judge([domain("math", 1.2, 0.9, 0.9), domain("code", 1.4, 1.3, 0.4)], ["math", "code"])
    assert separates is False
    assert [fact for fact in ("'code'", "'math'", "1.40", "1.30") if fact not in words] == []


@pytest.mark.unit
def test_the_verdict_is_open_where_the_rollouts_cannot_tell_two_teachers_apart() -> None:
    """Whichever of them is ahead: teachers measured from a model that is not their base are all displaced alike."""
    for scores in ((1.01, 1.0), (1.0, 1.01)):
        separates, words = judge([domain("code", *scores, 0.55)], ["math", "code"])
        assert separates is None and "9 rollouts" in words


def test_the_verdict_says_yes_only_if_every_matched_teacher_also_leads_on_most_rollouts() -> None:
    yes = [domain("math", 1.2, 0.9, 0.98), domain("code", 0.8, 1.3, 0.91)]
    assert judge(yes, ["math", "code"])[0] is True
    separates, words = judge([yes[0], domain("code", 0.8, 1.3, 0.4)], ["math", "code"])
    assert separates is False and "40%" in words


def test_without_labels_there_is_nojudge() -> None:
    assert judge([domain("all prompts", 1.0, 1.0, None)], ["math", "code"])[0] is None


def test_each_reference_is_judged_by_the_domains_of_its_teachers_and_those_that_they_lead() -> None:
    """`code` is displaced everywhere: that is told of its own reference, and of whom it outshines."""
    right = [domain("math", 1.4, 0.9, 0.9), domain("code", 0.7, 1.3, 0.9)]
    assert judge(right, ["math"])[0] and judge(right, ["code"])[0]
    at_home_only = [right[0], domain("code", 0.7, 1.3, 0.4)]
    assert judge(at_home_only, ["math"])[0] is True and judge(at_home_only, ["code"])[0] is False
    everywhere = [domain("math", 1.0, 1.4, 0.1), right[1]]
    assert judge(everywhere, ["math"])[0] is False and judge(everywhere, ["code"])[0] is False


@pytest.mark.unit
@pytest.mark.parametrize(
    ("found", "pool"), [((True, True), True), ((True, False), False), ((None, True), None), ((None, False), False)]
)
def test_a_pool_is_separated_if_each_of_its_references_separates(found: tuple, pool: bool | None) -> None:
    references = [
        ReferenceDiagnosis(
            source=f"base-{place}",
            teachers=[f"teacher-{place}"],
            distance=0.5 + place,
            separates=each,
            verdict=f"verdict {place}",
        )
        for place, each in enumerate(found)
    ]
    separates, words = judge_references(references)
    assert separates is pool
    assert all(fact in words for fact in ("base-0", "base-1", "teacher-1", "verdict 0", "verdict 1", "1.50"))
    assert judge_references(references[:1]) == (found[0], "verdict 0")  # one reference: as of any pool


def test_a_teacher_that_moved_as_far_elsewhere_as_at_home_is_named() -> None:
    flat = [domain("math", 1.4, 1.05, 0.9), domain("code", 0.7, 1.06, 0.7)]
    assert "'code'" in moved_everywhere(flat, ["code"]) and "1.05" in moved_everywhere(flat, ["code"])
    assert "about as far" in moved_everywhere(flat, ["code"])  # 1.05 and 1.06 cannot be told apart
    assert moved_everywhere(flat, ["math"]) == "" and moved_everywhere(flat[1:], ["code"]) == ""
    assert "farther" in moved_everywhere([domain("math", 1.4, 1.3, 0.9), flat[1]], ["code"])


def test_what_is_judged_is_named_and_each_reference_has_a_line() -> None:
    right = [domain("math", 1.4, 0.9, 0.9), domain("code", 0.7, 1.3, 0.9)]
    assert "this pool" in judge(right, ["math", "code"])[1]
    alone = judge(right, ["code"])[1]
    assert "separates 'code'" in alone and "this pool" not in alone
    references = [
        ReferenceDiagnosis(source=name, teachers=[name], distance=0.0, separates=True, verdict=judge(right, [name])[1])
        for name in ("math", "code")
    ]
    assert [line.split()[2] for line in judge_references(references)[1].splitlines()] == ["math", "code"]


def test_the_student_is_no_distance_from_itself_and_a_fallback_is_told(build) -> None:
    base, other = tiny.model(0), tiny.model(5)
    teachers = {
        "math": tiny.specialist(base, 1),
        "code": Teacher(model=tiny.specialist(other, 2), reference="student"),
        "if": Teacher(model=tiny.specialist(other, 3), reference=other),
    }
    trainer = build(model=base, teachers=teachers, prompts=tiny.prompts(60), **SETTINGS)
    found = diagnose(trainer, rollouts_per_domain=3)
    own, apart = found.references
    assert (own.teachers, apart.teachers) == (["math", "code"], ["if"])
    assert f"{own.distance:.3f}" == "0.000" and apart.distance > 0.001
    assert "fall-back" in own.verdict and "code: measured" in own.verdict and "fall-back" not in apart.verdict
    assert trainer.identity.fallbacks == ["code"]
    assert not found.separates and "allocation.rule=routed" in found.verdict, "all prompts have labels"


def test_overlap_mass_and_shares_are_measured_on_all_rollouts(trainer: TrustMOPDTrainer) -> None:
    found = diagnose(trainer, rollouts_per_domain=6)
    for name in trainer.pool.teachers:
        assert 0 < found.health[f"overlap/{name}"] <= 1 and 0 < found.health[f"teacher_mass/{name}"] <= 1
    gradients = [value for name, value in found.health.items() if name.startswith("domain/") and "gradient" in name]
    assert len(gradients) == len(found.domains) and sum(gradients) == pytest.approx(1)
    made = trainer.calibration
    error = made.spread["math"] / made.mu["math"] / made.tokens**0.5
    assert found.health["mu_error/math"] == pytest.approx(error)
    doubtful = [warning for warning in found.warnings if "#uncertain" in warning]
    assert len(doubtful) == sum(found.health[f"mu_error/{name}"] > 0.05 for name in made.mu)


def test_a_view_is_compared_with_the_students_on_the_students_own_responses(make, tmp_path) -> None:
    """'math' reads what the student reads, by another name; 'code' reads something else; 'if' has no view."""
    base = tiny.model(0)
    pool = {name: tiny.specialist(base, seed) for seed, name in enumerate(("math", "code", "if"), 1)}
    teachers = pool | {
        "math": Teacher(pool["math"], view={"prompt": "prompt"}),
        "code": Teacher(pool["code"], view={"system": "say nothing"}),
    }
    found = diagnose(make(tmp_path, teachers=teachers, prompts=tiny.prompts(60), **SETTINGS), rollouts_per_domain=8)
    assert [name for name in found.health if name.endswith("/nats")] == ["view/math/nats", "view/code/nats"]
    assert found.health["view/math/nats"] == pytest.approx(0, abs=1e-6)
    assert found.health["view/code/nats"] > 1e-3
    assert found.health["view/math/gain"] == pytest.approx(0, abs=1e-6)
    assert [said for said in found.warnings if said in judge_views(found.health)]


@pytest.mark.unit
@pytest.mark.parametrize(
    ("gain", "right"), [(0.3, "Its own is more"), (-0.3, "The student's is more"), (0.1, "Neither is more")]
)
def test_the_likelier_view_is_named_beyond_two_standard_errors(gain: float, right: str) -> None:
    (said,) = judge_views({"view/math/nats": 0.4, "view/math/gain": gain, "view/math/error": 0.1})
    assert right in said and "'math'" in said
