"""The turns of a response: which random numbers each is drawn with."""

from collections.abc import Sequence

from trustmopd import TrustMOPDConfig
from trustmopd.rollouts import Completion, Params, seed_of
from trustmopd.training.rollout_engine import Turns


class SeedsOf:
    """An engine whose only token in a response is the seed that vLLM would draw it with."""

    def sample(self, prompt_ids: Sequence[list[int]], params: Params) -> list[Completion]:
        assert params.draws is not None and len(params.draws) == len(prompt_ids)
        return [Completion([seed_of([draw])], False) for draw in params.draws]


def test_no_two_turns_of_a_batch_are_drawn_with_one_seed(tmp_path) -> None:
    args = TrustMOPDConfig(output_dir=str(tmp_path), use_vllm=True, use_cpu=True, bf16=False)

    def seeds(draws: Sequence[str]) -> list[int]:
        turns.begin(draws)
        rows_in_turns = (3, 3, 2, 2)  # a row that calls no more tools leaves
        return [seed for rows in rows_in_turns for (seed,) in turns.sample(SeedsOf(), [[5]] * rows)]

    turns = Turns(args, pad_token_id=0)
    first, again, other = seeds(["0/1/a", "0/1/b", "0/1/c"]), seeds(["0/1/a", "0/1/b", "0/1/c"]), seeds(["0/2/a"] * 3)
    assert len({*first}) == len(first) == 10
    assert again == first
    assert not {*first[3:]} & {*other[3:]}
