"""A step has one gradient, however the batch is split, wherever the teachers live, whatever multiplies their heads."""

from collections.abc import Callable
from contextlib import nullcontext

import pyarrow.parquet as pq
import pytest
import replay

from trustmopd.heads import use_implementation
from trustmopd.training.step import batch_of

#: Two processes are in tests/distributed.
WAYS = {
    "batch4_accum2": {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2},
    "batch2_accum4": {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4},
    "batch1_accum8": {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 8},
    "padded_to_16": {"pad_to_multiple_of": 16},
    "offloaded": {"teacher_placement": "offload"},
    "recomputed": {"gradient_checkpointing": True},
    "reference_head": {},
    "row_by_row": {"max_tokens_per_micro_batch": 1},
    "budget80": {"max_tokens_per_micro_batch": 80},
    "budget80_of_batch2_accum4_recomputed": {
        "max_tokens_per_micro_batch": 80,
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 4,
        "gradient_checkpointing": True,
    },
    "one_pass": {"max_tokens_per_micro_batch": 10**6},
}


@pytest.fixture(scope="module")
def whole_batch(tmp_path_factory: pytest.TempPathFactory, calibration: str) -> Callable[[str], replay.Run]:
    """The step in one piece, by rule: made once, and every other way is held against it."""
    made: dict[str, replay.Run] = {}

    def of(rule: str) -> replay.Run:
        if rule not in made:
            made[rule] = replay.run(tmp_path_factory.mktemp(rule), calibration_path=calibration, **replay.RULES[rule])
        return made[rule]

    return of


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("rule", replay.RULES)
def test_every_way_of_taking_a_step_gives_one_gradient_and_one_line_of_metrics(
    rule, way, whole_batch, calibration, tmp_path
):
    with use_implementation("reference") if way == "reference_head" else nullcontext():
        step = replay.run(tmp_path, calibration_path=calibration, **replay.RULES[rule], **WAYS[way])
    expected = whole_batch(rule)
    assert replay.difference(expected.gradient, step.gradient) < 1e-5
    assert step.loss == pytest.approx(expected.loss, rel=1e-5)
    assert sum(step.losses) == pytest.approx(expected.loss, rel=1e-5)
    assert step.token_metrics() == pytest.approx(expected.token_metrics(), rel=1e-5)


@pytest.mark.parametrize("way", ["batch2_accum4", "budget80"])
@pytest.mark.parametrize("rule", ["trust", "random", "routed"])
def test_the_next_batch_is_sampled_and_asked_while_one_is_learnt_from(rule, way, whole_batch, calibration, tmp_path):
    trainer = replay.trainer_of(tmp_path, calibration_path=calibration, **replay.RULES[rule], **WAYS[way])
    sample_and_ask, batches = trainer._generate_and_score_completions, []

    def one_ahead(inputs):
        inputs, following = sample_and_ask(inputs), sample_and_ask(inputs[::-1])
        batches.extend(map(batch_of, (inputs, following)))
        return inputs

    trainer._generate_and_score_completions = one_ahead
    step, expected = replay.trained(trainer), whole_batch(rule)
    assert replay.difference(expected.gradient, step.gradient) < 1e-5
    assert step.token_metrics() == pytest.approx(expected.token_metrics(), rel=1e-5)
    learnt, following = batches
    assert not learnt.answers and [*following.answers] == [*trainer.pool.members]
    assert trainer.objective(following)[1].token_loss.isfinite().all()


def test_each_rule_has_a_gradient_of_its_own(whole_batch):
    """Or the test above would show nothing."""
    steps = [whole_batch(rule).gradient for rule in replay.RULES]
    pairs = [(one, other) for place, one in enumerate(steps) for other in steps[:place]]
    assert min(replay.difference(one, other) for one, other in pairs) > 0.1


def test_random_weights_are_drawn_anew_at_every_step_response_and_token(tmp_path):
    replay.run(tmp_path, max_steps=2, record_allocation_every=1, **replay.RULES["random"])
    tables = [pq.read_table(tmp_path / "allocation" / f"step-{step:06d}.parquet") for step in (1, 2)]
    drawn = [weight for table in tables for weight in table["weight_math"].to_pylist()]
    assert len(set(drawn)) == len(drawn) == 2 * sum(replay.LENGTHS)
