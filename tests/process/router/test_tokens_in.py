"""Prompts that are given as token ids, at the routes that only one kind of engine has: placed by their tokens."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from tests.support.engine import MODEL, Behaviour, Engine, Talk, chunk, event, head, reply

from kvatlas import content_hashes, prefix_hashes
from kvatlas.sim.server import Publisher
from kvatlas.wire import Stored, encode_batch

from .deciding import BLOCK
from .running import Router, wait_until

IDS = [number % 97 for number in range(20 * BLOCK)]
HELD = len(IDS) - BLOCK  # the last block is computed whatever is cached
WITHOUT_TOKENS = "kvatlas_router_prompts_without_tokens_total"
OFF = "kvatlas_router_cached_tokens_off_count"

ROUTES: dict[str, tuple[str, str]] = {
    "sglang": ("/generate", "input_ids"),
    "vllm": ("/inference/v1/generate", "token_ids"),
    "trainers": ("/v1/chat/completions/tokens", "tokens"),
    "completions": ("/v1/completions", "prompt"),
}


def asked(route: str, ids: Any, **more: Any) -> dict[str, Any]:
    """A body of a route. SGLang's has no model in it."""
    name = ROUTES[route][1]
    body: dict[str, Any] = {name: ids, **more}
    if route == "trainers":
        body["messages"] = [{"role": "user", "content": "hello"}]
    if route in ("sglang", "vllm"):
        body["sampling_params"] = {"max_new_tokens" if route == "sglang" else "max_tokens": 4}
    return body if route == "sglang" else {"model": MODEL, **body}


def meta(prompt: int, cached: int, output: int, finish: str | None) -> dict[str, Any]:
    """The object in which SGLang counts an answer, or a part of it."""
    reason = None if finish is None else {"type": finish, "length": output}
    logprobs = [[-0.5, number, None] for number in range(900)]
    return {
        "id": "rid",
        "finish_reason": reason,
        "prompt_tokens": prompt,
        "weight_version": "default",
        "output_token_logprobs": logprobs,
        "completion_tokens": output,
        "cached_tokens": cached,
        "cached_tokens_details": {"device": cached, "host": 0},
    }


def answering(cached: int) -> Behaviour:
    """An engine's answers at each of the routes, streamed or not."""

    async def act(talk: Talk) -> None:
        body = talk.request.json
        name = next(name for path, name in ROUTES.values() if path == talk.request.path)
        count = len(body[name])
        if name == "input_ids":
            parts = [
                {"text": "", "output_ids": [], "meta_info": meta(count, cached, 0, None)},
                {"text": "a b", "output_ids": [1, 2], "meta_info": meta(count, cached, 2, None)},
                {"text": "a b c d", "output_ids": [1, 2, 3, 4], "meta_info": meta(count, cached, 4, "length")},
            ]
            whole: Any = [parts[-1]] * count if isinstance(body[name][0], list) else parts[-1]
        else:
            usage = {
                "prompt_tokens": count,
                "completion_tokens": 4,
                "prompt_tokens_details": {"cached_tokens": cached},
            }
            choice = {"index": 0, "token_ids": [1, 2, 3, 4], "finish_reason": "length"}
            parts = [
                {"choices": [{"index": 0, "token_ids": [1, 2, 3, 4]}]},
                {"choices": [{"index": 0, "token_ids": [], "finish_reason": "length"}]},
            ]
            if body.get("stream_options", {}).get("include_usage"):
                parts.append({"choices": [], "usage": usage})
            whole = {"choices": [choice], "usage": usage}
        if not body.get("stream"):
            await reply("200 OK", whole)(talk)
            return
        await talk.send(head("200 OK", "transfer-encoding: chunked", kind="text/event-stream"))
        for part in parts:
            await talk.send(chunk(event(part)))
        await talk.send(chunk(event(b"[DONE]")) + b"0\r\n\r\n")

    return act


def store(ids: list[int], lora: str | None = None, salt: str | None = None) -> bytes:
    names = prefix_hashes(content_hashes(ids, BLOCK, lora, salt)).tolist()
    return encode_batch([Stored(names, None, ids, BLOCK, lora=lora, salt=salt)], timestamp=time.time())


