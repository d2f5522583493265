"""Composition: a source problem followed by a constraint block, copied verbatim, or by one derivation block."""

from collections.abc import Iterable

from trustmopd.prompts.corpora import Messages, Row

#: The paper's wording, the same for every mathematics–code prompt.
DERIVATION = (
    "Alongside your implementation, derive the answer mathematically: state the closed-form expression or recurrence "
    "your algorithm is computing, justify it, and give its complexity. Put the final expression in \\boxed{}."
)
_BETWEEN = "\n\n"


def with_block(messages: Messages, block: str) -> Messages:
    """The prompt with a block below the user's last message."""
    last = max(place for place, message in enumerate(messages) if message["role"] == "user")
    composed = [dict(message) for message in messages]
    composed[last]["content"] += _BETWEEN + block
    return composed


def donors(rows: Iterable[Row]) -> list[Row]:
    """The rows that have a block to copy."""
    return [row for row in rows if row.block]
