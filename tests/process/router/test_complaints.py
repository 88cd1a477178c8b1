"""Tests of what users of routers complain about. docs/reference/complaints.md says which test answers what."""

from __future__ import annotations

import asyncio
import json
import random
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
from tests.support.engine import Behaviour, Engine, Talk, stream, usual, whole

from kvatlas.sim.server import Publisher

from .deciding import exact, expected, holder, prompt, stored
from .running import PLAIN, Router, in_threads, wait_until


class Fleet:
    """Engines whose requests are held until `release`, with the events of each."""

    def __init__(self, count: int, tokenizer: Path, stack: ExitStack, *flags: str) -> None:
        self.engines = [stack.enter_context(Engine()) for _ in range(count)]
        self.publishers = [stack.enter_context(Publisher()) for _ in range(count)]
        self.open = threading.Event()
        flags = (*exact(tokenizer, *zip(self.engines, self.publishers, strict=True)), *flags)
        self.router = stack.enter_context(Router(*self.engines, flags=flags))
        if "--no-events" not in flags:
            self.router.wait_followed()
        self._threads: list[threading.Thread] = []

    @property
    def held(self) -> Behaviour:
        async def act(talk: Talk) -> None:
            while not self.open.is_set():
                await asyncio.sleep(0.01)
            await usual(talk)

        return act

    def hold(self, texts: list[str]) -> None:
        """Sends requests that stay, each once the one before has reached its engine."""
        for engine in self.engines:
            engine.behaviour = self.held
        for text in texts:
            before = self.asked()
            thread = threading.Thread(target=self.router.ask, args=(prompt(text),))
            thread.start()
            self._threads.append(thread)
            wait_until(partial(self.has_more_than, before), "an engine has it")

    def asked(self) -> int:
        return sum(engine.asked() for engine in self.engines)

    def has_more_than(self, count: int) -> bool:
        return self.asked() > count

    def per_engine(self) -> list[int]:
        return [engine.asked() for engine in self.engines]

    def release(self) -> None:
        self.open.set()
        for thread in self._threads:
            thread.join()


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


def fleet_of(count: int, tokenizer: Path, stack: ExitStack, *flags: str) -> Fleet:
    fleet = Fleet(count, tokenizer, stack, *flags)
    stack.callback(fleet.release)
    return fleet


def is_held(router: Router, text: str, by: str) -> bool:
    """True if an engine is known to hold a prompt. Nothing is sent: another engine would hold it as well."""
    return expected(router, text)[by] > 0


def text_of(seed: int, length: int) -> str:
    """A prompt that has nothing in common with others."""
    choose = random.Random(seed)
    return "".join(choose.choices("abcdefghijklmnopqrstuvwxyz ", k=length))


def test_a_hot_prompt_spreads_when_its_holder_has_too_much_to_do(tokenizer: Path, stack: ExitStack) -> None:
    """Complaints 1 to 3: all requests for a hot prefix go to the one engine that has it."""
    fleet = fleet_of(2, tokenizer, stack)
    hot = text_of(1, 512)
    fleet.publishers[0].publish(stored(hot))
    wait_until(lambda: expected(fleet.router, hot)["e0"] > 0, "its holder is known")
    first, second = fleet.per_engine()
    fleet.hold([hot + text_of(2, 256)])
    assert fleet.per_engine() == [first + 1, second], "the holder is idle"
    # How much is too much depends on how long the holder has said nothing, so on the machine.
    number = 3
    while fleet.per_engine()[1] == second:
        assert number < 62, "the holder has sixty prompts to compute, and the other one none"
        fleet.hold([hot + text_of(number, 256)])
        number += 1


def test_prompts_that_nobody_holds_do_not_go_where_most_work_is(tokenizer: Path, stack: ExitStack) -> None:
    """Complaint 5: misses go to the smallest tree, which may belong to the engine with the longest queue."""
    fleet = fleet_of(2, tokenizer, stack)
    fleet.hold([text_of(1, 4000)])
    busy = fleet.per_engine().index(1)
    fleet.hold([text_of(2, 400), text_of(3, 400)])
    assert fleet.per_engine()[busy] == 1


