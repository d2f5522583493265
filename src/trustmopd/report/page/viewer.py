"""The data of the token viewer: one JSON element for everything small, and one packed element per response, which the
page decodes when it shows it. `assets/viewer.js` reads both."""

import base64
import gzip
import json
from dataclasses import dataclass
from typing import Any

import numpy as np

from trustmopd.report.readers.run import Run
from trustmopd.report.readers.token_records import Rollout, TokenRecords, own_reference
from trustmopd.report.statistics.trust import moved_weight
from trustmopd.runs.columns import REFERENCE, STUDENT

#: Responses on one page: more would make it too large.
RESPONSES = 64
#: A response with a larger share of repeated 4-grams is marked, and a token at which the standard deviation over
#: teachers of their log-probability of the student's first choice is larger than so many nats.
REPEATED, CONFLICT = 0.2, 1.0


@dataclass(frozen=True)
class Viewer:
    """Ready for the template: `data` and `responses` go into script elements as they are. Responses are keyed by
    number. The one that the page opens with comes first, so it can be shown while the others load."""

    about: str
    data: str
    responses: dict[int, str]


class _Texts:
    """Every text once, with its index."""

    def __init__(self) -> None:
        self.places: dict[str, int] = {}

    def place(self, text: str) -> int:
        return self.places.setdefault(text, len(self.places))


def make_viewer(run: Run, records: TokenRecords, limit: int = RESPONSES) -> Viewer | None:
    """`records` must have been read with candidates. None if nothing was recorded."""
    shown = choose(records.rollouts, limit)
    if not shown:
        return None
    texts = _Texts()
    headings = _headings(run, list(shown[0].candidates.logp) if shown[0].candidates else [])
    policies = list(headings)
    scored = all(rollout.scores is not None for rollout in shown)
    routed = run.config.get("allocation") == "routed"
    packed = dict(enumerate(_pack(rollout, records, texts, policies, scored, routed) for rollout in shown))
    moved = [float(moved_weight(rollout.weights).max(initial=0.0)) for rollout in shown]
    # Where a teacher takes over and teaches something; early, while the student has something to learn.
    early = max(shown[0].step, np.median([rollout.step for rollout in shown]) / 2)
    opening = max(
        (n for n, rollout in enumerate(shown) if rollout.step <= early),
        key=lambda n: taught(shown[n], records.teachers).max(),
    )
    data = {
        "teachers": records.teachers,
        "policies": policies,
        "headings": list(headings.values()),
        "mu": [run.mu[t] for t in records.teachers] if run.mu else None,
        "gamma": run.gamma,
        "scored": scored,
        "rules": _rules(scored, bool(run.mu)),
        "own": _own_rule(run),
        "groups": list(records.by_group()),
        "texts": list(texts.places),
        "prompts": {rollout.row: records.prompts.get(rollout.row) for rollout in shown},
        "views": {rollout.row: records.views.get(rollout.row, {}) for rollout in shown},
        "responses": [
            {
                "step": rollout.step,
                "row": rollout.row,
                "name": rollout.name,
                "prompt": rollout.prompt_id,
                "group": rollout.group,
                "tokens": len(rollout.texts),
                "width": rollout.candidates.ids.shape[1] if rollout.candidates else 0,
                "moved": sharpest,
                "marks": _marks(rollout, run.config.get("max_completion_length")),
                "conflicts": [] if routed else _conflicts(rollout, records.teachers),
            }
            for rollout, sharpest in zip(shown, moved, strict=True)
        ],
        "opening": opening,
    }
    total = len(records.rollouts)
    about = f"{run.title}: {len(shown)} of {total} recorded responses" + (
        ", evenly over training." if len(shown) < total else "."
    )
    if len(run.references) > 1:
        about += "".join(f" {', '.join(each.teachers)}: measured from {each}." for each in run.references)
    return Viewer(about, script_json(data), {opening: packed[opening], **packed})


def _marks(rollout: Rollout, longest: int | None) -> list[str]:
    """What is wrong with a response as a text."""
    grams = [tuple(rollout.token_ids[start : start + 4]) for start in range(len(rollout.token_ids) - 3)]
    repeated = 1 - len(set(grams)) / len(grams) if grams else 0.0
    marks = ["cut off"] if longest and len(rollout.positions) >= longest else []
    return [*marks, *([f"{repeated:.0%} repeated"] if repeated > REPEATED else [])]


