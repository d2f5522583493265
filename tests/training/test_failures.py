"""What goes wrong during training stops the run, or changes nothing but what it must."""

import copy

import pytest
import tiny
import torch
from transformers import TrainerCallback
from trl import DistillationTrainer

from trustmopd.rollouts import Completion
from trustmopd.rollouts.transformers_engine import TransformersEngine


def engine_gives(monkeypatch, generate):
    made = lambda self, prompts, params: [Completion(ids, False) for ids in generate(prompts)]  # noqa: E731
    monkeypatch.setattr(TransformersEngine, "sample", made)


@pytest.mark.parametrize("verb", ["calibrate", "train"])
def test_a_student_that_writes_nothing_cannot_be_calibrated_on(build, monkeypatch, files_under, tmp_path, verb):
    engine_gives(monkeypatch, lambda prompts: [[] for _ in prompts])
    with pytest.raises(ValueError, match=r"\b8\b.*calibration"):
        getattr(build(), verb)()
    assert [name for name in files_under(tmp_path / "run") if name != ".lock"] == []


class Poison(TrainerCallback):
    """After step 2, one weight of a frozen policy is no number any more."""

    def __init__(self, value):
        self.value = value
        self.model = None

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == 2:
            with torch.no_grad():
                self.model.model.norm.weight[0] = self.value


@pytest.mark.parametrize(
    ("member", "value", "who"),
    [
        ("code", float("nan"), "teacher 'code'"),
        ("if", float("inf"), "teacher 'if'"),
        ("reference", float("nan"), "the reference"),
    ],
)
def test_a_policy_that_turns_to_nan_stops_the_run_and_the_last_checkpoint_goes_on(
    build, family, tmp_path, steps_of, member, value, who
):
    settings = {"max_steps": 4, "save_steps": 1, "calibrated": False}
    poison = Poison(value)
    trainer = build(teachers=copy.deepcopy(family.specialists), callbacks=[poison], **settings)
    poison.model = trainer.pool.members[member].host.model
    with pytest.raises(FloatingPointError, match=rf"{who} .*step 3\b"):
        trainer.train()
    assert [line["step"] for line in steps_of(tmp_path / "run")] == [1, 2]
    build(**settings).train(resume_from_checkpoint=True)
    lines = steps_of(tmp_path / "run")
    assert [line["step"] for line in lines] == [1, 2, 3, 4]
    assert all(0 < line["loss"] < 100 for line in lines)


def replayed(monkeypatch, responses):
    """Generation replaced by fixed responses, in the order of the prompts' text."""
    place = lambda ids: tiny.tokenizer().decode(ids)  # noqa: E731

    def generate(prompts):
        order = sorted(place(ids) for ids in prompts)
        return [list(responses[order.index(place(ids))]) for ids in prompts]

    engine_gives(monkeypatch, generate)


def one_step(make, folder, **parts):
    settings = {"calibrated": False, "max_steps": 1, "optim": "sgd", "learning_rate": 0.1, "warmup_steps": 0}
    trainer = make(folder, **{**settings, **parts})
    trainer.train()
    return {name: parameter.detach() for name, parameter in trainer.model.named_parameters()}


RESPONSES = [[20, 30, 2], [40, 41, 42, 43], [50, 2]]


@pytest.mark.parametrize("micro_batch", [1, 2, 4])
def test_an_empty_response_leaves_the_gradient_of_the_others_alone(
    make, family, monkeypatch, steps_of, tmp_path, micro_batch
):
    # p0 … p3 sort in this order: the last is the one without a response.
    rows = family.prompts.select([0, 4, 8, 3])
    replayed(monkeypatch, RESPONSES)
    without = one_step(
        make, tmp_path / "without", prompts=rows.select([0, 1, 2]), global_batch_size=3, per_device_train_batch_size=3
    )
    replayed(monkeypatch, [*RESPONSES, []])
    with_it = one_step(make, tmp_path / "with", prompts=rows, per_device_train_batch_size=micro_batch)
    for name, parameter in with_it.items():
        torch.testing.assert_close(parameter, without[name], rtol=1e-5, atol=1e-6)
    first, second = (steps_of(tmp_path / run)[0] for run in ("without", "with"))
    assert first["loss"] == pytest.approx(second["loss"], rel=1e-5)
    assert first["weight/math"] == pytest.approx(second["weight/math"], rel=1e-5)


def test_a_step_without_any_response_changes_nothing_and_divides_by_nothing(
    make, family, monkeypatch, steps_of, tmp_path
):
    replayed(monkeypatch, [[]] * 4)
    after = one_step(make, tmp_path / "run", prompts=family.prompts.select(range(4)))
    for name, parameter in family.base.named_parameters():
        assert torch.equal(after[name], parameter), name
    assert steps_of(tmp_path / "run")[0]["loss"] == 0


def test_an_empty_last_turn_leaves_the_other_responses_in_place(build, monkeypatch):
    """With tools TRL generates again for the rows that called one, and there a row has another number."""
    turns = []

    def generate(prompts):
        turns.append(len(prompts))
        return [[20, 30, 2] for _ in prompts] if len(turns) == 1 else [[] for _ in prompts]

    whole = DistillationTrainer._generate

    def with_a_second_turn(self, prompts):
        generated = whole(self, prompts)
        self._generate_single_turn(generated[0][1:2], None, {})
        return generated

    engine_gives(monkeypatch, generate)
    monkeypatch.setattr(DistillationTrainer, "_generate", with_a_second_turn)
    trainer = build(calibrated=False)
    batch = trainer._generate_and_score_completions([trainer.train_dataset[row] for row in range(4)])
    assert turns == [4, 1]
    assert batch["completion_mask"].sum(dim=1).tolist() == [3, 3, 3, 3]
