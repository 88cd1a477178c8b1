"""Two routers in front of the same engines: each counts what the other has there."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.engine import MODEL, Behaviour, Engine, Talk, usual

from kvatlas.sim.server.ports import free_block

from .deciding import prompt
from .running import Router, wait_until


def text_of(number: int, tokens: int) -> str:
    return "".join(random.Random(number).choices("abcdefgh", k=tokens))


Pair = tuple[Router, Router]


@pytest.fixture
def pair(engine: Engine, other: Engine, tokenizer: Path) -> Iterator[Pair]:
    """Two routers that know of each other. The engines say nothing of their load."""
    ports = free_block("127.0.0.1"), free_block("127.0.0.1")
    flags = ("--no-events", "--policy", "kvatlas", "--tokenizer", str(tokenizer))
    with (
        Router(engine, other, flags=(*flags, "--peer", f"http://127.0.0.1:{ports[1]}"), port=ports[0]) as one,
        Router(engine, other, flags=(*flags, "--peer", f"http://127.0.0.1:{ports[0]}"), port=ports[1]) as two,
    ):
        yield one, two


def held(release: threading.Event) -> Behaviour:
    async def act(talk: Talk) -> None:
        while not release.is_set():
            await asyncio.sleep(0.01)
        await usual(talk)

    return act


def requests(router: Router) -> list[int]:
    """At each engine, as the router's decisions count them."""
    return [sum(rank["requests"] for rank in worker["ranks"]) for worker in router.workers()]


def long(router: Router, number: int) -> threading.Thread:
    """A request with much to compute, streamed, so that its first token is seen to be missing."""
    thread = threading.Thread(target=router.ask, args=(prompt(text_of(number, 100_000)) | {"stream": True},))
    thread.start()
    return thread


def test_what_one_has_at_an_engine_counts_for_the_other(pair: Pair, engine: Engine, other: Engine) -> None:
    """Complaint 37: routers that each choose the engine that has least to do, and all the same one."""
    one, two = pair
    release = threading.Event()
    engine.behaviour = other.behaviour = held(release)
    waiting = [long(one, 1)]
    try:
        wait_until(lambda: engine.asked() + other.asked() == 1, "an engine has it")
        wait_until(lambda: requests(two) == requests(one) == [engine.asked(), other.asked()], "the other one knows")
        waiting.append(long(two, 2))
        wait_until(lambda: engine.asked() == other.asked() == 1, "it goes to the other engine")
        wait_until(lambda: requests(two) == requests(one) == [1, 1], "both know of both")
        # Neither counts its own twice, however often they tell each other.
        told = one.metric("kvatlas_router_peer_reports_total", result="told")
        wait_until(lambda: one.metric("kvatlas_router_peer_reports_total", result="told") > told + 3, "told again")
        wait_until(lambda: requests(two) == requests(one) == [1, 1], "each has one")
        wait_until(lambda: [each.metric("kvatlas_router_peers") for each in pair] == [1, 1], "both have a peer")
    finally:
        release.set()
        for thread in waiting:
            thread.join()
    wait_until(lambda: requests(two) == requests(one) == [0, 0], "it is over for both")


def test_the_addresses_of_a_name_are_peers(engine: Engine, other: Engine, tokenizer: Path) -> None:
    """Each has a name that resolves to itself as well: it reports to the other one, not to itself."""
    ports = free_block("127.0.0.1"), free_block("127.0.0.1")
    names = [flag for port in ports for flag in ("--peer", f"dns:localhost:{port}")]
    flags = ("--no-events", "--policy", "kvatlas", "--tokenizer", str(tokenizer), *names)
    with (
        Router(engine, other, flags=flags, port=ports[0]) as one,
        Router(engine, other, flags=flags, port=ports[1]) as two,
    ):
        release = threading.Event()
        engine.behaviour = other.behaviour = held(release)
        waiting = []
        try:
            for number, router in enumerate((one, two), 1):
                waiting.append(long(router, number))
                wait_until(lambda: engine.asked() + other.asked() == number, "an engine has it")  # noqa: B023
                wait_until(lambda: sum(requests(one)) == sum(requests(two)) == number, "both know")  # noqa: B023
            # Neither hears itself: it counts what it has once, however often it is told.
            told = one.metric("kvatlas_router_peer_reports_total", result="told")
            wait_until(lambda: one.metric("kvatlas_router_peer_reports_total", result="told") > told + 3, "told again")
            wait_until(lambda: requests(one) == requests(two) == [1, 1], "each has one")
            wait_until(lambda: [each.metric("kvatlas_router_peers") for each in (one, two)] == [1, 1], "it has a peer")
        finally:
            release.set()
            for thread in waiting:
                thread.join()


def test_who_waits_at_one_is_placed_when_the_others_request_ends(pair: Pair, engine: Engine, other: Engine) -> None:
    one, two = pair
    release = threading.Event()
    engine.behaviour = other.behaviour = held(release)
    waiting = [long(one, 1), long(one, 2)]
    try:
        wait_until(lambda: engine.asked() == other.asked() == 1, "each engine has one")
        wait_until(lambda: requests(two) == [1, 1], "the other one knows")
        waiting.append(long(two, 3))
        wait_until(lambda: two.metric("kvatlas_router_queue") == 1, "it waits")
    finally:
        release.set()
        for thread in waiting:
            thread.join()
    assert engine.asked() + other.asked() == 3
    wait_until(lambda: two.metric("kvatlas_router_queue") == 0, "nobody waits")


