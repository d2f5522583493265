"""Memory of a step does not grow with the number of responses, but for what frozen policies keep of them."""

import pytest
import replay
import tiny
import torch
from memory import peak_allocation

from trustmopd.heads import Head

HIDDEN = 128
BUDGET = 120
POLICIES = 4  # three teachers and the reference


def test_the_measure_sees_what_is_held_at_once():
    with peak_allocation() as peak:
        for _ in range(3):
            torch.ones(2**18)
        kept = [torch.ones(2**18), torch.ones(2**18)]
    assert 2 * 2**20 <= peak.bytes < 2.1 * 2**20 and len(kept) == 2


def step_peak(folder, responses, **options):
    """Bytes of one step's answers, and the most that it needed beside them."""
    base = tiny.model(hidden=HIDDEN)
    lengths = [replay.LONGEST - row % 5 for row in range(responses)]
    trainer = replay.trainer_of(
        folder,
        student=base,
        teachers={name: tiny.specialist(base, seed) for seed, name in enumerate(replay.TEACHERS, 1)},
        lengths=lengths,
        calibrated=False,
        per_device_train_batch_size=responses,
        **options,
    )
    trainer.create_optimizer()
    with peak_allocation() as peak:
        inputs = trainer._prepare_inputs(list(trainer.train_dataset))
        trainer.accelerator.backward(trainer.compute_loss(trainer.model, inputs))
    answers = POLICIES * sum(lengths) * HIDDEN * 4
    return answers, peak.bytes - answers


def test_a_step_in_passes_needs_memory_for_one_pass_and_for_the_answers(tmp_path):
    budget = {"max_tokens_per_micro_batch": BUDGET}
    (few, small), (many, large) = (step_peak(tmp_path / str(count), count, **budget) for count in (8, 64))
    assert many > 6 * few
    assert large < 1.15 * small
    _, whole = step_peak(tmp_path / "whole", 64)
    assert whole > 3 * large  # all rows at once: what the budget is there for


@pytest.mark.parametrize("tokens", [1024, 8192])
def test_the_head_takes_many_tokens_in_pieces(tokens, monkeypatch):
    """Beside ids, logits and gradients of the tokens, the search for candidates holds one block of logits."""
    monkeypatch.setattr("trustmopd.heads.chunked.BLOCK_BYTES", 2**18)
    candidates, vocab, width = 4, 4096, 16
    head = Head(torch.randn(vocab, width))
    hidden = torch.randn(tokens, width, requires_grad=True)
    with peak_allocation() as peak:
        ids, _ = head.top(hidden.detach(), candidates)
        head.logits_of(hidden, ids).sum().backward()
    by_token = tokens * (width + 12 * candidates) * 8
    assert peak.bytes < by_token + 2**20 < tokens * vocab * 4
