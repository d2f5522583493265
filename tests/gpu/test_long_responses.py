"""Long responses on a GPU: bounded memory, answers in host memory, attention by the flash kernel."""

import pytest
import replay
import tiny
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from trustmopd.heads import Head
from trustmopd.policies import Rollouts, build_pool, resolve
from trustmopd.policies.answers import Shelf
from trustmopd.policies.reading import Sequences

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]

DEVICE = torch.device("cuda")
HIDDEN = 256
LENGTH = 240


def rollouts(count, **options):
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(4, tiny.VOCAB, (count, 10 + LENGTH), generator=generator).to(DEVICE)
    return Rollouts(ids, torch.ones_like(ids), torch.ones_like(ids[:, 10:]), 2, max_tokens=1000, **options)


@pytest.fixture(scope="module")
def pool():
    base = tiny.model(hidden=HIDDEN).to(torch.bfloat16)
    teachers = {name: tiny.specialist(base, seed) for seed, name in enumerate(("math", "code"), 1)}
    return build_pool(resolve(teachers, None, base), base, device=DEVICE, dtype=torch.bfloat16)


def test_states_beyond_the_limit_wait_in_pinned_memory():
    states = torch.randn(8, HIDDEN, device=DEVICE)
    shelf = Shelf(1.5 * states.nbytes)
    kept = [shelf.keep(states) for _ in range(2)]
    assert kept[0].is_cuda and kept[1].is_pinned()
    torch.cuda.synchronize()
    assert torch.equal(kept[1], states.cpu())


def test_answers_from_host_memory_are_the_same_bit_for_bit(pool):
    ids = torch.randint(4, tiny.VOCAB, (3 * LENGTH, 16), device=DEVICE)
    on_device, in_host = (pool.ask(rollouts(8, bytes_on_device=limit)) for limit in (float("inf"), 0))
    for name in on_device:
        rows = [5, 0, 7]
        assert torch.equal(on_device[name].logits_at(rows, ids), in_host[name].logits_at(rows, ids))


def test_memory_of_reading_does_not_grow_with_the_number_of_responses(pool):
    def extra(count, limit):
        asked = rollouts(count, bytes_on_device=limit)
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        answers = pool.ask(asked)
        peak = torch.cuda.max_memory_allocated() - before
        answers.release()
        return peak

    extra(4, 0)  # what libraries allocate at first use
    few, many = extra(8, 0), extra(128, 0)
    assert many < 1.2 * few
    answers = 3 * 128 * LENGTH * HIDDEN * 2
    assert extra(128, float("inf")) > 0.9 * answers > many


def test_without_a_mask_attention_runs_on_the_flash_kernel():
    backbone = tiny.model(hidden=HIDDEN).to(DEVICE, torch.bfloat16).model
    ids = torch.randint(4, tiny.VOCAB, (2, 64), device=DEVICE)
    mask = torch.ones_like(ids)
    mask[0, :20], mask[1, 50:] = 0, 0
    padded = Sequences.padded(ids, mask, mask[:, 30:])
    with torch.no_grad():
        expected = padded.states(backbone)
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            found = padded.aligned().states(backbone)
            with pytest.raises(RuntimeError):
                padded.states(backbone)
    torch.testing.assert_close(found, expected, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("budget", [1, 80, 10**6])
def test_a_step_on_a_gpu_has_one_gradient_whatever_the_budget(budget, tmp_path):
    options = {"use_cpu": False, "allocation": "uniform"}
    whole = replay.run(tmp_path / "whole", **options)
    within = replay.run(tmp_path / "within", max_tokens_per_micro_batch=budget, **options)
    assert replay.difference(whole.gradient, within.gradient) < 1e-4
    assert within.loss == pytest.approx(whole.loss, rel=1e-4)


def test_the_head_takes_64_responses_of_8192_tokens_in_pieces():
    """Beside ids, logits and gradients it needs less than a gibibyte, where full logits are 64 GiB."""
    tokens, vocab, candidates = 64 * 8192, 32768, 16
    head = Head(torch.randn(vocab, HIDDEN, device=DEVICE, dtype=torch.bfloat16, requires_grad=True))
    hidden = torch.randn(tokens, HIDDEN, device=DEVICE, dtype=torch.bfloat16, requires_grad=True)
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    ids, _ = head.top(hidden.detach(), candidates)
    head.logits_of(hidden, ids).square().mean().backward()
    returned = ids.nbytes + 3 * tokens * candidates * 4 + hidden.nbytes + head.weight.nbytes
    assert torch.cuda.max_memory_allocated() - before < returned + 2**30
