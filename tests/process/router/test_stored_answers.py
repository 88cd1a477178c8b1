"""Answers that engines keep: who goes on from one, asks for it or cancels it means the engine that made it."""

from __future__ import annotations

import http.client
import json
from itertools import count

from tests.support.engine import MODEL, Behaviour, Engine, EngineRequest, Talk, chunk, event, head, reply

from .running import DEADLINE, PLAIN, Router


def keeper(name: str) -> Behaviour:
    """Answers of `/v1/responses`, by names of its own."""
    numbers = count()

    async def act(talk: Talk) -> None:
        if talk.request.path.endswith("/cancel"):
            await reply("200 OK", {"object": "response", "status": "cancelled"})(talk)
            return
        asked = talk.request.json
        made = {"id": f"resp_{name}_{next(numbers)}", "object": "response", "output": [{"id": "msg_1"}]}
        if not asked.get("stream"):
            await reply("200 OK", made)(talk)
            return
        await talk.send(head("200 OK", "transfer-encoding: chunked", kind="text/event-stream"))
        for kind in ("response.created", "response.completed"):
            data = event({"type": kind, "response": made})
            for at in range(0, len(data), 7):  # names may come in pieces
                await talk.send(chunk(data[at : at + 7]))
        await talk.send(b"0\r\n\r\n")

    return act


def request(router: Router, method: str, path: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", router.port, timeout=DEADLINE)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        answer.read()
        return answer.status
    finally:
        connection.close()


def about(engine: Engine, path: str) -> list[EngineRequest]:
    return [one for one in engine.received if one.path.startswith(path)]


def test_an_answer_is_asked_of_the_engine_that_made_it(engine: Engine, other: Engine) -> None:
    engine.behaviour, other.behaviour = keeper("e0"), keeper("e1")
    by_name = {"e0": engine, "e1": other}
    with Router(engine, other, flags=PLAIN) as router:
        for number in range(12):
            first = {"model": MODEL, "input": "hello", "stream": number % 2 == 1}
            answer = router.ask(first, path="/v1/responses")
            assert answer.status == 200
            made = answer.json if number % 2 == 0 else json.loads(answer.events[0])["response"]
            maker = made["id"].split("_")[1]
            assert answer.headers["x-kvatlas-worker"] == maker
            following = {"model": MODEL, "input": "and?", "previous_response_id": made["id"]}
            for _ in range(3):
                assert router.ask(following, path="/v1/responses").headers["x-kvatlas-worker"] == maker
            path = f"/v1/responses/{made['id']}"
            for method, rest in (("GET", ""), ("GET", "/input_items"), ("POST", "/cancel"), ("DELETE", "")):
                before = len(about(by_name[maker], path))
                request(router, method, path + rest)
                assert len(about(by_name[maker], path)) == before + 1, (method, rest)
            assert sum(len(about(one, path)) for one in by_name.values()) == 4
        assert {one.asked() > 0 for one in by_name.values()} == {True}
        assert router.metric("kvatlas_router_stored_answer_requests_total", engine="known") == 12 * 7
        assert router.metric("kvatlas_router_stored_answers") >= 12


def test_an_answer_that_nobody_knows_is_counted(engine: Engine, other: Engine) -> None:
    engine.behaviour, other.behaviour = keeper("e0"), keeper("e1")
    with Router(engine, other, flags=PLAIN) as router:
        assert request(router, "GET", "/v1/responses/resp_of_another_time") == 404, "the engine says so"
        made = router.ask({"model": MODEL, "input": "hello"}, path="/v1/responses").json["id"]
        gone = made.split("_")[1]
        assert request(router, "DELETE", f"/engines/{gone}") == 200
        following = {"model": MODEL, "input": "and?", "previous_response_id": made}
        answer = router.ask(following, path="/v1/responses")
        assert answer.headers["x-kvatlas-worker"] != gone, "the engine that is left says that it does not know it"
        counted = "kvatlas_router_stored_answer_requests_total"
        assert router.metric(counted, engine="unknown") == router.metric(counted, engine="engine_gone") == 1


def test_an_engine_that_is_down_is_not_replaced_by_one_that_has_nothing(engine: Engine, other: Engine) -> None:
    engine.behaviour, other.behaviour = keeper("e0"), keeper("e1")
    by_name = {"e0": engine, "e1": other}
    with Router(engine, other, flags=(*PLAIN, "--health-interval", "100ms")) as router:
        made = router.ask({"model": MODEL, "input": "hello"}, path="/v1/responses").json["id"]
        maker = made.split("_")[1]
        by_name[maker].stop()
        following = {"model": MODEL, "input": "and?", "previous_response_id": made}
        answer = router.ask(following, path="/v1/responses")
        assert answer.status in (502, 503)
        assert answer.error["code"] in ("engine_failed", "no_worker")
        assert sum(len(about(one, "/v1/responses")) for name, one in by_name.items() if name != maker) == 0


def test_an_engine_that_is_drained_answers_for_what_it_keeps(engine: Engine, other: Engine) -> None:
    engine.behaviour, other.behaviour = keeper("e0"), keeper("e1")
    by_name = {"e0": engine, "e1": other}
    with Router(engine, other, flags=PLAIN) as router:
        made = router.ask({"model": MODEL, "input": "hello"}, path="/v1/responses").json["id"]
        maker = made.split("_")[1]
        assert router.ask(b"{}", path=f"/engines/{maker}/drain").status == 200
        following = {"model": MODEL, "input": "and?", "previous_response_id": made}
        for _ in range(3):
            answer = router.ask(following, path="/v1/responses")
            assert (answer.status, answer.headers["x-kvatlas-worker"]) == (200, maker)
        path = f"/v1/responses/{made}"
        request(router, "GET", path)
        assert len(about(by_name[maker], path)) == 1
        for _ in range(4):
            fresh = router.ask({"model": MODEL, "input": "hello"}, path="/v1/responses")
            assert fresh.headers["x-kvatlas-worker"] != maker, "it gets nothing else"
