"""Requests that wait in the router because all engines have enough to do."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from tests.support.engine import MODEL, Behaviour, Engine, Talk, usual
from tests.support.kubernetes import FakeApi, objective

from kvatlas.sim.server import Publisher

from .deciding import exact, expected, prompt, stored
from .running import Answer, Router, ask_by_command, wait_until


def held_until(release: threading.Event) -> Behaviour:
    async def act(talk: Talk) -> None:
        while not release.is_set():
            await asyncio.sleep(0.01)
        await usual(talk)

    return act


class ThreadedRequest:
    """A request in a thread of its own."""

    def __init__(self, router: Router, body: Mapping[str, object], **headers: str) -> None:
        self.answer: Answer | None = None
        self._thread = threading.Thread(target=self._run, args=(router, body, headers))
        self._thread.start()

    def _run(self, router: Router, body: Mapping[str, object], headers: dict[str, str]) -> None:
        self.answer = router.ask(body, headers={name.replace("_", "-"): value for name, value in headers.items()})

    def result(self) -> Answer:
        self._thread.join()
        assert self.answer is not None
        return self.answer


def _have_more(engines: tuple[Engine, ...], before: int) -> bool:
    return sum(each.asked() for each in engines) > before


@contextmanager
def busy(router: Router, *engines: Engine) -> Iterator[list[threading.Event]]:
    """Each engine has a prompt that takes it many seconds, until its event is set."""
    releases = [threading.Event() for _ in engines]
    long = []
    try:
        for engine, release in zip(engines, releases, strict=True):
            engine.behaviour = held_until(release)
        for number in range(len(engines)):
            text = "".join(random.Random(number).choices("abcdefgh", k=400_000))
            before = sum(each.asked() for each in engines)
            # Streamed: how long its first token takes is seen.
            long.append(ThreadedRequest(router, prompt(text) | {"stream": True}))
            wait_until(partial(_have_more, engines, before), "an engine has it")
        assert [engine.asked() for engine in engines] == [1] * len(engines)
        yield releases
    finally:
        for release in releases:
            release.set()
        for one in long:
            one.result()


def waiting(router: Router) -> float:
    return router.metric("kvatlas_router_queue")


def test_who_waited_is_placed_by_what_is_held_when_an_engine_has_room(
    engine: Engine, other: Engine, tokenizer: Path
) -> None:
    text = "all that was said before " * 64
    with Publisher() as one, Publisher() as two:
        flags = exact(tokenizer, (engine, one), (other, two))
        with Router(engine, other, flags=flags) as router:
            router.wait_followed()
            with busy(router, engine, other) as (_, second):
                late = [ThreadedRequest(router, prompt(text + str(number))) for number in range(6)]
                wait_until(lambda: waiting(router) == 6, "they wait")
                two.publish(stored(text))
                wait_until(lambda: expected(router, text + "?")["e1"] == 1600, "it is held meanwhile")
                second.set()
                answers = [one.result() for one in late]
        assert [answer.status for answer in answers] == [200] * 6
        assert {answer.headers["x-kvatlas-worker"] for answer in answers} == {"e1"}
        assert {answer.headers["x-kvatlas-cached-tokens"] for answer in answers} == {"1600"}


def test_without_events_who_waited_is_placed_by_what_was_sent_meanwhile(
    engine: Engine, other: Engine, tokenizer: Path
) -> None:
    text = "all that was said before " * 64
    flags = ("--no-events", "--policy", "kvatlas", "--tokenizer", str(tokenizer), "--block-size", "16")
    with Router(engine, other, flags=flags) as router, busy(router, engine, other) as (_, second):
        late = [ThreadedRequest(router, prompt(text + str(number))) for number in range(3)]
        wait_until(lambda: waiting(router) == 3, "they wait")
        second.set()
        cached = [int(one.result().headers["x-kvatlas-cached-tokens"]) for one in late]
        assert sorted(cached) == [0, 1600, 1600], "the first of them brings it there"


def test_who_waits_is_not_sent_to_an_engine_that_fell_asleep_meanwhile(
    engine: Engine, other: Engine, tokenizer: Path
) -> None:
    flags = ("--no-events", "--policy", "kvatlas", "--tokenizer", str(tokenizer), "--block-size", "16")
    often = ("--health-interval", "100ms", "--load-interval", "100ms")
    engine.answers["/is_sleeping"] = {"is_sleeping": False}
    with Router(engine, other, flags=(*flags, *often)) as router, busy(router, engine, other) as (first, second):
        late = [ThreadedRequest(router, prompt(f"late {number} " * 64)) for number in range(4)]
        wait_until(lambda: waiting(router) == 4, "they wait")
        engine.answers["/is_sleeping"] = {"is_sleeping": True}
        wait_until(lambda: router.workers()[0]["standing"] == "asleep", "it is seen to sleep")
        first.set()
        wait_until(lambda: router.workers()[0]["in_flight"] == 0, "it has nothing to do")
        # How fast engines compute prompts is learnt from the first one: the other one may get them at once.
        wait_until(lambda: waiting(router) + other.asked() == 5, "they wait, or the other one has them")
        second.set()
        answers = [one.result() for one in late]
        assert [answer.status for answer in answers] == [200] * 4
        assert {answer.headers["x-kvatlas-worker"] for answer in answers} == {"e1"}
        assert engine.asked() == 1


@contextmanager
def priorities(by: str) -> Iterator[tuple[str, ...]]:
    """Flags with which the values "low" and "high" of a header are priorities: the header's own, or a cluster's."""
    with FakeApi() as api:
        for name, priority in (("low", 1), ("high", 2)):
            api.put(objective(name, "qwen", priority))
        cluster = ("--discover", "pool:llm/qwen", "--kubernetes-url", api.url, "--objectives", "llm-d.ai/v1alpha2")
        yield ("--priority-header", "x-priority") if by == "number" else cluster


def source_state(router: Router, name: str) -> str | None:
    status, sources = router.call("GET", "/router")
    assert status == 200
    return next((it["state"] for it in sources.get("discovery") or () if it["source"] == name), None)


@pytest.mark.parametrize("by", ["number", "objective"])
def test_a_full_queue_keeps_those_of_higher_priority(by: str, engine: Engine, other: Engine, tokenizer: Path) -> None:
    given = {
        "number": {"low": {"x_priority": "1"}, "high": {"x_priority": "2"}},
        "objective": {name: {"x_llm_d_inference_objective": name} for name in ("low", "high")},
    }[by]
    flags = ("--no-events", "--policy", "kvatlas", "--tokenizer", str(tokenizer), "--queue", "1")
    with priorities(by) as more, Router(engine, other, flags=(*flags, *more)) as router:
        if by == "objective":
            wait_until(lambda: source_state(router, "objectives:llm/qwen") == "following", "objectives are known")
        with busy(router, engine, other) as releases:
            low = ThreadedRequest(router, prompt("low"), **given["low"])
            wait_until(lambda: waiting(router) == 1, "it waits")
            as_low = ThreadedRequest(router, prompt("as low"), **given["low"])
            refused = as_low.result()
            assert (refused.status, refused.error["code"]) == (429, "queue_full")
            high = ThreadedRequest(router, prompt("high"), **given["high"])
            displaced = low.result()
            assert (displaced.status, displaced.error["code"]) == (429, "displaced")
            assert int(displaced.headers["retry-after"]) >= 1
            wait_until(lambda: waiting(router) == 1, "the other one waits")
            releases[0].set()
            assert high.result().status == 200
        assert router.metric("kvatlas_router_decisions_refused_total", reason="displaced") == 1
        assert router.metric("kvatlas_router_decisions_refused_total", reason="queue_full") == 1
        said = "1 displaced, 1 queue_full"
        assert f"Refused since the router started: {said}" in ask_by_command(router, "top", "--once").stdout
        line = f"2 requests were refused since the last such line: {said}"
        wait_until(lambda: router.log.count(line) == 1, "the log says so, once")


def test_a_client_that_leaves_while_it_waits_leaves_nothing_behind(
    engine: Engine, other: Engine, tokenizer: Path
) -> None:
    flags = ("--no-events", "--policy", "kvatlas", "--tokenizer", str(tokenizer))
    with Router(engine, other, flags=flags) as router:
        with busy(router, engine, other) as releases:
            made = [router.connect() for _ in range(5)]
            for one in made:
                one.sendall(
                    b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 50\r\n\r\n"
                    b'{"messages": [{"role": "user", "content": "xyz"}]}'
                )
            wait_until(lambda: waiting(router) == 5, "they wait")
            for one in made:
                one.close()
            wait_until(lambda: waiting(router) == 0, "nobody waits any more")
            releases[0].set()
            assert router.ask().status == 200
        wait_until(lambda: router.in_flight() == 0, "nothing is in flight")


REPORT = """vllm:num_requests_waiting{{engine="0"}} {waiting}
vllm:num_requests_running{{engine="0"}} 1
vllm:kv_cache_usage_perc{{engine="0"}} 0.1
"""


def _until_released(release: threading.Event) -> Behaviour:
    """The first request has no byte of its answer until then; all others are answered at once."""
    first = threading.Lock()

    async def act(talk: Talk) -> None:
        if first.acquire(blocking=False):
            while not release.is_set():
                await asyncio.sleep(0.01)
        await usual(talk)

    return act


@pytest.mark.parametrize("waiting", [None, 0, 1])
def test_one_late_prompt_at_each_engine_stops_nothing(
    engine: Engine, other: Engine, tokenizer: Path, waiting: int | None
) -> None:
    engines = (engine, other)
    release = threading.Event()
    for each in engines:
        each.behaviour = _until_released(release)
        each.answers["/v1/rerank"] = {"results": []}
        if waiting is not None:
            each.answers["/metrics"] = REPORT.format(waiting=waiting)
    flags = ("--no-events", "--policy", "kvatlas", "--tokenizer", str(tokenizer), "--queue-timeout", "600")
    with Router(*engines, flags=flags) as router:
        late: list[ThreadedRequest] = []

        def each_has_one() -> bool:
            late.append(ThreadedRequest(router, prompt(f"picture {len(late)}") | {"stream": True}))
            time.sleep(0.1)
            return all(each.asked() for each in engines)

        try:
            wait_until(each_has_one, "each has one")
            # Later than any queue of theirs would make them.
            time.sleep(1.5)
            assert [router.ask(prompt(f"short {n}")).status for n in range(4)] == [200] * 4
            assert router.ask(prompt("stream") | {"stream": True}).status == 200
            for path, body in [
                ("/v1/embeddings", {"model": MODEL, "input": "a"}),
                ("/v1/rerank", {"model": MODEL, "query": "a", "documents": ["b"]}),
                ("/tokenize", {"model": MODEL, "prompt": "a"}),
            ]:
                assert router.ask(body, path=path).status == 200, path
            assert not release.is_set()
        finally:
            release.set()
            for one in late:
                one.result()


def test_a_wait_ends_with_the_request_sent(engine: Engine, other: Engine, tokenizer: Path) -> None:
    flags = ("--no-events", "--policy", "kvatlas", "--tokenizer", str(tokenizer), "--queue-timeout", "0.5")
    with Router(engine, other, flags=flags) as router, busy(router, engine, other):
        for each in (engine, other):
            each.behaviour = usual
        assert router.ask(prompt("short")).status == 200
        assert router.metric("kvatlas_router_decisions_waited_total") == 1


def test_what_generates_nothing_does_not_wait(engine: Engine, other: Engine, tokenizer: Path) -> None:
    flags = ("--no-events", "--policy", "kvatlas", "--tokenizer", str(tokenizer), "--queue-timeout", "600")
    with Router(engine, other, flags=flags) as router:
        with busy(router, engine, other):
            for each in (engine, other):
                each.behaviour = usual
            chat = ThreadedRequest(router, prompt("chat"))
            wait_until(lambda: waiting(router) == 1, "what generates waits")
            assert router.ask({"model": MODEL, "input": "a"}, path="/v1/embeddings").status == 200
        assert chat.result().status == 200
