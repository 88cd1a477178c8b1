"""Requests as LiteLLM shows them to a callback, read as the engine gets them."""

from typing import Any

import pytest

from kvatlas.client import Query
from kvatlas.litellm.asked import read

MESSAGES = [{"role": "user", "content": "a" * 400}]


def shown(path: str, **body: Any) -> dict[str, Any]:
    """A call's arguments behind a proxy."""
    return {
        "litellm_call_id": "c",
        "litellm_logging_obj": object(),
        "metadata": {"user_api_key": "k"},
        "proxy_server_request": {"url": f"http://proxy{path}", "body": {"model": "group", **body}},
    }


def test_a_chat_is_read_with_its_tools() -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    kwargs = shown(
        "/v1/chat/completions", messages=["stale"], tools=tools, max_tokens=7, n=2, cache_salt="s", stream=True
    )
    asked = read("org/m", MESSAGES, kwargs)
    assert asked.query == Query(messages=MESSAGES, tools=tools)
    assert (asked.model, asked.salt, asked.max_tokens, asked.answers) == ("org/m", "s", 7, 2)
    # What hooks of the proxy made of the messages counts.
    assert asked.body["messages"] == MESSAGES
    assert set(asked.body) == {"model", "messages", "tools", "max_tokens", "n", "cache_salt"}
    assert asked.estimate >= 100


def test_keys_and_headers_of_clients_stay_in_the_proxy() -> None:
    kwargs = shown("/v1/chat/completions", api_key="k", headers={"a": "k"}, user="u", tools=[{"stale": 1}])
    kwargs |= {"secret_fields": {"raw_headers": {"authorization": "k"}}, "tools": [], "api_base": "http://k"}
    assert read("m", MESSAGES, kwargs).body == {"model": "m", "messages": MESSAGES, "tools": []}


def test_a_completion_is_read_as_text_though_litellm_shows_a_message() -> None:
    asked = read("m", [{"role": "user", "content": "hello"}], shown("/v1/completions", prompt="hello"))
    assert asked.query == Query(text="hello")
    assert "messages" not in asked.body


def test_a_call_without_a_proxy_is_read_from_its_arguments() -> None:
    asked = read("m", MESSAGES, {"max_completion_tokens": 3, "litellm_session_id": "s1"})
    assert (asked.query, asked.max_tokens, asked.session) == (Query(messages=MESSAGES), 3, "s1")


@pytest.mark.parametrize(
    ("path", "body", "why"),
    [
        ("/v1/messages", {"messages": MESSAGES}, "other_route"),
        ("/v1/responses", {"input": "hi"}, "other_route"),
        ("/v1/embeddings", {"input": "hi"}, "other_route"),
        ("/v1/completions", {"prompt": ["a", "b"]}, "other_route"),
        ("/v1/chat/completions", {"chat_template_kwargs": {"x": 1}}, "other_fields"),
        ("/v1/chat/completions", {"extra_body": {"chat_template": "x"}}, "other_fields"),
    ],
)
def test_what_a_tokenizer_cannot_make_tokens_of_is_said(path: str, body: dict[str, Any], why: str) -> None:
    asked = read("m", MESSAGES, shown(path, **body))
    assert (asked.query, asked.unread) == (None, why)
    # A router reads the body itself, with all its fields.
    assert (
        asked.body.items()
        >= {k: v for k, v in {**body, **body.get("extra_body", {})}.items() if k != "extra_body"}.items()
    )


def test_a_session_is_named_by_headers_too() -> None:
    kwargs = shown("/v1/chat/completions")
    kwargs["proxy_server_request"]["headers"] = {"X-Session-Id": "s2"}
    assert read("m", MESSAGES, kwargs).session == "s2"
