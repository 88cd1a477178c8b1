"""Each fault, as a reader that knows nothing of the engine sees it."""

import contextlib
import socket
import threading
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count, pairwise

import msgspec
import pytest
from tests.support.waiting import until

from kvatlas.errors import InvalidArgumentError, SimulatedEngineError
from kvatlas.sim.server import EngineHandle, Faults, Fleet

from .conftest import PATIENCE, Reader, Subscriber, ask, number, replay

_fresh = count()


def store(engine: EngineHandle, requests: int = 1) -> None:
    """Requests that each store a new block, at rank 0: at least a batch each."""
    for _ in range(requests):
        engine.complete([next(_fresh) for _ in range(4)], 1, rank=0)


def last_seq(engine: EngineHandle) -> int:
    seq = engine.wait_quiet()[0].seq
    assert seq is not None
    return seq


def listens(port: int) -> bool:
    with socket.socket() as visitor:
        return visitor.connect_ex(("127.0.0.1", port)) == 0


def impatient(engine: EngineHandle) -> None:
    with urllib.request.urlopen(f"{engine.url}/v1/models", timeout=0.2) as response:
        response.read()


@pytest.fixture
def engine(fleet: Fleet) -> Iterator[EngineHandle]:
    engine = fleet[0]
    yield engine
    engine.resume()
    end_faults(engine)
    engine.wait_quiet()


@pytest.fixture
def live(engine: EngineHandle) -> Iterator[Subscriber]:
    with Subscriber(engine.endpoint()) as live:
        live.join(lambda: store(engine))
        store(engine)
        live.until(last_seq(engine))
        yield live


def numbers(live: Subscriber, engine: EngineHandle, requests: int = 30) -> tuple[list[int], list[int]]:
    """The numbers seen live while requests go through, and those that were published. Ends the faults."""
    first = last_seq(engine) + 1
    store(engine, requests)
    last = last_seq(engine)
    return [seq for seq in rest(live, engine) if seq <= last], list(range(first, last + 1))


def end_faults(engine: EngineHandle) -> None:
    engine.faults(**{name: getattr(Faults(), name) for name in Faults.__slots__})


def rest(live: Subscriber, engine: EngineHandle) -> list[int]:
    """The numbers of all that comes up to a last batch, which has no fault."""
    end_faults(engine)
    store(engine)
    return [number(frames) for frames in live.until(last_seq(engine))]


def replayed(engine: EngineHandle, first: int) -> list[int]:
    return [number(frames) for frames in replay(engine.replay_endpoint(), first)]


def test_no_fault(engine: EngineHandle, live: Subscriber) -> None:
    seen, published = numbers(live, engine)
    assert seen == published
    assert len(published) >= 30


def test_drop(engine: EngineHandle, live: Subscriber) -> None:
    engine.faults(drop=0.5)
    seen, published = numbers(live, engine)
    assert set(seen) < set(published)
    assert seen == sorted(seen)
    assert seen
    assert replayed(engine, published[0])[: len(published)] == published
    assert engine.state()[0].counts["dropped"] >= len(published) - len(seen)


def test_duplicate(engine: EngineHandle, live: Subscriber) -> None:
    engine.faults(duplicate=0.5)
    seen, published = numbers(live, engine)
    assert len(published) < len(seen) < 2 * len(published)
    assert sorted(set(seen)) == published
    assert replayed(engine, published[0])[: len(published)] == published


def test_reorder(engine: EngineHandle, live: Subscriber) -> None:
    engine.faults(reorder=0.5)
    seen, published = numbers(live, engine)
    assert sorted(seen) == published
    assert any(after < before for before, after in pairwise(seen))
    assert replayed(engine, published[0])[: len(published)] == published


def test_the_last_batch_comes_even_if_nothing_overtakes_it(engine: EngineHandle, live: Subscriber) -> None:
    before = engine.state()[0].counts.get("reordered", 0)
    engine.faults(reorder=1.0)

    def waits() -> bool:
        store(engine)
        return not engine.state()[0].quiet  # for one that overtakes it, a fifth of a second

    until(waits)
    live.until(last_seq(engine))
    assert engine.state()[0].counts["reordered"] > before


