"""Triton kernels of the fused head. `fused.py` launches them and says why they come in this order.

A row's logits are cut into groups of neighbouring columns. The C largest logits lie in the C groups with the largest
maxima: an element of any other group has C larger ones above it. So one streaming pass finds the maxima, and only C
groups per row are read again.

`trust_at_token` is launched by `fused_objective.py`.
"""

import triton
import triton.language as tl


@triton.jit
def _ordered(values, valid):
    """float32 → int32 in the same order, −inf included. Invalid values come first."""
    bits = values.to(tl.int32, bitcast=True)
    return tl.where(valid, bits ^ ((bits >> 31) & 0x7FFFFFFF), -2147483648)


@triton.jit
def _largest(keys, count):
    """The place of each of the `count` largest keys in their list, and `count` or more for the other keys. The
    threshold is found bit by bit. Of the keys equal to it, the first fill the remaining places."""
    threshold = tl.where(tl.sum((keys >= 0).to(tl.int32), axis=0) >= count, 0, -2147483648)
    for step in range(31):
        raised = threshold + (1 << (30 - step))
        threshold = tl.where(tl.sum((keys >= raised).to(tl.int32), axis=0) >= count, raised, threshold)
    above, equal = (keys > threshold).to(tl.int32), (keys == threshold).to(tl.int32)
    seen = tl.cumsum(above * 65536 + equal, axis=0)  # two counts in one scan: the upper and the lower half
    rank_of_equal = tl.sum(above, axis=0) + (seen & 65535) - 1
    return tl.where(above != 0, (seen >> 16) - 1, tl.where(equal != 0, rank_of_equal, count))


@triton.jit
def group_maxima(
    logits,
    bias,
    maxima,
    peaks,
    sums,
    vocab_size,
    num_groups,
    logit_scale,
    softcap,
    HAS_BIAS: tl.constexpr,
    HAS_SCALE: tl.constexpr,
    HAS_CAP: tl.constexpr,
    GROUP: tl.constexpr,
    GROUPS: tl.constexpr,
):
    """One row, GROUPS groups of GROUP columns: the maximum of each, and the part's share of the log-partition. Logits
    are written back with bias, scale and cap, so later kernels compare exactly the same numbers."""
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    group = part * GROUPS + tl.arange(0, GROUPS)
    column = group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    valid = column < vocab_size
    place = logits + row * vocab_size + column
    values = tl.load(place, mask=valid, other=float("-inf"))
    if HAS_BIAS:
        values += tl.load(bias + column, mask=valid, other=0.0).to(tl.float32)
    if HAS_SCALE:
        values *= logit_scale
    if HAS_CAP:
        decay = tl.exp(-2.0 * tl.abs(values) / softcap)
        bounded = softcap * (1.0 - decay) / (1.0 + decay)
        values = tl.where(values < 0, -bounded, bounded)
    if HAS_BIAS or HAS_SCALE or HAS_CAP:
        values = tl.where(valid, values, float("-inf"))
        tl.store(place, values, mask=valid)
    largest = tl.max(values, axis=1)
    tl.store(maxima + row * num_groups + group, largest, mask=group < num_groups)
    # Kept finite: a part of −inf alone then adds 0 instead of NaN.
    peak = tl.minimum(tl.maximum(tl.max(largest, axis=0), -3.4028234e38), 3.4028234e38)
    tl.store(peaks + row * tl.num_programs(1) + part, peak)
    tl.store(sums + row * tl.num_programs(1) + part, tl.sum(tl.sum(tl.exp(values - peak), axis=1), axis=0))