def test_work_is_counted_in_tokens_not_in_requests(tokenizer: Path, stack: ExitStack) -> None:
    """Complaint 9: counts of requests do not see long prompts."""
    fleet = fleet_of(2, tokenizer, stack)
    fleet.hold([text_of(1, 20_000)])
    busy = fleet.per_engine().index(1)
    fleet.hold([text_of(number, 400) for number in range(2, 8)])
    assert fleet.per_engine()[busy] == 1, "six short prompts are less work than a long one"


def test_one_overloaded_engine_does_not_switch_off_locality_for_the_others(tokenizer: Path, stack: ExitStack) -> None:
    """Complaints 6 to 8: a gate over the whole fleet, which one runaway engine closes for everybody."""
    fleet = fleet_of(3, tokenizer, stack)
    texts = [text_of(number, 1600) for number in range(3)]
    for publisher, text in zip(fleet.publishers, texts, strict=True):
        publisher.publish(stored(text))
    for number, text in enumerate(texts):
        wait_until(partial(is_held, fleet.router, text, f"e{number}"), "it is known")
    fleet.engines[2].behaviour = fleet.held
    open_requests = [
        threading.Thread(target=fleet.router.ask, args=(prompt(texts[2] + text_of(10 + number, 64)),))
        for number in range(12)
    ]
    before = fleet.engines[2].asked()
    for thread in open_requests:
        thread.start()
    wait_until(lambda: fleet.engines[2].asked() > before + 3, "one engine is overloaded")
    found = [
        (holder(fleet.router, texts[0] + str(number)), holder(fleet.router, texts[1] + str(number)))
        for number in range(5)
    ]
    fleet.open.set()
    for thread in open_requests:
        thread.join()
    assert found == [("e0", "e1")] * 5


def test_prompts_seen_once_reach_all_engines(tokenizer: Path, stack: ExitStack) -> None:
    """Complaint 10: traffic without repetition uses some of the engines only."""
    fleet = fleet_of(5, tokenizer, stack)
    for number in range(60):  # one after the other: all engines are alike each time
        assert fleet.router.ask(prompt(text_of(number, 300))).status == 200
    assert min(fleet.per_engine()) >= 6


def test_an_engine_that_joins_gets_work(tokenizer: Path, stack: ExitStack) -> None:
    """Complaint 12: new workers starve, as nothing is cached there."""
    fleet = fleet_of(2, tokenizer, stack)
    hot = text_of(1, 1600)
    fleet.publishers[0].publish(stored(hot))
    wait_until(lambda: expected(fleet.router, hot)["e0"] > 0, "its holder is known")
    joined = stack.enter_context(Engine())
    assert fleet.router.ask({"name": "e2", "url": joined.url}, path="/engines").status == 201
    # Engines that have said which models they have come first.
    wait_until(lambda: all(one["models"] for one in fleet.router.workers()), "it has said what it has")
    assert [one["standing"] for one in fleet.router.workers()] == ["up"] * 3
    for number in range(30):
        fleet.router.ask(prompt(text_of(100 + number, 300)))
        fleet.router.ask(prompt(hot + text_of(200 + number, 32)))
    # A quarter of a third of 60 at once (warm_share), more as seconds pass; the last one need not be for it.
    assert joined.asked() >= 4


def test_siblings_of_a_burst_go_where_the_first_one_went(tokenizer: Path, stack: ExitStack) -> None:
    """Complaint 15: requests that share a prompt, before any event can tell who computes it."""
    fleet = fleet_of(3, tokenizer, stack)
    shared = text_of(1, 8000)
    fleet.hold([shared + str(number) for number in range(6)])
    assert sorted(fleet.per_engine()) == [0, 0, 6]


