"""Engines whose answers have no end, or are longer than anything that is needed of them."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.support.engine import MODEL, Behaviour, Engine, Talk, chunk, head, raw, usual

from .running import MESSAGES, PLAIN, Router, wait_until

MIB = 1 << 20
STREAMED = {"model": MODEL, "messages": MESSAGES, "stream": True}
QUESTIONS = ("/v1/models", "/server_info", "/get_server_info", "/version", "/is_sleeping", "/metrics", "/health")


def without_end(beginning: bytes, piece: bytes) -> Behaviour:
    """These bytes, and then one piece again and again."""

    async def act(talk: Talk) -> None:
        await talk.send(beginning)
        pieces = piece * (MIB // len(piece))
        while True:
            await talk.send(pieces)

    return act


SSE = head("200 OK", "transfer-encoding: chunked", kind="text/event-stream")
FLOODS = {
    "interim": without_end(b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "hints": without_end(b"", b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n"),
    "bare-interim": without_end(b"", b"HTTP/1.1 199\r\n\r\n"),
    "head": without_end(b"HTTP/1.1 200 OK\r\n", b"a: b\r\n"),
    "line": without_end(b"HTTP/1.1 200 OK\r\nx: ", b"y"),
    "extension": without_end(SSE + b"1;", b"a=b;"),
    "extensions": without_end(SSE, b"1;a\r\n:\r\n"),
    "trailers": without_end(SSE + b"0\r\n", b"a: b\r\n"),
    "zeros": without_end(SSE, b"0"),
}
STREAMS = {
    "comments": without_end(SSE, chunk(b": nothing\n\n")),
    "bare-comments": without_end(SSE, chunk(b":\n")),
    "empty-lines": without_end(SSE, chunk(b"\n")),
    "one-comment": without_end(SSE + chunk(b": "), chunk(b"x")),
    "empty-data": without_end(SSE, chunk(b"data:\n\n")),
    "other-fields": without_end(SSE, chunk(b"id: 1\n")),
}


@contextmanager
def health_in_time(router: Router) -> Iterator[list[float]]:
    """The seconds that `/health` takes, asked again and again."""
    took: list[float] = []
    done = threading.Event()

    def ask() -> None:
        while not done.wait(0.02):
            began = time.monotonic()
            assert router.get("/health")[0] == 200
            took.append(time.monotonic() - began)

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield took
    finally:
        done.set()
        thread.join()


@pytest.mark.parametrize("name", FLOODS)
def test_what_comes_without_end_before_or_beside_an_answer_is_refused(engine: Engine, name: str) -> None:
    engine.behaviour = FLOODS[name]
    with Router(engine, flags=(*PLAIN, "--retries", "0", "--wait-for-engine", "0s")) as router:
        with health_in_time(router) as took:
            answers = [router.ask(), router.ask(STREAMED)]
        for answer in answers:
            assert answer.status == 502 or b"engine_failed" in answer.body or answer.broken, answer
        if "head" in name or "interim" in name or name == "hints":
            assert {answer.status for answer in answers} == {502}
        assert max(took, default=0.0) < 2.0
        assert router.metric("kvatlas_router_engine_faults_total", reason="malformed") >= 1


@pytest.mark.parametrize("count", [1, 16])
def test_some_interim_answers_are_no_fault(engine: Engine, count: int) -> None:
    body = b'{"choices": []}'
    whole = head("200 OK", f"content-length: {len(body)}") + body
    engine.behaviour = raw(b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n" * count + whole)
    with Router(engine, flags=PLAIN) as router:
        for _ in range(2):
            assert router.ask().body == body


@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_that_says_nothing_leaves_the_threads_to_others(engine: Engine, name: str) -> None:
    engine.behaviour = STREAMS[name]
    with Router(engine, flags=(*PLAIN, "--wait-for-engine", "0s")) as router:
        before = router.memory()
        opened = []
        for _ in range(2 * 4):
            made = router.connect()
            data = json.dumps(STREAMED).encode()
            lines = ["POST /v1/chat/completions HTTP/1.1", "host: a", "content-type: application/json"]
            made.sendall("\r\n".join([*lines, f"content-length: {len(data)}", "", ""]).encode() + data)
            opened.append(made)
        with health_in_time(router) as took:
            deadline = time.monotonic() + 1.5
            for made in opened:
                made.settimeout(0.2)
                while time.monotonic() < deadline:
                    try:
                        if not made.recv(1 << 16):
                            break
                    except TimeoutError:
                        break
            time.sleep(max(0.0, deadline - time.monotonic()))
        assert took
        assert max(took) < 1.5
        assert router.memory() - before < 64 * MIB
        for made in opened:
            made.close()


# What engines say of themselves


def nested(size: int) -> bytes:
    """JSON that takes much more memory than bytes, if all of it is read."""
    return b"[" + b'{"":[]},' * (size // 8) + b"0]"


def about(size: int) -> dict[str, bytes]:
    """Long answers to each question, all of them with what is asked for."""
    filler = nested(size)
    cards = b",".join(b'{"id": "m%d", "parent": null}' % number for number in range(size // 30))
    return {
        "/v1/models": b'{"data": [%s], "more": %s}' % (cards, filler),
        "/server_info": b'{"kv_events": %s, "internal_states": %s}' % (filler, filler),
        "/get_server_info": b'{"kv_events": %s}' % filler,
        "/version": b'{"version": "0.33.0", "more": %s}' % filler,
        "/is_sleeping": b'{"more": %s, "is_sleeping": false}' % filler,
        "/metrics": b"".join(b'vllm:num_requests_running{engine="%d"} 1\n' % rank for rank in range(size // 45)),
        "/kv_event_sources": b'{"0": %s}' % filler,
    }


def long_answer(body: bytes) -> Behaviour:
    async def act(talk: Talk) -> None:
        await talk.send(head("200 OK", f"content-length: {len(body)}") + body)

    return act


def highest(pid: int) -> int:
    """The most bytes that a process has had in memory."""
    for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) << 10
    raise AssertionError("no VmHWM")


@pytest.mark.parametrize("flags", [("--no-events",), ()], ids=["no-events", "events"])
def test_long_words_of_engines_on_themselves_take_little_memory(
    engine: Engine, other: Engine, flags: tuple[str, ...]
) -> None:
    quick = ("--tokenizer", "none", "--health-interval", "100ms", "--health-timeout", "10s", "--load-interval", "100ms")
    with Router(engine, other, flags=(*quick, *flags)) as router:
        before = highest(router.process.pid)
        engine.received.clear()
        engine.answers = {path: long_answer(body) for path, body in about(15 * MIB).items()} | {"/health": 200}
        refused = "kvatlas_router_engine_oversized_answers_total"
        wait_until(lambda: router.metric(refused, engine="e0") >= 4, "answers are given up")
        wait_until(lambda: engine.times("/metrics") >= 2, "its metrics are read")
        assert highest(router.process.pid) - before < 96 * MIB
        engine.behaviour = usual
        assert router.ask().status == 200


@pytest.mark.parametrize("path", QUESTIONS)
def test_an_answer_without_end_is_given_up(engine: Engine, other: Engine, path: str) -> None:
    engine.answers[path] = without_end(head("200 OK", "transfer-encoding: chunked"), chunk(b"{" * 1000))
    flags = (*PLAIN, "--health-interval", "100ms", "--load-interval", "100ms")
    with Router(engine, other, flags=flags) as router:
        before = router.memory()
        wait_until(lambda: engine.times(path) >= 2, "it was asked")
        for _ in range(4):
            assert router.ask().status == 200
        assert router.memory() - before < 64 * MIB


def test_a_thousand_models_with_short_names_count(engine: Engine) -> None:
    many = [{"id": f"m{number}", "object": "model", "permission": [{}] * 3} for number in range(1500)]
    cards = [{"id": "x" * 257}, {"id": "y" * 256, "max_model_len": 77, "deep": {"a": [1]}}, {"no": "id"}, *many]
    engine.answers["/v1/models"] = {"data": cards}
    with Router(engine, flags=PLAIN) as router:
        listed = json.loads(router.get("/v1/models")[1])["data"]
        assert len(listed) == 1000
        names = {card["id"] for card in listed}
        assert "y" * 256 in names
        assert {"m0", "m998"} <= names
        assert not names & {"x" * 257, "m999"}
        (card,) = (card for card in listed if card["id"] == "y" * 256)
        assert card == {"id": "y" * 256, "max_model_len": 77}
        assert router.metric("kvatlas_router_engine_oversized_answers_total", engine="e0") >= 502
        assert "lists more than 1000 models" in router.log


REFUSALS = {
    "error": b'{"error": {"message": "The model `m` does not exist.", "more": %s}}',
    "message": b'{"object": "error", "message": "no", "more": %s}',
    "detail": b'{"detail": %s}',
    "deep": b'{"error": %s}',
}


@pytest.mark.parametrize("name", REFUSALS)
@pytest.mark.parametrize("status", ["400 Bad Request", "404 Not Found", "503 Service Unavailable"])
def test_long_refusals_are_not_taken_apart(engine: Engine, name: str, status: str) -> None:
    body = REFUSALS[name] % nested(8 * MIB)
    engine.behaviour = raw(head(status, f"content-length: {len(body)}") + body)
    with Router(engine, flags=(*PLAIN, "--wait-for-engine", "0s", "--retries", "0")) as router:
        before = highest(router.process.pid)
        assert router.ask().status == int(status[:3])
        assert highest(router.process.pid) - before < 96 * MIB
