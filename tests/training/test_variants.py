"""What varies is one value, whether it was given as a mapping, as fields, or in a recipe."""

from pathlib import Path
from typing import Any

import pytest

from trustmopd import TrustMOPDConfig
from trustmopd.recipe import Recipe
from trustmopd.recipe.rules import PARTS, part_of
from trustmopd.report.readers.run import method_name
from trustmopd.training.prepare import config_of

pytestmark = pytest.mark.unit


@pytest.fixture
def config(tmp_path: Path) -> Any:
    return lambda **fields: TrustMOPDConfig(output_dir=str(tmp_path), bf16=False, **fields)


@pytest.mark.parametrize(
    ("mapping", "flat"),
    [
        ({"allocation": {"rule": "trust", "gamma": 5.0}}, {"gamma": 5.0}),
        ({"allocation": {"rule": "trust", "score": "likelihood", "calibrated": False}},
         {"score": "likelihood", "calibrated": False}),
        ({"allocation": {"rule": "single", "teacher": "math"}}, {"allocation": "single", "single_teacher": "math"}),
        ({"allocation": {"rule": "uniform"}}, {"allocation": "uniform"}),
        ({"rollouts": {"engine": "vllm", "gpu_memory_utilization": 0.5, "timeout": 9.0}},
         {"use_vllm": True, "vllm_gpu_memory_utilization": 0.5, "rollout_timeout": 9.0}),
        ({"rollouts": "transformers"}, {}),
    ],
)  # fmt: skip
def test_a_mapping_says_what_the_fields_say(config: Any, mapping: dict[str, Any], flat: dict[str, Any]) -> None:
    one, other = config(**mapping), config(**flat)
    assert one.rules == other.rules
    assert all(getattr(one, field) == getattr(other, field) for field in flat if field != "allocation")
    kept = ("use_vllm", "gamma", "score", "single_teacher", *PARTS, "rollouts")
    assert {name: one.to_dict()[name] for name in kept} == {name: other.to_dict()[name] for name in kept}


@pytest.mark.parametrize(
    ("fields", "value"),
    [
        ({"allocation": {"rule": "trust", "gamma": 5.0}, "gamma": 3.0}, "gamma = 3.0"),
        ({"allocation": {"rule": "trusty"}}, "trusty"),
        ({"allocation": {"gamma": 5.0}}, "None"),
        ({"allocation": {"rule": "uniform", "gamma": 5.0}}, "gamma"),
        ({"target": "sum"}, "sum"),
        ({"rollouts": "sglang"}, "sglang"),
        ({"rollouts": {"engine": "vllm", "share": 0.5}}, "share"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_its_value(config: Any, fields: dict[str, Any], value: str) -> None:
    with pytest.raises(ValueError) as refused:
        config(**fields)
    assert value in str(refused.value)


def test_a_recipe_and_its_fields_of_0_1_0_give_one_configuration(tmp_path: Path) -> None:
    common = {"name": "r", "student": "s", "teachers": {"math": "m"}, "prompts": {"path": "p"}, "output": tmp_path}
    vllm = {"rollouts": {"engine": "vllm", "mode": "server", "server_port": 9000}, "training": {"bf16": False}}
    flat = {"training": {"use_vllm": True, "vllm_mode": "server", "vllm_server_port": 9000, "bf16": False}}
    one, other = (config_of(Recipe.model_validate({**common, **how}), 0) for how in (vllm, flat))
    assert one.rules == other.rules and one.to_dict() == other.to_dict()


def test_a_manifest_of_0_1_0_names_the_same_method() -> None:
    flat = {"allocation": "trust", "gamma": 5.0, "score": "displacement", "granularity": "response", "calibrated": True}
    nested = {"allocation": {"rule": "trust", **{name: flat[name] for name in flat if name != "allocation"}}}
    assert part_of(flat, "allocation") == part_of(nested, "allocation")
    assert method_name(flat) == method_name(nested) == "response-level, γ = 5"
