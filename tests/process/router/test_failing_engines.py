"""Engines that fail: before the first byte the client does not notice, after it the client is told."""

import asyncio
import http.client
import json
import threading
import time
from collections.abc import Iterator

import pytest
from tests.support.engine import (
    MODEL,
    Behaviour,
    Engine,
    Talk,
    chunk,
    delta,
    die,
    event,
    hang,
    head,
    raw,
    reply,
    slowly,
    stream,
    usual,
    whole,
)

from .conftest import QUICK
from .running import MESSAGES, PLAIN, Router, in_threads, wait_until

STREAMED = {"model": MODEL, "messages": MESSAGES, "stream": True}


@pytest.mark.parametrize(
    "behaviour",
    [
        die,
        raw(b""),
        raw(b"\x00\xff\x80 not HTTP at all\r\n\r\n"),
        raw(b"HTTP/1.1 200"),
        raw(b"HTTP/1.1 99999 Strange\r\n\r\n"),
        raw(head("200 OK", "content-length: 10", "content-length: 20") + b"x" * 20),
        raw(head("200 OK", "content-length: nonsense") + b"{}"),
        raw(b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 100_000, close=False),
        raw(head("200 OK", "content-length: 100")),
        raw(head("200 OK", "transfer-encoding: chunked", kind="text/event-stream")),
        raw(head("200 OK", "transfer-encoding: chunked", kind="text/event-stream") + chunk(b'data: {"choices": [')),
        reply("503 Service Unavailable", {"error": {"message": "busy"}}),
        reply("502 Bad Gateway", {"error": {"message": "lost"}}),
    ],
    ids=[
        "dies",
        "closes",
        "garbage",
        "half-a-line",
        "bad-status",
        "two-lengths",
        "bad-length",
        "endless-head",
        "no-body",
        "no-event",
        "half-an-event",
        "503",
        "502",
    ],
)
def test_what_fails_before_the_first_byte_goes_to_another_engine(
    router: Router, engine: Engine, other: Engine, behaviour: Behaviour
) -> None:
    engine.behaviour = behaviour
    for _ in range(2):
        answer = router.ask()
        assert answer.status == 200, answer
        assert answer.json["choices"]
        answer = router.ask(STREAMED)
        assert answer.status == 200, answer
        assert answer.events[-1] == b"[DONE]"
    assert engine.asked() >= 1
    assert router.metric("kvatlas_router_retries_total") >= 1


@pytest.fixture
def impatient(engine: Engine, other: Engine) -> Iterator[Router]:
    """A router that waits for a first byte no longer than engines need that have nothing else to do."""
    with Router(engine, other, flags=(*QUICK, "--first-byte-timeout", "2s")) as made:
        yield made


def test_an_engine_that_hangs_is_given_up_and_another_one_asked(
    impatient: Router, engine: Engine, other: Engine
) -> None:
    router = impatient
    engine.behaviour = hang
    answers = [router.ask() for _ in range(2)]
    assert [answer.status for answer in answers] == [200, 200]
    wait_until(lambda: len(engine.given_up) == engine.asked() > 0, "the engine's requests are cancelled")
    assert router.metric("kvatlas_router_engine_faults_total", reason="first_byte_timeout") == engine.asked()


def test_when_all_engines_hang_the_client_is_told_so(impatient: Router, engine: Engine, other: Engine) -> None:
    router = impatient
    engine.behaviour = other.behaviour = hang
    answer = router.ask()
    assert answer.status == 504
    assert answer.error["code"] == "engine_timeout"
    wait_until(lambda: router.in_flight() == 0, "nothing is in flight")


async def only_a_head(talk: Talk) -> None:
    await talk.send(head("200 OK", "transfer-encoding: chunked", kind="text/event-stream"))
    await hang(talk)


def test_an_engine_that_hangs_after_its_head_is_given_up_and_another_one_asked(engine: Engine, other: Engine) -> None:
    engine.behaviour = only_a_head
    with Router(engine, other, flags=(*PLAIN, "--stall-timeout", "1s")) as router:
        answers = [router.ask(STREAMED) for _ in range(2)]
        assert [answer.status for answer in answers] == [200, 200]
        assert all(answer.events[-1] == b"[DONE]" for answer in answers)
        wait_until(lambda: len(engine.given_up) == engine.asked() > 0, "the engine's requests are cancelled")
        assert router.metric("kvatlas_router_engine_faults_total", reason="stalled") == engine.asked()
        other.behaviour = only_a_head
        answer = router.ask(STREAMED)
        assert (answer.status, answer.error["code"]) == (504, "engine_timeout")


