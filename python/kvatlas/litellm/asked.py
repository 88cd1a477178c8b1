"""Conversion of requests from the form in LiteLLM's callbacks to the form that the engine gets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvatlas.client import Query

# The fields of a body that its prompt, its length or its session can follow from. Nothing else leaves the proxy: the
# arguments of a call have keys and headers of clients, too.
_NAMES = """
add_generation_prompt add_special_tokens audio_data best_of cache_salt chat_template chat_template_kwargs
continue_final_message conversation documents echo extra_key features image_data input input_embeds input_ids
instructions logprob_start_len lora_path max_completion_tokens max_output_tokens max_tokens messages
mm_processor_kwargs n output_config previous_response_id priority prompt prompt_cache_key prompt_embeds
prompt_logprobs reasoning reasoning_effort return_logprob session_id stop_sequences system thinking tool_choice
tools truncate_prompt_tokens truncation truncation_side video_data
"""
_FIELDS = frozenset(_NAMES.split())
# What changes a prompt's tokens, and is not among what every tokenizer takes.
_OTHERS = (
    "add_generation_prompt",
    "add_special_tokens",
    "chat_template",
    "chat_template_kwargs",
    "continue_final_message",
    "documents",
    "extra_key",
    "input_ids",
    "mm_processor_kwargs",
    "reasoning_effort",
    "truncate_prompt_tokens",
)
_SESSION_HEADERS = ("x-litellm-session-id", "x-session-id")
_CHARACTERS = 4  # of a token, where tokens are not known


@dataclass(frozen=True)
class AskedPrompt:
    """Prompt and settings of a request to a LiteLLM proxy.

    Attributes:
        body: Fields of the engine's request that determine the prompt, with the engine's name of the model.
        query: The prompt for a tokenizer; None if it cannot be tokenized.
        unread: The reason why `query` is None: "other_route" or "other_fields"; None if there is one.
        estimate: Number of the prompt's tokens, estimated from its length.
        salt: The cache salt.
        max_tokens: Maximum number of tokens of the answer; None if the request sets none.
        answers: The number of answers.
        session: The name of the client's session; None if the request names none.
    """

    body: dict[str, Any]
    query: Query | None
    unread: str | None
    estimate: int
    salt: str | None
    max_tokens: int | None
    answers: int
    session: str | None

    @property
    def model(self) -> str:
        """The engine's name of the model."""
        return str(self.body["model"])


def read(model: str, messages: Sequence[Any] | None, kwargs: Mapping[str, Any]) -> AskedPrompt:
    """Extract the prompt and settings from a call of LiteLLM.

    Args:
        model: The engine's name of the model.
        messages: The messages of a chat; None for other requests.
        kwargs: The call's arguments, as LiteLLM passes them to callbacks. A proxy adds the client's body.
    """
    asked = kwargs.get("proxy_server_request") or {}
    # What hooks of the proxy have changed is in the arguments.
    given = {**(asked.get("body") or {}), **kwargs}
    path = str(asked.get("url") or "").partition("?")[0].rstrip("/")
    given |= given.get("extra_body") or {}
    body: dict[str, Any] = {name: value for name, value in given.items() if name in _FIELDS and value is not None}
    body["model"] = model
    unread = None
    query = None
    if path.endswith(("/messages", "/responses", "/embeddings")) or body.get("input") is not None:
        unread = "other_route"
    elif body.get("prompt") is not None:
        # LiteLLM shows a completion's prompt as a message, too.
        body.pop("messages", None)
        prompt = body["prompt"]
        query = Query(text=prompt) if isinstance(prompt, str) else None
        unread = None if query else "other_route"
    elif messages:
        body["messages"] = list(messages)
        query = Query(messages=body["messages"], tools=body.get("tools"))
    else:
        unread = "other_route"
    if query is not None and any(body.get(name) is not None for name in _OTHERS):
        query, unread = None, "other_fields"
    salt = body.get("cache_salt")
    limit = body.get("max_completion_tokens") or body.get("max_tokens") or body.get("max_output_tokens")
    return AskedPrompt(
        body=body,
        query=query,
        unread=unread,
        estimate=max(_characters(body) // _CHARACTERS, 1),
        salt=salt if isinstance(salt, str) else None,
        max_tokens=limit if isinstance(limit, int) and limit > 0 else None,
        answers=body["n"] if isinstance(body.get("n"), int) and body["n"] > 0 else 1,
        session=_session(given, asked),
    )


def _characters(value: object) -> int:
    """The number of characters of all texts in a value of JSON."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, Mapping):
        return sum(_characters(each) for each in value.values())
    if isinstance(value, Sequence):
        return sum(_characters(each) for each in value)
    return 0


def _session(given: Mapping[str, Any], asked: Mapping[str, Any]) -> str | None:
    """The name of the client's session, from the body or a header; None if there is none."""
    headers = {str(name).lower(): value for name, value in (asked.get("headers") or {}).items()}
    for name in (given.get("litellm_session_id"), *(headers.get(name) for name in _SESSION_HEADERS)):
        if isinstance(name, str) and name:
            return name
    return None
