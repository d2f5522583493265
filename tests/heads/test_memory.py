"""Chunks bound memory: no tensor over all tokens and the whole vocabulary, and no copy of the weight, is ever made."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from problems import problem
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from trustmopd.heads import chunked, reference, shared
from trustmopd.heads.shared import Projection

STEP = """
import sys, torch
from pathlib import Path
from trustmopd.heads import candidate_logits, top_candidates_of, use_implementation

def kib(field):
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1])

def step(num_tokens, vocab_size):
    hidden = torch.randn(num_tokens, 16, requires_grad=True)
    weight = torch.randn(vocab_size, 16, requires_grad=True)
    before = kib("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    ids, _ = top_candidates_of(hidden, weight, 8)
    candidate_logits(hidden, weight, ids).square().mean().backward()
    return kib("VmHWM") - before

implementation, num_tokens, vocab_size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
use_implementation(implementation)
step(64, 256)  # what libraries allocate at their first use is not the step's
print(step(num_tokens, vocab_size))
"""


class Allocations(TorchDispatchMode):
    """Bytes of the largest tensor that any operation returned."""

    largest = 0

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        results = operation(*args, **(kwargs or {}))
        for result in tree_leaves(results):
            if isinstance(result, torch.Tensor):
                self.largest = max(self.largest, result.numel() * result.element_size())
        return results


def largest_allocation(implementation, case, **transform) -> int:
    hidden, weight, bias = case.leaves()
    with Allocations() as allocations:
        head = Projection(weight, bias, **transform)
        ids, _ = implementation.top_candidates_of(hidden, head, case.ids.shape[1])
        implementation.candidate_logits(hidden, head, ids).square().mean().backward()
    return allocations.largest


@pytest.mark.parametrize("transform", [{}, {"logit_scale": 0.5, "softcap": 3.0}], ids=["plain", "capped"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_no_operation_returns_all_tokens_by_the_whole_vocabulary(dtype, transform, monkeypatch):
    for module, budget in ((chunked, "BLOCK_BYTES"), (chunked, "GRADIENT_BLOCK_BYTES"), (shared, "TILE_BYTES")):
        monkeypatch.setattr(module, budget, 2**16)
    monkeypatch.setattr(chunked, "ROWS_BYTES", dict.fromkeys(chunked.ROWS_BYTES, 2**16))
    case = problem((512, 8, 1024, 4), dtype)
    full = 512 * 1024 * 4
    # The gradient of the weight (32 KiB) and the blocks (64 KiB) are all that is left of the full logits (2 MiB).
    assert largest_allocation(chunked, case, **transform) <= 2**16
    assert largest_allocation(reference, case, **transform) >= full


def test_a_half_precision_weight_is_never_copied_to_float32(monkeypatch):
    monkeypatch.setattr(chunked, "BLOCK_BYTES", 2**14)
    monkeypatch.setattr(shared, "TILE_BYTES", 2**14)
    case = problem((4, 16, 1024, 4), torch.bfloat16)
    with Allocations() as allocations:
        ids, _ = chunked.top_candidates_of(case.hidden, Projection(case.weight), 4)
        chunked.candidate_logits(case.hidden, Projection(case.weight), ids)
    # Views of the weight itself have its size; a float32 copy would have twice that.
    assert allocations.largest <= case.weight.numel() * 2


@pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="reads the peak of a process as Linux reports it"
)
def test_measured_memory_does_not_grow_with_tokens_times_vocabulary():
    def measured_mib(implementation, num_tokens, vocab_size):
        arguments = [sys.executable, "-c", STEP, implementation, str(num_tokens), str(vocab_size)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        done = subprocess.run(arguments, capture_output=True, text=True, check=True, env=environment)
        return int(done.stdout) / 1024

    # Full logits are 64 MiB at the small corner and 512 MiB at the large one; a block of them is 64 MiB.
    small, large = measured_mib("chunked", 1024, 16384), measured_mib("chunked", 2048, 65536)
    assert large < 256
    assert large < small + 128
    assert measured_mib("reference", 2048, 65536) > 512