def test_when_all_answers_break_off_before_their_first_byte_the_client_is_told_so(
    router: Router, engine: Engine, other: Engine
) -> None:
    for fields in (("content-length: 100",), ("transfer-encoding: chunked",)):
        engine.behaviour = other.behaviour = raw(head("200 OK", *fields))
        answer = router.ask()
        assert (answer.status, answer.error["code"]) == (502, "engine_failed")
    wait_until(lambda: router.in_flight() == 0, "nothing is in flight")
    assert router.metric("kvatlas_router_engine_broken_answers_total") == 0, "no client has seen a part of any"


def test_when_all_engines_are_gone_the_client_is_told_so_and_they_are_taken_back(
    router: Router, engine: Engine, other: Engine
) -> None:
    engine.stop()
    other.stop()
    answer = router.ask()
    assert answer.status in (502, 503)
    assert answer.error["code"] in ("engine_failed", "no_engine_available")
    other.start()
    wait_until(lambda: router.ask().status == 200, "the engine that is back takes requests")


@pytest.mark.parametrize("behaviour", [die, raw(b"", close=True)], ids=["reset", "closed"])
def test_an_engine_that_dies_in_a_stream_ends_it_with_an_error_event(
    router: Router, engine: Engine, other: Engine, behaviour: Behaviour
) -> None:
    engine.behaviour = other.behaviour = stream(3, after=behaviour)
    answer = router.ask(STREAMED)
    assert answer.status == 200
    assert not answer.broken, "the answer ends as HTTP wants it"
    *tokens, last = [one for one in answer.events if one != b"[DONE]"]
    assert [json.loads(one)["choices"][0]["delta"]["content"] for one in tokens] == ["t0 ", "t1 ", "t2 "]
    assert json.loads(last)["error"]["message"]
    assert engine.asked() + other.asked() == 1, "what the client has seen a part of is not tried again"
    wait_until(lambda: router.metric("kvatlas_router_engine_broken_answers_total") == 1, "it is counted")
    wait_until(lambda: router.in_flight() == 0, "nothing is in flight")


def test_an_event_that_was_half_sent_is_not_passed_on_half(router: Router, engine: Engine, other: Engine) -> None:
    async def half(talk: Talk) -> None:
        await talk.send(chunk(event(delta("never"))[:25]))
        talk.abort()

    engine.behaviour = other.behaviour = stream(2, after=half)
    answer = router.ask(STREAMED)
    datas = [one for one in answer.events if one != b"[DONE]"]  # checks that all events are whole
    parsed = [json.loads(one) for one in datas]
    assert "error" in parsed[-1]
    assert all("choices" in one for one in parsed[:-1])


def test_an_answer_that_breaks_off_is_not_passed_on_as_a_whole_one(
    router: Router, engine: Engine, other: Engine
) -> None:
    engine.behaviour = other.behaviour = raw(head("200 OK", "content-length: 1000") + b'{"choices": [')
    try:
        answer = router.ask()
    except http.client.RemoteDisconnected:
        pass  # it was closed before a byte had left
    else:
        assert answer.broken or answer.status >= 500, "the client can tell"
    wait_until(lambda: router.metric("kvatlas_router_engine_broken_answers_total") == 1, "it is counted")


def test_an_engine_may_close_connections_that_are_idle(router: Router, engine: Engine, other: Engine) -> None:
    engine.close_after = other.close_after = 0.02
    for _ in range(20):
        assert router.ask().status == 200
        time.sleep(0.03)
    assert router.metric("kvatlas_router_engine_faults_total") == 0, "that is no failure"
    assert {worker["standing"] for worker in router.workers()} == {"up"}


def test_an_engine_may_speak_slowly(router: Router, engine: Engine, other: Engine) -> None:
    body = b'{"choices": [{"message": {"content": "slow"}}]}'
    engine.behaviour = other.behaviour = slowly(head("200 OK", f"content-length: {len(body)}") + body, 0.002)
    assert router.ask().json["choices"][0]["message"]["content"] == "slow"
    events = b"".join(chunk(event(delta(str(number)))) for number in range(3)) + chunk(event(b"[DONE]")) + b"0\r\n\r\n"
    begins = head("200 OK", "transfer-encoding: chunked", kind="text/event-stream")
    engine.behaviour = other.behaviour = slowly(begins + events, 0.0005)
    assert router.ask(STREAMED).events[-1] == b"[DONE]"


def test_tokens_are_passed_on_as_they_come(router: Router, engine: Engine, other: Engine) -> None:
    go_on = threading.Event()

    async def held(talk: Talk) -> None:
        while not go_on.is_set():
            await _pause()
        await talk.send(chunk(event(b"[DONE]")) + b"0\r\n\r\n")

    engine.behaviour = other.behaviour = stream(1, after=held)
    answer = router.open()
    first = answer.readline()  # comes although the engine has not ended
    go_on.set()
    assert b"t0" in first
    assert answer.read().endswith(b"data: [DONE]\n\n")


