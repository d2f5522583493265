"""What policies on vLLM are made of, without vLLM: what it could not read, and the probe that compares."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import tiny
import torch

from trustmopd.policies import TeacherPool
from trustmopd.policies.graph import Weights
from trustmopd.policies.hosts.ray.vllm_pool import _origin, rank_of
from trustmopd.policies.hosts.ray.vllm_probe import Probe
from trustmopd.policies.load import Loader, load_weights
from trustmopd.policies.pool import LocalMember
from trustmopd.policies.teacher import Teacher

pytestmark = pytest.mark.unit


def loaded(path: str, dtype: torch.dtype = torch.float32) -> dict[str, LocalMember]:
    weights = Weights("teacher 'math'", Teacher(path), "ray", "math", sources={"math": path})
    return load_weights(weights, Loader(dtype), torch.device("cpu"))


def test_vllm_makes_room_for_the_next_rank_that_it_has(tmp_path: Path) -> None:
    assert rank_of("teacher 'code'", tiny.adapter(tiny.model(), tmp_path, 1)) == 8  # of rank 4


@pytest.mark.parametrize(
    "setting", [{"use_dora": True}, {"modules_to_save": ["lm_head"]}, {"rank_pattern": {"q_proj": 2}}, {"bias": "all"}]
)
def test_an_adapter_of_which_vllm_would_read_a_part_is_refused(tmp_path: Path, setting: dict) -> None:
    file = tiny.adapter(tiny.model(), tmp_path, 1) / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | setting))
    with pytest.raises(ValueError, match=f"teacher 'code'.*{next(iter(setting))}"):
        rank_of("teacher 'code'", tmp_path)


def test_the_probe_finds_the_same_policy_and_refuses_another(tmp_path: Path) -> None:
    base = tiny.model()
    same, other = (loaded(tiny.save(model, tmp_path / name)) for name, model in (("a", base), ("b", tiny.model(1))))
    probe = Probe.of(same, tiny.VOCAB)
    assert probe.gaps(TeacherPool(same, {}).ask, None) == {"math": pytest.approx(0, abs=1e-6)}
    with pytest.raises(ValueError, match="teacher 'math'.*nats"):
        probe.gaps(TeacherPool(other, {}).ask, "fp8")


def test_rounding_to_16_bits_is_too_much_for_weights_in_32(tmp_path: Path) -> None:
    path = tiny.save(tiny.model(), tmp_path)
    exact, rounded = loaded(path), loaded(path, torch.bfloat16)
    ask = TeacherPool(rounded, {}).ask
    with pytest.raises(ValueError, match="teacher 'math'"):
        Probe.of(exact, tiny.VOCAB).gaps(ask, None)
    assert 1e-3 < Probe.of(exact, tiny.VOCAB).gaps(ask, "fp8")["math"] < 0.3


def test_quantised_weights_are_another_policy(tmp_path: Path) -> None:
    member = loaded(tiny.save(tiny.model(), tmp_path))["math"]
    weights = Weights("teacher 'math'", Teacher(str(tmp_path)), "ray", "math", engine="vllm")
    assert _origin(member, weights) == member.origin
    assert _origin(member, replace(weights, quantization="fp8")).fingerprint == f"{member.origin.fingerprint}:fp8"
