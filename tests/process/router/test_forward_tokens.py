"""Completions that go to engines as token ids, where those are the ones that the engine would make."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.engine import MODEL, Behaviour, Engine, Talk, reply, usual

from .deciding import tokens_of
from .running import Answer, Router, wait_until

TEXT = "Wörter and words\n" * 20


def tokenizing(tokens: Callable[[str], list[int]]) -> Behaviour:
    """Answers `/tokenize`, all else as usual."""

    async def act(talk: Talk) -> None:
        if talk.request.path != "/tokenize":
            await usual(talk)
            return
        made = tokens(talk.request.json["prompt"])
        await reply("200 OK", {"tokens": made, "count": len(made), "max_model_len": 4096})(talk)

    return act


def flags(tokenizer: Path, *more: str) -> tuple[str, ...]:
    return ("--no-events", "--policy", "kvatlas", "--tokenizer", str(tokenizer), "--forward-tokens", *more)


def complete(router: Router, prompt: object = TEXT, **more: object) -> Answer:
    answer = router.ask({"model": MODEL, "prompt": prompt, "max_tokens": 1, **more}, path="/v1/completions")
    assert answer.status == 200, answer
    return answer


def counted(router: Router, how: str) -> float:
    return router.metric("kvatlas_router_forwarded_completions_total", **{"as": how})


def completions(engine: Engine) -> list[object]:
    return [one.json["prompt"] for one in engine.received if one.path == "/v1/completions"]


def wait_proven(router: Router) -> None:
    def is_proven() -> bool:
        complete(router)
        return counted(router, "tokens") > 0

    wait_until(is_proven, "the engine has said that it makes the same tokens")


def test_an_engine_that_makes_the_same_tokens_gets_them(engine: Engine, tokenizer: Path) -> None:
    engine.behaviour = tokenizing(tokens_of)
    with Router(engine, flags=flags(tokenizer)) as router:
        wait_proven(router)
        assert completions(engine)[0] == TEXT, "before it was asked"
        complete(router, seed=12345678901234567890123, stream=True, stop=["é", "x"])
        got = engine.last.json
        assert got == {
            "model": MODEL,
            "prompt": tokens_of(TEXT),
            "max_tokens": 1,
            "seed": 12345678901234567890123,
            "stream": True,
            "stream_options": {"include_usage": True},
            "stop": ["é", "x"],
        }
        assert int(engine.last.headers["content-length"]) == len(engine.last.body)
        before = counted(router, "tokens")
        for how, prompt, more in (
            ("works_on_text", TEXT, {"truncate_prompt_tokens": 5}),
            ("works_on_text", TEXT, {"echo": True}),
            ("works_on_text", TEXT, {"suffix": "end"}),
            ("not_a_text", [TEXT, TEXT], {}),
            ("not_a_text", [1, 2, 3], {}),
        ):
            many = counted(router, how)
            complete(router, prompt, **more)
            assert engine.last.json["prompt"] == prompt
            assert counted(router, how) == many + 1
        assert counted(router, "tokens") == before
        complete(router, echo=False, suffix=None)
        wait_until(lambda: counted(router, "tokens") == before + 1, "it is counted")
        assert router.ask().status == 200
        assert engine.last.json["messages"], "chats stay as they are"


@pytest.mark.parametrize(
    "behaviour",
    [usual, tokenizing(lambda text: tokens_of(text.strip())), tokenizing(lambda text: [0, *tokens_of(text)])],
    ids=["cannot-say", "strips", "begins-with-a-token"],
)
def test_an_engine_that_makes_others_or_cannot_say_gets_the_text(
    engine: Engine, tokenizer: Path, behaviour: Behaviour
) -> None:
    engine.behaviour = behaviour
    with Router(engine, flags=flags(tokenizer)) as router:
        complete(router)
        wait_until(lambda: any(one.path == "/tokenize" for one in engine.received), "it was asked")
        for _ in range(20):
            complete(router)
        assert completions(engine) == [TEXT] * 21
        assert counted(router, "not_proven") == 21


def test_an_engine_that_comes_back_is_asked_again(engine: Engine, tokenizer: Path) -> None:
    engine.behaviour = tokenizing(tokens_of)
    with Router(engine, flags=flags(tokenizer, "--health-interval", "100ms", "--health-failures", "1")) as router:
        wait_proven(router)
        engine.stop()
        wait_until(lambda: router.workers()[0]["standing"] == "down", "it is seen to be gone")
        engine.behaviour = tokenizing(lambda text: [0, *tokens_of(text)])
        engine.received.clear()
        engine.start()
        wait_until(lambda: router.workers()[0]["standing"] == "up", "it is back")
        for _ in range(10):
            complete(router)
        assert completions(engine) == [TEXT] * 10


def test_without_the_flag_nobody_is_asked(engine: Engine, tokenizer: Path) -> None:
    engine.behaviour = tokenizing(tokens_of)
    with Router(engine, flags=flags(tokenizer)[:-1]) as router:
        for _ in range(3):
            complete(router)
        assert completions(engine) == [TEXT] * 3
        assert not any(one.path == "/tokenize" for one in engine.received)