def test_policies_that_look_at_load_only_are_there(engine: Engine, other: Engine) -> None:
    """Complaint 13: balance by load as a mode of its own, not as a cache-aware policy with a weight of 0."""
    release = threading.Event()

    async def held(talk: Talk) -> None:
        while not release.is_set():
            await asyncio.sleep(0.01)
        await usual(talk)

    with Router(engine, other, flags=("--no-events", "--tokenizer", "none", "--policy", "least-loaded")) as router:
        engine.behaviour = other.behaviour = held
        with in_threads(10, lambda _: None if router.ask().status == 200 else pytest.fail("refused")) as errors:
            wait_until(lambda: engine.asked() + other.asked() == 10, "all have theirs")
            release.set()
        assert not errors
        assert engine.asked() == other.asked() == 5


def test_ever_new_prompts_do_not_make_it_grow(tokenizer: Path, stack: ExitStack) -> None:
    """Complaints 16, 17, 18 and 20: trees and counters of a router that only grow."""
    fleet = fleet_of(2, tokenizer, stack, "--no-events", "--decisions", "16")
    for engine in fleet.engines:
        engine.behaviour = whole()

    def churn(start: int) -> int:
        for number in range(start, start + 10):
            requests = b""
            for each in range(50):
                body = json.dumps(prompt(text_of(number * 50 + each, 1000))).encode()
                ends = b"connection: close\r\n" if each == 49 else b""
                head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {len(body)}\r\n"
                requests += head.encode() + ends + b"\r\n" + body
            assert fleet.router.talk(requests).count(b"HTTP/1.1 200") == 50
        return fleet.router.memory()

    # An allocator may take a few megabytes more once; what grows with each prompt grows every time.
    churn(0)
    sizes = [churn(10), churn(20)]
    while sizes[-1] - sizes[-2] >= 8 << 20:
        assert len(sizes) < 6, f"500 prompts of 1 KB leave no megabytes behind: {sizes}"
        sizes.append(churn(10 * len(sizes) + 10))
    wait_until(lambda: fleet.router.in_flight() == 0, "nothing is in flight")


def test_what_was_predicted_is_held_against_what_the_engine_says(tokenizer: Path, stack: ExitStack) -> None:
    """Complaints 30, 48 and 49: "it always reports 0 overlap", and nothing says which part of the way is at fault."""
    fleet = fleet_of(2, tokenizer, stack)
    text = text_of(1, 800)
    fleet.publishers[1].publish(stored(text))
    wait_until(lambda: expected(fleet.router, text)["e1"] > 0, "its holder is known")
    fleet.engines[1].behaviour = whole(prompt=805, cached=0)
    answer = fleet.router.ask(prompt(text + "what?"))
    assert int(answer.headers["x-kvatlas-cached-tokens"]) == 800
    assert answer.headers["x-kvatlas-reason"]
    off = "kvatlas_router_cached_tokens_off"

    def is_counted() -> bool:
        counts = [fleet.router.metric(f"{off}_{what}") for what in ("count", "sum")]
        counts[0] -= fleet.router.metric(f"{off}_count", reason="as_expected")
        return min(counts) >= 1

    wait_until(is_counted, "it is counted")
    assert fleet.router.metric("kvatlas_router_decisions_total") >= 1
    last = json.loads(fleet.router.get("/decisions")[1])[0]  # the newest comes first
    assert last["worker"] == "e1"