async def _pause() -> None:
    await asyncio.sleep(0.005)


def test_a_busy_engine_is_left_alone_for_as_long_as_it_asks(router: Router, engine: Engine, other: Engine) -> None:
    engine.behaviour = reply("503 Service Unavailable", {"error": {"message": "full"}}, "retry-after: 30")
    for _ in range(10):
        assert router.ask().status == 200
    assert engine.asked() == 1
    assert [worker["standing"] for worker in router.workers()] == ["busy", "up"]


def date(seconds: float, form: str = "%a, %d %b %Y %H:%M:%S GMT") -> str:
    """A date so far from now, as HTTP has them."""
    return time.strftime(form, time.gmtime(time.time() + seconds))


@pytest.mark.parametrize("status", ["503 Service Unavailable", "429 Too Many Requests"])
@pytest.mark.parametrize(
    "until",
    [
        date(3600),
        date(3600, "%A, %d-%b-%y %H:%M:%S GMT"),
        date(3600, "%a %b %e %H:%M:%S %Y"),
        "Fri, 31 Dec 9999 23:59:59 GMT",
        "  30  ",
        "999999999999999999999999",
    ],
    ids=["imf", "rfc850", "asctime", "far", "spaces", "large"],
)
def test_a_busy_engine_may_say_until_when(
    router: Router, engine: Engine, other: Engine, until: str, status: str
) -> None:
    engine.behaviour = reply(status, {"error": {"message": "full"}}, f"retry-after: {until}")
    assert all(router.ask().status == 200 for _ in range(6))
    assert engine.asked() == 1
    assert [worker["standing"] for worker in router.workers()] == ["busy", "up"]
    other.behaviour = engine.behaviour
    answer = router.ask()
    assert 1 <= int(answer.headers["retry-after"]) <= 60


# Ids of tests must not depend on the time: they are collected by several processes.
@pytest.mark.parametrize("until", ["a minute ago", "Thu, 01 Jan 1970 00:00:00 GMT", "-5", "0", "soon", "1.5", ""])
def test_a_busy_engine_may_ask_for_no_pause(router: Router, engine: Engine, other: Engine, until: str) -> None:
    value = date(-60) if until == "a minute ago" else until
    engine.behaviour = reply("503 Service Unavailable", {"error": {"message": "full"}}, f"retry-after: {value}")
    assert all(router.ask().status == 200 for _ in range(2))
    assert engine.asked() == 1
    assert [worker["standing"] for worker in router.workers()] == ["up", "up"]


def test_when_all_are_busy_the_client_is_told_when_to_come_back(router: Router, engine: Engine, other: Engine) -> None:
    engine.behaviour = other.behaviour = reply(
        "503 Service Unavailable", {"error": {"message": "full"}}, "retry-after: 7"
    )
    first, second = router.ask(), router.ask()
    assert first.status == second.status == 503
    assert 1 <= int(first.headers["retry-after"]) <= 7
    assert 1 <= int(second.headers["retry-after"]) <= 7
    assert second.error["message"]


def test_what_an_engine_refuses_is_passed_on_as_it_is(router: Router, engine: Engine, other: Engine) -> None:
    said = {"error": {"message": "too long", "type": "BadRequestError", "code": 400}}
    for status in ("400 Bad Request", "404 Not Found", "422 Unprocessable Entity", "500 Internal Server Error"):
        engine.behaviour = other.behaviour = reply(status, said, "x-of-the-engine: 1")
        answer = router.ask()
        assert (answer.status, answer.json) == (int(status[:3]), said)
        assert answer.headers["x-of-the-engine"] == "1"
    assert engine.asked() + other.asked() == 4, "none was tried again"


def test_an_engine_that_fails_its_health_check_gets_nothing_and_comes_back(
    router: Router, engine: Engine, other: Engine
) -> None:
    engine.healthy = False
    wait_until(lambda: router.workers()[0]["standing"] == "down", "it is seen to be down")
    before = engine.asked()
    assert all(router.ask().status == 200 for _ in range(6))
    assert engine.asked() == before
    engine.healthy = True
    wait_until(lambda: router.workers()[0]["standing"] == "up", "it is seen to be up")
    assert all(router.ask().status == 200 for _ in range(4))
    assert engine.asked() > before


