"""Frozen policies that vLLM reads, in actors on Ray: what transformers says of the same weights."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch

ray = pytest.importorskip("ray", reason="make test-vllm installs it")

from trustmopd.policies import REFERENCE, Rollouts, Teacher, TeacherPool, build_pool, resolve  # noqa: E402
from trustmopd.policies.hosts.ray.actor import Terms  # noqa: E402
from trustmopd.policies.hosts.ray.policies import RayPolicies  # noqa: E402

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(600)]

LENGTHS = ((3, 5), (9, 2), (1, 1), (6, 0), (4, 5), (2, 7))


def rollouts(**options: Any) -> Rollouts:
    """Prompts padded on the left, responses on the right, one of them empty."""
    generator = torch.Generator().manual_seed(0)
    prompt_width, response_width = (max(lengths) for lengths in zip(*LENGTHS, strict=True))
    ids = torch.zeros(len(LENGTHS), prompt_width + response_width, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, (prompt, response) in enumerate(LENGTHS):
        span = slice(prompt_width - prompt, prompt_width + response)
        ids[row, span] = torch.randint(4, tiny.VOCAB, (prompt + response,), generator=generator)
        mask[row, span] = 1
    return Rollouts(ids, mask, mask[:, prompt_width:].clone(), at_a_time=2, **options)


class Pools:
    """The same policies, resident and read by vLLM: a reference with two adapters on it, and a model in memory."""

    def __init__(self, folder: Path):
        base = tiny.model(0, hidden=128)
        reference = tiny.save(base, folder / "base")
        adapters = {name: tiny.adapter(base, folder / name, seed) for seed, name in enumerate(("first", "second"), 4)}
        plain = {name: Teacher(adapter=path) for name, path in adapters.items()}
        plain["sent"] = Teacher(tiny.specialist(base, 9))
        self.resident = self.pool(plain, reference, None)
        terms = Terms("vllm", None, 240.0, torch.float32, None, False, tiny.VOCAB, False, None)
        self.policies = RayPolicies(terms, lambda decide: decide())
        self.on_vllm = self.pool(plain, reference, self.policies, placement="ray", engine="vllm")

    @staticmethod
    def pool(teachers: Any, reference: str, elsewhere: RayPolicies | None, **places: str) -> TeacherPool:
        student = tiny.model(7, hidden=128)
        graph = resolve(teachers, Teacher(reference, name=REFERENCE), student, **places)
        options = {"device": torch.device("cpu"), "dtype": torch.float32, "vocab_size": tiny.VOCAB}
        return build_pool(graph, student, elsewhere=elsewhere, **options)


@pytest.fixture(scope="module")
def pools(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pools]:
    torch.set_num_threads(1)
    found = Pools(tmp_path_factory.mktemp("models"))
    yield found
    found.policies.close()


def agree(pools: Pools, asked: Rollouts, rows: list[int]) -> None:
    ids = torch.randint(0, tiny.VOCAB, (sum(LENGTHS[row][1] for row in rows), 16))
    found, expected = pools.on_vllm.ask(asked), pools.resident.ask(asked)
    assert list(found) == list(expected)
    for name in expected:
        assert found[name].rows == expected[name].rows
        if not (mine := [row for row in rows if row in expected[name].rows]):
            continue
        count = sum(LENGTHS[row][1] for row in mine)
        torch.testing.assert_close(
            found[name].logits_at(mine, ids[:count]), expected[name].logits_at(mine, ids[:count]), rtol=0, atol=2e-4
        )
        ours, theirs = (answers[name].top(mine, 5) for answers in (found, expected))
        torch.testing.assert_close(ours.logp, theirs.logp, rtol=0, atol=2e-4)
    found.release()


def test_fingerprints_are_those_of_resident_policies_and_the_gap_is_rounding(pools: Pools) -> None:
    assert pools.policies.devices == {"first, second, reference": 1, "sent": 1}
    for name, member in pools.resident.members.items():
        origin = pools.on_vllm.members[name].origin
        assert (origin.fingerprint, origin.parameters) == (member.origin.fingerprint, member.origin.parameters)
    gaps = pools.policies.gaps
    assert set(gaps) == set(pools.resident.members) and 0 < max(gaps.values()) < 1e-4


def test_logits_are_those_of_resident_policies_though_the_actor_dies(pools: Pools) -> None:
    agree(pools, rollouts(), [5, 4, 3, 2, 1, 0])
    host = pools.policies._hosts[0]
    (actor,) = host.replicas
    os.kill(ray.get(actor.load.remote(host.order)).process, signal.SIGKILL)
    agree(pools, rollouts(rows={"first": [4, 0], "second": [3], REFERENCE: [2, 5]}), [0, 2, 3, 4, 5])
    assert ray.get(actor.kept.remote()) == 0
