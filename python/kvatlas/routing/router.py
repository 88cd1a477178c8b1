"""`Router`, which chooses a worker for each request, and keeps track of load."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, Self

from kvatlas import _native
from kvatlas._native import Candidates, Decision, RoutedRequest
from kvatlas.errors import InvalidTypeError
from kvatlas.routing.policies import check_name, own_policy

_LOOK_AGAIN = 0.02  # seconds


class ArrayPolicy(Protocol):
    """Protocol of a user's policy, which picks a worker for each request.

    Name it as `module:Class`: the router creates `Class(seed)`, with the options as keywords; or without the seed, if
    it accepts none. If it does not use depths, set the attribute `uses_index = False`: prompts are then not looked up
    for it.

    These optional methods notify it of the progress of requests. `number` is the request's, as in `RoutedRequest`;
    `now` is in seconds and never goes back.

    - `sent(request, worker, now)`: a request goes to `worker`, a pair of name and rank, by any policy's choice.
    - `first_token(number, now)`: the request's first token was generated.
    - `ended(number, output_tokens, now)`: the request has ended, successfully or not. `output_tokens` is the length of
      each of its answers, None if unknown.
    """

    def choose(self, request: RoutedRequest, candidates: Candidates) -> int | None:
        """Choose the row of `candidates` that gets the request; None to let it wait in the router."""


class Router(_native.Router):
    """Chooses a worker for each request, and tracks the requests, the load and the speed of each worker.

    `choose` selects and reserves in one step; report the progress of the request with the methods of the `Decision`.
    Without an index, tokens or a trusted worker it still decides, and the decision's `why` gives the reason.

    Args:
        policy: A name of `policy_names()`, `module:Class`, or an object with `choose(request, candidates)`.
        workers: Names of the workers, or (name, rank) of each.
        block_size: Number of tokens in a block.
        seed: Seed of all random choices, from 0 to 2**64 - 1.
        options: Options of the policy.
        settings: Settings of the router, by the names of the Rust crate's `Config`; `order` is "least-work" or "fcfs",
            `no_events` "off", "mock" (with `no_events_blocks`) or "ttl" (with `no_events_ttl`).
        clock: Function that returns the time in seconds, for calls without one; None for `time.monotonic`.
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
        """Create a router; its arguments are described at the class. Raises `PolicyError`."""
        made: Any = policy
        options, settings = _as_dict(options, "options"), _as_dict(settings, "settings")
        if isinstance(policy, str) and ":" in policy:
            made, options = own_policy(policy, seed, options), None
        elif isinstance(policy, str):
            check_name(policy)
        return super().__new__(
            cls,
            made,
            workers,
            block_size=block_size,
            seed=seed,
            options=options,
            settings=settings,
            clock=clock,
        )

    async def choose_async(self, **request: Any) -> Decision:
        """Choose like `choose`, but await a request that waits in the router: the decision never `waits`.

        Cancelling removes the request from the queue.
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


def _as_dict(given: Mapping[str, Any] | None, what: str) -> dict[str, Any] | None:
    if given is None or isinstance(given, Mapping):
        return None if given is None else dict(given)
    raise InvalidTypeError(f"{what} must be a dict, got {type(given).__name__}")
