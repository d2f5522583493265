"""What a reasoning model thinks is not its answer."""

import re

OPEN, CLOSE = "<think>", "</think>"


def strip_reasoning(response: str) -> str:
    """The response after its reasoning block, from its first line on with the indentation kept: it may be the body of
    a function. A block that opens the response and never closes leaves nothing: it was cut short while thinking."""
    if CLOSE in response:
        return re.sub(r"\A(?:[ \t\r]*\n)+", "", response.rpartition(CLOSE)[2]).rstrip()
    return "" if response.lstrip().startswith(OPEN) else response
