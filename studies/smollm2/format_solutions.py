"""Responses that follow constraints: what supervised training shows of formats. Plain text about any topic."""

import json
import random
from collections.abc import Sequence
from typing import Any

from studies.smollm2.tasks import Check

_SENTENCES = (
    "There is always something new to learn about {topic}.",
    "My grandmother told me many stories about {topic}.",
    "A calm afternoon with {topic} feels like a small holiday.",
    "We talk about {topic} more often than you might think.",
    "I like the sounds, the colours, and the memories of {topic}.",
    "Some of my best days began with {topic}.",
    "Children ask good questions about {topic}.",
    "Every town has its own way with {topic}.",
    "Start small, take your time, and enjoy {topic}.",
    "Nothing compares to {topic} in good company.",
    "Books about {topic} fill a whole shelf at home.",
    "The history of {topic} goes back a long way.",
    "Friends often share their thoughts about {topic}.",
    "Even experts still find surprises in {topic}.",
    "It is easy to forget how much we owe to {topic}.",
    "People can spend a very happy hour with {topic}.",
    "Patience helps a lot with {topic}.",
    "Few things bring us together like {topic}.",
    "Think of {topic}.",
    "I love {topic}.",
    "Enjoy {topic} often.",
    "Look closely at {topic}.",
)
_OPENINGS = {
    "Today": "Today I want to write about {topic}.",
    "Honestly": "Honestly I never get tired of {topic}.",
    "Imagine": "Imagine a week without {topic}.",
    "Listen": "Listen to this small story about {topic}.",
    "Nobody": "Nobody forgets the first time with {topic}.",
    "Sometimes": "Sometimes I dream about {topic}.",
    "Remember": "Remember the good days with {topic}.",
    "Perhaps": "Perhaps we should speak more about {topic}.",
}
_WITH_KEYWORD = {
    2: "A {word} start often leads to a {word} end.",
    3: "A {word} start leads to a {word} middle with a {word} end.",
}
_TITLES = ("[[About {topic}]]", "[[A few words on {topic}]]", "[[Notes on {topic}]]")
_USUAL = (2, 3)


def follow(checks: Sequence[Check], topic: str, rng: random.Random) -> str:
    """One try at a response that passes `checks`: which sentences are drawn decides about words and lengths."""
    demands: dict[str, dict[str, Any]] = {check.kind: check.arguments for check in checks}
    shape = next((kind for kind in ("bullets", "numbered", "sentences", "paragraphs") if kind in demands), None)
    listed = shape in ("bullets", "numbered")
    before, after, inside = _parts(demands, rng)
    count = demands[shape]["n"] if shape else rng.choice((1, 1, *_USUAL) if "short" in demands else _USUAL)
    if shape == "sentences":
        count -= len(before) + len(after) + ("postscript" in demands)  # P.S. ends like a sentence
    body = [*inside, *rng.sample(_SENTENCES, max(0, count))][: max(0, count)]
    if not listed and shape != "paragraphs":
        text = " ".join([*before, *body, *after])
    else:
        marks = {"bullets": "- ", "paragraphs": ""}
        lines = [marks.get(str(shape), f"{number}. ") + sentence for number, sentence in enumerate(body, start=1)]
        text = "\n".join([*before, ("\n" if listed else "\n***\n").join(lines), *after])
    if "title" in demands:
        text = f"{rng.choice(_TITLES)}\n{text}"
    if "postscript" in demands:
        text = f"{text.replace(after[-1], '').rstrip()}\n{after[-1]}"
    return _dressed(text.format(topic=topic), topic, demands)


def _parts(demands: dict[str, dict[str, Any]], rng: random.Random) -> tuple[list[str], list[str], list[str]]:
    """What comes before the sentences, behind them, and among them."""
    before = [_OPENINGS[demands["starts"]["word"]]] if "starts" in demands else []
    after = [demands["ends"]["words"]] if "ends" in demands else []
    if "postscript" in demands:
        after.append("P.S. " + rng.choice(_SENTENCES[:8]))
    keyword = demands.get("keyword")
    return before, after, [_WITH_KEYWORD[keyword["n"]].replace("{word}", keyword["word"])] if keyword else []


def _dressed(text: str, topic: str, demands: dict[str, dict[str, Any]]) -> str:
    if "json" in demands:
        keys = demands["json"]
        return json.dumps({keys["a"]: topic, keys["b"]: text})
    if "quoted" in demands:
        return f'"{text}"'
    if "lower" in demands or "upper" in demands:
        return text.lower() if "lower" in demands else text.upper()
    return text
