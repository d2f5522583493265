"""Policies on Ray say what resident ones say, wherever their neighbours live."""

import gc
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray
import tiny
import torch

from trustmopd.policies import REFERENCE, Rollouts, Teacher, TeacherPool, build_pool, fingerprint, resolve
from trustmopd.policies.hosts.ray.actor import Terms
from trustmopd.policies.hosts.ray.policies import RayPolicies

pytestmark = [pytest.mark.distributed]

LENGTHS = ((3, 5), (9, 2), (1, 1), (6, 0), (4, 5), (2, 7))
CANDIDATES = 16


def rollouts(**options: Any) -> Rollouts:
    """Prompts padded on the left, responses on the right."""
    generator = torch.Generator().manual_seed(0)
    prompt_width, response_width = (max(lengths) for lengths in zip(*LENGTHS, strict=True))
    ids = torch.zeros(len(LENGTHS), prompt_width + response_width, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, (prompt, response) in enumerate(LENGTHS):
        span = slice(prompt_width - prompt, prompt_width + response)
        ids[row, span] = torch.randint(4, tiny.VOCAB, (prompt + response,), generator=generator)
        mask[row, span] = 1
    return Rollouts(ids, mask, mask[:, prompt_width:].clone(), **{"at_a_time": 2, **options})


def candidates(rows: list[int]) -> torch.Tensor:
    tokens = sum(LENGTHS[row][1] for row in rows)
    generator = torch.Generator().manual_seed(len(rows))
    return torch.randint(0, tiny.VOCAB, (tokens, CANDIDATES), generator=generator)


def logits(pool: TeacherPool, asked: Rollouts, rows: list[int] | None = None) -> dict[str, torch.Tensor]:
    answers = pool.ask(asked)
    rows = list(range(len(LENGTHS)))[::-1] if rows is None else rows  # as after a shuffle
    ids = candidates(rows)
    for answer in answers.values():
        answer.expect(rows, ids)
    found = {name: answer.logits_at(rows, ids) for name, answer in answers.items()}
    answers.release()
    return found


def pool_of(student: Any, teachers: dict[str, Any], reference: Any, elsewhere: RayPolicies | None) -> TeacherPool:
    graph = resolve(teachers, reference, student)
    return build_pool(graph, student, device=torch.device("cpu"), dtype=torch.float32, elsewhere=elsewhere)


def terms(address: str, **changes: Any) -> Terms:
    given = {
        "run_id": os.urandom(4).hex(),
        "address": address,
        "limit": 90.0,
        "dtype": torch.float32,
        "autocast_dtype": None,
        "trust_remote_code": False,
        "vocab_size": None,
        "may_use_gpus": False,
        "checks": None,
    }
    return Terms(**given | changes)


class Pools:
    """The same policies, all resident, and spread over this process and Ray: a checkpoint here, one in host memory,
    one in two replicas on Ray, two adapters over the reference on Ray with it, and a model in memory with a reference
    of its own."""

    def __init__(self, folder: Path, address: str):
        base, other = tiny.model(0), tiny.model(5)
        paths = {name: tiny.save(tiny.specialist(base, seed), folder / name) for seed, name in enumerate("abc", 1)}
        adapters = {name: tiny.adapter(base, folder / name, seed) for seed, name in enumerate("de", 4)}
        reference = tiny.save(base, folder / "base")
        own = Teacher(model=tiny.save(other, folder / "other"))
        self.teachers = {
            "here": Teacher(model=paths["a"], on="resident"),
            "offloaded": Teacher(model=paths["b"], on="offload"),
            "twice": Teacher(model=paths["c"], on="ray", replicas=2),
            "first": Teacher(adapter=adapters["d"], on="ray"),
            "second": Teacher(adapter=adapters["e"], on="ray"),
            "sent": Teacher(model=tiny.specialist(other, 9), reference=Teacher(model=own.model), on="ray"),
        }
        plain = {n: Teacher(t.model, t.adapter, t.reference) for n, t in self.teachers.items()}
        self.resident = pool_of(tiny.model(7), plain, Teacher(model=reference, name=REFERENCE), None)
        self.policies = RayPolicies(terms(address), lambda decide: decide())
        self.spread = pool_of(
            tiny.model(7), self.teachers, Teacher(model=reference, name=REFERENCE, on="ray"), self.policies
        )

    def process(self, name: str) -> int:
        host = next(host for host in self.policies._hosts if name in host.names)
        return ray.get(host.replicas[0].load.remote(host.order)).process


@pytest.fixture(scope="module")
def pools(cluster: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pools]:
    torch.set_num_threads(1)
    ray.init(address=cluster.address, namespace="trustmopd", log_to_driver=False)
    found = Pools(tmp_path_factory.mktemp("models"), cluster.address)
    yield found
    found.policies.close()
    assert ray.is_initialized()  # a connection that was there before stays


def test_what_shares_weights_shares_actors_and_fingerprints_are_those_of_resident_policies(pools: Pools) -> None:
    assert pools.policies.devices == {"first, second, reference": 1, "twice": 2, "sent": 1}
    spread, resident = pools.spread, pools.resident
    assert list(spread.members) == list(resident.members) and spread.references == resident.references
    for name, member in resident.members.items():
        assert spread.members[name].origin == member.origin, name


@pytest.mark.parametrize(
    "options", [{}, {"max_tokens": 16}, {"at_a_time": 64, "bytes_on_device": 0}, {"viewed": True}], ids=str
)
def test_the_logits_are_those_of_resident_policies(pools: Pools, options: dict[str, Any]) -> None:
    viewed = options.pop("viewed", False)
    asked = rollouts(**options)
    if viewed:  # a longer prompt and another end for some; the same question without them is another
        longer = [
            torch.cat([torch.full((len(LENGTHS), 3), fill), each], 1)
            for fill, each in ((9, asked.input_ids), (1, asked.attention_mask))
        ]
        view = replace(asked, input_ids=longer[0], attention_mask=longer[1], swap=(5, 6))
        plain, asked = (
            logits(pools.spread, asked),
            replace(asked, views={"first": view, "twice": view, REFERENCE: view}),
        )
        changed = {name for name, found in logits(pools.spread, asked).items() if not torch.equal(found, plain[name])}
        assert changed == {"first", "twice", REFERENCE}
    found, expected = logits(pools.spread, asked), logits(pools.resident, asked)
    assert list(found) == list(expected)
    for name in expected:
        exact = {"rtol": 0, "atol": 0} if name != "twice" else {"rtol": 1e-5, "atol": 1e-5}  # others share its passes
        torch.testing.assert_close(found[name], expected[name], **exact, msg=lambda said, name=name: f"{name}: {said}")


def test_the_likeliest_tokens_are_those_of_resident_policies(pools: Pools) -> None:
    asked, rows = rollouts(), list(range(len(LENGTHS)))[::-1]
    found, expected = pools.spread.ask(asked), pools.resident.ask(asked)
    for name in ("twice", "first", "sent"):
        for ours, theirs in zip(found[name].top(rows, 5), expected[name].top(rows, 5), strict=True):
            torch.testing.assert_close(ours, theirs)
    assert found["sent"].top([3], 5).ids.shape == (0, 5)  # a response without tokens
    found.release()


def test_rows_limit_who_is_asked_about_what(pools: Pools) -> None:
    asked = rollouts(rows={"first": [4, 0], "twice": [5, 1, 2], "sent": [3]})
    answers = pools.spread.ask(asked)
    assert {name: set(answer.rows) for name, answer in answers.items() if answer.rows} == {
        "first": {0, 4},
        "twice": {1, 2, 5},
        "sent": {3},
    }
    expected = pools.resident.ask(asked)
    for name, rows in {"first": [0, 4], "twice": [1, 5], "sent": [3]}.items():
        ids = candidates(rows)
        torch.testing.assert_close(answers[name].logits_at(rows, ids), expected[name].logits_at(rows, ids))
    with pytest.raises(LookupError, match="first.*row 1"):
        answers["first"].logits_at([0, 1], candidates([0, 1]))
    answers.release()
    with pytest.raises(LookupError):
        answers["first"].logits_at([0], candidates([0]))


def test_an_actor_killed_between_question_and_answer_answers_to_the_last_bit(pools: Pools) -> None:
    asked = rollouts()
    rows = list(range(len(LENGTHS)))
    ids = candidates(rows)
    before = logits(pools.spread, asked, rows)
    answers = pools.spread.ask(asked)
    for name in ("first", "sent"):  # one read from disk, one whose weights were sent
        process = pools.process(name)
        os.kill(process, signal.SIGKILL)
        assert torch.equal(answers[name].logits_at(rows, ids), before[name])
        assert pools.process(name) != process
    assert torch.equal(answers[REFERENCE].logits_at(rows, ids), before[REFERENCE])
    answers.release()


def test_memory_is_flat_over_fifty_batches(pools: Pools) -> None:
    """Hidden states are dropped with their batch, in the actors and in Ray's shared memory."""
    actors = [actor for host in pools.policies._hosts for actor in host.replicas]
    processes = [psutil.Process(os.getpid())]
    processes += [
        psutil.Process(ray.get(actor.load.remote(host.order)).process)
        for host in pools.policies._hosts
        for actor in host.replicas
    ]

    def in_use() -> tuple[float, float]:
        gc.collect()
        total, free = ray.cluster_resources(), ray.available_resources()
        shared = total["object_store_memory"] - free["object_store_memory"]
        return sum(process.memory_info().rss for process in processes) / 2**20, shared / 2**20

    def ask(times: int) -> None:
        for _ in range(times):
            logits(pools.spread, rollouts())

    ask(10)
    assert ray.get([actor.kept.remote() for actor in actors]) == [0] * len(actors)
    before = in_use()
    ask(50)
    assert ray.get([actor.kept.remote() for actor in actors]) == [0] * len(actors)
    time.sleep(1)  # until Ray's own counters are up to date
    after = in_use()
    assert after[0] - before[0] < 10, (before, after)  # MiB of all processes together
    assert after[1] - before[1] < 1, (before, after)


def test_usage_counts_ids_and_logits(pools: Pools) -> None:
    pools.policies.take_usage()
    asked = rollouts()
    logits(pools.spread, asked)
    usage = pools.policies.take_usage()
    tokens = sum(response for _, response in LENGTHS)
    sent = asked.input_ids.numel() * 5 + asked.response_mask.numel()
    assert set(usage) == {"twice", "first", "second", "sent", REFERENCE}
    for name in ("twice", "first", "second", "sent", REFERENCE):
        assert usage[name].bytes == pytest.approx(sent + tokens * CANDIDATES * (4 + 4)), name
        assert usage[name].seconds > 0 and usage[name].waiting > 0
    assert all(each.bytes == 0 for each in pools.policies.take_usage().values())


def test_what_cannot_be_is_told_by_the_policy_s_name(cluster: Any, pools: Pools, tmp_path: Path) -> None:
    """More than the cluster has, at once; a checkpoint that is not where the actor runs, before training."""
    for teacher, told in (
        (Teacher(model=str(tmp_path / "none"), on="ray", gpus=1), "1 GPU"),
        (Teacher(model=str(tmp_path / "none"), on="ray"), "teacher 'a'.*none"),
    ):
        policies = RayPolicies(terms(cluster.address), lambda decide: decide())
        with pytest.raises(ValueError, match=told):
            pool_of(tiny.model(0), {"a": teacher}, None, policies)
        assert ray.is_initialized()


def test_gpus_that_no_node_has_or_torch_does_not_see_are_refused_before_training(cluster: Any, tmp_path: Path) -> None:
    """Two nodes with one GPU each, which are declared: torch sees none here."""
    path = tiny.save(tiny.model(1), tmp_path / "a")
    nodes = [cluster.add_node(num_cpus=0, num_gpus=1, object_store_memory=80 * 2**20) for _ in range(2)]
    try:
        for teacher, told in (
            (Teacher(model=path, on="ray", gpus=2), "teacher 'a'.*2 GPUs of one node"),
            (Teacher(model=tiny.model(1), on="ray", gpus=2), "teacher 'a'.*memory"),
            (Teacher(model=path, on="ray", gpus=1), "teacher 'a'.*torch.*sees 0"),
        ):
            policies = RayPolicies(terms(cluster.address), lambda decide: decide())
            with pytest.raises(ValueError, match=told):
                pool_of(tiny.model(0), {"a": teacher}, None, policies)
    finally:
        for node in nodes:
            cluster.remove_node(node)


def test_a_restart_with_other_weights_is_refused(cluster: Any, pools: Pools, tmp_path: Path) -> None:
    """A checkpoint that is replaced while the run goes on."""
    path = tmp_path / "a"
    tiny.save(tiny.model(1), path)
    policies = RayPolicies(terms(cluster.address), lambda decide: decide())
    pool = pool_of(tiny.model(0), {"a": Teacher(model=str(path), on="ray")}, None, policies)
    assert pool.members["a"].origin.fingerprint == fingerprint(tiny.model(1))
    tiny.save(tiny.model(2), path)
    (host,) = policies._hosts
    os.kill(ray.get(host.replicas[0].load.remote(host.order)).process, signal.SIGKILL)
    with pytest.raises(OSError, match="teacher 'a'.*after a restart"):
        logits(pool, rollouts())
    policies.close()
