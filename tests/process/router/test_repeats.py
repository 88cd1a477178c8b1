"""Tests of what is sent to a second engine when the first one does not answer, and what that says of engines."""

import json
from collections.abc import Iterator

import pytest
from tests.support.engine import MODEL, Behaviour, Engine, die, hang, head, raw, reply, stream, usual

from .running import PLAIN, Router, wait_until

POISON = "kills whoever reads it"
KILLS = {"model": MODEL, "messages": [{"role": "user", "content": POISON}]}


@pytest.fixture(scope="module")
def fleet() -> Iterator[tuple[Router, list[Engine]]]:
    """Four engines and a router that looks at them seldom. Tests leave them as they were."""
    with Engine() as first, Engine() as second, Engine() as third, Engine() as fourth:
        engines = [first, second, third, fourth]
        limits = ("--retries", "3", "--first-byte-timeout", "2s", "--health-interval", "1h")
        flags = (*PLAIN, *limits, "--forward", "/v1/unknown,/v1/messages/batches")
        with Router(*engines, flags=flags) as router:
            yield router, engines


@pytest.fixture
def router(fleet: tuple[Router, list[Engine]], engines: list[Engine]) -> Router:
    for _ in range(8):  # connections are kept, and all is well
        assert fleet[0].ask().status == 200
    return fleet[0]


@pytest.fixture
def engines(fleet: tuple[Router, list[Engine]]) -> list[Engine]:
    for engine in fleet[1]:
        engine.behaviour, engine.dies_of = usual, None
        engine.received.clear()
    return fleet[1]


def sent(engines: list[Engine], text: str, method: str | None = None) -> int:
    """The number of requests that engines got with this in their path or body, by any method or this one."""
    received = [one for engine in engines for one in engine.received if method in (None, one.method)]
    return sum(1 for one in received if text in one.path or text.encode() in one.body)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/fine_tuning/jobs"),
        ("DELETE", "/v1/files/x"),
        ("POST", "/v1/files"),
        ("POST", "/v1/responses/resp_1/cancel"),
        ("POST", "/v1/messages/batches"),
        ("PUT", "/v1/unknown"),
        ("PATCH", "/v1/unknown"),
        ("POST", "/v1/unknown?x=/v1/embeddings"),
    ],
)
def test_what_changes_something_is_sent_once(router: Router, engines: list[Engine], method: str, path: str) -> None:
    before = router.metric("kvatlas_router_unanswered_requests_total", reason="not_repeatable")
    for engine in engines:
        engine.dies_of = path.encode()
    for number in range(1, 3):
        status, answer = router.call(method, path, {"x": 1})
        assert (status, answer["error"]["code"]) == (502, "engine_failed")
        assert sent(engines, path, method) == number
    after = router.metric("kvatlas_router_unanswered_requests_total", reason="not_repeatable")
    assert after - before == 2


@pytest.mark.parametrize(
    "behaviour",
    [
        die,
        hang,
        raw(b"HTTP/1.1 200"),
        raw(b"garbage\r\n\r\n"),
        raw(head("200 OK", "content-length: 9")),
        reply("502 Bad Gateway", {}),
        reply("503 Service Unavailable", {}),
    ],
)
def test_what_changes_something_is_sent_once_however_it_fails(
    router: Router, engines: list[Engine], behaviour: Behaviour
) -> None:
    for engine in engines:
        engine.behaviour = behaviour
    assert router.call("POST", "/v1/files", {"x": 1})[0] in (502, 503, 504)
    assert sent(engines, "/v1/files") == 1


def test_what_changes_something_goes_to_an_engine_that_can_be_reached(engine: Engine, other: Engine) -> None:
    with Router(engine, other, flags=PLAIN) as router:
        engine.stop()
        other.behaviour = reply("200 OK", {"id": "job"})
        assert [router.call("POST", "/v1/fine_tuning/jobs", {})[0] for _ in range(2)] == [200, 200]


@pytest.mark.parametrize(
    "path",
    ["/v1/completions", "/v1/embeddings", "/rerank", "/v1/score", "/generate", "/inference/v1/generate", "/tokenize"],
)
def test_what_generates_is_sent_to_one_other_engine(router: Router, engines: list[Engine], path: str) -> None:
    for engine in engines:
        engine.dies_of = POISON.encode()
    answer = router.ask({"model": MODEL, "prompt": POISON}, path=path)
    assert (answer.status, answer.error["code"]) == (502, "engine_failed")
    assert sorted(sent([engine], POISON) for engine in engines) == [0, 0, 1, 1]


