"""Decisions for the attempts of calls, and records of their outcomes."""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from kvatlas.litellm.asked import AskedPrompt
from kvatlas.litellm.lookup import Holdings
from kvatlas.routing import Decision, Router

BLOCK_SIZE = 16  # tokens in a block while that is not known
MOST_CALLS = 16_384
FORGET = 600.0  # seconds after which an engine that no request could take is forgotten


@dataclass
class Call:
    """A client's call: its last attempt, and the engines at which attempts failed."""

    decision: Decision | None = None
    worker: str | None = None
    length: int = 0
    failed: set[str] = field(default_factory=set)


class Placer:
    """Chooser of engines by `kvatlas.routing.Router`, which remembers the attempts of each call."""

    def __init__(
        self, policy: Any = "kvatlas", options: Mapping[str, Any] | None = None, wait: float = 0.0, seed: int = 0
    ) -> None:
        settings = {"queue_timeout": wait} if wait > 0 else {"queue_limit": 0}
        self._make = partial(Router, policy=policy, options=options, settings=settings, seed=seed)
        # Engines with blocks of one size are alike enough to be alternatives; most fleets have one size.
        self._cores = {BLOCK_SIZE: self._make(block_size=BLOCK_SIZE)}
        self._sizes: dict[str, int] = {}  # of workers
        self._calls: OrderedDict[str, Call] = OrderedDict()
        self._seen: dict[str, float] = {}

    def begin(self, call_id: str | None) -> None:
        """Record that a call begins. An earlier call with the same id, which clients may choose, is forgotten."""
        if call_id and (call := self._calls.pop(call_id, None)) and call.decision is not None:
            call.decision.failed()

    def untried(self, call_id: str | None, workers: Sequence[str], last: str | None = None) -> list[str]:
        """The workers at which no attempt of a call has failed; all of them if attempts have failed at every one.

        An earlier attempt of the call counts as failed, since a call is only placed again after a failure.

        Args:
            call_id: LiteLLM's id of the call, the same for all its attempts.
            workers: The workers of the deployments that can get the call.
            last: The worker of the attempt before, if another component chose it.
        """
        if not call_id:
            return list(workers)
        call = self._calls.setdefault(call_id, Call())
        self._calls.move_to_end(call_id)
        while len(self._calls) > MOST_CALLS:
            self._calls.popitem(last=False)
        if call.decision is not None:
            call.decision.failed()
        call.failed |= {name for name in (call.worker, last) if name is not None}
        call.decision = call.worker = None
        return [name for name in workers if name not in call.failed] or list(workers)

    async def place(
        self, call_id: str | None, workers: Sequence[str], asked: AskedPrompt, found: Holdings
    ) -> tuple[str | None, str]:
        """Choose the worker for an attempt, and count the attempt in the worker's load. Also returns the reason.

        The worker is None if the request was refused, or if the policy lets it wait, which LiteLLM does not support.
        """
        core = self._core_of(workers, found)
        core.expire()
        match = None
        if found.held is not None and found.block_size is not None:
            match = {name: found.held.get(name, 0) // found.block_size for name in workers}
        decision = await core.choose_async(
            content_hashes=found.hashes,
            prompt_tokens=found.length,
            match=match,
            session=asked.session,
            max_tokens=asked.max_tokens,
            answers=asked.answers,
            allowed=workers,
        )
        if decision.worker is not None and call_id:
            call = self._calls.setdefault(call_id, Call())
            call.decision, call.worker, call.length = decision, decision.worker, found.length
        return decision.worker, decision.why

    def shown(self, call_id: str | None) -> tuple[str, int, str] | None:
        """The worker of a call's last attempt, the tokens expected in its cache and the reason of the choice.

        None if no worker was chosen.
        """
        call = self._calls.get(call_id) if call_id else None
        if call is None or call.decision is None or call.worker is None:
            return None
        return call.worker, call.decision.cached_tokens, call.decision.why

    def first_token(self, call_id: str | None) -> None:
        """Record that a call's answer has begun."""
        call = self._calls.get(call_id) if call_id else None
        if call is not None and call.decision is not None:
            call.decision.first_token()

    def finish(self, call_id: str | None, cached_tokens: int | None, output_tokens: int | None) -> None:
        """Record that a call has ended, with the token counts that the engine reported."""
        call = self._calls.get(call_id) if call_id else None
        if call is None or call.decision is None:
            return
        cached = cached_tokens if cached_tokens is not None and 0 <= cached_tokens <= call.length else None
        output = output_tokens if output_tokens is not None and output_tokens >= 0 else None
        call.decision.finish(cached_tokens=cached, output_tokens=output)

    def fail(self, call_id: str | None, worker: str | None = None) -> None:
        """Record that a call, or its attempt at a worker, has failed."""
        call = self._calls.get(call_id) if call_id else None
        if call is None or call.decision is None or worker not in (None, call.worker):
            return
        call.decision.failed()

    def counts(self) -> dict[str, int]:
        """The counts of the decisions."""
        total: Counter[str] = Counter()
        for core in self._cores.values():
            total.update(core.counts())
        return dict(total)

    @property
    def in_flight(self) -> int:
        """Number of attempts that have not ended."""
        return sum(core.in_flight for core in self._cores.values())

    def _core_of(self, workers: Sequence[str], found: Holdings) -> Router:
        """The `kvatlas.routing.Router` for engines with the prompt's block size, with the given workers added."""
        size = found.block_size or next((self._sizes[name] for name in workers if name in self._sizes), BLOCK_SIZE)
        core = self._cores.setdefault(size, self._cores.get(size) or self._make(block_size=size))
        now = time.monotonic()
        for name in workers:
            if self._sizes.get(name) != size:
                self._forget(name)
                core.add_worker(name)
                self._sizes[name] = size
            self._seen[name] = now
            if found.held is not None:
                core.set_trusted(name, name not in found.untrusted)
        for name in [name for name, at in self._seen.items() if now - at > FORGET]:
            self._forget(name)
            del self._seen[name]
        return core

    def _forget(self, worker: str) -> None:
        size = self._sizes.pop(worker, None)
        if size is not None:
            self._cores[size].remove_worker(worker)
