"""Rollouts have ids and random numbers of their own in every process, and the engine's responses become a batch."""

import pytest
import torch

from trustmopd import TrustMOPDConfig
from trustmopd.prompts.views import PromptViews
from trustmopd.rollouts import Completion, seed_of
from trustmopd.training.prompt_lengths import DRAW, ROW, SURPLUS
from trustmopd.training.step import Turns, next_turn, rollouts_of, rows_of, sampled
from trustmopd.training.step.batch import Rollout, RolloutId
from trustmopd.training.step.sample import RECORDED, draw_of, recorded_draws, rollout_ids

pytestmark = pytest.mark.unit

TEACHERS = ["math", "code", "if"]


@pytest.fixture
def args(tmp_path):
    return TrustMOPDConfig(str(tmp_path), seed=1, use_cpu=True)


def examples(rows, **columns):
    return [{"prompt": f"prompt {row}", "id": f"p{row}", ROW: row, **columns} for row in rows]


def by_process(args, *processes, step=7):
    """The rollouts of every process."""
    everyone = [rows_of(inputs) for inputs in processes]
    given = {"args": args, "teachers": TEACHERS, "views": PromptViews(), "step": step}
    return [rollouts_of(inputs, everyone, process=n, **given) for n, inputs in enumerate(processes)]


def test_the_first_response_to_a_prompt_is_named_by_seed_step_and_row(args):
    (rollouts,) = by_process(args, examples([5, 3]))
    assert [rollout.draw for rollout in rollouts] == ["1/7/5", "1/7/3"]
    assert [(*rollout.id, rollout.prompt_id) for rollout in rollouts] == [(5, 0, "p5"), (3, 0, "p3")]


def test_several_responses_to_a_prompt_have_ids_and_draws_of_their_own_in_whatever_process(args):
    one = by_process(args, examples([5, 5, 5, 3, 3, 3]))
    two = by_process(args, examples([5, 5]), examples([5, 3, 3, 3]))
    expected = [RolloutId(row, sample) for row in (5, 3) for sample in range(3)]
    for processes in (one, two):
        rollouts = [rollout for process in processes for rollout in process]
        assert [rollout.id for rollout in rollouts] == expected
        assert len({rollout.draw for rollout in rollouts}) == 6
        assert {"1/7/5", "1/7/3"} < {rollout.draw for rollout in rollouts}
    draws = {draw_of(RolloutId(row), seed=seed, step=7) for row in range(99) for seed in range(9)}
    assert draw_of(RolloutId(5, 1), seed=1, step=7) not in draws


def test_samples_are_numbered_by_prompt():
    assert rollout_ids([4, 4, 9, 4]) == [RolloutId(4), RolloutId(4, 1), RolloutId(9), RolloutId(4, 2)]


def test_an_evaluation_set_is_numbered_by_process_and_place(args):
    without = [{"prompt": "a"}, {"prompt": "b"}]
    draws = [[rollout.draw for rollout in process] for process in by_process(args, without, without)]
    assert draws == [["1/7/0.0", "1/7/0.1"], ["1/7/1.0", "1/7/1.1"]]


def test_a_prompt_may_name_its_random_numbers(args):
    (rollouts,) = by_process(args, examples([5], **{DRAW: "rollouts/0/4"}))
    assert rollouts[0].draw == "rollouts/0/4"


def test_labels_and_capabilities_go_with_the_rollout_and_routing_needs_a_teachers_name(args, tmp_path):
    columns = {"domain": "code", "capabilities": ["code", "if"]}
    (rollouts,) = by_process(args, examples([5], **columns))
    assert (rollouts[0].domain, rollouts[0].capabilities, rollouts[0].teacher) == ("code", ["code", "if"], None)
    routed = TrustMOPDConfig(str(tmp_path), allocation="routed", use_cpu=True)
    assert by_process(routed, examples([5], **columns))[0][0].teacher == 1
    with pytest.raises(ValueError, match=r"label 'law'.*math, code, if"):
        by_process(routed, examples([5], domain="law"))


