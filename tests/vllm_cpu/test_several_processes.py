"""Two processes, a vLLM engine in each, and a student that DDP copies or FSDP2 spreads over them."""

import sys
from pathlib import Path
from typing import Any

import pytest
import tiny
import yaml

sys.path.insert(0, str(Path(__file__).parents[1] / "distributed"))
import engines
from processes import launch

from trustmopd.training.step.rollout_gap import MAX

pytestmark = pytest.mark.timeout(1200)
#: As in test_rollouts.py: rounding alone.
ROUNDING = 1e-4
LORA = {"r": 4, "target_modules": ["q_proj", "o_proj", "down_proj"]}


def steps(world: Path, settings: dict[str, Any], folder: Path, engine: str, **fields: object) -> list[dict[str, float]]:
    """Of a run through the command line. It calibrates first: a pass without gradients leaves FSDP2's outermost
    tensors gathered."""
    folder.mkdir()
    tiny.prompts(32).to_json(folder / "prompts.jsonl")
    recipe = {
        "name": engine,
        "student": str(world / "tied"),
        "teachers": {name: str(world / f"tied-{name}") for name in ("math", "code")},
        "prompts": {"path": str(folder / "prompts.jsonl")},
        "training": {name: value for name, value in settings.items() if name != "use_cpu"},
    }
    (folder / "recipe.yaml").write_text(yaml.safe_dump({**recipe, **fields}))
    arguments = [engines.__file__, "sampled", str(folder / "recipe.yaml"), str(folder / "run")]
    launch(arguments, processes=2, logs=folder, settings=engines.ENGINES[engine].settings)
    return engines.metrics(folder / "run")


@pytest.mark.parametrize("fields", [{}, {"peft": LORA}], ids=["all weights", "lora"])
def test_a_spread_student_samples_and_learns_as_a_copied_one(
    fields: dict[str, Any], world: Path, settings: dict[str, Any], tmp_path: Path
) -> None:
    copied, spread = (steps(world, settings, tmp_path / engine, engine, **fields) for engine in ("ddp", "fsdp2"))
    assert len(copied) == len(spread) == 3
    assert all(step[MAX] < ROUNDING for step in (*copied, *spread))
    assert [step["loss"] for step in spread] == pytest.approx([step["loss"] for step in copied], rel=1e-4)
