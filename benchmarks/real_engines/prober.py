"""Asks the index before each prompt, sends the prompt, and notes both answers."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvatlas.client import Query

from .compare import Sample
from .engine import EngineAnswer, Server
from .index import Index
from .launch import MODEL

PATIENCE = 2.0  # seconds that the blocks of an answered prompt have to appear in the index


@dataclass(frozen=True)
class Prediction:
    """The index's answer about a prompt in an engine."""

    held: int  # tokens
    usable: int  # tokens of these that the engine can reuse
    sure: bool  # whether it trusts what it knows of this engine
    upper_bound: bool  # whether it may be fewer
    more: bool = False  # whether it may hold more than it says


class PromptSender:
    """Sends prompts to engines, and compares what was predicted of each with what the engine says."""

    def __init__(self, log: Callable[[str], None]) -> None:
        self.samples: list[Sample] = []
        self._log = log
        self._lock = threading.Lock()

    def ask(
        self,
        scenario: str,
        server: Server,
        tokens: Sequence[int],
        *,
        salt: str | None = None,
        adapter: str | None = None,
        stream: bool = False,
        longest: int = 4,
        rank: int | None = None,
    ) -> EngineAnswer:
        """Compares one completion."""
        number = "" if adapter is None else f"lora-id:{[*server.setup.adapters].index(adapter) + 1}"
        known = adapter if server.engine.announces("lora_name") else number or None

        def send() -> EngineAnswer:
            return server.complete(tokens, salt=salt, adapter=adapter, stream=stream, longest=longest, rank=rank)

        return self._compare(scenario, server, tokens, send, salt, known, rank)

    def chat(self, scenario: str, server: Server, messages: Sequence[dict[str, str]], *, stream: bool) -> str:
        """Compares one answer to messages, and returns it."""
        tokens = server.tokenize(messages)
        said: list[str] = []

        def send() -> EngineAnswer:
            answered, text = server.chat(messages, stream=stream)
            said.append(text)
            return answered

        self._compare(scenario, server, tokens, send, None, None, None)
        return said[0]

    def _compare(
        self,
        scenario: str,
        server: Server,
        tokens: Sequence[int],
        send: Callable[[], EngineAnswer],
        salt: str | None,
        adapter: str | None,
        rank: int | None,
    ) -> EngineAnswer:
        raise NotImplementedError

    def _add(self, sample: Sample) -> None:
        with self._lock:
            self.samples.append(sample)
        if sample.cause is not None:
            self._log(f"  {sample}")


class Prober(PromptSender):
    """Asks the index that follows the engines before it sends a prompt."""

    prefix = ""  # of scenarios' names
    pause = 0.005  # seconds between two questions whether the index has an answer's blocks

    def __init__(self, index: Index, log: Callable[[str], None]) -> None:
        super().__init__(log)
        self.index = index
        self.lateness: list[float] = []  # seconds from an answer until the index has its blocks
        self.unseen = 0  # answers whose blocks it did not have in time
        self._begun: Counter[str] = Counter()  # requests, by engine
        self._running: Counter[str] = Counter()

    def _compare(
        self,
        scenario: str,
        server: Server,
        tokens: Sequence[int],
        send: Callable[[], EngineAnswer],
        salt: str | None,
        adapter: str | None,
        rank: int | None,
    ) -> EngineAnswer:
        name = server.name
        with self._lock:
            begun = self._begun[name]
            others = self._running[name]
            self._begun[name] += 1
            self._running[name] += 1
        try:
            said = self._said(name, tokens, salt, adapter, rank)
            stream = self.index.stream(name, rank or 0)
            answered = send()
        finally:
            with self._lock:
                self._running[name] -= 1
                others += self._begun[name] - begun - 1
        if answered.prompt != len(tokens):
            raise RuntimeError(f"{name} took {answered.prompt} tokens, not {len(tokens)}")
        sample = Sample(
            scenario=self.prefix + scenario,
            worker=name if rank is None else f"{name}, rank {rank}",
            prompt=len(tokens),
            block_size=server.engine.block_size,
            held=said.held if said.sure else None,
            cached=answered.cached,
            usable=said.usable if said.sure else None,
            trusted=stream is not None and stream.trusted,
            partial=said.more or (stream is not None and stream.partial),
            upper_bound=said.upper_bound,
            overlapping=others,
            unannounced=unannounced(scenario, server),
        )
        self._add(sample)
        self._wait(server, [*tokens, *answered.tokens], salt, adapter, rank)
        return answered

    def _said(
        self, worker: str, tokens: Sequence[int], salt: str | None, adapter: str | None, rank: int | None
    ) -> Prediction:
        """Asks the index; for a rank by a batch, whose answers are by rank."""
        query = Query(list(tokens), lora=adapter, salt=salt)
        if rank is None:
            answer = self.index.client.query(tokens=query.tokens, model=MODEL, lora=adapter, salt=salt)
            depths = [(each.tokens, each.usable) for each in answer.workers if each.worker == worker]
            untrusted, upper_bound = answer.untrusted, answer.upper_bound
        else:
            batch = self.index.client.query_batch([query], model=MODEL)
            ranks = batch.answers[0].ranks
            depths = [(each.tokens, each.usable) for each in ranks if (each.worker, each.rank) == (worker, rank)]
            untrusted, upper_bound = batch.untrusted, batch.upper_bound
        held, usable = depths[0] if depths else (0, 0)
        assert usable is not None  # the client has sent how long the prompt is
        sure = not any((each.worker, each.rank) == (worker, rank or 0) for each in untrusted)
        return Prediction(held, usable, sure, upper_bound)

    def _wait(
        self, server: Server, tokens: Sequence[int], salt: str | None, adapter: str | None, rank: int | None
    ) -> None:
        """Waits until the index has seen what the engine must hold now: all full blocks but for the last token."""
        start = time.monotonic()
        whole = (len(tokens) - 1) // server.engine.block_size * server.engine.block_size
        while self._said(server.name, tokens, salt, adapter, rank).held < whole:
            if time.monotonic() - start > PATIENCE:
                self.unseen += 1
                return
            time.sleep(self.pause)
        with self._lock:
            self.lateness.append(time.monotonic() - start)


def unannounced(scenario: str, server: Server) -> str:
    """The thing in which a scenario's prompts differ and that the engine's events do not tell; empty if none."""
    salt = "extra_keys" if server.engine.product == "vLLM" else "cache_salt"
    if scenario == "salts" and not server.engine.announces(salt):
        return "salt"
    return ""
