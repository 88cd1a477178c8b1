"""Pickers that die, behind a real Envoy: what their clients see at each step, and what a second picker saves."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import httpx
import pytest
from tests.support.engine import MODEL, Behaviour, Engine, Talk, stream, usual
from tests.support.waiting import until

from kvatlas.sim.server.ports import free_block

from .envoy import Envoy, Gateway, Picker, envoy, picking

CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}


@pytest.fixture
def engines() -> Iterator[list[Engine]]:
    with ExitStack() as stack:
        yield [stack.enter_context(Engine()) for _ in range(2)]


@pytest.fixture
def release() -> Iterator[threading.Event]:
    """Lets engines with the behaviour `held` answer."""
    event = threading.Event()
    yield event
    event.set()


def held(release: threading.Event) -> Behaviour:
    async def act(talk: Talk) -> None:
        while not release.is_set():
            await asyncio.sleep(0.01)
        await usual(talk)

    return act


def chat(url: str, **more: object) -> httpx.Response:
    return httpx.post(f"{url}/v1/chat/completions", json=CHAT | more, timeout=60)


def requests(picker: Picker) -> list[int]:
    """Requests at each engine, those of other pickers included."""
    about = httpx.get(f"{picker.router_url}/workers").json()
    return [sum(rank["requests"] for rank in worker["ranks"]) for worker in about]


@pytest.mark.parametrize(
    ("gateway", "posted", "got"),
    [
        (Gateway(), 500, 500),
        # A body that comes with its head may be on its way by then, and is lost; or it may not.
        (Gateway(fail_open=True), None, 200),
        (Gateway(request="BUFFERED", response="NONE", fail_open=True), 200, 200),
    ],
    ids=["closed", "open", "open-buffered"],
)
def test_without_a_picker(engines: list[Engine], gateway: Gateway, posted: int | None, got: int) -> None:
    with picking(engines, gateway) as (picker, at):
        assert chat(at.url).status_code == 200
        picker.kill()
        if posted is not None:
            assert chat(at.url).status_code == posted
        # The router would answer it by itself; the engine does without it.
        assert httpx.get(f"{at.url}/v1/models", timeout=60).status_code == got


def test_a_picker_that_dies_while_it_gets_the_body(engines: list[Engine]) -> None:
    with picking(engines) as (picker, at):
        before = at.sent_to_pickers()
        body = json.dumps(CHAT).encode().ljust(200_000)
        host, port = at.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as client:
            head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-length: {len(body)}\r\n"
            client.sendall(f"{head}content-type: application/json\r\n\r\n".encode() + body[:100_000])
            until(lambda: at.sent_to_pickers() > before + 1, "a part of the body is there")
            picker.kill()
            client.settimeout(60)
            assert client.recv(100).startswith(b"HTTP/1.1 500 ")
        assert [engine.asked() for engine in engines] == [0, 0], "no engine has seen it"


@pytest.mark.parametrize(
    "gateway", [Gateway(), Gateway(fail_open=True), Gateway(response="NONE")], ids=["closed", "open", "closed-none"]
)
def test_a_picker_that_dies_before_the_answer(
    engines: list[Engine], release: threading.Event, gateway: Gateway
) -> None:
    for engine in engines:
        engine.behaviour = held(release)
    with picking(engines, gateway) as (picker, at), ThreadPoolExecutor() as pool:
        asking = pool.submit(chat, at.url)
        until(lambda: sum(engine.asked() for engine in engines) == 1, "the engine has it")
        picker.kill()
        release.set()
        # To fail open, Envoy would have to send the body again, which it has given away.
        assert asking.result(60).status_code == 500


@pytest.mark.parametrize(
    ("gateway", "is_whole"),
    [(Gateway(), False), (Gateway(fail_open=True), False), (Gateway(response="NONE"), True)],
    ids=["closed", "open", "closed-none"],
)
def test_a_picker_that_dies_in_the_middle_of_an_answer(
    engines: list[Engine], release: threading.Event, gateway: Gateway, is_whole: bool
) -> None:
    async def rest(talk: Talk) -> None:
        while not release.is_set():
            await asyncio.sleep(0.01)
        await talk.send(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")

    for engine in engines:
        engine.behaviour = stream(3, after=rest)
    with picking(engines, gateway) as (picker, at):
        got: list[str] = []
        try:
            with httpx.stream(
                "POST", f"{at.url}/v1/chat/completions", json=CHAT | {"stream": True}, timeout=60
            ) as sent:
                for line in sent.iter_lines():
                    got.append(line)
                    if sum(it.startswith("data: {") for it in got) == 3 and not release.is_set():
                        picker.kill()
                        release.set()
        except httpx.RemoteProtocolError:
            assert not is_whole
        assert ("data: [DONE]" in got) is is_whole


@pytest.fixture
def pair(engines: list[Engine]) -> Iterator[tuple[Picker, Picker]]:
    """Two pickers that tell each other what they send. The engines say nothing of their load."""
    envoy()
    ports = free_block("127.0.0.1"), free_block("127.0.0.1")
    flags = ("--load-interval", "0s", "--drain-delay", "2s")
    with (
        Picker(engines, *flags, "--bind", f"127.0.0.1:{ports[0]}", "--peer", f"http://127.0.0.1:{ports[1]}") as one,
        Picker(engines, *flags, "--bind", f"127.0.0.1:{ports[1]}", "--peer", f"http://127.0.0.1:{ports[0]}") as two,
    ):
        one.router_url, two.router_url = (f"http://127.0.0.1:{port}" for port in ports)
        yield one, two


def test_two_pickers_count_what_the_other_sends(
    engines: list[Engine], pair: tuple[Picker, Picker], release: threading.Event
) -> None:
    one, two = pair
    for engine in engines:
        engine.behaviour = held(release)
    ports = [engine.port for engine in engines]
    with Envoy(Gateway(), [one.port], ports) as first, Envoy(Gateway(), [two.port], ports) as second:
        with ThreadPoolExecutor() as pool:
            asking = [pool.submit(chat, first.url, stream=True)]
            until(lambda: sum(requests(two)) == 1, "the other has heard of it")
            busy = requests(two).index(1)
            asking.append(pool.submit(chat, second.url, stream=True))
            until(lambda: engines[1 - busy].asked() == 1, "its own goes to the idle engine")
            until(lambda: requests(one) == [1, 1] and requests(two) == [1, 1])
            # What a dead one has told counts no longer than a moment.
            one.kill()
            until(lambda: sum(requests(two)) == 1, "what the dead one sent is forgotten")
            release.set()
            assert asking[1].result(60).status_code == 200
        until(lambda: sum(requests(two)) == 0)


def test_requests_go_on_with_the_picker_that_is_left(engines: list[Engine], pair: tuple[Picker, Picker]) -> None:
    one, two = pair
    with Envoy(Gateway(health=True), [one.port, two.port], [engine.port for engine in engines]) as at:
        until(lambda: at.healthy_pickers() == 2)
        assert {chat(at.url).status_code for _ in range(10)} == {200}
        picked = [it.count("kvatlas_router_gateway_requests_total", result="picked") for it in pair]
        assert all(picked), "both are asked"
        assert sum(picked) == 10
        one.kill()
        until(lambda: at.healthy_pickers() == 1, "the gateway knows")
        assert {chat(at.url).status_code for _ in range(10)} == {200}


def test_a_picker_that_is_asked_to_end_loses_nothing(engines: list[Engine], pair: tuple[Picker, Picker]) -> None:
    one, two = pair
    with Envoy(Gateway(health=True), [one.port, two.port], [engine.port for engine in engines]) as at:
        until(lambda: at.healthy_pickers() == 2)
        over = threading.Event()

        def ask() -> list[int]:
            statuses = []
            while not over.is_set():
                statuses.append(chat(at.url).status_code)
            return statuses

        with ThreadPoolExecutor() as pool:
            asking = [pool.submit(ask) for _ in range(4)]
            until(lambda: two.count("kvatlas_router_gateway_requests_total", result="picked") > 20)
            status = one.stop()
            until(lambda: at.healthy_pickers() == 1, "the gateway knows")
            over.set()
            statuses = [each for one_asking in asking for each in one_asking.result(60)]
        assert status == 0
        assert set(statuses) == {200}, f"{statuses.count(200)} of {len(statuses)}"
