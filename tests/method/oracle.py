"""The paper's equations once more, in float64 numpy, one token at a time.

Written from the equations, not from the product: probabilities instead of log-probabilities, plain powers instead of a
softmax, loops instead of axes. Arrays are laid out as in the product: teachers lead, candidates trail.
"""

import math

import numpy as np


def log_normalise(logits):
    """Log-probabilities over the last axis."""
    logp = np.empty_like(logits, dtype=np.float64)
    for at in np.ndindex(logits.shape[:-1]):
        largest = max(logits[at])
        logp[at] = logits[at] - largest - math.log(sum(math.exp(logit - largest) for logit in logits[at]))
    return logp


def _per_teacher_and_token(teacher_logp, score_of):
    scores = np.empty(teacher_logp.shape[:-1])
    for teacher, *at in np.ndindex(scores.shape):
        scores[(teacher, *at)] = score_of(teacher_logp[(teacher, *at)], teacher, tuple(at))
    return scores


def _kl(left_logp, right_logp):
    return sum(math.exp(left) * (left - right) for left, right in zip(left_logp, right_logp, strict=True))


def displacement(teacher_logp, reference_logp):
    """Eq. 2; each teacher from its own reference, where there is one for each."""
    own = reference_logp.ndim == teacher_logp.ndim

    def length(logp, teacher, at):
        start = reference_logp[(teacher, *at)] if own else reference_logp[at]
        change = [ours - theirs for ours, theirs in zip(logp, start, strict=True)]
        centre = sum(change) / len(change)
        return math.sqrt(sum((entry - centre) ** 2 for entry in change))

    return _per_teacher_and_token(teacher_logp, length)


def teacher_likelihood(teacher_logp, candidate_ids, sampled_ids):
    """Eq. 31; 0 where the sampled token is no candidate."""

    def probability(logp, _, at):
        return dict(zip(candidate_ids[at].tolist(), np.exp(logp), strict=True)).get(int(sampled_ids[at]), 0.0)

    return _per_teacher_and_token(teacher_logp, probability)


def negative_entropy(teacher_logp):
    """Eq. 32."""
    return _per_teacher_and_token(
        teacher_logp, lambda logp, *_: math.log(len(logp)) + sum(math.exp(entry) * entry for entry in logp)
    )


def teacher_student_kl(teacher_logp, student_logp):
    """Eq. 33."""
    return _per_teacher_and_token(teacher_logp, lambda logp, _, at: _kl(logp, student_logp[at]))


def mu(batches):
    """Algorithm 1 over batches of (scores [K, B, T], mask [B, T])."""
    sums, count = 0.0, 0
    for scores, mask in batches:
        for at in np.argwhere(mask):
            sums, count = sums + scores[(slice(None), *at)], count + 1
    return sums / count


def trust_weights(scores, scale, gamma):
    """Eq. 4, or Eq. 34 where `scale` is None; equal shares where no teacher scores."""
    scale = np.ones(len(scores)) if scale is None else scale
    weights = np.empty_like(scores)
    for at in np.ndindex(scores.shape[1:]):
        powers = [(score / typical) ** gamma for score, typical in zip(scores[(slice(None), *at)], scale, strict=True)]
        total = sum(powers)
        weights[(slice(None), *at)] = [power / total if total > 0 else 1 / len(powers) for power in powers]
    return weights


def response_level(weights, mask):
    """Eq. 35, with equal shares for a response without tokens."""
    levelled = np.full_like(weights, 1 / len(weights))
    for teacher, response in np.ndindex(weights.shape[:2]):
        own = [weights[teacher, response, t] for t in range(mask.shape[1]) if mask[response, t]]
        if own:
            levelled[teacher, response] = sum(own) / len(own)
    return levelled


def unnormalised_mixture(teacher_logp, weights):
    """The weighted geometric mean of the teachers at each token, and its sum Z over the candidates."""
    mixture = np.ones(teacher_logp.shape[1:])
    for teacher, *at in np.ndindex(weights.shape):
        mixture[tuple(at)] *= np.exp(teacher_logp[(teacher, *at)]) ** weights[(teacher, *at)]
    return mixture, mixture.sum(axis=-1)


def mixed_target(teacher_logp, weights):
    """Log of Eq. 28."""
    mixture, partition = unnormalised_mixture(teacher_logp, weights)
    return np.log(mixture / partition[..., None])


def reverse_kl(student_logp, target_logp):
    loss = np.empty(student_logp.shape[:-1])
    for at in np.ndindex(loss.shape):
        loss[at] = _kl(student_logp[at], target_logp[at])
    return loss


def reverse_kl_gradient(student_logp, target_logp):
    """d KL(p || q) / d logit_v = p_v (log p_v - log q_v - KL)."""
    gradient = np.empty_like(student_logp)
    for at in np.ndindex(student_logp.shape[:-1]):
        divergence = _kl(student_logp[at], target_logp[at])
        for v, (ours, theirs) in enumerate(zip(student_logp[at], target_logp[at], strict=True)):
            gradient[(*at, v)] = math.exp(ours) * (ours - theirs - divergence)
    return gradient


def token_share(mask):
    """What each token's loss counts in the mean over responses of token means: also that mean's gradient."""
    lengths = [int(sum(bool(entry) for entry in row)) for row in mask]
    responses = sum(length > 0 for length in lengths)
    share = np.zeros(mask.shape)
    for i, t in np.argwhere(mask):
        share[i, t] = 1 / lengths[i] / responses
    return share


def mean_of_response_means(token_loss, mask):
    means = []
    for row, row_mask in zip(token_loss, mask, strict=True):
        own = [loss for loss, valid in zip(row, row_mask, strict=True) if valid]
        if own:
            means.append(sum(own) / len(own))
    return sum(means) / len(means) if means else 0.0


def objective(student_logp, teacher_logp, weights, mask):
    """Algorithm 2 for given weights: the loss, and its gradient at the student's logits from the K separate divergences
    of Eq. 5, so that the gradient owes nothing to the mixture."""
    loss = mean_of_response_means(reverse_kl(student_logp, mixed_target(teacher_logp, weights)), mask)
    gradient = np.zeros_like(student_logp)
    for teacher, share in zip(teacher_logp, weights, strict=True):
        gradient += share[..., None] * reverse_kl_gradient(student_logp, teacher)
    return loss, gradient * token_share(mask)[..., None]