def test_what_a_router_has_that_is_gone_counts_no_more(pair: Pair, engine: Engine, other: Engine) -> None:
    one, two = pair
    release = threading.Event()
    engine.behaviour = other.behaviour = held(release)
    made = one.connect()
    try:
        body = b'{"messages": [{"role": "user", "content": "x"}], "stream": true}'
        made.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: %d\r\n\r\n" % len(body))
        made.sendall(body)
        wait_until(lambda: sum(requests(two)) == 1, "the other one knows")
        one.kill()
        wait_until(lambda: sum(requests(two)) == 0, "it is forgotten")
        wait_until(lambda: two.metric("kvatlas_router_peers") == 0, "there is no peer")
    finally:
        release.set()
        made.close()
    engine.behaviour = other.behaviour = usual
    assert two.ask({"model": MODEL, "messages": [{"role": "user", "content": "x"}]}).status == 200
    wait_until(lambda: two.metric("kvatlas_router_peer_reports_total", result="not_taken") > 0, "it is counted")


def test_a_prompt_on_its_way_from_one_draws_the_same_from_the_other(pair: Pair, engine: Engine, other: Engine) -> None:
    """An idle engine would compute again what the first one is about to have."""
    one, two = pair
    release = threading.Event()
    engine.behaviour = other.behaviour = held(release)
    waiting = [long(one, 1)]
    try:
        wait_until(lambda: engine.asked() + other.asked() == 1, "an engine has it")
        first = engine if engine.asked() else other

        def blocks() -> float:
            row = two.ask(prompt(text_of(1, 100_000)), path="/explain").json
            return float(max(each["cached_tokens"] for each in row["candidates"]))

        wait_until(lambda: blocks() > 50_000, "the other one knows what is on its way")
        waiting.append(long(two, 1))
        wait_until(lambda: engine.asked() + other.asked() == 2, "an engine has it")
        assert first.asked() == 2
    finally:
        release.set()
        for thread in waiting:
            thread.join()
    wait_until(lambda: requests(two) == requests(one) == [0, 0], "it is over for both")


SENT = {
    "number": 5,
    "engine": "e0",
    "rank": 0,
    "tokens": 40,
    "block_size": 16,
    "cached": 0,
    "hashes": "AQAAAAAAAAA=",
} | {"output_left": 8}
PATH = "/peers/requests"


def changes(number: int, after: int, *sent: object, **more: object) -> dict[str, object]:
    of = {"sent": list(sent), "begun": [], "ended": []}
    return {"router": 1, "seconds": 60.0, "number": number, "after": after, "changes": of} | more


def test_a_message_that_follows_none_that_was_heard_is_asked_for_from_the_beginning(router: Router) -> None:
    def tell(body: dict[str, object]) -> int:
        answer = router.ask(body, path=PATH)
        assert answer.status == 200
        return int(answer.json["number"])

    assert tell(changes(3, 2)) == 0
    assert tell(changes(1, 0, SENT)) == 1
    assert tell(changes(2, 1)) == 2
    assert tell(changes(2, 1)) == 0
    assert tell(changes(1, 0)) == 1


def test_requests_that_cannot_be_are_refused(router: Router) -> None:
    refused: list[object] = [
        b"",
        {"router": 1},
        changes(1, 0, seconds=-1.0),
        changes(1, 0, seconds=61.0),
        changes(1, 0, more=1),
        changes(1, 0, SENT | {"hashes": "AQAAAAAAAA=="}),
        changes(1, 0, SENT | {"hashes": "!"}),
        changes(1, 0, SENT | {"hashes": "AQAAAAAAAAA" * 40}),
        changes(1, 0, SENT | {"tokens": 15}),
        changes(1, 0, SENT | {"block_size": 0}),
        changes(1, 0, SENT | {"cached": 41}),
        changes(1, 0, SENT | {"output_left": -1}),
        changes(1, 0, SENT | {"number": -1}),
        changes(1, 0, SENT, {**SENT, "number": 6, "hashes": "!"}),
        b"[]",
        b"{",
        {"router": 1, "seconds": 1.0},
    ]
    for told in refused:
        answer = router.ask(told, path=PATH)
        assert answer.status == 400, told
        assert answer.error["code"] == "invalid_work"
        assert requests(router) == [0, 0], told


def test_requests_at_engines_that_are_not_there_are_left_out(router: Router) -> None:
    elsewhere = [SENT | {"number": 6, "engine": "nobody"}, SENT | {"number": 7, "rank": 7}]
    assert router.ask(changes(1, 0, SENT, *elsewhere), path=PATH).json == {"number": 1, "own": False}
    assert requests(router) == [1, 0]


def test_a_request_of_another_router_counts_with_its_tokens(router: Router) -> None:
    def row() -> tuple[float, ...]:
        (rank,) = router.workers()[0]["ranks"]
        return rank["requests"], rank["waiting"], rank["queued_tokens"], rank["context_tokens"]

    def tell(number: int, **more: object) -> None:
        answer = router.ask(
            changes(number, number - 1, changes={"sent": [], "begun": [], "ended": []} | more), path=PATH
        )
        assert answer.status == 200

    tell(1, sent=[SENT | {"cached": 16}])
    assert row() == (1, 1, 24, 40)
    tell(2, begun=[5])
    assert row() == (1, 0, 0, 40)
    tell(3, ended=[5])
    assert row() == (0, 0, 0, 0)
    # Without a further report it counts for that long.
    tell(4, sent=[SENT | {"number": 6}])
    assert row()[0] == 1
    assert router.ask(changes(5, 4, seconds=0.1), path=PATH).status == 200
    wait_until(lambda: row() == (0, 0, 0, 0), "it is forgotten")