@contextmanager
def followed(engine: Engine, other: Engine, *flags: str) -> Iterator[tuple[Router, Publisher]]:
    """A router in front of two engines, and the events of the second one, `e1`."""
    with Publisher() as one, Publisher() as two:
        for made, publisher in ((engine, one), (other, two)):
            made.behaviour = answering(HELD)
            made.publishers = {0: publisher}
        all_flags = ("--model", MODEL, "--block-size", str(BLOCK), *flags)
        with Router(engine, other, flags=all_flags) as router:
            router.wait_followed()
            yield router, two


def holds(router: Router, body: dict[str, Any]) -> int:
    """Tokens of a prompt that `e1` is expected to hold."""
    said = router.ask(body, path="/explain")
    assert said.status == 200, said
    candidates = {one["worker"]: one["cached_tokens"] for one in said.json["candidates"]}
    return int(candidates["e1"])


@pytest.mark.parametrize("tokenizer", ["engine", "none"])
@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("route", ROUTES)
def test_they_go_to_the_engine_that_holds_them(
    engine: Engine, other: Engine, route: str, streamed: bool, tokenizer: str
) -> None:
    path, _ = ROUTES[route]
    more = {"stream": True} if streamed else {}
    with followed(engine, other, "--tokenizer", tokenizer) as (router, events):
        events.publish(store(IDS))
        wait_until(lambda: holds(router, asked(route, IDS)) > 0, "it is known")
        for _ in range(3):
            answer = router.ask(asked(route, IDS, **more), path=path)
            assert answer.status == 200, answer
            assert answer.headers["x-kvatlas-worker"] == "e1"
            assert int(answer.headers["x-kvatlas-cached-tokens"]) == HELD
        assert router.metric(WITHOUT_TOKENS) == 0
        assert engine.times("/tokenize") + other.times("/tokenize") == 0, "there is nothing to ask for"

        def ended() -> bool:
            last = json.loads(router.get("/decisions?limit=1")[1])[0]
            return last["ended"] is not None

        wait_until(ended, "the answer has ended")
        last = json.loads(router.get("/decisions?limit=1")[1])[0]
        assert (last["tokens"], last["ended"]["cached_tokens"]) == (len(IDS), HELD)
        assert (last["ended"]["output_tokens"], last["ended"]["stop"]) == (4, "length")
        assert last["ended"]["counted_tokens"] is None, "the engine counts the same tokens"
        assert (last["ended"]["first_token"] is not None) is streamed
        assert "usage" not in answer.body.decode() or not streamed, "the client has not asked for it"


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize(
    "ids",
    [[], [-1, 2], [2**32], [1.5], ["a"], [[[1]]], [None], "text", {}, 7, None],
    ids=[
        "none",
        "negative",
        "huge",
        "floats",
        "strings",
        "nested",
        "null",
        "a text",
        "an object",
        "a number",
        "missing",
    ],
)
def test_what_no_engine_takes_goes_on_as_it_came(engine: Engine, route: str, ids: Any) -> None:
    path, name = ROUTES[route]
    engine.behaviour = reply("400 Bad Request", {"error": {"message": "the engine says so"}})
    with Router(engine, flags=("--no-events", "--model", MODEL)) as router:
        body = asked(route, ids)
        answer = router.ask(body, path=path)
        assert (answer.status, answer.error["message"]) == (400, "the engine says so")
        assert [one.json[name] for one in engine.received if one.path == path] == [ids]


def test_a_list_of_prompts_goes_where_its_first_one_is(engine: Engine, other: Engine) -> None:
    batch = {"input_ids": [IDS, IDS[BLOCK:]], "cache_salt": ["s", "t"], "sampling_params": [{"n": 1}, {"n": 1}]}
    with followed(engine, other) as (router, events):
        events.publish(store(IDS, salt="s"))
        wait_until(lambda: holds(router, batch) > 0, "it is known")
        answer = router.ask(batch, path="/generate")
        assert (answer.status, answer.headers["x-kvatlas-worker"]) == (200, "e1")
        assert router.metric(OFF) == 0, "what the engine counts is of all of them"


