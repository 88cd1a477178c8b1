"""Engines that pull blocks from each other, as the router tells them: what came, and what happens if a source fails."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from . import scenarios
from .complaints import Row
from .engine import Server
from .index import Index
from .routed import Front
from .tiers import RoutedTierProber, reported, usable

SEED = "1"  # of block hashes, for an engine from which others cannot pull
HANDSHAKE = 3  # seconds that an engine waits for one that it has not pulled from before
HEARD = 2.0  # seconds after which the router does not take an engine for a source any more that says nothing
PATIENCE = 60.0  # seconds for something to be known
LENGTH = 2_500  # tokens of a prompt that is better pulled than computed
FLAGS = ("--max-num-batched-tokens", "64")  # a small model computes prompts too fast otherwise for pulls to be worth it


@dataclass(frozen=True)
class HeldPrompt:
    """A prompt that an engine has in host memory, and its answer."""

    tokens: list[int]
    answer: list[int]


class PullProber(RoutedTierProber):
    """Counts answers after a pull, and those of them that are what the source itself answered."""

    pulled = 0
    same = 0

    def again(self, scenario: str, front: Front, held: HeldPrompt, *, stream: bool) -> None:
        """Compares one prompt that the source has answered already."""
        answered = self.ask(scenario, front, held.tokens, stream=stream)
        if to_pull(front):
            self.pulled += 1
            self.same += answered.tokens == held.answer


class Pulls:
    """Three engines: `a`, `b`, and `c`, whose block hashes have another seed."""

    def __init__(self, servers: Sequence[Server], index: Index, seed: int, log: Callable[[str], None]) -> None:
        self.rows: list[Row] = []
        self.notes: list[str] = []
        self._a, self._b, self._c = servers
        self._index = index
        self._random = random.Random(seed)
        self._log = log
        self._number = 0  # of pulls without a router

    def healthy(self, prober: PullProber, front: Front) -> None:
        """Prompts that one engine holds and the other serves: all of it, a part, none of it in host memory."""
        for server in (self._a, self._b):  # how fast they compute is learnt
            with self._drained(front, *(each for each in (self._a, self._b, self._c) if each is not server)):
                for _ in range(3):
                    prober.ask("computed", front, self._some(LENGTH), stream=True)
        for source, consumer in ((self._a, self._b), (self._b, self._a)):
            with self._drained(front, source, self._c):
                for number in range(8):
                    held = self._held(source, 500 + 400 * number)
                    if number % 2:
                        consumer.complete(held.tokens[: 64 * number] + self._some(40))  # it has the beginning itself
                    if number % 4 < 2:
                        prober.again("pulls", front, held, stream=number < 6)
                    more = held.tokens + self._some(20 + 30 * number)
                    answered = prober.ask("pulls", front, more, stream=True)
                    prober.ask("pulls, next turn", front, [*more, *answered.tokens, *self._some(50)], stream=True)
                for _ in range(2):
                    prompt = self._some(LENGTH)
                    source.complete(prompt, transfer={"max_offload_tokens": 0})
                    prober.ask("only on the source's device", front, prompt, stream=True)
                salted = self._held(source, LENGTH, salt="tenant a").tokens
                for salt in (None, "tenant b", "tenant a"):
                    prober.ask("salted at the source", front, salted, salt=salt, stream=True)
        self._say(f"of {prober.pulled} answers after a pull, {prober.same} are the same as the source's")

    def other_seed(self, front: Front) -> None:
        """An engine from which the others cannot pull."""
        with self._drained(front, self._c, self._a):
            told = [self._ask(front, self._held(self._c, LENGTH).tokens) for _ in range(3)]
        self._row("a source with another hash seed: 3 prompts", "pull, compute, compute", _words(told))
        self._note("the first of these was answered", told[0][1])

    def dead(self, front: Front) -> None:
        """A source that is killed, and started again. The last part: its consumers cannot pull from it any more."""
        prompts = [self._held(self._a, LENGTH).tokens for _ in range(2)]
        with self._drained(front, self._a, self._c):
            self._a.kill()
            told = [self._ask(front, prompt) for prompt in prompts]
            self._row("a source that was killed: pulled the second time", "0 tokens", f"{told[1][0]} tokens")
            self._note("the prompt at once after the kill was answered", told[0][1])
            self._a.start()
            self._a.wait()
            self._index.wait(self._a.name, trusted=True)
            again = self._ask(front, prompts[1])
        self._row("what it held, after it was started again", "compute", _words([again]))

    def frozen(self, front: Front) -> None:
        """A source that answers nothing for a while, with a connection between both."""
        held = [self._held(self._a, LENGTH).tokens for _ in range(5)]
        with self._drained(front, self._a, self._c):
            self._wait_pullable(front, held[0])
            first = self._ask(front, held[0])
            with self._stopped(self._a):
                time.sleep(HEARD)
                later = self._ask(front, held[1])
            self._row("a source that is stopped for 2 s, before and meanwhile", "pull, compute", _words([first, later]))
            self._wait_pullable(front, held[2])
            with self._stopped(self._a):
                told = [self._ask(front, prompt) for prompt in held[2:4]]
            self._row("a source that is stopped a moment ago: 2 prompts", "pull, compute", _words(told))
            self._note("the first of these was answered", told[0][1])
            again = self._ask(front, held[4])
            self._row("the same source when it goes on, left alone", "compute", _words([again]))

    def direct(self) -> None:
        """Pulls without a router in between: what the engines do then, which the router has to count with."""
        nowhere = {"remote_host": "127.0.0.1", "remote_port": self._a.ports.pulls + 1}
        there = {"remote_host": "127.0.0.1", "remote_port": self._a.ports.pulls}
        self._pull("with no source, for comparison", self._b, self._some(LENGTH), {}, None)
        self._pull("from a port where nothing listens", self._b, self._some(LENGTH), nowhere, 0)
        self._pull("from a source that lacks all of it", self._b, self._some(LENGTH), there, 0)
        held = self._held(self._a, LENGTH).tokens
        self._pull("from a source that was started again", self._b, held, there, None)
        held = self._held(self._a, LENGTH).tokens
        with self._stopped(self._a):
            name = f"from a source that stands still before first contact, handshakes of {HANDSHAKE} s at most"
            self._pull(name, self._c, held, there, 0)

    def _pull(self, how: str, consumer: Server, prompt: list[int], source: dict[str, Any], right: int | None) -> None:
        self._number += 1
        transfer = {"remote_kv_source": source | {"kv_request_id": str(self._number)}} if source else {}
        before = consumer.cached_by_source()
        start = time.monotonic()
        answered = consumer.complete(prompt, transfer=transfer)
        took = time.monotonic() - start
        came = reported(consumer, before, answered.cached)["p2p"]
        if right is not None:
            self._row(f"asked directly, {how}: tokens that come", str(right), str(came))
        self._note(f"{how}: {came} tokens came, answered", took)

    # What all of these need

    def _ask(self, front: Front, prompt: list[int]) -> tuple[int, float]:
        """The tokens that were to be pulled, and the seconds until the answer's end."""
        start = time.monotonic()
        front.complete(prompt, stream=True)
        return to_pull(front), time.monotonic() - start

    def _held(self, source: Server, length: int, salt: str | None = None) -> HeldPrompt:
        """A new prompt, once the index knows that the engine has it in host memory."""
        prompt = self._some(length)
        answered = source.complete(prompt, salt=salt)
        end = time.monotonic() + PATIENCE
        most = usable(length, source.engine.block_size)
        while self._index.instance(source.name, prompt, lora=None, salt=salt).get("pullable", 0) < most:
            if time.monotonic() > end:
                raise RuntimeError(
                    f"after {PATIENCE:.0f} s, a prompt of {length} is not in host memory of {source.name}"
                )
            time.sleep(0.05)
        return HeldPrompt(prompt, answered.tokens)

    def _wait_pullable(self, front: Front, prompt: list[int]) -> None:
        """Waits until the router would have it pulled: it has heard of the source again."""
        body: dict[str, Any] = {"model": "tiny", "prompt": prompt, "max_tokens": 4}
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            rows = front.http.post("/explain", json=body).raise_for_status().json()["candidates"]
            if any((row.get("transfer") or {}).get("pull_tokens") for row in rows):
                return
            time.sleep(0.2)
        raise RuntimeError(f"after {PATIENCE:.0f} s, the router would not have a prompt pulled from {self._a.name}")

    def _some(self, count: int) -> list[int]:
        return scenarios.some(self._random, count)

    @contextmanager
    def _drained(self, front: Front, *servers: Server) -> Iterator[None]:
        """Engines that get no prompts, but can be pulled from."""
        for server in servers:
            front.http.post(f"/engines/{server.name}/drain").raise_for_status()
        try:
            yield
        finally:
            for server in servers:
                front.http.post(f"/engines/{server.name}/undrain").raise_for_status()

    @contextmanager
    def _stopped(self, server: Server) -> Iterator[None]:
        server.signal(signal.SIGSTOP)
        try:
            yield
        finally:
            server.signal(signal.SIGCONT)

    def _row(self, tried: str, right: str, happened: str) -> None:
        self.rows.append(Row(tried, right, happened))
        self._log(f"  {tried}: {happened}{'' if right == happened else f', not {right}'}")

    def _note(self, text: str, seconds: float) -> None:
        self._say(f"{text} after {seconds:.1f} s")

    def _say(self, text: str) -> None:
        self.notes.append(text)
        self._log(f"  {text}")


def to_pull(front: Front) -> int:
    """The tokens that the engine of the last decision was told to pull."""
    (last,) = front.http.get("/decisions", params={"limit": 1}).raise_for_status().json()
    return int((last["transfer"] or {}).get("pull_tokens", 0))


def _words(told: Sequence[tuple[int, float]]) -> str:
    return ", ".join("pull" if tokens else "compute" for tokens, _ in told)
