"""What a reasoning model thinks is not its answer."""

OPEN, CLOSE = "<think>", "</think>"


def strip_reasoning(response: str) -> str:
    """The response after its reasoning block. Of one that never closes, what stands before it: a response cut short
    while thinking has no answer."""
    if CLOSE in response:
        return response.rpartition(CLOSE)[2].strip()
    if OPEN in response:
        return response.partition(OPEN)[0].strip()
    return response
