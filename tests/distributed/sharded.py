"""Asks a resident and a sharded pool the same, in each of several processes that have different rows to ask about."""

import copy
import json
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import tiny
import torch
from torch.distributed.tensor import DTensor

from trustmopd.policies import REFERENCE, Rollouts, Teacher, TeacherPool, build_pool, resolve

CPU = torch.device("cpu")
TEACHERS = ("math", "code")


def pool_of(base: Any, teachers: dict[str, Any], placement: str) -> TeacherPool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # where the adapters say that they were trained
        graph = resolve(teachers, Teacher(model=copy.deepcopy(base)), base, placement=placement)
        return build_pool(graph, base, device=CPU, dtype=torch.float32, share=False)


def rollouts_of(rank: int) -> Rollouts:
    """Process 0 has five rows and asks `math` about none of them; others have fewer, for both."""
    count = max(5 - 2 * rank, 1)
    generator = torch.Generator().manual_seed(rank)
    ids = torch.randint(4, tiny.VOCAB, (count, 12), generator=generator)
    everything = list(range(count))
    rows = {"math": [] if rank == 0 else everything, "code": everything, REFERENCE: everything}
    return Rollouts(ids, torch.ones_like(ids), torch.ones(count, 6), 2, rows)


def local_parameters(pool: TeacherPool) -> int:
    """Numbers that this process keeps, each weight once."""
    kept = {id(p): p for member in pool.members.values() for p in member.host.model.parameters()}
    return sum((p.to_local() if isinstance(p, DTensor) else p).numel() for p in kept.values())


def compare(name: str, base: Any, teachers: dict[str, Any]) -> dict[str, Any]:
    rank = torch.distributed.get_rank()
    found: dict[str, Any] = {"name": name, "rank": rank, "parameters": {}, "seconds": {}, "passes": {}}
    states = {}
    for placement in ("resident", "sharded"):
        pool = pool_of(copy.deepcopy(base), teachers, placement)
        rollouts = rollouts_of(rank)
        for _ in range(2):  # and once more, after all was put back
            answers = pool.ask(rollouts)
        torch.distributed.barrier()
        began = time.perf_counter()
        for _ in range(5):
            pool.ask(rollouts)
        found["seconds"][placement] = (time.perf_counter() - began) / 5
        found["parameters"][placement] = local_parameters(pool)
        found["fingerprints"] = {member.name: member.origin.fingerprint for member in pool.members.values()}
        states[placement] = {n: {row: answers[n]._states[row] for row in answers[n].rows} for n in answers}
    found["asked"] = {n: len(rows) for n, rows in states["sharded"].items()}
    found["equal"] = all(
        torch.equal(states["resident"][n][row], states["sharded"][n][row])
        for n in states["resident"]
        for row in states["resident"][n]
    )
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    folder = Path(sys.argv[1])
    size = {"layers": 4, "hidden": int(sys.argv[2])}
    found = []
    for name, tied in (("tied", True), ("untied", False)):
        base = tiny.model(tied=tied, **size)
        specialists = {t: tiny.specialist(base, seed) for seed, t in enumerate(TEACHERS, 1)}
        found.append(compare(name, base, specialists))
    base = tiny.model(**size)
    adapters = {t: Teacher(adapter=folder / t) for t in TEACHERS}
    if torch.distributed.get_rank() == 0:
        for seed, teacher in enumerate(TEACHERS, 1):
            tiny.adapter(base, folder / teacher, seed)
    torch.distributed.barrier()
    found.append(compare("adapters", base, adapters))
    (folder / f"found-{torch.distributed.get_rank()}.json").write_text(json.dumps(found))
    torch.distributed.destroy_process_group()
