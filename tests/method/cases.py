"""What hypothesis draws: models' logits at the positions of a batch, of any leading shape."""

from dataclasses import dataclass

import numpy as np
import torch
from hypothesis import strategies as st
from oracle import log_normalise

LEADING_SHAPES = st.one_of(st.just(()), st.tuples(st.integers(1, 6)), st.tuples(st.integers(1, 4), st.integers(1, 4)))
TEACHERS = st.integers(1, 5)
CANDIDATES = st.one_of(st.just(1), st.integers(2, 40))
ONE_REFERENCE = st.just(False)


@dataclass(frozen=True, repr=False)
class Case:
    """Log-probabilities of one draw in float64 numpy, normalised by the oracle."""

    student_logits: np.ndarray
    teacher_logits: np.ndarray
    reference_logits: np.ndarray
    candidate_ids: np.ndarray
    sampled_ids: np.ndarray
    mask: np.ndarray
    rng: np.random.Generator
    note: str

    def __repr__(self):
        return f"Case({self.note})"

    @property
    def num_teachers(self):
        return len(self.teacher_logits)

    @property
    def student_logp(self):
        return log_normalise(self.student_logits)

    @property
    def teacher_logp(self):
        return log_normalise(self.teacher_logits)

    @property
    def reference_logp(self):
        return log_normalise(self.reference_logits)

    def some_weights(self):
        """[K, *N], positive, summing to one over teachers."""
        weights = self.rng.uniform(0.05, 1.0, self.teacher_logits.shape[:-1])
        return weights / weights.sum(axis=0)

    def some_mu(self):
        return self.rng.uniform(0.3, 4.0, self.num_teachers)


@st.composite
def cases(
    draw,
    leading=LEADING_SHAPES,
    teachers=TEACHERS,
    candidates=CANDIDATES,
    scales=(0.3, 2.0, 12.0),
    own_references=st.booleans(),  # noqa: B008 (a strategy, drawn from anew each time)
):
    """The teachers have one reference, or each its own."""
    shape, num_teachers, num_candidates = draw(leading), draw(teachers), draw(candidates)
    references = (num_teachers,) if draw(own_references) else ()
    scale, seed = draw(st.sampled_from(scales)), draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    ids = np.argsort(rng.random((*shape, num_candidates + 5)), axis=-1)
    lengths = rng.integers(0, shape[-1] + 1, shape[:-1]) if shape else 1
    return Case(
        student_logits=scale * rng.standard_normal((*shape, num_candidates)),
        teacher_logits=scale * rng.standard_normal((num_teachers, *shape, num_candidates)),
        reference_logits=scale * rng.standard_normal((*references, *shape, num_candidates)),
        candidate_ids=ids[..., :num_candidates],
        # Mostly a candidate, now and then the first token past them.
        sampled_ids=np.take_along_axis(ids, rng.integers(0, num_candidates + 1, (*shape, 1)), axis=-1)[..., 0],
        mask=np.arange(shape[-1]) < np.asarray(lengths)[..., None] if shape else np.array(True),
        rng=rng,
        note=f"shape={shape}, K={num_teachers}, C={num_candidates}, references={references or 1}, scale={scale}, "
        f"seed={seed}",
    )


def batches(**options):
    """Cases of shape [B, T], with right-padded responses of which some may be empty."""
    return cases(leading=st.tuples(st.integers(1, 4), st.integers(1, 5)), **options)


def tensor(array, dtype=torch.float64, requires_grad=False):
    return torch.tensor(array, dtype=dtype, requires_grad=requires_grad)


def assert_close(actual, expected, rtol=1e-9, atol=1e-11):
    if isinstance(expected, torch.Tensor):
        expected = expected.detach().double().numpy()
    np.testing.assert_allclose(actual.detach().double().numpy(), expected, rtol=rtol, atol=atol)