def _conflicts(rollout: Rollout, teachers: list[str]) -> list[int]:
    """The tokens at whose likeliest candidate the teachers are further apart than `CONFLICT`."""
    if rollout.candidates is None or len(teachers) < 2 or not {*teachers} <= rollout.candidates.logp.keys():
        return []
    first = np.stack([rollout.candidates.logp[name][:, 0] for name in teachers]).astype(float)
    return np.flatnonzero(first.std(axis=0) > CONFLICT).tolist()


def taught(rollout: Rollout, teachers: list[str]) -> np.ndarray:
    """The change of weights at each token × the distance of the target from the student there; as in viewer.js."""
    found, moved = rollout.candidates, np.r_[0.0, moved_weight(rollout.weights)]
    if found is None or not {*teachers} <= found.logp.keys():
        return moved

    def opinion(who: str) -> np.ndarray:
        return np.c_[found.logp[who], np.log(found.rest[who].astype(float).clip(1e-30))]

    logs = np.einsum("kt,ktc->tc", rollout.weights, np.stack([opinion(name) for name in teachers]))
    target = np.exp(logs - logs.max(axis=-1, keepdims=True))
    target /= target.sum(axis=-1, keepdims=True)
    return moved * np.abs(target - np.exp(opinion(STUDENT))).sum(axis=-1)


def choose(rollouts: list[Rollout], limit: int) -> list[Rollout]:
    """At most `limit`, spread evenly over the run, including the first and the last."""
    if len(rollouts) <= limit:
        return rollouts
    places = np.linspace(0, len(rollouts) - 1, limit).round().astype(int)
    return [rollouts[place] for place in dict.fromkeys(places.tolist())]


def script_json(data: Any) -> str:
    """JSON for a script element: ASCII, and without `<`, which could end the element."""
    return json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")


def _headings(run: Run, policies: list[str]) -> dict[str, str]:
    """A heading for each policy that is shown: a reference that several teachers share is shown once."""
    shared, repeated = {REFERENCE: "ref."}, set()
    for reference in run.references:
        first, *others = map(own_reference, reference.teachers)
        shared[first] = f"ref.\u00a0of {', '.join(reference.teachers)}"
        repeated.update(others)
    return {policy: shared.get(policy, policy) for policy in policies if policy not in repeated}


def _rules(scored: bool, calibrated: bool) -> list[tuple[str, str]]:
    rules = [("recorded", "as recorded")]
    if scored and calibrated:
        rules.append(("trust", "trust, calibrated"))
    if scored:
        rules.append(("uncalibrated", "trust, without μ"))
    return [*rules, ("response", "response-level"), ("uniform", "uniform")]


def _own_rule(run: Run) -> str:
    """The page's rule that is closest to the run's own."""
    if run.config.get("granularity") == "response":
        return "response"
    return "trust" if run.mu else "uncalibrated"


def _pack(
    rollout: Rollout, records: TokenRecords, texts: _Texts, policies: list[str], scored: bool, routed: bool
) -> str:
    """The arrays that `readResponse` of viewer.js takes, in its order, gzipped, in base64."""
    # Half precision and 16 candidates are what the records hold; scores are float32, so weights come out exact.
    arrays = [rollout.weights.astype("<f4")]
    if scored and rollout.scores is not None:
        arrays.append(rollout.scores.astype("<f4"))
    arrays += [rollout.entropy.astype("<f4"), rollout.positions.astype("<i4")]
    arrays.append(np.array([texts.place(text) for text in rollout.texts], "<u4"))
    if (found := rollout.candidates) is not None:
        ids, inverse = np.unique(found.ids, return_inverse=True)
        places = np.array([texts.place(records.texts[int(token)]) for token in ids], "<u4")
        arrays.append(places[inverse.reshape(found.ids.shape)])
        # Routing asks one teacher per response; the values stored for the others mean nothing.
        silent = {t for t, w in zip(records.teachers, rollout.weights, strict=True) if routed and not w.any()}
        absent = np.full(found.ids.shape, np.nan, "<f2")
        heard = [
            (found.logp[who], found.rest[who]) if who not in silent else (absent, absent[:, 0]) for who in policies
        ]
        arrays += [logp.astype("<f2") for logp, _ in heard] + [rest.astype("<f2") for _, rest in heard]
    return base64.b64encode(gzip.compress(b"".join(a.tobytes() for a in arrays), 6, mtime=0)).decode()
