"""The router: chooses a worker for each request, and keeps track of load."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, Self

from kvatlas import _native
from kvatlas._native import Candidates, Decision, RoutedRequest, policy_names
from kvatlas._text import nearest
from kvatlas.errors import PolicyError

_LOOK_AGAIN = 0.02  # seconds


class ArrayPolicy(Protocol):
    """Picks a worker for each request: the protocol of a policy of your own.

    Name it as `module:Class`: the router creates `Class(seed)`, with the options as keywords. If it does not use
    depths, set the attribute `uses_index = False`: prompts are then not looked up for it.
    """

    def choose(self, request: RoutedRequest, candidates: Candidates) -> int | None:
        """The row of `candidates` that takes the request; None to let it wait in the router."""


class Router(_native.Router):
    """Chooses a worker for each request, and keeps track of what was sent, what runs, and how fast each worker is.

    `choose` selects and reserves in one step; report what becomes of the request with the methods of the `Decision`.
    Without an index, without tokens, or with no trusted worker, there is still an answer, and its `why` says so.

    Args:
        policy: A name of `policy_names()`, `module:Class`, or an object with `choose(request, candidates)`.
        workers: Names of the workers, or (name, rank) of each.
        block_size: Tokens of a block.
        seed: Seed of everything left to chance, from 0 to 2**64 - 1.
        options: Options of the policy.
        settings: Settings of the router, by the names of the Rust crate's `Config`; `order` is "least-work" or "fcfs",
            `no_events` "off", "mock" (with `no_events_blocks`) or "ttl" (with `no_events_ttl`).
        clock: Gives the time in seconds where a call does not; None for `time.monotonic`.
    """

    def __new__(
        cls,
        policy: str | ArrayPolicy = "kvatlas",
        workers: Iterable[str | tuple[str, int]] = (),
        *,
        block_size: int = 16,
        seed: int = 0,
        options: Mapping[str, Any] | None = None,
        settings: Mapping[str, Any] | None = None,
        clock: Callable[[], float] | None = None,
    ) -> Self:
        """See the class. A policy `module:Class` is made as `Class(seed, **options)`. Raises `PolicyError`."""
        made: Any = policy
        if isinstance(policy, str) and ":" in policy:
            made, options = load_policy(policy)(seed, **(options or {})), None
        elif isinstance(policy, str) and policy not in policy_names():
            names = policy_names()
            hint = nearest(policy, names, otherwise=f"it must be one of {', '.join(names)}, or module:Class")
            raise PolicyError(f"no policy {policy!r}: {hint}")
        return super().__new__(
            cls,
            made,
            workers,
            block_size=block_size,
            seed=seed,
            options=None if options is None else dict(options),
            settings=None if settings is None else dict(settings),
            clock=clock,
        )

    async def choose_async(self, **request: Any) -> Decision:
        """As `choose`, but a request that waits in the router is awaited: the decision never `waits`.

        Cancelling takes the request out of the queue.
        """
        decision = self.choose(**request)
        try:
            while decision.waits:
                await asyncio.sleep(_LOOK_AGAIN)
                self.bind()
        except asyncio.CancelledError:
            decision.failed()
            raise
        return decision


def load_policy(name: str) -> Callable[..., ArrayPolicy]:
    """The class at `module:Class`. Raises `PolicyError`."""
    module, _, attribute = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except Exception as error:  # a user's module may do anything
        raise PolicyError(f"cannot load policy {name!r}: {type(error).__name__}: {error}") from error
    if not (callable(found) and callable(getattr(found, "choose", None))):
        raise PolicyError(f"{name!r} is not a policy: it needs a choose(request, candidates) method")
    factory: Callable[..., ArrayPolicy] = found
    return factory
