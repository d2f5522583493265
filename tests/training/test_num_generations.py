"""Several responses to each prompt of a step: they stay together, differ, and a resumed run goes on with them."""

from collections import Counter

import pytest
import small_runs

from trustmopd import TrustMOPDConfig
from trustmopd.recipe import load_recipe
from trustmopd.training.stages import train_recipe
from trustmopd.training.step.batch import batch_of

#: 24 prompts, 12 in a step: an epoch has two steps.
SETTINGS = {"num_generations": 2, "global_batch_size": 24, "max_completion_length": 4}


@pytest.mark.parametrize("budget", [None, 200])
def test_the_responses_to_a_prompt_are_in_one_step_and_differ(tmp_path, budget):
    trainer = small_runs.trainer(tmp_path, max_steps=2, max_tokens_per_micro_batch=budget, **SETTINGS)
    steps, sample = [], trainer._generate_and_score_completions

    def seen(inputs):
        generated = sample(inputs)
        if trainer.model.training:
            steps.append(batch_of(generated))
        return generated

    trainer._generate_and_score_completions = seen
    trainer.train()
    assert len(steps) == 2
    for batch in steps:
        assert set(Counter(rollout.id.row for rollout in batch.rollouts).values()) == {2}
        assert Counter(rollout.id.sample for rollout in batch.rollouts) == {0: 12, 1: 12}
        assert len({rollout.draw for rollout in batch.rollouts}) == 24
        pairs = {}
        for row, rollout in enumerate(batch.rollouts):
            pairs.setdefault(rollout.id.row, []).append(batch.response_ids[row].tolist())
        assert any(first != second for first, second in pairs.values())
    assert len({rollout.id.row for batch in steps for rollout in batch.rollouts}) == 24  # an epoch has every prompt


def test_a_run_resumed_in_its_second_epoch_goes_on_with_the_same_prompts(tmp_path, checkpoints):
    runs = {}
    for name, steps in (("whole", 5), ("parts", 3)):
        (tmp_path / name).mkdir()
        recipe = small_runs.recipe(tmp_path / name, checkpoints, {**SETTINGS, "max_steps": steps, "save_steps": 3})
        train_recipe(load_recipe(recipe))
        runs[name] = tmp_path / name / "run"
    train_recipe(load_recipe(recipe, ["training.max_steps=5"]), resume=True)
    lines = {name: small_runs.steps_of(run) for name, run in runs.items()}
    whole, parts = ([(line["step"], line["epoch"], line["loss"]) for line in each] for each in lines.values())
    assert parts == whole
    with pytest.raises(ValueError, match="num_generations"):
        train_recipe(load_recipe(recipe, ["training.max_steps=6", "training.num_generations=1"]), resume=True)


@pytest.mark.unit
def test_a_step_has_whole_groups(tmp_path):
    with pytest.raises(ValueError, match="num_generations = 3"):
        TrustMOPDConfig(str(tmp_path), use_cpu=True, global_batch_size=8, num_generations=3)
    with pytest.raises(ValueError, match="num_generations = 0"):
        TrustMOPDConfig(str(tmp_path), use_cpu=True, num_generations=0)
