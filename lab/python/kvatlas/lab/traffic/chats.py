"""Prompts made of messages, and the sessions that they continue.

An agent or a chat sends its whole history with each request: the messages of the previous request, the answer, and new
messages. A request that begins with the messages of an earlier one continues its session, even if the log names no
session.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import count

from kvatlas._text import counted
from kvatlas.errors import TraceError
from kvatlas.lab.traffic.source import BadRows, Conversion, Traffic, make_trace
from kvatlas.lab.traffic.text import History, Prompt, cut_prompts, link_prompts, text_of

TEXT_BLOCK = 64
"""Default number of tokens that an id stands for in a trace made from text."""


def prompt_traffic(
    prompts: list[Prompt], kind: str, block: int, *, name: str, where: str, bad: BadRows, guessed: str | None
) -> Traffic:
    """Convert prompts to traffic: sessions are detected, prompts cut into blocks, and requests linked.

    `block`: tokens per block. `guessed`: the unit assumed for times, as for `make_trace`. Raises `TraceError`.
    """
    prompts.sort(key=lambda prompt: prompt.at)
    sessions = name_sessions(prompts)
    cut = cut_prompts(prompts, block)
    trace = make_trace(link_prompts(prompts, cut), name, block, where, bad, guessed)
    return Traffic(trace, kind, [*cut.assumptions, *sessions], cut.warnings)


def add_messages(prompt: Prompt, messages: Sequence[object], tools: object, how: Conversion) -> None:
    """Add messages and tools to a prompt, as tokens if there is a tokenizer, otherwise as text.

    `messages`: in OpenAI's format, or parts of a request to its responses API. Raises `TraceError` if they are empty.
    """
    if how.encode_chat is not None and all(isinstance(each, dict) for each in messages):
        prompt.tokens = how.encode_chat(messages, tools or None)  # type: ignore[arg-type]
    else:
        prompt.text = _text_of_chat(messages, tools)
    prompt.history = _history(messages)
    _check_content(prompt)


def add_text(prompt: Prompt, text: str, how: Conversion) -> None:
    """Add text to a prompt, as tokens if there is a tokenizer. Raises `TraceError` if the text is empty."""
    if how.encode is not None:
        prompt.tokens = how.encode(text)
    else:
        prompt.text = text
    _check_content(prompt)


def name_sessions(prompts: Sequence[Prompt]) -> list[str]:
    """Give session names to chats without one, by the earlier messages that they continue.

    Returns the assumptions made, in words. `prompts`: in order of time. A chat continues the latest one whose messages
    are all at its beginning, before an answer, unless another chat already did. If no chat continues another one, none
    gets a session.
    """
    ends: dict[int, list[int]] = {}  # chats that none has continued yet, by the hash of all their messages
    continued: dict[int, int] = {}
    for number, prompt in enumerate(prompts):
        if prompt.history is None:
            continue
        earlier = next((its for each in reversed(prompt.history.answered) if (its := ends.get(each))), None)
        if earlier:
            before = earlier.pop()
            if prompt.session is None:
                continued[number] = before
        ends.setdefault(prompt.history.whole, []).append(number)
    if not continued:
        return []
    taken = {prompt.session for prompt in prompts}
    names = (name for number in count(1) if (name := f"chat-{number}") not in taken)
    for number, prompt in enumerate(prompts):
        if prompt.session is None and prompt.history is not None:
            prompt.session = prompts[continued[number]].session if number in continued else next(names)
    return [f"By their messages, {counted(len(continued), 'chat')} without a session continued an earlier chat."]


def _check_content(prompt: Prompt) -> None:
    if not (prompt.text if prompt.tokens is None else len(prompt.tokens)):
        raise TraceError("an empty prompt")


def _history(messages: Iterable[object]) -> History:
    whole, answered = 0, list[int]()
    for each in messages:
        if _is_answer(each):
            answered.append(whole)
        whole = hash((whole, text_of(each)))
    return History(whole, tuple(answered))


def _is_answer(message: object) -> bool:
    """True for a message of the model, or, in the responses API, a call or reasoning of the model."""
    if not isinstance(message, dict):
        return False
    if message.get("role") is not None:
        return bool(message["role"] == "assistant")
    return not str(message.get("type", "output")).endswith("output")


def _text_of_chat(messages: Iterable[object], tools: object) -> str:
    parts = [text_of(tools)] if tools else []
    for each in messages:
        if isinstance(each, dict):
            rest = {key: value for key, value in each.items() if key not in ("role", "content")}
            parts.append(f"{each.get('role', '')}\n{text_of(each.get('content') or '')}{text_of(rest) if rest else ''}")
        elif each:
            parts.append(text_of(each))
    return "\n".join(parts)
