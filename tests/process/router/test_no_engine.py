"""Requests wait while no engine is up, and the log says it once."""

from __future__ import annotations

import json
import time

import pytest
from tests.support.engine import MODEL, Engine, Talk, hang, stream, usual

from .running import MESSAGES, PLAIN, Router, in_threads, wait_until
from .test_waiting import ThreadedRequest

FLAGS = (*PLAIN, "--health-interval", "100ms", "--wait-for-engine", "60s")
CHAT = {"model": MODEL, "messages": MESSAGES}


def numbered(number: int) -> dict[str, object]:
    """A request with its number, which is the longer the higher that is."""
    return {"model": MODEL, "messages": [{"role": "user", "content": f"number {number} {'-' * 64 * number}"}]}


def order(engine: Engine) -> list[int]:
    """The numbers of the requests that an engine got, in the order in which they came."""
    posted = [one.json["messages"][0]["content"] for one in engine.received if one.method == "POST"]
    return [int(text.split()[1]) for text in posted if text.startswith("number")]


def queued(router: Router) -> float:
    return router.metric("kvatlas_router_queue_for_engine")


def ask_in_order(router: Router, count: int) -> list[ThreadedRequest]:
    asked = []
    for number in range(count):
        asked.append(ThreadedRequest(router, numbered(number)))
        wait_until(lambda: queued(router) == len(asked), "it waits")
    return asked


def test_requests_wait_until_there_is_an_engine(engine: Engine) -> None:
    with Router(flags=FLAGS, ready=False) as router:
        asked = ask_in_order(router, 8)
        assert router.call("GET", "/router")[1]["queued"] == 8
        assert router.call("POST", "/engines", {"name": "e0", "url": engine.url})[0] == 201
        assert [one.result().status for one in asked] == [200] * 8
        assert sorted(order(engine)) == list(range(8))
        # In order of arrival; of two that are placed by two threads at once, either may be first.
        placed = [one["tokens"] for one in reversed(json.loads(router.get("/decisions")[1]))]
        found = [sorted(placed).index(tokens) for tokens in placed]
        assert sorted(found) == list(range(8)), placed
        assert all(abs(place - number) <= 1 for place, number in enumerate(found)), found
        assert router.metric("kvatlas_router_waits_for_engine_total", outcome="placed") == 8
        assert queued(router) == 0


@pytest.mark.parametrize("checks", ["100ms", "0"], ids=["checked", "unchecked"])
def test_requests_wait_while_all_engines_refuse_connections(engine: Engine, other: Engine, checks: str) -> None:
    flags = (*FLAGS, "--health-interval", checks, "--health-open", "100ms", "--health-open-max", "200ms")
    with Router(engine, other, flags=flags) as router:
        engine.stop()
        other.stop()
        asked = [ThreadedRequest(router, numbered(number)) for number in range(6)]
        wait_until(lambda: queued(router) == 6, "they wait")
        time.sleep(1.0)  # those that try meanwhile keep their places
        assert queued(router) == 6
        other.start()
        assert [(one.result().status, one.result().headers["x-kvatlas-worker"]) for one in asked] == [(200, "e1")] * 6
        assert len(order(other)) == 6, "none was sent twice"
        assert router.metric("kvatlas_router_unanswered_requests_total") == 0
        engine.start()
        wait_until(lambda: "the outage is over" in router.log, "the log tells of its end")


def test_more_engines_that_refuse_than_retries(engine: Engine) -> None:
    gone = [Engine() for _ in range(5)]
    with Router(engine, *gone, flags=(*FLAGS, "--retries", "1")) as router:
        for one in (engine, *gone):
            one.stop()
        asked = ThreadedRequest(router, CHAT)
        wait_until(lambda: queued(router) == 1, "it waits")
        engine.start()
        assert asked.result().status == 200


def test_what_waited_in_vain_is_told_what_is_wrong(engine: Engine) -> None:
    with Router(engine, flags=(*FLAGS, "--wait-for-engine", "400ms")) as router:
        engine.stop()
        answer = router.ask()
        assert (answer.status, answer.error["code"]) == (503, "no_engine_available")
        assert int(answer.headers["retry-after"]) >= 1
        assert "e0" in answer.error["message"]
        assert "wait_for_engine" in answer.error["message"]
        wait_until(lambda: router.workers()[0]["standing"] == "down", "it is seen to be down")
        assert "e0 is down" in router.ask().error["message"]
        assert router.metric("kvatlas_router_waits_for_engine_total", outcome="timeout") == 2
    with Router(flags=(*FLAGS, "--wait-for-engine", "100ms"), ready=False) as router:
        answer = router.ask()
        assert (answer.status, answer.error["code"]) == (503, "no_engines")
        assert int(answer.headers["retry-after"]) >= 1


def test_without_patience_requests_are_refused_at_once(engine: Engine) -> None:
    with Router(engine, flags=(*FLAGS, "--wait-for-engine", "0")) as router:
        engine.stop()
        assert router.ask().status == 502
    with Router(flags=(*FLAGS, "--wait-for-engine", "0"), ready=False) as router:
        assert (router.ask().status, router.ask().error["code"]) == (503, "no_engines")


def test_no_more_wait_than_may(engine: Engine) -> None:
    with Router(flags=(*FLAGS, "--queue", "2"), ready=False) as router:
        asked = ask_in_order(router, 2)
        refused = router.ask()
        assert (refused.status, refused.error["code"]) == (503, "no_engines")
        assert "2 requests wait" in refused.error["message"]
        assert router.metric("kvatlas_router_waits_for_engine_total", outcome="full") == 1
        assert router.call("POST", "/engines", {"name": "e0", "url": engine.url})[0] == 201
        assert [one.result().status for one in asked] == [200, 200]


