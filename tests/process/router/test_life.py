"""Beginnings and ends: SIGTERM under load, kill -9 and start again."""

import asyncio
import signal
import threading
from pathlib import Path

from tests.support.engine import MODEL, Engine, Talk, hang, stream, usual, whole

from kvatlas.sim.server import Publisher
from kvatlas.sim.server.ports import free_block

from .deciding import BLOCK, cleared, exact, expected, holder, stored
from .running import DEADLINE, MESSAGES, PLAIN, Router, in_threads, wait_until


def test_sigterm_under_load_loses_nothing(engine: Engine, other: Engine) -> None:
    engine.behaviour = other.behaviour = stream(5, pause=0.02)
    with Router(engine, other) as router:
        ended: list[object] = []
        refused: list[OSError] = []
        wrong: list[object] = []
        stop = threading.Event()

        def ask(number: int) -> None:
            while not stop.is_set():
                try:
                    answer = router.ask({"model": MODEL, "messages": MESSAGES, "stream": True})
                except (ConnectionRefusedError, ConnectionResetError) as error:
                    refused.append(error)  # before anything was sent, or without a byte of an answer
                    return
                except OSError as error:
                    wrong.append(error)
                    return
                if answer.status == 200 and not answer.broken and answer.events[-1] == b"[DONE]":
                    ended.append(answer)
                else:
                    wrong.append(answer)

        with in_threads(16, ask) as errors:
            wait_until(lambda: len(ended) > 50, "there is load")
            router.process.send_signal(signal.SIGTERM)
            status = router.process.wait(DEADLINE)
            stop.set()
        assert not errors
        assert not wrong
        assert status == 0, router.log
        # Each answered request was asked of an engine once, and nothing that an engine has begun was lost.
        assert engine.asked() + other.asked() == len(ended)


