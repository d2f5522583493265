"""Parts of messages to users."""


def first_line(error: BaseException) -> str:
    """Why another library failed: the first line of its message, or the error's class if there is none."""
    return str(error).strip().partition("\n")[0][:200] or type(error).__name__
