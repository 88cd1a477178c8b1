"""Sessions as agents send them: tools that are called and answer, in the form of each API."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import model
from .engine import Server
from .launch import LONGEST, MODEL
from .routed import RoutedProber

FLAGS = ("--enable-auto-tool-choice", "--tool-call-parser", "pythonic")
TEMPLATE = (
    "{% if tools %}<tools>{% for tool in tools %}{{ tool | tojson }}{% endfor %}\n{% endif %}"
    "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] or '' }}{% for call in m['tool_calls'] or [] %}"
    "<call>{{ call['function']['name'] }} {{ call['function']['arguments'] | tojson }}{% endfor %}\n{% endfor %}"
    "<assistant>"
)
SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
BILLING = "x-anthropic-billing-header: cc_version=2.1.197; cc_entrypoint=cli; cch={seed};"

ENGINE = "tokens by the engine"  # the router's default
OWN = "tokens by the router"

Step = tuple[str, str, str, str]  # what is asked, the path that a tool is called with, its answer, what is said then


def write(place: Path) -> Path:
    """A directory that an engine takes for a model that calls tools."""
    about = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": LONGEST}
    tokenizer = about | {"eos_token": model.SPECIAL, "chat_template": TEMPLATE}
    return model.write(place, model.PLAIN, {"tokenizer_config.json": tokenizer})


def sessions(prober: RoutedProber, server: Server, seed: int, how: str) -> None:
    """A few sessions in each form, whose turns go on from the turn before. `how` the router reads them."""
    random_ = random.Random(seed)

    def words(most: int) -> str:
        return "".join(random_.choices("abcdefgh ", k=random_.randrange(10, most)))

    forms: dict[str, Callable[[list[Step], int], tuple[str, dict[str, Any]]]] = {
        "tools in chats": chat,
        "messages": messages,
        "responses": responses,
    }
    for name, form in forms.items():
        for session in range(3):
            steps: list[Step] = []
            for turn in range(4):
                steps.append((words(90), f"src/{words(20)}.py", words(120), words(60)))
                path, body = form(steps, session)
                prober.posted(f"{name}, {how}", server, path, {"model": MODEL, **body}, stream=turn % 2 == 1)
            prober.posted(f"{name}, {how}", server, path, {"model": MODEL, **body}, stream=False)


def chat(steps: list[Step], session: int) -> tuple[str, dict[str, Any]]:
    """The form of OpenAI's Chat Completions."""
    said: list[dict[str, Any]] = [{"role": "system", "content": f"You are coding agent {session}."}]
    for at, (asked, where, answer, then) in enumerate(steps):
        function = {"name": "read", "arguments": json.dumps({"path": where})}
        call = {"id": f"call_{at}", "type": "function", "function": function}
        said += [
            {"role": "user", "content": asked},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": f"call_{at}", "content": answer},
            {"role": "assistant", "content": then},
        ]
    tool = {"name": "read", "description": "Reads a file.", "parameters": SCHEMA}
    body = {"messages": said[:-1], "tools": [{"type": "function", "function": tool}], "max_tokens": 4}
    return "/v1/chat/completions", body


def messages(steps: list[Step], session: int) -> tuple[str, dict[str, Any]]:
    """The form of Anthropic's Messages, as Claude Code sends it, with a line of billing that changes."""
    said: list[dict[str, Any]] = []
    for at, (asked, where, answer, then) in enumerate(steps):
        call = {"type": "tool_use", "id": f"toolu_{at}", "name": "Read", "input": {"path": where}}
        result = {"type": "tool_result", "tool_use_id": f"toolu_{at}", "content": [{"type": "text", "text": answer}]}
        said += [
            {"role": "user", "content": [{"type": "text", "text": asked, "cache_control": {"type": "ephemeral"}}]},
            {"role": "assistant", "content": [{"type": "text", "text": "I look."}, call]},
            {"role": "user", "content": [result]},
            {"role": "assistant", "content": [{"type": "text", "text": then}]},
        ]
    system = [
        {"type": "text", "text": BILLING.format(seed=len(steps))},
        {"type": "text", "text": f"You are coding agent {session}.", "cache_control": {"type": "ephemeral"}},
        {"type": "text", "text": "Answer briefly."},
    ]
    tool = {"name": "Read", "description": "Reads a file.", "input_schema": SCHEMA}
    return "/v1/messages", {"system": system, "messages": said[:-1], "tools": [tool], "max_tokens": 4}


def responses(steps: list[Step], session: int) -> tuple[str, dict[str, Any]]:
    """The form of OpenAI's Responses, as Codex sends it: nothing is stored, and all of it comes each time."""
    said: list[dict[str, Any]] = []
    for at, (asked, where, answer, then) in enumerate(steps):
        call = {
            "type": "function_call",
            "call_id": f"call_{at}",
            "name": "read",
            "arguments": json.dumps({"path": where}),
        }
        said += [
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": asked}]},
            call,
            {"type": "function_call_output", "call_id": f"call_{at}", "output": answer},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": then}]},
        ]
    tool = {"type": "function", "name": "read", "description": "Reads.", "strict": False, "parameters": SCHEMA}
    inner = {"type": "function", "name": "find", "description": "Finds.", "strict": False, "parameters": SCHEMA}
    space = {"type": "namespace", "name": "files", "description": "Files.", "tools": [inner]}
    body = {"instructions": f"You are coding agent {session}.", "input": said[:-1], "store": False}
    tools = [tool, space, {"type": "web_search", "external_web_access": False}]
    return "/v1/responses", body | {"tools": tools, "tool_choice": "auto", "max_output_tokens": 16}
