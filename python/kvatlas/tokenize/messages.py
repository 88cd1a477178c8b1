"""Preparation of chat messages for a chat template, as in vLLM.

The content of a message in a request is a string or a list of parts. A template is written for one of the two forms, so
engines convert the content before they render. The arguments of tool calls, which are JSON text in requests, become
objects.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from kvatlas.errors import InvalidArgumentError, InvalidTypeError

_TEXT_PARTS = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
    "thinking": "thinking",
}


def prepare(messages: Sequence[Mapping[str, Any]], *, as_parts: bool) -> list[dict[str, Any]]:
    """Convert chat messages to the form that a chat template expects.

    Args:
        messages: The messages, in the format of a chat request. They are not changed.
        as_parts: True if the template expects the content as a list of parts.

    Raises:
        InvalidTypeError: The messages are not a list of objects.
        InvalidArgumentError: A message has no role, or its content is not text (code "invalid_messages").
    """
    if not isinstance(messages, list | tuple):
        raise InvalidTypeError(f"messages must be a list of objects, got {type(messages).__name__}")
    if not messages:
        raise _invalid("messages must have at least one message")
    return [_message(message, f"messages[{at}]", as_parts=as_parts) for at, message in enumerate(messages)]


def _message(message: Mapping[str, Any], name: str, *, as_parts: bool) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise InvalidTypeError(f"{name} must be an object, got {type(message).__name__}")
    role = message.get("role")
    if not isinstance(role, str):
        raise _invalid(f'{name} must have a "role" that is a string, got {role!r}')
    texts = _texts(message.get("content"), f"{name}.content")
    # Templates take the content of a tool's answer as a string even where they take parts otherwise.
    parts = as_parts and role != "tool"
    made: dict[str, Any] = {
        "role": role,
        "content": [{"type": "text", "text": text} for text in texts] if parts else "\n".join(texts),
    }
    if role == "assistant":
        if message.get("tool_calls"):
            made["tool_calls"] = [
                _tool_call(call, f"{name}.tool_calls[{at}]") for at, call in enumerate(message["tool_calls"])
            ]
        reasoning = message.get("reasoning", message.get("reasoning_content"))
        if reasoning is not None:
            made["reasoning"] = made["reasoning_content"] = reasoning
    elif role == "tool" and "tool_call_id" in message:
        made["tool_call_id"] = message["tool_call_id"]
    elif role == "developer":
        made["tools"] = message.get("tools")
    if isinstance(message.get("name"), str):
        made["name"] = message["name"]
    return made


def _texts(content: object, name: str) -> list[str]:
    if content is None:
        return []
    if isinstance(content, str):
        return [content]
    if not isinstance(content, Sequence) or isinstance(content, bytes):
        raise _invalid(f"{name} must be a string or a list of parts, got {type(content).__name__}")
    return [_text(part, f"{name}[{at}]") for at, part in enumerate(content)]


def _text(part: object, name: str) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type") if isinstance(part, Mapping) else None
    if isinstance(part, Mapping) and kind in _TEXT_PARTS and isinstance(part.get(_TEXT_PARTS[kind]), str):
        return str(part[_TEXT_PARTS[kind]])
    if isinstance(kind, str) and kind not in _TEXT_PARTS:
        raise _invalid(f"{name} is of type {kind!r}: only text can be turned into tokens here; ask an engine instead")
    raise _invalid(f'{name} must be {{"type": "text", "text": ...}}, got {part!r:.80}')


def _tool_call(call: object, name: str) -> object:
    if not isinstance(call, Mapping) or not isinstance(call.get("function"), Mapping):
        return call
    arguments = call["function"].get("arguments")
    if isinstance(arguments, str) and arguments:
        try:
            arguments = json.loads(arguments)
        except ValueError as error:
            raise _invalid(f"{name}.function.arguments is not JSON: {error}") from error
    # vLLM puts the fields that it knows first.
    function = _ordered({**call["function"], "arguments": arguments or {}}, ("arguments", "name"))
    return _ordered({**call, "function": function}, ("id", "function", "type"))


def _ordered(fields: dict[str, object], first: tuple[str, ...]) -> dict[str, object]:
    return {**{name: fields[name] for name in first if name in fields}, **fields}


def _invalid(message: str) -> InvalidArgumentError:
    return InvalidArgumentError(message, "invalid_messages")
