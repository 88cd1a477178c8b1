"""Injected faults between an engine and the readers of its events, drawn from a seed."""

from __future__ import annotations

import asyncio
import math
import random
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Literal, get_args

from kvatlas._text import nearest
from kvatlas.errors import ConfigError

ReplaySocket = Literal["on", "closed", "silent", "slow"]
"""Behaviour of an engine's replay socket.

"on": normal; "closed": not bound; "silent": bound but without answers; "slow": one batch every `SLOW` seconds.
"""

Pulls = Literal["on", "closed", "silent"]
"""Behaviour of the port at which peers pull blocks.

"on": normal; "closed": refuses connections; "silent": accepts them but does not answer.
"""

_HOLD = 0.2  # seconds that a batch to be overtaken waits for the one to overtake it


@dataclass(frozen=True, slots=True)
class Faults:
    """Probabilities of faults, from 0 to 1, for each published batch of events or HTTP answer.

    The first six concern the live socket only; replays have the affected batches intact. Poison (invalid events or
    batches) is in the stream itself, so in replays too, and always in addition to the engine's events: a reader that
    ignores it loses no event. The events of a corrupt batch are lost for good.
    """

    drop: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0  # the batch after it goes first
    delay: float = 0.0  # it waits, and those behind it too
    delay_seconds: float = 0.2  # at most
    truncate: float = 0.0  # only its beginning is sent
    stray: float = 0.0  # a batch of another publisher follows it, which has numbers of its own
    corrupt: float = 0.0  # only its beginning is published, in replays too
    poison_event: float = 0.0  # an event that cannot be decoded among the others
    poison_type: float = 0.0  # an event of an unknown type among the others
    poison_payload: float = 0.0  # a message that is no batch, with a number of its own
    restart: float = 0.0  # the engine begins again: cache empty, numbers from 0
    pause: float = 0.0  # the engine hangs, its sockets open
    pause_seconds: float = 1.0
    # Each time an answer is asked for (POST under /v1/, and /generate): at most one of these.
    http_refuse: float = 0.0  # 503 with Retry-After
    http_hang: float = 0.0  # never answered, the connection open
    http_die_before: float = 0.0  # the connection is cut before the first byte of the answer
    http_die_after: float = 0.0  # the connection is cut after some of the answer
    http_garbage: float = 0.0  # what comes back is not HTTP
    http_slow: float = 0.0  # the answer comes in small pieces, `http_slow_seconds` apart
    http_slow_seconds: float = 0.05
    http_early: float = 0.0  # a streamed answer begins before the prompt is computed: with a comment, and a chat's role
    http_retry_after: int = 1  # seconds, in refusals
    replay_socket: ReplaySocket = "on"  # see `ReplaySocket`
    pulls: Pulls = "on"  # to peers that pull from it: "closed": it refuses connections; "silent": it never answers

    def __post_init__(self) -> None:
        for name in CHANCES:
            _check(name, getattr(self, name), 1.0)
        for name in ("delay_seconds", "pause_seconds", "http_slow_seconds", "http_retry_after"):
            _check(name, getattr(self, name), 3600.0)
        if (chance := sum(getattr(self, name) for name in MISHAPS)) > 1 + 1e-9:
            raise ConfigError(f"the chances of {', '.join(MISHAPS)} must add up to 1 at most, got {chance:g}")
        if self.replay_socket not in get_args(ReplaySocket):
            known = ", ".join(get_args(ReplaySocket))
            raise ConfigError(f"replay_socket must be one of {known}, not {self.replay_socket!r}")
        if self.pulls not in get_args(Pulls):
            raise ConfigError(f"pulls must be one of {', '.join(get_args(Pulls))}, not {self.pulls!r}")

    def changed(self, changes: Mapping[str, object]) -> Faults:
        """Return a copy with some faults changed. Raises `ConfigError` for unknown names and invalid values."""
        known = [field.name for field in fields(self)]
        for name in changes:
            if name not in known:
                raise ConfigError(f"unknown fault {name!r}: {nearest(name, known)}")
        return replace(self, **changes)  # type: ignore[arg-type]  # checked on the way in


MISHAPS = ("http_refuse", "http_hang", "http_die_before", "http_die_after", "http_garbage", "http_slow", "http_early")
"""Names of the faults of HTTP answers."""
CHANCES = (
    "drop",
    "duplicate",
    "reorder",
    "delay",
    "truncate",
    "stray",
    "corrupt",
    "poison_event",
    "poison_type",
    "poison_payload",
    "restart",
    "pause",
    *MISHAPS,
)
SLOW = 0.1
"""Seconds between two batches of a slow replay."""


def _check(name: str, value: object, most: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError(f"{name} must be a number, not {value!r}")
    if not (math.isfinite(value) and 0 <= value <= most):
        raise ConfigError(f"{name} must be from 0 to {most:g}, not {value!r}")


Send = Callable[[int, bytes], None]


class Link:
    """Connection from an engine to the socket of its live stream, which drops, doubles, swaps and delays batches."""

    def __init__(self, send: Send, chance: random.Random, count: Callable[[str], None]) -> None:
        self._send = send
        self._random = chance
        self._count = count
        self._queue: deque[tuple[float, int, bytes]] = deque()  # when due, number, payload
        self._overtaken: tuple[float, int, bytes] | None = None  # goes after the next one, or when due
        self._timer: asyncio.TimerHandle | None = None
        self._stopped = False

    @property
    def pending(self) -> bool:
        """True while some published batches are not yet sent."""
        return bool(self._queue) or self._overtaken is not None

    def push(self, seq: int, payload: bytes, faults: Faults) -> None:
        """Pass a batch of events on to the live socket, subject to the faults."""
        chance = self._random.random
        if chance() < faults.drop:
            self._count("dropped")
            return
        due = asyncio.get_running_loop().time()
        if chance() < faults.delay:
            self._count("delayed")
            due += self._random.uniform(0, faults.delay_seconds)
        if self._queue:
            due = max(due, self._queue[-1][0])
        times = 1
        if chance() < faults.duplicate:
            self._count("duplicated")
            times = 2
        if self._overtaken is None and chance() < faults.reorder:
            self._count("reordered")
            self._overtaken = due + _HOLD, seq, payload
        else:
            self._queue.extend([(due, seq, payload)] * times)
            if self._overtaken is not None:
                self._queue.append((due, *self._overtaken[1:]))
                self._overtaken = None
        self._pump()

    def stop(self) -> None:
        """Hold all batches until `go` is called."""
        self._stopped = True
        self._cancel()

    def go(self) -> None:
        """Send the batches held since `stop`, and hold no more."""
        self._stopped = False
        self._pump()

    def discard(self) -> None:
        """Drop the batches that are not sent yet."""
        self._queue.clear()
        self._overtaken = None
        self._cancel()

    def _pump(self) -> None:
        if self._stopped:
            return
        loop, queue = asyncio.get_running_loop(), self._queue
        now = loop.time()
        if self._overtaken is not None and self._overtaken[0] <= now:
            queue.append((queue[-1][0] if queue else now, *self._overtaken[1:]))
            self._overtaken = None
        while queue and queue[0][0] <= now:
            _, seq, payload = queue.popleft()
            self._send(seq, payload)
        self._cancel()
        dues = [waiting[0] for waiting in (queue[0] if queue else None, self._overtaken) if waiting is not None]
        if dues:
            self._timer = loop.call_at(min(dues), self._pump)

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
