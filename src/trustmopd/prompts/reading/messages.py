"""What a prompt may be: text, or a conversation of messages."""

import re
from collections.abc import Iterable
from typing import Any

Messages = list[dict[str, str]]
#: How a conversation begins that was written out as text, by json.dumps or by str.
_WRITTEN_OUT = re.compile(r"""\s*\[\s*\{\s*["'](role|content)["']\s*:""")


def malformed(prompt: Any) -> str | None:
    """Why a chat template cannot render it, as a clause; None if it can."""
    if isinstance(prompt, str):
        if _WRITTEN_OUT.match(prompt):
            return (
                "it is a conversation written out as text, so the student would read its brackets and quotes. Store it "
                "as a list, in JSON Lines or Parquet; CSV cannot hold one"
            )
        return None if prompt.strip() else "it is blank"
    if not isinstance(prompt, list) or not prompt:
        return "it is neither text nor a list of messages"
    for message in prompt:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str) or not message.get("content"):
            return "a message lacks 'role' or 'content'"
        if isinstance(message["content"], str) and not message["content"].strip():
            return "the 'content' of a message is blank"
        parts = message["content"] if isinstance(message["content"], list) else []
        kinds = [part.get("type") or "text" for part in parts if isinstance(part, dict)]
        if other := [kind for kind in kinds if kind != "text"]:
            return (
                f"a message has a part of type {other[0]!r}, but only text is read: the student would answer without "
                "it. Remove this row, or that part"
            )
    return None


def common_system(prompts: Iterable[Any]) -> str | None:
    """The system prompt, if all prompts have the same."""
    firsts = [{} if isinstance(prompt, str) else prompt[0] for prompt in prompts]
    systems = {str(first["content"]) if first.get("role") == "system" else None for first in firsts}
    return systems.pop() if len(systems) == 1 else None


def user_text(prompt: str | list[dict[str, Any]]) -> str:
    """The text of the user's messages; of a message in parts, the text."""
    if isinstance(prompt, str):
        return prompt
    contents = [message["content"] for message in prompt if message["role"] == "user"]
    parts = [part for content in contents for part in (content if isinstance(content, list) else [content])]
    texts = [part.get("text") if isinstance(part, dict) else part for part in parts]
    return "\n".join(text for text in texts if isinstance(text, str))
