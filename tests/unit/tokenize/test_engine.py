"""Asking an engine for tokens, both ways."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from tests.support.engine import Engine

from kvatlas.errors import InvalidArgumentError, InvalidTypeError, TokenizerError
from kvatlas.tokenize import AsyncEngineTokenizer, EngineTokenizer

Ask = Callable[..., Any]
ANSWER = {"count": 3, "max_model_len": 4096, "tokens": [1, 2, 3], "token_strs": None}
CHAT = [{"role": "user", "content": "hello"}]


def ask_sync(url: str, method: str, *args: Any, made: Any = None, **kwargs: Any) -> Any:
    with EngineTokenizer(url, **(made or {})) as tokenizer:
        return getattr(tokenizer, method)(*args, **kwargs)


def ask_async(url: str, method: str, *args: Any, made: Any = None, **kwargs: Any) -> Any:
    async def run() -> Any:
        async with AsyncEngineTokenizer(url, **(made or {})) as tokenizer:
            return await getattr(tokenizer, method)(*args, **kwargs)

    return asyncio.run(run())


@pytest.fixture(params=[ask_sync, ask_async], ids=["sync", "async"])
def ask(request: pytest.FixtureRequest) -> Ask:
    chosen: Ask = request.param
    return chosen


def test_a_text(ask: Ask) -> None:
    with Engine({"/tokenize": ANSWER}, key="k") as engine:
        assert ask(engine.url + "/", "encode", "hello", made={"key": "k"}) == [1, 2, 3]
        made = {"key": "k", "model": "m"}
        assert ask(engine.url, "encode", "hello", made=made, add_special_tokens=False) == [1, 2, 3]
    assert [one.json for one in engine.received] == [
        {"prompt": "hello", "add_special_tokens": True},
        {"model": "m", "prompt": "hello", "add_special_tokens": False},
    ]


def test_a_chat(ask: Ask) -> None:
    with Engine({"/tokenize": ANSWER}) as engine:
        assert ask(engine.url, "encode_chat", CHAT) == [1, 2, 3]
        more = {"tools": [{"a": 1}], "add_generation_prompt": False, "template_kwargs": {"enable_thinking": False}}
        assert ask(engine.url, "encode_chat", CHAT, **more) == [1, 2, 3]
    assert [one.json for one in engine.received] == [
        {"messages": CHAT, "add_generation_prompt": True},
        {
            "messages": CHAT,
            "add_generation_prompt": False,
            "tools": [{"a": 1}],
            "chat_template_kwargs": {"enable_thinking": False},
        },
    ]


@pytest.mark.parametrize(
    ("answer", "code", "message"),
    [
        (404, "http_404", "/tokenize does not exist: is this the address of a vLLM or SGLang server?"),
        (401, "http_401", "/tokenize returned status 401: Unauthorized"),
        (500, "http_500", "returned status 500"),
        ("no", "bad_answer", "returned an answer without a list of tokens: 'no'"),
        ([], "bad_answer", "returned an answer without a list of tokens"),
        ({"tokens": ["a"]}, "bad_answer", "returned an answer without a list of tokens"),
        ({"tokens": None}, "bad_answer", "returned an answer without a list of tokens"),
    ],
)
def test_answers_that_are_not_tokens(ask: Ask, answer: Any, code: str, message: str) -> None:
    with Engine({"/tokenize": answer}) as engine, pytest.raises(TokenizerError) as caught:
        ask(engine.url, "encode", "hello")
    assert message in str(caught.value)
    assert caught.value.code == code


def test_nobody_answers(ask: Ask) -> None:
    with pytest.raises(TokenizerError) as caught:
        ask("http://127.0.0.1:9", "encode", "hello")
    assert str(caught.value) == "engine http://127.0.0.1:9 cannot be reached: Connection refused"
    assert caught.value.code == "unreachable"


def test_what_is_not_sent(ask: Ask) -> None:
    with pytest.raises(InvalidTypeError, match="text must be a str, got int"):
        ask("http://127.0.0.1:9", "encode", 3)
    with pytest.raises(InvalidTypeError, match="messages must be a list of objects, got str"):
        ask("http://127.0.0.1:9", "encode_chat", "hello")
    with pytest.raises(InvalidArgumentError, match="url must be http://HOST:PORT"):
        ask("host:8000", "encode", "a")


def test_a_tokenizer_that_is_closed() -> None:
    tokenizer = EngineTokenizer("http://127.0.0.1:9")
    tokenizer.close()
    with pytest.raises(TokenizerError, match="is closed") as caught:
        tokenizer.encode("a")
    assert caught.value.code == "closed"