def test_delay_holds_up_what_is_behind_too(engine: EngineHandle, live: Subscriber) -> None:
    engine.faults(delay=1.0, delay_seconds=3.0)
    first = last_seq(engine) + 1
    store(engine, 10)
    early = replayed(engine, first)
    assert len(early) >= 10  # all of it can be had already
    assert not engine.state()[0].quiet  # but something is still on its way to the subscriber
    last = last_seq(engine)
    assert [number(frames) for frames in live.until(last)] == list(range(first, last + 1))


@pytest.mark.parametrize("kind", ["poison_event", "poison_type"])
def test_poison_in_a_batch(engine: EngineHandle, live: Subscriber, kind: str) -> None:
    engine.faults(**{kind: 1.0})
    store(engine)
    last = last_seq(engine)
    frames = live.until(last)
    assert frames[-1] == replay(engine.replay_endpoint(), last)[0][1:]
    for one in frames:
        _, events, _ = msgspec.msgpack.decode(one[-1])
        reader = Reader(block_size=4)
        reader.apply(one[-1])
        assert reader.bad == 1
        stats = reader.index.stats()
        assert stats["stores"] + stats["removes"] == len(events) - 1


def test_a_payload_that_is_no_batch(engine: EngineHandle, live: Subscriber) -> None:
    engine.faults(poison_payload=1.0)
    first = last_seq(engine) + 1
    store(engine, 5)
    frames = live.until(last_seq(engine))
    assert [number(one) for one in frames] == list(range(first, first + len(frames)))
    good = Reader(block_size=4)
    for one in frames:
        good.apply(one[-1])
    assert good.bad == len(frames) / 2
    assert good.index.stats()["blocks"] == 5


def test_a_truncated_batch_is_whole_in_the_replay(engine: EngineHandle, live: Subscriber) -> None:
    engine.faults(truncate=1.0)
    store(engine, 5)
    last = last_seq(engine)
    for one in live.until(last):
        kept = replay(engine.replay_endpoint(), number(one))[0]
        assert number(kept) == number(one)
        assert kept[-1].startswith(one[-1])
        assert len(kept[-1]) > len(one[-1])
        assert msgspec.msgpack.decode(kept[-1])


def test_a_corrupt_batch_is_so_in_the_replay(engine: EngineHandle, live: Subscriber) -> None:
    engine.faults(corrupt=1.0)
    store(engine)
    one = live.until(last_seq(engine))[-1]
    assert replay(engine.replay_endpoint(), number(one))[0][1:] == one
    with pytest.raises(msgspec.DecodeError):
        msgspec.msgpack.decode(one[-1])


def test_strays_have_numbers_and_blocks_of_their_own(engine: EngineHandle, live: Subscriber) -> None:
    engine.faults(stray=1.0)
    before = engine.state()[0].counts.get("strays", 0)
    first = last_seq(engine) + 1
    store(engine, 5)
    last = last_seq(engine)
    own = list(range(first, last + 1))
    seen = [seq for seq in rest(live, engine) if seq <= last]
    assert sorted(seen) == sorted(own + list(range(before, before + len(own))))
    assert replayed(engine, first)[: len(own)] == own


def test_a_slow_replay(engine: EngineHandle) -> None:
    store(engine, 5)
    last = last_seq(engine)
    engine.faults(replay_socket="slow")
    began = time.monotonic()
    assert replayed(engine, last - 2) == [last - 2, last - 1, last]
    assert time.monotonic() - began >= 0.3


def test_restart(engine: EngineHandle, live: Subscriber) -> None:
    prompt = list(range(5000, 5020))
    engine.complete(prompt, 1, rank=0)
    assert engine.match(prompt).held == 5
    before = engine.state()[0].epoch
    live.until(last_seq(engine))
    assert engine.restart() == before + 1
    truth = engine.match(prompt)
    assert (truth.held, truth.epoch, truth.seq) == (0, before + 1, None)
    assert replay(engine.replay_endpoint()) == []
    # The subscriber was cut off and comes back by itself.
    frames = live.join(lambda: store(engine))
    assert number(frames) <= last_seq(engine)
    assert replayed(engine, 0)[0] == 0