@pytest.mark.parametrize(
    ("route", "more", "is_held"),
    [
        ("sglang", {"cache_salt": "s"}, True),
        ("sglang", {"cache_salt": "t"}, False),
        ("sglang", {}, False),
        ("sglang", {"cache_salt": "s", "extra_key": "7"}, False),
        ("sglang", {"cache_salt": "s", "lora_path": "ada"}, False),
        ("sglang", {"cache_salt": "s", "session_params": {"id": "kept"}}, False),
        ("sglang", {"cache_salt": "s", "image_data": "http://x/a.png"}, False),
        ("sglang", {"cache_salt": "s", "return_logprob": True, "logprob_start_len": 0}, False),
        ("sglang", {"cache_salt": "s", "return_logprob": True}, True),
        ("vllm", {"cache_salt": "s"}, True),
        ("vllm", {"cache_salt": "t"}, False),
        ("vllm", {"cache_salt": "s", "sampling_params": {"prompt_logprobs": 1}}, False),
        ("vllm", {"cache_salt": "s", "content_parts": [{"type": "image_url"}]}, False),
        ("trainers", {"cache_salt": "s"}, True),
        ("trainers", {"cache_salt": "s", "prompt_logprobs": 1}, False),
    ],
)
def test_keys_of_their_blocks(engine: Engine, other: Engine, route: str, more: dict[str, Any], is_held: bool) -> None:
    with followed(engine, other) as (router, events):
        events.publish(store(IDS, salt="s"))
        held = asked("sglang", IDS, cache_salt="s")
        wait_until(lambda: holds(router, held) > 0, "it is known")
        body = asked(route, IDS) | more
        answer = router.ask(body, path=ROUTES[route][0])
        assert answer.status == 200, answer
        assert (int(answer.headers["x-kvatlas-cached-tokens"]) == HELD) is is_held, more


def test_an_adapter_that_a_field_names(engine: Engine, other: Engine) -> None:
    with followed(engine, other) as (router, events):
        events.publish(store(IDS, lora="ada"))
        adapted = asked("sglang", IDS, lora_path="ada")
        wait_until(lambda: holds(router, adapted) > 0, "it is known")
        assert holds(router, asked("sglang", IDS)) == 0
        assert holds(router, asked("sglang", IDS, lora_path="bob")) == 0
        answer = router.ask(adapted, path="/generate")
        assert (answer.status, answer.headers["x-kvatlas-worker"]) == (200, "e1")


def test_places_for_pictures_end_what_is_known(engine: Engine, other: Engine) -> None:
    features = {
        "mm_hashes": {"image": ["abc"]},
        "mm_placeholders": {"image": [{"offset": 10 * BLOCK + 3, "length": 9}]},
    }
    with followed(engine, other) as (router, events):
        events.publish(store(IDS))
        body = asked("vllm", IDS, features=features)
        wait_until(lambda: holds(router, body) > 0, "it is known")
        answer = router.ask(body, path="/inference/v1/generate")
        assert int(answer.headers["x-kvatlas-cached-tokens"]) == 10 * BLOCK
        partly = asked("sglang", IDS, return_logprob=True, logprob_start_len=5 * BLOCK + 1)
        answer = router.ask(partly, path="/generate")
        assert int(answer.headers["x-kvatlas-cached-tokens"]) == 5 * BLOCK


def test_text_is_tokenized_or_placed_by_load(engine: Engine, other: Engine) -> None:
    async def act(talk: Talk) -> None:
        if talk.request.path == "/tokenize":
            text = talk.request.json["prompt"]
            await reply("200 OK", {"tokens": list(text.encode()), "count": len(text)})(talk)
            return
        await reply("200 OK", {"text": "a", "meta_info": meta(5, 0, 1, "stop")})(talk)

    text = "some words that are said again and again, " * 8
    with followed(engine, other) as (router, events):
        engine.behaviour = other.behaviour = act
        ids = list(text.encode())
        events.publish(store(ids[: len(ids) // BLOCK * BLOCK]))
        body = {"text": text, "sampling_params": {"max_new_tokens": 2}}
        wait_until(lambda: holds(router, body) > 0, "it is known")
        answer = router.ask(body, path="/generate")
        assert (answer.status, answer.headers["x-kvatlas-worker"]) == (200, "e1")
        router.ask({"text": text, "image_data": "http://x/a.png"}, path="/generate")
        assert router.metric(WITHOUT_TOKENS, endpoint="generate") == 1


def test_several_models_and_none_named(engine: Engine) -> None:
    with Engine(model="another") as other:
        engine.behaviour = other.behaviour = answering(0)
        with Router(engine, other, flags=("--no-events",)) as router:
            went = {
                router.ask(asked("sglang", [n] * 64), path="/generate").headers["x-kvatlas-worker"] for n in range(9)
            }
            assert went == {"e0", "e1"}, "any engine may be meant"
