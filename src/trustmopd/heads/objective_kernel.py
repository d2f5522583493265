"""The Triton kernel of `fused_objective.py`: what the method does at one token, in one program."""

import triton
import triton.language as tl


@triton.jit
def trust_at_token(
    student,
    teachers,
    reference,
    mu,
    losses,
    weights,
    scores,
    targets,
    slopes,
    num_tokens,
    num_candidates,
    gamma,
    NUM_TEACHERS: tl.constexpr,
    OWN_REFERENCES: tl.constexpr,
    HAS_MU: tl.constexpr,
    HAS_SLOPE: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """One token of Algorithm 2, from log-probabilities to its loss. `slopes` is the derivative of that loss in the
    student's log-probabilities. With OWN_REFERENCES, `reference` has a row for each teacher."""
    token = tl.program_id(0).to(tl.int64)
    candidate, teacher = tl.arange(0, BLOCK_C), tl.arange(0, BLOCK_K)
    live, exists = candidate < num_candidates, teacher < NUM_TEACHERS
    place = token * num_candidates + candidate
    if not OWN_REFERENCES:
        at_reference = tl.load(reference + place, mask=live, other=0.0)
    rho = tl.zeros([BLOCK_K], tl.float32)
    for k in range(NUM_TEACHERS):
        row = (k + tl.zeros([], tl.int64)) * num_tokens * num_candidates
        if OWN_REFERENCES:
            at_reference = tl.load(reference + row + place, mask=live, other=0.0)
        log_ratio = tl.load(teachers + row + place, mask=live, other=0.0) - at_reference
        centred = tl.where(live, log_ratio - tl.sum(log_ratio, axis=0) / num_candidates, 0.0)
        rho = tl.where(teacher == k, tl.sqrt(tl.sum(centred * centred, axis=0)), rho)  # Eq. 2
    by_teacher = teacher.to(tl.int64) * num_tokens + token
    tl.store(scores + by_teacher, rho, mask=exists)
    if HAS_MU:
        rho = rho / tl.load(mu + teacher, mask=exists, other=1.0)  # Eq. 3
    power = tl.where(exists, gamma * tl.log(rho), float("-inf"))
    share = tl.exp(power - tl.max(power, axis=0))
    share = share / tl.sum(share, axis=0)  # Eq. 4
    # If all scores are 0, weights are uniform. A NaN is not 0, and stays NaN.
    share = tl.where(tl.sum((exists & (rho != 0)).to(tl.int32), axis=0) == 0, 1.0 / NUM_TEACHERS, share)
    tl.store(weights + by_teacher, share, mask=exists)
    log_mean = tl.zeros([BLOCK_C], tl.float32)
    for k in range(NUM_TEACHERS):
        row = (k + tl.zeros([], tl.int64)) * num_tokens * num_candidates
        own = tl.sum(tl.where(teacher == k, share, 0.0), axis=0)
        log_mean += own * tl.load(teachers + row + place, mask=live, other=0.0)
    log_mean = tl.where(live, log_mean, float("-inf"))
    peak = tl.max(log_mean, axis=0)
    target = log_mean - peak - tl.log(tl.sum(tl.exp(log_mean - peak), axis=0))  # Eq. 28
    tl.store(targets + place, target, mask=live)
    at_student = tl.load(student + place, mask=live, other=float("-inf"))
    p, gap = tl.exp(at_student), tl.where(live, at_student - target, 0.0)
    tl.store(losses + token, tl.sum(p * gap, axis=0))
    if HAS_SLOPE:
        tl.store(slopes + place, p * (gap + 1.0), mask=live)