def test_restart_with_time_to_notice(engine: EngineHandle) -> None:
    """While an engine is down for a restart, its events' port is closed."""
    port = int(engine.endpoint().rpartition(":")[2])
    took: list[float] = []

    def restart() -> None:
        began = time.monotonic()
        handle = EngineHandle(engine.number, engine.config, engine._process)
        handle.restart(down=1.0)
        handle.close()
        took.append(time.monotonic() - began)

    restarting = threading.Thread(target=restart)
    restarting.start()
    refused = 0
    while restarting.is_alive():
        refused += not listens(port)
        time.sleep(0.01)
    restarting.join()
    assert took[0] >= 1.0
    assert refused > 3
    assert listens(port)
    store(engine)


def test_restarts_by_chance(engine: EngineHandle) -> None:
    before = engine.state()[0].epoch
    engine.faults(restart=1.0)

    def disturbed() -> bool:
        with contextlib.suppress(SimulatedEngineError):  # the restart took the request with it, or it was not up yet
            store(engine)
        return engine.state()[0].epoch >= before + 3

    until(disturbed)


def test_pause(engine: EngineHandle, live: Subscriber) -> None:
    endpoint = engine.replay_endpoint()
    store(engine)
    live.until(last_seq(engine))
    engine.pause()
    assert ask(endpoint, [b"", bytes(8)], seconds=0.2) is None
    with pytest.raises(TimeoutError):
        impatient(engine)
    with ThreadPoolExecutor(1) as pool:
        request = pool.submit(store, engine)
        assert live.receive(0.5) is None  # nothing is published
        assert not request.done()  # nothing is answered
        engine_of_its_own = EngineHandle(engine.number, engine.config, engine._process)
        engine_of_its_own.resume()
        engine_of_its_own.close()
        request.result(PATIENCE)
    assert live.receive() is not None
    assert replay(endpoint)
    store(engine)
    live.until(last_seq(engine))


def test_a_pause_may_end_by_itself(engine: EngineHandle, live: Subscriber) -> None:
    began = time.monotonic()
    engine.pause(0.5)
    assert live.receive(0.0) is None
    store(engine)  # answered when the pause is over
    assert time.monotonic() - began >= 0.5
    assert live.receive() is not None


def test_pauses_by_chance(engine: EngineHandle) -> None:
    engine.faults(pause=1.0, pause_seconds=0.2)
    before = engine.state()[0].counts.get("pauses", 0)
    began = time.monotonic()
    store(engine, 3)
    # Each request publishes a batch at least, and each batch brings a pause; the last may still last.
    assert time.monotonic() - began >= 0.4
    assert engine.state()[0].counts["pauses"] >= before + 2


@pytest.mark.parametrize("how", ["closed", "silent"])
def test_killed_replay(engine: EngineHandle, live: Subscriber, how: str) -> None:
    engine.faults(replay_socket=how)
    store(engine)
    live.until(last_seq(engine))  # the live stream goes on
    assert ask(engine.replay_endpoint(), [b"", bytes(8)], seconds=0.3) is None
    engine.faults(replay_socket="on")
    assert replayed(engine, 0) == list(range(last_seq(engine) + 1))[-500:]


def test_settled_after_everything_at_once(engine: EngineHandle, live: Subscriber) -> None:
    rates = dict.fromkeys(
        ("drop", "duplicate", "reorder", "delay", "poison_event", "poison_type", "poison_payload"), 0.3
    )
    engine.faults(**rates, delay_seconds=0.05, pause=0.05, pause_seconds=0.05)
    first = last_seq(engine) + 1
    store(engine, 40)
    states = engine.settle()
    assert all(state.quiet for state in states)
    assert engine.faults() == Faults()
    last = states[0].seq
    assert last is not None
    seen = [number(frames) for frames in live.until(last)]
    assert set(seen) < set(range(first, last + 1))
    assert replayed(engine, first) == list(range(first, last + 1))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"drp": 1}, "did you mean 'drop'"),
        ({"drop": 1.5}, "drop must be from 0 to 1"),
        ({"drop": True}, "drop must be a number"),
        ({"pause_seconds": -1}, "pause_seconds must be from 0"),
        ({"replay_socket": "dead"}, "on, closed, silent"),
    ],
)
def test_faults_that_there_are_none_of(engine: EngineHandle, changes: dict[str, object], words: str) -> None:
    with pytest.raises(SimulatedEngineError, match=words):
        engine.faults(**changes)
    with pytest.raises(InvalidArgumentError, match=words):
        Faults().changed(changes)
    assert engine.faults() == Faults()
