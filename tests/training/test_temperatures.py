"""Two temperatures: one draws the rollouts, the other softens the distributions that are compared."""

import pytest
import replay
import tiny

SAMPLING = {
    "temperature": {"temperature": 1.7},
    "top_p": {"top_p": 0.5},
    "top_k": {"top_k": 3},
    "min_p": {"min_p": 0.2},
    "repetition_penalty": {"repetition_penalty": 1.5},
}


@pytest.fixture(scope="module")
def step(tmp_path_factory: pytest.TempPathFactory) -> replay.Run:
    return replay.run(tmp_path_factory.mktemp("step"))


@pytest.mark.parametrize("option", SAMPLING)
def test_sampling_options_leave_the_loss_of_a_fixed_rollout_unchanged(option, step, tmp_path):
    other = replay.run(tmp_path, **SAMPLING[option])
    assert other.loss == step.loss
    assert other.token_metrics() == step.token_metrics()
    assert replay.difference(step.gradient, other.gradient) == 0.0
    assert other.trainer.calibration.mu == step.trainer.calibration.mu


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.5])
def test_the_distillation_temperature_softens_scores_and_loss(temperature, tmp_path):
    tempered = replay.run(tmp_path, distillation_temperature=temperature)
    expected = replay.plain_objective(
        tiny.model(), list(replay.specialists().values()), replay.plain_trust(), temperature=temperature
    )
    assert tempered.loss == pytest.approx(expected.loss, rel=1e-5)
    assert replay.difference(expected.gradient, tempered.gradient) < 1e-5


def test_the_students_mass_on_its_candidates_does_not_depend_on_the_distillation_temperature(step, tmp_path):
    tempered = replay.run(tmp_path, distillation_temperature=2.5)
    assert tempered.loss != pytest.approx(step.loss, rel=0.1)
    mass = "candidates/student_mass"
    assert tempered.logs[0][mass] == pytest.approx(step.logs[0][mass], rel=1e-6)