def test_an_engine_may_begin_to_serve_another_model(engine: Engine, other: Engine) -> None:
    flags = (*PLAIN, "--health-interval", "100ms", "--load-interval", "100ms")
    with Router(engine, other, flags=flags) as router:
        wait_until(lambda: [worker["models"] for worker in router.workers()] == [[MODEL], [MODEL]], "models are known")
        engine.stop()
        engine.model = "changed"
        engine.start()
        seen = ("up", ["changed"])
        wait_until(
            lambda: tuple(router.workers()[0][name] for name in ("standing", "models")) == seen, "the new model is seen"
        )
        assert all(router.ask().status == 200 for _ in range(4)), "the other one still has the old model"
        assert router.ask({"model": "changed", "messages": MESSAGES}).status == 200
        listed = {card["id"] for card in json.loads(router.get("/v1/models")[1])["data"]}
        assert listed == {MODEL, "changed"}
        unknown = router.ask({"model": "nobody's", "messages": MESSAGES})
        assert unknown.status == 404


def test_an_engine_that_stops_in_the_middle_of_a_stream_is_given_up(engine: Engine) -> None:
    engine.behaviour = stream(2, after=hang)
    with Router(engine, flags=(*PLAIN, "--stall-timeout", "1s")) as router:
        answer = router.ask(STREAMED)
        assert "error" in json.loads([one for one in answer.events if one != b"[DONE]"][-1])
        wait_until(lambda: len(engine.given_up) == 1, "the engine's request is cancelled")


def test_engines_that_die_under_load_cost_no_request(engine: Engine, other: Engine) -> None:
    """Requests that are not streamed, while an engine is killed and started again and again."""
    flags = (*PLAIN, "--health-interval", "100ms", "--retries", "4")
    with Router(engine, other, flags=flags) as router:
        failed = []

        def ask(number: int) -> None:
            for _ in range(25):
                answer = router.ask()
                if answer.status != 200 or answer.broken:
                    failed.append(answer)

        engine.behaviour = other.behaviour = whole("x" * 1000)
        with in_threads(8, ask) as errors:
            for _ in range(5):
                engine.stop()
                time.sleep(0.05)
                engine.start()
                time.sleep(0.05)
        assert not errors
        broken = [one for one in failed if one.broken]
        assert not [one for one in failed if not one.broken], failed
        assert len(broken) <= 10, "only answers of which a part had come can be lost"
        wait_until(lambda: router.in_flight() == 0, "nothing is in flight")
        engine.behaviour = other.behaviour = usual


@pytest.mark.parametrize("says", [hang, only_a_head], ids=["nothing", "a-head"])
def test_requests_without_a_byte_leave_an_engine_that_goes_down(
    router: Router, engine: Engine, other: Engine, says: Behaviour
) -> None:
    engine.behaviour = says
    answers = []
    with in_threads(6, lambda number: answers.append(router.ask(STREAMED))) as errors:
        wait_until(lambda: engine.asked() == 3, "half of them are at the engine")
        engine.healthy = False
    assert not errors
    assert [answer.status for answer in answers] == [200] * 6
    assert {answer.headers["x-kvatlas-worker"] for answer in answers} == {"e1"}
    assert router.metric("kvatlas_router_engine_faults_total", reason="down") == 3
    wait_until(lambda: len(engine.given_up) == 3, "they are cancelled there")
    assert "the engine is down" in router.log


def test_what_may_not_be_repeated_is_told_that_its_engine_went_down(router: Router, engine: Engine) -> None:
    engine.behaviour = hang
    answers = []

    def ask(number: int) -> None:
        answers.append(router.ask({"model": MODEL, "input": "x", "background": True}, path="/v1/responses"))

    with in_threads(2, ask) as errors:
        wait_until(lambda: engine.asked() == 1, "one of them is at the engine")
        engine.healthy = False
    assert not errors
    assert max(answer.status for answer in answers) == 504
    assert engine.asked() == 1


def test_an_engine_that_was_down_all_the_time_is_waited_for(engine: Engine) -> None:
    """If health is asked for in the wrong place, all engines are down, and answer."""
    engine.healthy = False
    engine.behaviour = slowly(head("200 OK", "content-length: 2") + b"{}", pause=0.05)
    with Router(engine, flags=QUICK, ready=False) as router:
        wait_until(lambda: router.workers()[0]["standing"] == "down", "it is down")
        assert router.ask().status == 200


def test_an_engine_that_fails_again_and_again_gets_fewer_requests_until_it_works(engine: Engine, other: Engine) -> None:
    """The error is the client's answer: so nothing is sent again, and nothing says that the engine is down."""
    engine.behaviour = reply("500 Internal Server Error", {"error": {"message": "CUDA error"}})
    with Router(engine, other, flags=PLAIN) as router:
        # Whatever it has failed so far, it is left out within some looks.
        wait_until(lambda: [router.ask().status for _ in range(6)] == [200] * 6, "the engine that fails is left out")
        engine.behaviour = usual
        asked = engine.asked()
        wait_until(lambda: router.ask().status == 200 and engine.asked() > asked, "it is tried again")
        wait_until(lambda: all(router.ask().status == 200 for _ in range(4)), "it works")
