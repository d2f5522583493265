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
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            return "a message lacks 'role'"
        content = message.get("content")
        parts = content if isinstance(content, list) else [content or ""]
        for part in parts:
            kind = (part.get("type") or "text") if isinstance(part, dict) else "text"
            if kind != "text":
                return (
                    f"a message has a part of type {kind!r}, but only text is read: the student would answer without "
                    "it. Remove this row, or that part"
                )
            if not isinstance(_text(part), str):
                return f"the 'content' of a message has {part!r:.60}, which is not text"
        if not isinstance(message.get("tool_calls") or [], list):
            return f"the 'tool_calls' of a message are {message['tool_calls']!r:.60}, not a list"
        may_be_silent = message.get("tool_calls") or message["role"] == "tool"
        if not may_be_silent and not "".join(map(_text, parts)).strip():
            return "a message has no 'content', or it is blank"
    return None


def plain(prompt: Any) -> Any:
    """The content of each message as one text: many templates pass over parts. Where one message calls tools, Arrow
    gives the field to all, and templates look whether it is there."""
    if isinstance(prompt, str):
        return prompt
    contents = [message.get("content") or "" for message in prompt]
    texts = ["\n".join(map(_text, content)) if isinstance(content, list) else content for content in contents]
    kept = [{name: value for name, value in message.items() if name != "tool_calls" or value} for message in prompt]
    return [{**message, "content": text} for message, text in zip(kept, texts, strict=True)]


def _text(part: Any) -> Any:
    return part.get("text") if isinstance(part, dict) else part


def common_system(prompts: Iterable[Any]) -> str | None:
    """The system prompt, if all prompts have the same."""
    firsts = [{} if isinstance(prompt, str) else prompt[0] for prompt in prompts]
    systems = {str(first["content"]) if first.get("role") == "system" else None for first in firsts}
    return systems.pop() if len(systems) == 1 else None


def user_text(prompt: str | list[dict[str, Any]]) -> str:
    """The text of the user's messages."""
    if isinstance(prompt, str):
        return prompt
    return "\n".join(message["content"] for message in plain(prompt) if message["role"] == "user")