def test_the_rollouts_to_record_are_chosen_from_those_of_all_processes(args):
    rows = list(range(100, 130))
    whole = {rollout.id for rollout in by_process(args, examples(rows))[0] if rollout.recorded}
    assert len(whole) == RECORDED
    halves = by_process(args, examples(rows[:13]), examples(rows[13:]))
    assert {rollout.id for process in halves for rollout in process if rollout.recorded} == whole
    assert {rollout.id for rollout in by_process(args, examples(rows), step=8)[0] if rollout.recorded} != whole
    assert len(recorded_draws(f"1/0/5/{sample}" for sample in range(20))) == RECORDED


class GivenEngine:
    """Responds with these ids, and keeps what it was asked."""

    def __init__(self, *responses, logprobs=False):
        self.responses, self.logprobs, self.params = list(responses), logprobs, []

    def sample(self, prompt_ids, params):
        self.params.append(params)
        made = [self.responses.pop(0) for _ in prompt_ids]
        return [Completion(ids, False, [-0.5 * len(ids)] * len(ids) if self.logprobs else None) for ids in made]


def turns_of(args, engine, count):
    return Turns(engine, args, [Rollout(RolloutId(row), f"1/7/{row}") for row in range(count)], pad_token_id=0)


def test_a_turn_is_that_of_the_batch_that_is_being_sampled(args):
    first, second = (turns_of(args, GivenEngine([token]), 1) for token in (8, 9))
    with first.current():
        with second.current():  # as another batch may be, meanwhile
            assert next_turn([[4]]) == [[9]]
        assert next_turn([[4]]) == [[8]]
    with pytest.raises(LookupError):
        next_turn([[4]])


@pytest.mark.parametrize("use_vllm", [False, True])
def test_draws_and_log_probabilities_are_asked_of_vllm_alone(tmp_path, use_vllm):
    args = TrustMOPDConfig(str(tmp_path), seed=1, use_cpu=True, use_vllm=use_vllm)
    engine = GivenEngine([8], [9])
    turns_of(args, engine, 2).sample([[4], [5]])
    assert engine.params[0].draws == (["1/7/0", "1/7/1"] if use_vllm else None)
    assert engine.params[0].logprobs == use_vllm


class SeedsOf:
    """An engine whose only token in a response is the seed that vLLM would draw it with."""

    def sample(self, prompt_ids, params):
        assert len(params.draws) == len(prompt_ids)
        return [Completion([seed_of([draw])], False) for draw in params.draws]


def test_no_two_turns_of_a_batch_are_drawn_with_one_seed(tmp_path):
    args = TrustMOPDConfig(str(tmp_path), use_cpu=True, use_vllm=True)

    def seeds(step):
        rollouts = [Rollout(RolloutId(row), f"1/{step}/{row}") for row in range(3)]
        turns = Turns(SeedsOf(), args, rollouts, pad_token_id=0)
        rows_in_turns = (3, 3, 2, 2)  # a row that calls no more tools leaves
        return [seed for rows in rows_in_turns for (seed,) in turns.sample([[5]] * rows)]

    first, again, other = seeds(7), seeds(7), seeds(8)
    assert len({*first}) == len(first) == 10
    assert again == first
    assert not {*first[3:]} & {*other[3:]}


def test_empty_responses_and_those_that_fill_up_are_masked_and_log_probabilities_padded(args):
    turns = turns_of(args, GivenEngine([8, 9], [], [7], logprobs=True), 3)
    completions = turns.sample([[4]] * 3)
    assert completions == [[8, 9], [0], [7]]  # TRL reads a last token
    ids, mask = torch.tensor([[8, 9], [0, 0], [7, 0]]), torch.tensor([[1, 1], [1, 0], [1, 0]])
    prompts = {"prompt_ids": torch.full((3, 1), 4), "prompt_mask": torch.ones(3, 1).long()}
    generated = {**prompts, "completion_ids": ids, "completion_mask": mask}
    (rollouts,) = by_process(args, inputs := examples([5, 3, 4]))
    inputs[2][SURPLUS] = True
    batch = sampled(generated, inputs, rollouts, turns, with_logp=True)
    assert batch.mask.tolist() == generated["completion_mask"].tolist() == [[1, 1], [0, 0], [0, 0]]
    assert batch.engine_logp.tolist() == [[-1.0, -1.0], [0.0, 0.0], [-0.5, 0.0]]
    assert batch.rollouts == tuple(rollouts) and not batch.answers
