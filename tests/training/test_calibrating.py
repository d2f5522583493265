"""mu on real rollouts: what it is, what it leaves untouched, and when it is measured."""

import copy
import json
import logging
import math
import random
from functools import partial

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from peft import LoraConfig

import trustmopd.training.calibrate as calibrating
from trustmopd import Calibration
from trustmopd.training.step import batch_of

LORA = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")


@pytest.fixture
def count_measurements(monkeypatch):
    """How often mu was measured so far."""
    calls = []
    measure = calibrating.Calibrator.measure
    monkeypatch.setattr(calibrating.Calibrator, "measure", lambda *a, **k: calls.append(1) or measure(*a, **k))
    return lambda: len(calls)


@pytest.fixture(scope="module")
def calibrated(make, tmp_path_factory):
    """A trainer that has calibrated and not trained, and every rollout batch that it drew on the way."""
    trainer = make(tmp_path_factory.mktemp("calibrated"), calibration_batches=3)
    batches = []
    roll_out = trainer._generate_and_score_completions
    trainer._generate_and_score_completions = lambda inputs: batches.append(roll_out(inputs)) or batches[-1]
    trainer.calibrate()
    trainer._generate_and_score_completions = roll_out
    return trainer, batches


def plain_scores(batches, student, teacher, reference, num_candidates):
    """Displacements written out from full logits, response by response without padding, in float64."""
    models = [copy.deepcopy(model).double() for model in (student, teacher, reference)]
    scores = []
    for batch in batches:
        for row in range(len(batch["prompt_ids"])):
            prompt = batch["prompt_ids"][row][batch["prompt_mask"][row].bool()]
            response = batch["completion_ids"][row][batch["completion_mask"][row].bool()]
            with torch.no_grad():
                logits = [model(torch.cat([prompt, response])[None]).logits[0] for model in models]
            for position in range(len(prompt) - 1, len(prompt) + len(response) - 1):
                chosen = logits[0][position].topk(num_candidates).indices
                q, q_ref = (torch.softmax(model[position][chosen], dim=-1).log() for model in logits[1:])
                centred = (q - q_ref) - (q - q_ref).mean()
                scores.append(math.sqrt(float((centred**2).sum())))
    return np.array(scores)


def test_mu_is_the_mean_displacement_of_all_tokens_of_the_rollouts(calibrated, family):
    trainer, batches = calibrated
    for name in family.specialists:
        scores = plain_scores(batches, family.base, family.specialists[name], family.base, trainer.args.num_candidates)
        assert trainer.calibration.tokens == len(scores)
        assert trainer.calibration.mu[name] == pytest.approx(scores.mean(), rel=1e-5)
        assert trainer.calibration.spread[name] == pytest.approx(scores.std(), rel=1e-4)


def test_mu_is_measured_on_as_many_rollouts_as_asked_for_each_prompt_once_before_any_twice(calibrated):
    trainer, batches = calibrated
    rows = [rollout.id.row for batch in batches for rollout in batch_of(batch).rollouts]
    assert len(rows) == 3 * trainer.args.global_batch_size
    assert len(set(rows)) == len(rows)
    assert (trainer.calibration.batches, trainer.calibration.global_batch_size) == (3, 4)


def test_a_small_prompt_set_is_gone_through_again(make, family, tmp_path):
    trainer = make(tmp_path, prompts=family.prompts.select(range(5)), calibration_batches=2)
    rows = []
    roll_out = trainer._generate_and_score_completions
    trainer._generate_and_score_completions = lambda inputs: rows.extend(x["id"] for x in inputs) or roll_out(inputs)
    trainer.calibrate()
    assert sorted(rows[:5]) == [f"p{row}" for row in range(5)]
    assert len(rows) == 8


def test_calibrating_touches_neither_random_state_nor_model(build):
    trainer = build()
    trainer.model.train()
    random.seed(3)
    np.random.seed(3)
    torch.manual_seed(3)
    weights = {name: parameter.clone() for name, parameter in trainer.model.state_dict().items()}
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    trainer.calibrate()
    assert random.getstate() == states[0]
    assert all(np.array_equal(now, then) for now, then in zip(np.random.get_state(), states[1], strict=True))
    assert torch.equal(torch.get_rng_state(), states[2])
    assert trainer.model.training
    assert all(torch.equal(parameter, weights[name]) for name, parameter in trainer.model.state_dict().items())
    trainer.model.eval()
    trainer.calibrate()
    assert not trainer.model.training


def test_a_run_that_calibrated_by_hand_is_the_run_that_calibrates_by_itself(make, tmp_path, steps_of):
    by_hand = make(tmp_path / "hand")
    by_hand.calibrate()
    by_hand.train()
    make(tmp_path / "self").train()
    losses = [[line["loss"] for line in steps_of(tmp_path / run)] for run in ("hand", "self")]
    assert losses[0] == losses[1]
    metrics = [set(steps_of(tmp_path / run)[0]) for run in ("hand", "self")]
    assert metrics[0] == metrics[1]


def test_calibrating_twice_gives_the_same_mu(build):
    trainer = build()
    first = trainer.calibrate()
    torch.manual_seed(1234)
    assert trainer.calibrate() == first


def test_mu_does_not_depend_on_the_training_seed(make, tmp_path):
    first, second = (make(tmp_path / str(seed), seed=seed).calibrate() for seed in (1, 2))
    assert first == second