def test_sigterm_lets_a_stream_end_and_refuses_new_requests(engine: Engine) -> None:
    go_on = threading.Event()

    async def held(talk: Talk) -> None:
        while not go_on.is_set():
            await asyncio.sleep(0.005)
        await talk.send(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")

    engine.behaviour = stream(1, after=held)
    with Router(engine) as router:
        answer = router.open()
        assert b"t0" in answer.readline()
        router.process.send_signal(signal.SIGTERM)

        def is_closed() -> bool:
            try:
                router.connect(1).close()
            except ConnectionRefusedError:
                return True
            return False

        wait_until(is_closed, "no new connections are taken")
        go_on.set()
        assert answer.read().endswith(b"data: [DONE]\n\n")
        assert router.process.wait(DEADLINE) == 0, router.log


def test_sigterm_does_not_wait_for_ever(engine: Engine) -> None:
    engine.behaviour = hang
    with Router(engine, flags=(*PLAIN, "--drain-timeout", "300ms")) as router:
        made = router.connect()
        made.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 2\r\n\r\n{}")
        wait_until(lambda: engine.asked() == 1, "the engine has it")
        router.process.send_signal(signal.SIGTERM)
        assert router.process.wait(DEADLINE) == 1, "something was cut off"
        made.close()


def test_killed_and_started_again_it_answers_at_its_old_port(engine: Engine, other: Engine) -> None:
    engine.behaviour = other.behaviour = whole()
    port = free_block("127.0.0.1")
    with Router(engine, other, port=port) as first:
        assert first.ask().status == 200
        with first.connect() as made:  # the old process leaves connections behind
            made.sendall(b"GET /health HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
            assert made.recv(100)
            first.kill()
    with Router(engine, other, port=port, ready=False) as second:
        assert second.ask().status == 200, "before it knows of anything"


TEXTS = [f"conversation {number}: " + "all that was said before, word for word; " * 30 for number in range(12)]


def held_of(text: str) -> int:
    """Tokens of the full blocks of a text."""
    return len(text) // BLOCK * BLOCK


def is_exact(router: Router, held: dict[str, str]) -> bool:
    """True if each text is expected where it is held, by all of its blocks; engines' streams come to be trusted."""
    return all(expected(router, text + " and on")[name] == held_of(text) for text, name in held.items())


def goes_where_it_is_held(router: Router, held: dict[str, str]) -> bool:
    return all(holder(router, text + " and on") == name for text, name in held.items())


def test_killed_and_started_again_it_is_exact_as_soon_as_the_streams_are(
    engine: Engine, other: Engine, tokenizer: Path
) -> None:
    """Complaints 23 to 25: a router that starts late or again, and knows nothing until live events come."""
    engine.behaviour = other.behaviour = usual
    with Publisher() as one, Publisher() as two:
        held = {}
        for number, text in enumerate(TEXTS):
            (one, two)[number % 3 % 2].publish(stored(text))
            held[text] = ("e0", "e1")[number % 3 % 2]
        flags = exact(tokenizer, (engine, one), (other, two))
        port = free_block("127.0.0.1")
        with Router(engine, other, flags=flags, port=port) as first:  # it starts after all was announced
            first.wait_followed()
            wait_until(lambda: is_exact(first, held), "what is held is known")
            assert goes_where_it_is_held(first, held)
            first.kill()
        with Router(engine, other, flags=flags, port=port) as second:
            second.wait_followed()
            wait_until(lambda: is_exact(second, held), "what is held is known again")
            assert goes_where_it_is_held(second, held)


def test_an_engine_that_starts_again_is_credited_with_nothing_of_its_old_life(
    engine: Engine, other: Engine, tokenizer: Path
) -> None:
    """Complaint 21: a restarted engine keeps the credit for what it held before."""
    with Publisher() as two:
        port = free_block("127.0.0.1", 2)
        endpoints = (f"tcp://127.0.0.1:{port}", f"tcp://127.0.0.1:{port + 1}")
        with Publisher(*endpoints) as one:
            one.publish(stored(TEXTS[0]))
            two.publish(stored(TEXTS[1]))
            router = Router(engine, other, flags=exact(tokenizer, (engine, one), (other, two)))
            try:
                router.wait_followed()
                wait_until(
                    lambda: expected(router, TEXTS[0] + " and on") == {"e0": held_of(TEXTS[0]), "e1": 0}, "it is known"
                )
            except BaseException:
                router.kill()
                raise
        with router, Publisher(*endpoints) as again:
            again.publish(stored("something else " * 20))
            two.publish(stored(TEXTS[0]))
            now = {"e0": 0, "e1": held_of(TEXTS[0])}
            wait_until(lambda: expected(router, TEXTS[0] + " and on") == now, "the old life is forgotten")
            assert holder(router, TEXTS[0] + " and on") == "e1"


def test_a_cleared_cache_is_credited_with_nothing(engine: Engine, other: Engine, tokenizer: Path) -> None:
    with Publisher() as one, Publisher() as two:
        one.publish(stored(TEXTS[0]))
        with Router(engine, other, flags=exact(tokenizer, (engine, one), (other, two))) as router:
            router.wait_followed()
            wait_until(
                lambda: expected(router, TEXTS[0] + " and on") == {"e0": held_of(TEXTS[0]), "e1": 0}, "it is known"
            )
            one.publish(cleared())
            two.publish(stored(TEXTS[0]))
            now = {"e0": 0, "e1": held_of(TEXTS[0])}
            wait_until(lambda: expected(router, TEXTS[0] + " and on") == now, "the cleared one is not credited")
            assert holder(router, TEXTS[0] + " and on") == "e1"


def test_an_engine_told_again_is_never_away_and_stays_what_it_was(engine: Engine) -> None:
    """Discovery tells of an engine again when it has found out more: requests meanwhile find it."""
    with Router(engine, flags=PLAIN) as router:
        told = threading.Event()

        def ask(_: int) -> None:
            while not told.is_set():
                answer = router.ask()
                assert answer.status == 200, answer

        with in_threads(3, ask) as errors:
            for number in range(200):
                about = {"name": "e0", "url": engine.url, "weight": 1 + number % 2}
                assert router.ask(about, path="/engines").status == 201
            told.set()
        assert not errors
        wait_until(lambda: router.in_flight() == 0, "nothing is in flight")
        assert router.metric("kvatlas_router_engine_answers_total", status="2xx") == engine.asked()
        assert router.ask(b"{}", path="/engines/e0/drain").status == 200
        assert router.ask({"name": "e0", "url": engine.url}, path="/engines").status == 201
        assert [worker["standing"] for worker in router.workers()] == ["draining"]
        assert router.ask(b"{}", path="/engines/e0/undrain").status == 200
        assert router.ask().status == 200