def test_a_client_that_leaves_frees_its_place(engine: Engine) -> None:
    with Router(flags=(*FLAGS, "--queue", "3"), ready=False) as router:
        body = json.dumps(CHAT).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {len(body)}\r\n\r\n".encode()
        made = [router.connect() for _ in range(3)]
        for one in made:
            one.sendall(head + body)
        wait_until(lambda: queued(router) == 3, "they wait")
        for one in made:
            one.close()
        wait_until(lambda: queued(router) == 0, "their places are free")
        assert router.metric("kvatlas_router_waits_for_engine_total", outcome="left") == 3
        asked = ask_in_order(router, 2)
        assert router.call("POST", "/engines", {"name": "e0", "url": engine.url})[0] == 201
        assert [one.result().status for one in asked] == [200, 200]
        assert engine.asked() == 2


def test_those_of_another_model_do_not_wait(engine: Engine, other: Engine) -> None:
    other.model = "another"
    with Router(engine, other, flags=FLAGS) as router:
        wait_until(lambda: [row["models"] for row in router.workers()] == [[MODEL], ["another"]], "models are known")
        engine.stop()
        asked = ThreadedRequest(router, CHAT)
        wait_until(lambda: queued(router) == 1, "it waits")
        assert router.ask({"model": "another", "messages": MESSAGES}).status == 200
        unknown = router.ask({"model": "nobody's", "messages": MESSAGES})
        assert (unknown.status, unknown.error["code"]) == (404, "model_not_found")
        engine.start()
        assert asked.result().status == 200


def test_engines_that_are_drained_are_waited_for(engine: Engine) -> None:
    with Router(engine, flags=FLAGS) as router:
        assert router.ask(b"{}", path="/engines/e0/drain").status == 200
        asked = ThreadedRequest(router, CHAT)
        wait_until(lambda: queued(router) == 1, "it waits")
        assert router.ask(b"{}", path="/engines/e0/undrain").status == 200
        assert asked.result().status == 200


def test_what_an_engine_may_have_begun_does_not_wait(engine: Engine) -> None:
    """An engine that dies with a request: that may be sent once more, but no other engine is there."""

    async def dies(talk: Talk) -> None:
        talk.abort()

    engine.behaviour = dies
    with Router(engine, flags=FLAGS) as router:
        answer = router.ask()
        assert (answer.status, answer.error["code"]) == (502, "engine_failed")
        engine.behaviour = usual
        assert router.ask().status == 200


@pytest.mark.parametrize("patience", ["0", "300ms"])
def test_an_outage_is_told_once(engine: Engine, other: Engine, patience: str) -> None:
    with Router(engine, other, flags=(*FLAGS, "--wait-for-engine", patience)) as router:
        engine.stop()
        other.stop()
        before = len(router.log)

        def ask(_: int) -> None:
            for _ in range(10):
                assert router.ask().status in (502, 503)

        with in_threads(16, ask) as errors:
            pass
        assert not errors, errors
        engine.start()
        wait_until(lambda: router.ask().status == 200, "it is back")
        lines = router.log[before:].splitlines()
        assert len([line for line in lines if "no engine is up" in line and "WARN" in line]) == 1, lines
        assert len(lines) < 20, lines


def test_streams_that_break_off_are_told_some_times_a_minute(engine: Engine) -> None:
    async def breaks(talk: Talk) -> None:
        talk.abort()

    engine.behaviour = stream(1, after=breaks)
    with Router(engine, flags=PLAIN) as router:
        for _ in range(120):
            router.ask(CHAT | {"stream": True})
        wait_until(lambda: "an answer broke off" in router.log, "it is told")
        assert router.log.count("an answer broke off") < 80
        assert router.metric("kvatlas_router_engine_broken_answers_total") == 120


def test_one_that_was_placed_and_takes_long_keeps_nobody_waiting(engine: Engine, other: Engine) -> None:
    other.model = "another"
    with Router(engine, other, flags=FLAGS) as router:
        wait_until(lambda: [row["models"] for row in router.workers()] == [[MODEL], ["another"]], "models are known")
        engine.stop()
        other.stop()
        asked = []
        for body in (CHAT, CHAT | {"model": "another"}):
            asked.append(ThreadedRequest(router, body))
            wait_until(lambda: queued(router) == len(asked), "it waits")
        engine.behaviour = hang
        engine.start()
        wait_until(lambda: engine.asked() == 1, "the first one has its engine")
        other.start()
        assert asked[1].result().status == 200
        engine.stop()
        assert asked[0].result().status >= 500


def test_engines_of_which_it_is_not_known_how_they_hand_over_are_waited_for(engine: Engine, other: Engine) -> None:
    engine.answers["/server_info"] = other.answers["/server_info"] = 503
    with Router(flags=(*FLAGS, "--decode-alone", "0", "--wait-for-engine", "600ms"), ready=False) as router:
        for name, one in (("prefill", engine), ("decode", other)):
            about = {"name": name, "url": one.url, "role": name, "models": [MODEL]}
            assert router.call("POST", "/engines", about)[0] == 201
        answer = router.ask()
        assert answer.status == 503
        assert "decode has not said yet how it hands blocks over" in answer.error["message"]
        assert (engine.asked(), other.asked()) == (0, 0)