def test_a_calibration_of_one_seed_serves_another(make, tmp_path, count_measurements):
    make(tmp_path / "first", seed=1).calibrate()
    path = str(tmp_path / "first" / "calibration.json")
    second = make(tmp_path / "second", seed=2, max_steps=1, calibration_path=path)
    second.train()
    assert count_measurements() == 1
    assert second.calibration == Calibration.load(path)


def test_adapter_students_of_two_seeds_are_one_initial_student(make, tmp_path):
    build = partial(make, peft_config=LORA, calibration_batches=1)
    first, second = build(tmp_path / "first", seed=1), build(tmp_path / "second", seed=2)
    drawn = [
        next(parameter for name, parameter in trainer.model.named_parameters() if "lora_A" in name)
        for trainer in (first, second)
    ]
    assert not torch.equal(*drawn)
    assert first.identity.student == second.identity.student
    assert first.calibrate() == second.calibrate()


def test_an_adapter_student_has_the_mu_of_the_full_student_it_begins_as(make, tmp_path):
    full, adapter = make(tmp_path / "full"), make(tmp_path / "adapter", peft_config=LORA)
    assert full.identity.student.fingerprint == adapter.identity.student.fingerprint
    assert adapter.calibrate().mu == pytest.approx(full.calibrate().mu, rel=1e-6)


def test_the_manifest_tells_an_adapter_student_from_the_full_one(make, tmp_path):
    """Their weights are the same when they begin: only what is trained differs."""
    full, adapter = make(tmp_path / "full"), make(tmp_path / "adapter", peft_config=LORA)
    trained = [each.identity.trainable_parameters for each in (full, adapter)]
    assert trained[0] == sum(p.numel() for p in full.model.parameters())
    assert trained[1] == sum(p.numel() for name, p in adapter.model.named_parameters() if ".lora_" in name) > 0


def test_calibrating_after_a_step_is_an_error(build):
    trainer = build(max_steps=1)
    trainer.train()
    with pytest.raises(RuntimeError, match=r"calibrate\(\).* 1 "):
        trainer.calibrate()


@pytest.mark.parametrize(
    "settings",
    [{"allocation": "uniform"}, {"allocation": "random"}, {"allocation": "routed"}, {"calibrated": False}],
    ids=str,
)
def test_a_rule_without_calibrated_scores_never_calibrates(build, tmp_path, count_measurements, settings):
    trainer = build(max_steps=1, **settings)
    assert trainer.calibrate() is None
    trainer.train()
    assert trainer.calibration is None
    assert count_measurements() == 0
    assert not (tmp_path / "run" / "calibration.json").exists()


def test_training_calibrates_first_where_that_is_still_to_be_done(build, tmp_path, count_measurements):
    trainer = build(max_steps=1)
    trainer.train()
    assert count_measurements() == 1
    assert Calibration.load(tmp_path / "run" / "calibration.json") == trainer.calibration


def test_training_after_calibrate_does_not_calibrate_again(build, count_measurements):
    trainer = build(max_steps=1)
    trainer.calibrate()
    trainer.train()
    assert count_measurements() == 1


def test_a_fitting_calibration_in_the_run_folder_is_used(build, count_measurements):
    first = build().calibrate()
    second = build(max_steps=1, seed=5)
    second.train()
    assert count_measurements() == 1
    assert second.calibration == first


def test_a_calibration_in_the_run_folder_that_does_not_fit_is_replaced_with_a_warning(
    build, tmp_path, caplog, count_measurements
):
    build(num_candidates=8).calibrate()
    trainer = build(max_steps=1)
    with caplog.at_level(logging.WARNING, logger="trustmopd"):
        trainer.train()
    assert str(tmp_path / "run" / "calibration.json") in caplog.text and "num_candidates = 8" in caplog.text
    assert count_measurements() == 2
    stored = json.loads((tmp_path / "run" / "calibration.json").read_text())
    assert stored["depends_on"]["num_candidates"] == 16
    assert stored["mu"] == trainer.calibration.mu


def test_a_given_calibration_is_written_into_the_run_folder_over_what_was_there(make, tmp_path):
    """The run folder tells which mu its scores were divided by, wherever it came from."""
    make(tmp_path / "other").calibrate()
    make(tmp_path / "run", num_candidates=8).calibrate()
    trainer = make(tmp_path / "run", max_steps=1, calibration_path=str(tmp_path / "other" / "calibration.json"))
    trainer.train()
    assert Calibration.load(tmp_path / "run" / "calibration.json") == trainer.calibration


def test_the_logged_scores_are_the_recorded_ones_over_mu(build, tmp_path, steps_of):
    """With one step of at most eight rollouts, every token is recorded, so the mean can be taken again."""
    trainer = build(max_steps=1, record_allocation_every=1)
    trainer.train()
    records = pq.read_table(tmp_path / "run" / "allocation" / "step-000001.parquet")
    line = steps_of(tmp_path / "run")[0]
    for name, mu in trainer.calibration.mu.items():
        raw = np.array(records[f"score_{name}"])
        assert line[f"score/{name}"] == pytest.approx((raw / mu).mean(), rel=1e-5)
        assert line[f"weight/{name}"] == pytest.approx(np.array(records[f"weight_{name}"]).mean(), rel=1e-5)