@triton.jit
def choose_candidates(
    logits,
    maxima,
    peaks,
    sums,
    groups,
    ids,
    logsumexp,
    vocab_size,
    num_groups,
    num_parts,
    count,
    GROUP: tl.constexpr,
    GROUPS: tl.constexpr,
    PARTS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """One row: the `count` groups with the largest maxima, then the `count` largest logits among their columns; and the
    log-partition from its parts. If there are fewer groups, numbers past the last one fill the list; their columns are
    outside the vocabulary."""
    row = tl.program_id(0).to(tl.int64)
    group = tl.arange(0, GROUPS)
    exists = group < num_groups
    place = _largest(_ordered(tl.load(maxima + row * num_groups + group, mask=exists, other=0.0), exists), count)
    tl.store(groups + row * count + place, group, mask=place < count)
    part = tl.arange(0, PARTS)
    peak = tl.load(peaks + row * num_parts + part, mask=part < num_parts, other=-3.4028234e38)
    total = tl.load(sums + row * num_parts + part, mask=part < num_parts, other=0.0)
    highest = tl.max(peak, axis=0)
    tl.store(logsumexp + row, tl.log(tl.sum(total * tl.exp(peak - highest), axis=0)) + highest)

    tl.debug_barrier()  # below, threads read what other threads of this program have just written
    index = tl.arange(0, COLUMNS)
    slot = index // GROUP
    chosen = tl.load(groups + row * count + slot, mask=slot < count, other=0)
    column = chosen * GROUP + index % GROUP
    valid = (slot < count) & (column < vocab_size)
    values = tl.load(logits + row * vocab_size + column, mask=valid, other=0.0)
    place = _largest(_ordered(values, valid), count)
    tl.store(ids + row * count + place, column.to(tl.int64), mask=place < count)


@triton.jit
def row_products(hidden, weight, ids, out, hidden_size, num_candidates, BLOCK_C: tl.constexpr, BLOCK_H: tl.constexpr):
    """One token, BLOCK_C candidates: hidden · weight[id] each. Rows are read in place."""
    token = tl.program_id(0).to(tl.int64)
    candidate = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    live = candidate < num_candidates
    row = tl.load(ids + token * num_candidates + candidate, mask=live, other=0).to(tl.int64)
    total = tl.zeros([BLOCK_C, BLOCK_H], tl.float32)
    for start in range(0, hidden_size, BLOCK_H):
        h = start + tl.arange(0, BLOCK_H)
        inside = h < hidden_size
        state = tl.load(hidden + token * hidden_size + h, mask=inside, other=0.0).to(tl.float32)
        rows = tl.load(
            weight + row[:, None] * hidden_size + h[None, :], mask=live[:, None] & inside[None, :], other=0.0
        )
        total += rows.to(tl.float32) * state[None, :]
    tl.store(out + token * num_candidates + candidate, tl.sum(total, axis=1), mask=live)


@triton.jit
def weighted_rows(
    table,
    shares,
    ids,
    order,
    starts,
    sorted_rows,
    out,
    hidden_size,
    num_candidates,
    shortest,
    longest,
    SORTED: tl.constexpr,
    POPULAR: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_H: tl.constexpr,
):
    """out[i] = Σ_j share_j · table[row_j], over the choices j of item i, in a fixed order. Items are tokens, each with
    its candidates and the rows of the weight; or, with choices SORTED by id, rows of the weight, each with the tokens
    that chose it and their hidden states. Items with fewer choices than `shortest` or more than `longest` are left to
    another launch. POPULAR finds items in `sorted_rows`, the rows of all choices: one with at least `shortest` choices
    covers at least one of the places shortest − 1, 2 · shortest − 1, …, and is processed at the first of them."""
    item = tl.program_id(0).to(tl.int64)
    if POPULAR:
        mark = sorted_rows + (item + 1) * shortest - 1
        found, before = tl.load(mark), tl.load(mark - shortest, mask=item > 0, other=-1)
        item = tl.where(found == before, -1, found).to(tl.int64)
    if SORTED:
        first = tl.load(starts + item, mask=item >= 0, other=0)
        last = tl.load(starts + item + 1, mask=item >= 0, other=0)
    else:
        first, last = item * num_candidates, (item + 1) * num_candidates
    if (last - first >= shortest) & (last - first <= longest):
        h = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
        inside = h < hidden_size
        total = tl.zeros([BLOCK_N, BLOCK_H], tl.float32)
        for start in range(first, last, BLOCK_N):
            place = start + tl.arange(0, BLOCK_N)
            live = place < last
            if SORTED:
                choice = tl.load(order + place, mask=live, other=0)
                row = choice // num_candidates
            else:
                choice = place
                row = tl.load(ids + place, mask=live, other=0).to(tl.int64)
            share = tl.load(shares + choice, mask=live, other=0.0)
            rows = tl.load(
                table + row[:, None] * hidden_size + h[None, :], mask=live[:, None] & inside[None, :], other=0.0
            )
            total += rows.to(tl.float32) * share[:, None]
        tl.store(out + item * hidden_size + h, tl.sum(total, axis=0).to(out.dtype.element_ty), mask=inside)


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
