"""Answers that are errors although their status says that all is well: another engine is asked, that one is blamed."""

from __future__ import annotations

import asyncio
import gzip
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.engine import MODEL, Behaviour, Engine, Talk, chunk, delta, event, hang, head, reply, stream, usual

from .running import MESSAGES, PLAIN, Answer, Router, wait_until

CHAT = ("/v1/chat/completions", {"messages": MESSAGES})
COMPLETION = ("/v1/completions", {"prompt": "hello"})
RESPONSE = ("/v1/responses", {"input": "hello"})
MESSAGE = ("/v1/messages", {"messages": MESSAGES, "max_tokens": 9})
GENERATE = ("/generate", {"text": "hello"})

DEAD = {"message": "EngineCore encountered an issue.", "type": "InternalServerError", "param": None, "code": 500}
TOO_LONG = {"message": "The prompt is too long.", "type": "BadRequestError", "param": None, "code": 400}
FAULTS = "kvatlas_router_engine_faults_total"


def named(kind: str, **more: Any) -> bytes:
    return f"event: {kind}\n".encode() + event({"type": kind, **more})


def role(**more: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
    return {"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": MODEL, "choices": [choice], **more}


def events(*pieces: bytes, pause: float = 0.0) -> Behaviour:
    """A stream of these pieces, each in a segment of its own if there is a pause between them."""

    async def act(talk: Talk) -> None:
        await talk.send(head("200 OK", "transfer-encoding: chunked", kind="text/event-stream; charset=utf-8"))
        for piece in pieces:
            await talk.send(chunk(piece))
            await asyncio.sleep(pause)
        await talk.send(b"0\r\n\r\n")

    return act


async def sound(talk: Talk) -> None:
    """An answer of any API, streamed or not."""
    asked = json.loads(talk.request.body)
    whole: Any = {"id": "x", "choices": [{"message": {"content": "well"}, "finish_reason": "stop"}], "error": None}
    streamed = event(delta("well")) + event(delta("", "stop")) + event(b"[DONE]")
    if talk.request.route == "/v1/responses":
        whole = {"id": "resp_1", "object": "response", "status": "completed", "error": None, "output": ["well"]}
        created = named("response.created", response={"id": "resp_1", "error": None})
        streamed = created + named("response.output_text.delta", delta="well") + named("response.completed")
    elif talk.request.route == "/v1/messages":
        whole = {"id": "msg_1", "type": "message", "content": [{"type": "text", "text": "well"}]}
        text = named("content_block_delta", delta={"type": "text_delta", "text": "well"})
        streamed = named("message_start", message={"content": []}) + text + named("message_stop")
    elif talk.request.route == "/generate":
        whole = {"text": "well", "meta_info": {"finish_reason": {"type": "stop"}}}
        streamed = event(whole) + event(b"[DONE]")
    elif talk.request.route not in ("/v1/chat/completions", "/v1/completions"):
        whole = {"object": "list", "data": [{"embedding": [0.5], "text": "well"}]}
    await (events(streamed) if asked.get("stream") else reply("200 OK", whole))(talk)


STREAMS: dict[str, tuple[tuple[str, dict[str, Any]], list[bytes]]] = {
    "vllm": (CHAT, [event({"error": DEAD}), event(b"[DONE]")]),
    "vllm-completions": (COMPLETION, [event({"error": DEAD}), event(b"[DONE]")]),
    "vllm-old": (CHAT, [event({"object": "error", **DEAD}), event(b"[DONE]")]),
    "without-a-code": (CHAT, [event({"error": {"message": "x"}}), event(b"[DONE]")]),
    "a-text": (CHAT, [event({"error": "it broke"})]),
    "busy": (CHAT, [event({"error": {"message": "full", "code": 429}})]),
    "named": (CHAT, [b"event: error\n" + event({"message": "x"})]),
    "named-text": (CHAT, [b"event: error\ndata: Internal Server Error\n\n"]),
    "after-comments": (CHAT, [b": ping\n\n", b":\n\n", event({"error": DEAD}), event(b"[DONE]")]),
    "after-a-role": (CHAT, [event(role()), event({"error": DEAD}), event(b"[DONE]")]),
    "beside-choices": (CHAT, [event({**role(), "choices": [], "error": DEAD})]),
    "crlf": (CHAT, [(b": ping\n\n" + event({"error": DEAD})).replace(b"\n", b"\r\n")]),
    "spread": (CHAT, [b": pi", b"ng\n\nda", b'ta: {"err', b'or": {"message": "x", "co', b'de": 500}}\n', b"\n"]),
    "spaces": (CHAT, [b'data:{ "error" : { "message" : "x" } }\n\n']),
    "no-events": (CHAT, [json.dumps({"error": DEAD}).encode()]),
    "no-end": (CHAT, [b"data: " + json.dumps({"error": DEAD}).encode()]),
    "finish-error": (CHAT, [event(delta("", "error")), event(b"[DONE]")]),
    "finish-abort": (CHAT, [event(role()), event(delta("", "abort")), event(b"[DONE]")]),
    "finish-abort-text": (COMPLETION, [event({"choices": [{"index": 0, "text": "", "finish_reason": "abort"}]})]),
    "response.failed": (
        RESPONSE,
        [
            named("response.created", response={"id": "resp_1", "error": None}),
            named("response.in_progress", response={"id": "resp_1", "error": None}),
            named("response.failed", response={"status": "failed", "error": {"code": "server_error"}}),
        ],
    ),
    "response.failed-alone": (RESPONSE, [named("response.failed", response={"status": "failed"})]),
    "responses-error": (RESPONSE, [named("error", code="server_error", message="x", sequence_number=0)]),
    "messages-error": (MESSAGE, [named("error", error={"type": "api_error", "message": "x"})]),
    "messages-overloaded": (
        MESSAGE,
        [
            named("ping"),
            named("message_start", message={"content": []}),
            named("ping"),
            named("error", error={"type": "overloaded_error", "message": "x"}),
        ],
    ),
    "sglang": (CHAT, [event({"error": {"object": "error", **DEAD}}), event(b"[DONE]")]),
    "sglang-generate": (GENERATE, [event({"error": {"message": "x"}}), event(b"[DONE]")]),
    "sglang-abort": (
        GENERATE,
        [event({"text": "", "meta_info": {"finish_reason": {"type": "abort", "message": "full", "status_code": 503}}})],
    ),
}

WHOLE: dict[str, tuple[tuple[str, dict[str, Any]], Any]] = {
    "vllm": (CHAT, {"error": DEAD}),
    "vllm-old": (CHAT, {"object": "error", **DEAD}),
    "bare": (CHAT, DEAD),
    "a-text": (COMPLETION, {"error": "it broke"}),
    "success": (CHAT, {"success": False, "error": {"message": "x"}}),
    "spaces": (CHAT, b'\n\n  { "error" : {"message": "x"} }  \n'),
    "messages": (MESSAGE, {"type": "error", "error": {"type": "api_error", "message": "x"}}),
    "responses": (
        RESPONSE,
        {"id": "resp_1", "object": "response", "status": "failed", "error": {"code": "server_error", "message": "x"}},
    ),
    "finish-abort": (CHAT, {"id": "x", "choices": [{"message": {"content": ""}, "finish_reason": "abort"}]}),
    "embeddings": (("/v1/embeddings", {"input": "a"}), {"error": DEAD}),
    "rerank": (("/rerank", {"query": "a", "documents": ["b"]}), {"object": "error", **DEAD}),
    "score": (("/v1/score", {"text_1": "a", "text_2": "b"}), {"error": DEAD}),
    "generate": (GENERATE, {"error": {"message": "x"}}),
}


@pytest.fixture(scope="module")
def fleet() -> Iterator[tuple[Router, Engine, Engine]]:
    with Engine() as engine, Engine() as other:
        flags = (*PLAIN, "--health-interval", "100ms", "--health-failures", "1000")
        with Router(engine, other, flags=flags) as router:
            yield router, engine, other


@pytest.fixture
def router(fleet: tuple[Router, Engine, Engine], engine: Engine, other: Engine) -> Router:
    # An engine that has failed in half of its last requests is asked only if there is no other.
    for _ in range(8):
        assert b"well" in ask(fleet[0], CHAT, True).body
    engine.received.clear()
    other.received.clear()
    return fleet[0]


@pytest.fixture
def engine(fleet: tuple[Router, Engine, Engine]) -> Engine:
    fleet[1].behaviour = sound
    fleet[1].received.clear()
    return fleet[1]


@pytest.fixture
def other(fleet: tuple[Router, Engine, Engine]) -> Engine:
    fleet[2].behaviour = sound
    fleet[2].received.clear()
    return fleet[2]


def ask(router: Router, what: tuple[str, dict[str, Any]], stream: bool) -> Answer:
    path, body = what
    return router.ask({"model": MODEL, "stream": stream, **body}, path=path)


def answers(router: Router) -> tuple[float, float]:
    """Answers of status 2xx of the first engine, and errors in place of answers."""
    good = router.metric("kvatlas_router_engine_answers_total", engine="e0", status="2xx")
    return good, router.metric(FAULTS, engine="e0", reason="error")


def check_another_is_asked(router: Router, engine: Engine, what: tuple[str, dict[str, Any]], stream: bool) -> None:
    good, bad = answers(router)
    for _ in range(2):
        answer = ask(router, what, stream)
        assert answer.status == 200
        assert b"well" in answer.body, answer
    assert engine.asked() == 1
    wait_until(lambda: router.in_flight() == 0, "nothing is in flight")
    assert answers(router) == (good, bad + engine.asked())


@pytest.mark.parametrize("pause", [0.0, 0.01])
@pytest.mark.parametrize("name", STREAMS)
def test_an_error_as_the_first_event_is_another_engine_s_to_answer(
    router: Router, engine: Engine, name: str, pause: float
) -> None:
    what, pieces = STREAMS[name]
    engine.behaviour = events(*pieces, pause=pause)
    check_another_is_asked(router, engine, what, True)


@pytest.mark.parametrize("name", WHOLE)
def test_an_error_as_a_whole_answer_is_another_engine_s_to_answer(router: Router, engine: Engine, name: str) -> None:
    what, said = WHOLE[name]
    engine.behaviour = reply("200 OK", said)
    check_another_is_asked(router, engine, what, False)


@pytest.mark.parametrize("name", STREAMS)
def test_if_all_engines_say_so_the_client_gets_what_the_last_one_said(
    router: Router, engine: Engine, other: Engine, name: str
) -> None:
    what, pieces = STREAMS[name]
    engine.behaviour = other.behaviour = events(*pieces)
    answer = ask(router, what, True)
    assert (answer.status, answer.body) == (200, b"".join(pieces))
    assert (engine.asked(), other.asked()) == (1, 1)


@pytest.mark.parametrize("name", WHOLE)
def test_if_all_engines_say_so_the_client_gets_the_last_answer(
    router: Router, engine: Engine, other: Engine, name: str
) -> None:
    what, said = WHOLE[name]
    engine.behaviour = other.behaviour = reply("200 OK", said, "x-of-the-engine: 1")
    answer = ask(router, what, False)
    assert (answer.status, answer.headers["x-of-the-engine"]) == (200, "1")
    assert answer.body == said if isinstance(said, bytes) else answer.json == said
    assert (engine.asked(), other.asked()) == (1, 1)


OF_THE_REQUEST: dict[str, tuple[tuple[str, dict[str, Any]], bytes]] = {
    "vllm": (CHAT, event({"error": TOO_LONG}) + event(b"[DONE]")),
    "openai": (CHAT, event({"error": {"message": "x", "type": "invalid_request_error", "code": "too_long"}})),
    "responses": (RESPONSE, named("error", code="invalid_prompt", message="x")),
    "response.failed": (
        RESPONSE,
        named("response.created") + named("response.failed", response={"error": {"code": "invalid_prompt"}}),
    ),
    "messages": (MESSAGE, named("error", error={"type": "invalid_request_error", "message": "x"})),
    "sglang": (
        GENERATE,
        event({"text": "", "meta_info": {"finish_reason": {"type": "abort", "message": "long", "status_code": 400}}}),
    ),
}


@pytest.mark.parametrize("name", OF_THE_REQUEST)
def test_an_error_of_the_request_s_own_goes_to_its_client(
    router: Router, engine: Engine, other: Engine, name: str
) -> None:
    what, said = OF_THE_REQUEST[name]
    engine.behaviour = other.behaviour = events(said)
    before = router.metric(FAULTS)
    answer = ask(router, what, True)
    assert (answer.status, answer.body) == (200, said)
    engine.behaviour = other.behaviour = reply("200 OK", {"error": TOO_LONG})
    assert ask(router, what, False).json == {"error": TOO_LONG}
    assert engine.asked() + other.asked() == 2
    assert router.metric(FAULTS) == before


def text(content: str) -> bytes:
    return event(delta(content)) + event(delta("", "stop")) + event(b"[DONE]")


NO_ERROR: dict[str, tuple[tuple[str, dict[str, Any]], Behaviour]] = {
    "null": (CHAT, events(event({"error": None, **role()}), text("well"))),
    "empty": (CHAT, events(event({"error": {}, **delta("well")}), event({"error": "", **delta("", "stop")}))),
    "in-a-text": (CHAT, events(text('{"error": {"code": 500}} well'))),
    "no-choices": (CHAT, events(event({"choices": [], "prompt_filter_results": []}), text("well"))),
    "nothing": (CHAT, events(event(delta("", "stop")), event(b"[DONE]"))),
    "only-done": (CHAT, events(event(b"[DONE]"))),
    "other-form": (CHAT, events(event({"progress": 1}), text("well"))),
    "text": (CHAT, events(b"data: well\n\n")),
    "lines": (CHAT, events(json.dumps(delta("well")).encode() + b"\n", b"well\n")),
    "whole-null": (CHAT, reply("200 OK", {"error": None, "choices": [{"message": {"content": "well"}}]})),
    "whole-in-a-text": (
        CHAT,
        reply("200 OK", {"id": "x", "choices": [{"message": {"content": '"error": {"code": 500}'}}]}),
    ),
    "whole-tool": (
        CHAT,
        reply("200 OK", {"id": "x", "choices": [{"message": {"tool_calls": [{"error": "x"}]}}]}),
    ),
    "list": (GENERATE, reply("200 OK", [{"error": "x", "text": "well"}])),
    "gzip": (
        CHAT,
        reply("200 OK", gzip.compress(json.dumps({"error": DEAD}).encode()), "content-encoding: gzip"),
    ),
    "gzip-stream": (
        CHAT,
        reply("200 OK", gzip.compress(event({"error": DEAD})), "content-encoding: gzip", kind="text/event-stream"),
    ),
    "no-json": (CHAT, reply("200 OK", b'{"error": {"code": 500}}', kind="text/plain")),
    "half-json": (CHAT, reply("200 OK", b'{"error": {"code": 500}')),
}


@pytest.mark.parametrize("name", NO_ERROR)
def test_what_is_no_error_passes_as_it_is(router: Router, engine: Engine, other: Engine, name: str) -> None:
    what, behaviour = NO_ERROR[name]
    engine.behaviour = other.behaviour = behaviour
    before = router.metric(FAULTS)
    answer = ask(router, what, True)
    assert answer.status == 200
    assert not answer.broken
    assert answer.body
    assert engine.asked() + other.asked() == 1
    assert router.metric(FAULTS) == before


def test_what_an_engine_keeps_may_have_failed(router: Router, engine: Engine, other: Engine) -> None:
    failed = {"id": "resp_1", "object": "response", "status": "failed", "error": {"code": "server_error"}}
    for made in (engine, other):
        made.answers["/v1/responses/resp_1"] = failed
    before = router.metric(FAULTS)
    assert router.call("GET", "/v1/responses/resp_1") == (200, failed)
    assert engine.times("/v1/responses/resp_1") + other.times("/v1/responses/resp_1") == 1
    assert router.metric(FAULTS) == before


LATER: dict[str, tuple[tuple[str, dict[str, Any]], list[bytes]]] = {
    "vllm": (CHAT, [event(role()), event(delta("a")), event({"error": DEAD}), event(b"[DONE]")]),
    "other-order": (CHAT, [event(delta("a")), event({"id": "x", "choices": [], "error": DEAD}), event(b"[DONE]")]),
    "finish": (CHAT, [event(delta("a")), event(delta("", "error")), event(b"[DONE]")]),
    "responses": (
        RESPONSE,
        [
            named("response.created") + named("response.output_text.delta", delta="a"),
            named("response.failed", response={"status": "failed", "error": {"code": "server_error"}}),
        ],
    ),
    "messages": (
        MESSAGE,
        [
            named("message_start", message={"content": []}),
            named("content_block_delta", delta={"type": "text_delta", "text": "a"}),
            named("error", error={"type": "api_error", "message": "x"}),
        ],
    ),
    "sglang": (
        GENERATE,
        [
            event({"text": "a", "meta_info": {"finish_reason": None}}),
            event({"text": "a", "meta_info": {"finish_reason": {"type": "abort", "status_code": 500}}}),
        ],
    ),
}


@pytest.mark.parametrize("pause", [0.0, 0.01])
@pytest.mark.parametrize("name", LATER)
def test_a_later_error_is_a_fault_of_the_engine(
    router: Router, engine: Engine, other: Engine, name: str, pause: float
) -> None:
    what, pieces = LATER[name]
    engine.behaviour = other.behaviour = events(*pieces, pause=pause)
    broken, faults = router.metric("kvatlas_router_engine_broken_answers_total"), router.metric(FAULTS, reason="error")
    answer = ask(router, what, True)
    assert (answer.status, answer.body) == (200, b"".join(pieces))
    assert engine.asked() + other.asked() == 1, "what the client has seen a part of is not tried again"
    wait_until(lambda: router.in_flight() == 0, "nothing is in flight")
    # The end is noticed by the client first.
    wait_until(lambda: router.metric(FAULTS, reason="error") > faults, "the fault is counted")
    wait_until(lambda: router.metric("kvatlas_router_engine_broken_answers_total") > broken, "the answer is counted")
    assert router.metric(FAULTS, reason="error") == faults + 1
    assert router.metric("kvatlas_router_engine_broken_answers_total") == broken + 1


@pytest.mark.parametrize("policy", ["kvatlas", "least-loaded", "round-robin"])
@pytest.mark.parametrize("said", ["first", "later", "whole"])
def test_an_engine_that_answers_errors_quickly_does_not_draw_the_load(policy: str, said: str) -> None:
    with Engine() as engine, Engine() as other, Engine() as third:
        flags = ("--no-events", "--tokenizer", "none", "--policy", policy, "--health-interval", "100ms")
        with Router(engine, other, third, flags=flags) as router:
            for made in (engine, other, third):
                made.behaviour = stream(4, pause=0.02)
            for _ in range(6):
                assert router.ask({"model": MODEL, "messages": MESSAGES, "stream": True}).status == 200
            before, good = (
                engine.asked(),
                router.metric("kvatlas_router_engine_answers_total", engine="e0", status="2xx"),
            )
            whole = reply("200 OK", {"error": DEAD})
            first, later = events(event({"error": DEAD})), events(event(delta("a")) + event({"error": DEAD}))
            engine.behaviour = {"first": first, "later": later, "whole": whole}[said]
            failed = 0
            for _ in range(40):
                answer = router.ask({"model": MODEL, "messages": MESSAGES, "stream": True})
                failed += b'"error"' in answer.body
            assert engine.asked() - before <= 15
            assert failed == 0 or said == "later"
            if said != "later":
                now = router.metric("kvatlas_router_engine_answers_total", engine="e0", status="2xx")
                assert now == good, "an error is no answer"
            assert router.metric(FAULTS, engine="e0", reason="error") == engine.asked() - before


@pytest.mark.parametrize("before", [b"", event(delta("a"))], ids=["first", "later"])
def test_the_condition_says_so(engine: Engine, other: Engine, before: bytes) -> None:
    engine.behaviour = other.behaviour = events(before + event({"error": DEAD}))

    def is_failing(router: Router) -> bool:
        for _ in range(10):
            ask(router, CHAT, True)
        return all((worker["condition"] or {}).get("name") == "failing" for worker in router.workers())

    with Router(engine, other, flags=(*PLAIN, "--health-interval", "100ms")) as router:
        wait_until(lambda: is_failing(router), "both are failing")
        assert "the engine is failing" in router.log


def test_an_engine_is_left_alone_after_errors_where_others_answer(engine: Engine, other: Engine) -> None:
    flags = (*PLAIN, "--health-interval", "1h", "--health-open", "30s")
    engine.behaviour = events(event({"error": DEAD}))
    with Router(engine, other, flags=flags) as router:
        for _ in range(12):
            assert b"well" in ask(router, CHAT, True).body
        assert [worker["standing"] for worker in router.workers()] == ["failing", "up"]
        assert engine.asked() == 3


def test_a_request_that_fails_everywhere_is_held_against_no_engine(engine: Engine, other: Engine) -> None:
    flags = (*PLAIN, "--health-interval", "1h", "--health-open", "30s")
    engine.behaviour = other.behaviour = events(event({"error": DEAD}))
    with Router(engine, other, flags=flags) as router:
        for _ in range(6):
            assert b"EngineCore" in ask(router, CHAT, True).body
        assert [worker["standing"] for worker in router.workers()] == ["up", "up"]


def test_a_beginning_that_is_no_error_is_not_held_for_long(router: Router, engine: Engine, other: Engine) -> None:
    go_on = threading.Event()

    async def begin(talk: Talk) -> None:
        await talk.send(head("200 OK", "transfer-encoding: chunked", kind="text/event-stream"))
        await talk.send(chunk(event(role())))
        while not go_on.is_set():
            await asyncio.sleep(0.005)
        await talk.send(chunk(text("well")) + b"0\r\n\r\n")

    engine.behaviour = other.behaviour = begin
    answer = router.open()
    first = answer.readline()
    go_on.set()
    assert b"assistant" in first
    assert b"well" in answer.read()


def test_what_is_held_is_bounded(router: Router, engine: Engine, other: Engine) -> None:
    long = named("response.created", response={"id": "resp_1", "instructions": "x" * 300_000})

    async def fails_later(talk: Talk) -> None:
        await talk.send(head("200 OK", "transfer-encoding: chunked", kind="text/event-stream"))
        await talk.send(chunk(long))
        await asyncio.sleep(0.3)  # what comes in one piece is looked at as one
        await talk.send(chunk(named("response.failed", response={"error": {"code": "x"}})) + chunk(b""))

    engine.behaviour = other.behaviour = fails_later
    answer = ask(router, RESPONSE, True)
    assert answer.body.startswith(long)
    assert engine.asked() + other.asked() == 1


def test_a_beginning_that_breaks_off_is_another_engine_s_to_answer(
    router: Router, engine: Engine, other: Engine
) -> None:
    async def begins(talk: Talk) -> None:
        await talk.send(head("200 OK", "transfer-encoding: chunked", kind="text/event-stream"))
        await talk.send(chunk(named("response.created", response={"id": "resp_1"})))
        talk.writer.close()

    engine.behaviour = begins
    assert all(b"well" in ask(router, RESPONSE, True).body for _ in range(4))
    other.behaviour = begins
    answer = ask(router, RESPONSE, True)
    assert not answer.broken
    assert json.loads(answer.events[-1])["type"] == "error"


def test_hedged_requests_take_no_error_for_an_answer() -> None:
    with Engine(behaviour=usual) as engine, Engine(behaviour=usual) as other:
        flags = (*PLAIN, "--hedge-after", "0.9", "--retries", "0", "--health-failures", "1000")
        with Router(engine, other, flags=flags) as router:
            for _ in range(110):
                assert ask(router, CHAT, True).status == 200

            async def late(talk: Talk) -> None:
                await asyncio.sleep(0.5)
                await sound(talk)

            engine.behaviour, other.behaviour = late, events(event({"error": DEAD}))
            bodies = [ask(router, CHAT, True).body for _ in range(2)]
            assert any(b"well" in body for body in bodies)
            # The one that comes first to the engine that hangs is answered by the other one.
            engine.behaviour, other.behaviour = hang, sound
            assert all(b"well" in ask(router, CHAT, True).body for _ in range(2))