def test_an_engine_that_makes_other_tokens_of_a_prompt_is_told_from_one_that_evicted_it(
    tokenizer: Path, stack: ExitStack
) -> None:
    """Complaint 30: hits that never come, as the engine makes other tokens of the prompt, and nothing says so."""
    fleet = fleet_of(2, tokenizer, stack)
    text = text_of(1, 800)
    off = "kvatlas_router_cached_tokens_off_count"
    for engine in fleet.engines:
        engine.behaviour = whole(prompt=805, cached=0)
    assert fleet.router.ask(prompt(text + "what?")).status == 200
    wait_until(lambda: fleet.router.metric(off, reason="as_expected") == 1, "it is counted")
    for engine in fleet.engines:
        engine.behaviour = whole(prompt=820, cached=0)  # a system prompt that the router knows nothing of
    assert fleet.router.ask(prompt(text + "what?")).status == 200
    wait_until(lambda: fleet.router.metric(off, reason="template_mismatch") == 1, "it is counted")
    assert fleet.router.metric(off, reason="evicted_meanwhile") == 0

    def counted() -> list[int | None]:
        return [each["ended"]["counted_tokens"] for each in json.loads(fleet.router.get("/decisions")[1])[:2]]

    wait_until(lambda: counted() == [820, None], "the decision has it")
    assert "tokenizer or chat template" not in fleet.router.log, "a single prompt may be odd"
    for _ in range(4):
        assert fleet.router.ask(prompt(text + "what?")).status == 200
    wait_until(lambda: "tokenizer or chat template" in fleet.router.log, "it is said")
    # Of several prompts the engine counts the sum: that proves nothing.
    several = {"model": "model", "prompt": [text, text], "max_tokens": 1}
    assert fleet.router.ask(several, path="/v1/completions").status == 200
    wait_until(lambda: fleet.router.in_flight() == 0, "it is over")
    assert fleet.router.metric(off, reason="template_mismatch") == 5


def test_engines_come_and_go_under_load(engine: Engine, other: Engine) -> None:
    """Complaint 26: a worker that is removed while it registers."""
    with Router(engine, flags=PLAIN) as router:
        stop = threading.Event()
        statuses: Counter[int] = Counter()

        def ask(_: int) -> None:
            while not stop.is_set():
                statuses[router.ask().status] += 1

        def change(_: int) -> None:
            for _turn in range(15):
                assert router.ask({"name": "late", "url": other.url}, path="/engines").status in (200, 201)
                with router.connect() as made:
                    made.sendall(b"DELETE /engines/late HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n")
                    assert made.recv(4096).startswith((b"HTTP/1.1 200", b"HTTP/1.1 404"))

        with in_threads(3, ask) as errors:
            with in_threads(2, change) as others:
                pass
            stop.set()
        assert not errors + others
        assert set(statuses) == {200}
        assert [worker["name"] for worker in router.workers()] in (["e0"], ["e0", "late"])
        wait_until(lambda: router.in_flight() == 0, "nothing is in flight")


def test_chat_completions_are_placed_by_what_is_held(tokenizer: Path, stack: ExitStack) -> None:
    """Complaint 35: a KV-aware policy that ignores chat completions."""
    fleet = fleet_of(2, tokenizer, stack)
    text = text_of(1, 1600)
    fleet.publishers[1].publish(stored(text))
    wait_until(lambda: expected(fleet.router, text)["e1"] > 0, "its holder is known")
    chat = [{"role": "user", "content": text[:800]}, {"role": "assistant", "content": text[800:]}]
    asked = {"model": "model", "messages": [*chat, {"role": "user", "content": "and?"}]}
    assert fleet.router.ask(asked).headers["x-kvatlas-worker"] == "e1"
    answer = fleet.router.ask({"model": "model", "prompt": text + "and?"}, path="/v1/completions")
    assert answer.headers["x-kvatlas-worker"] == "e1"


def test_an_engine_that_is_drained_gets_nothing_new_and_ends_what_it_has(engine: Engine, other: Engine) -> None:
    """Complaint 42: traffic goes on to an engine that is no longer ready."""
    engine.behaviour = stream(3, pause=0.05)
    with Router(engine, other, flags=PLAIN) as router:
        answers = [router.open() for _ in range(4)]
        held = engine.asked()
        assert held == 2
        assert router.ask(b"{}", path="/engines/e0/drain").status == 200
        assert all(router.ask().status == 200 for _ in range(6))
        assert engine.asked() == held
        assert all(answer.read().endswith(b"[DONE]\n\n") for answer in answers)
        assert router.ask(b"{}", path="/engines/e0/undrain").status == 200
        assert all(router.ask().status == 200 for _ in range(4))
        assert engine.asked() > held