def test_reads_are_sent_to_one_other_engine(router: Router, engines: list[Engine]) -> None:
    for engine in engines:
        engine.dies_of = b"/v1/files?after=x"
    assert router.call("GET", "/v1/files?after=x")[0] == 502
    assert sorted(sent([engine], "/v1/files?after=x") for engine in engines) == [0, 0, 1, 1]


def test_an_answer_in_the_background_is_begun_once(router: Router, engines: list[Engine]) -> None:
    for engine in engines:
        engine.dies_of = POISON.encode()
    asked = {"model": MODEL, "input": POISON}
    assert router.ask(asked | {"background": True}, path="/v1/responses").status == 502
    assert sent(engines, POISON) == 1
    assert router.ask(asked, path="/v1/responses").status == 502
    assert sent(engines, POISON) == 3


@pytest.mark.parametrize(
    "behaviour", [None, die, raw(b"HTTP/1.1 200 OK\r\nx"), raw(head("200 OK", "content-length: 9"))]
)
def test_requests_that_kill_engines_are_held_against_the_requests(
    router: Router, engines: list[Engine], behaviour: Behaviour | None
) -> None:
    for engine in engines:
        engine.dies_of = POISON.encode() if behaviour is None else None
        engine.behaviour = behaviour or usual
    before = router.metric("kvatlas_router_unanswered_requests_total", reason="sent_twice")
    for number in range(16):
        answer = router.ask(KILLS, headers={"x-request-id": f"killer-{number}"})
        assert (answer.status, answer.error["code"]) == (502, "engine_failed")
    assert sent(engines, POISON) == 32
    for engine in engines:
        engine.behaviour = usual
    assert router.get("/ready")[0] == 200
    assert [worker["standing"] for worker in router.workers()] == ["up"] * 4
    assert router.metric("kvatlas_router_unanswered_requests_total", reason="sent_twice") - before == 16
    wait_until(lambda: "killer-15" in router.log, "it says which requests they were")
    assert [router.ask().status for _ in range(8)] == [200] * 8


def test_streams_that_break_off_are_not_held_against_engines_that_are_well(
    router: Router, engines: list[Engine]
) -> None:
    for engine in engines:
        engine.behaviour = stream(2, after=die)
    for _ in range(16):
        answer = router.ask(KILLS | {"stream": True})
        assert "error" in json.loads([one for one in answer.events if one != b"[DONE]"][-1])
    assert router.get("/ready")[0] == 200
    assert [worker["standing"] for worker in router.workers()] == ["up"] * 4


def test_a_prompt_on_which_engines_hang_costs_two_of_them(router: Router, engines: list[Engine]) -> None:
    for engine in engines:
        engine.behaviour = hang
    answer = router.ask(KILLS)
    assert (answer.status, answer.error["code"]) == (504, "engine_timeout")
    assert sent(engines, POISON) == 2
    assert [worker["standing"] for worker in router.workers()] == ["up"] * 4


def test_an_engine_that_fails_where_others_answer_is_left_out(engine: Engine, other: Engine) -> None:
    with Router(engine, other, flags=(*PLAIN, "--health-interval", "1h", "--health-open", "30s")) as router:
        engine.behaviour = raw(b"")
        for _ in range(12):
            assert router.ask().status == 200
        assert [worker["standing"] for worker in router.workers()] == ["failing", "up"]
        assert engine.asked() == 3


def test_an_engine_that_dies_of_a_prompt_is_seen_to_be_dead_at_once(engine: Engine) -> None:
    """The engine's next health check is an hour away: failures bring it forward."""
    with Router(engine, flags=(*PLAIN, "--health-interval", "1h")) as router:
        engine.behaviour = die
        engine.healthy = False
        for _ in range(3):
            assert router.ask().status == 502
        wait_until(lambda: router.workers()[0]["standing"] == "down", "it is seen to be down")
        assert router.get("/ready")[0] == 503
        engine.healthy = True
        wait_until(lambda: router.workers()[0]["standing"] == "up", "it is asked again soon")


def test_a_single_engine_gets_a_request_twice_at_most(engine: Engine) -> None:
    with Router(engine, flags=PLAIN) as router:
        assert router.ask().status == 200
        engine.dies_of = POISON.encode()
        for _ in range(3):
            before = sent([engine], POISON)
            assert router.ask(KILLS).status == 502
            assert sent([engine], POISON) - before <= 2
        assert router.ask().status == 200
