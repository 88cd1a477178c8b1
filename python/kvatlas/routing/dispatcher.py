"""Runs a policy: chooses an engine for each request, and tracks the load of each engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvatlas.errors import PolicyError
from kvatlas.routing.loader import PolicyFactory, policy_failed
from kvatlas.routing.policy import Depths, Load, Prompt


@dataclass(slots=True)
class Dispatched:
    """A request that was sent to an engine.

    Attributes:
        engine: The engine's number.
        queued_tokens: Prompt tokens that it still has in the engine's queue: 0 from its first token on.
    """

    engine: int
    queued_tokens: int


class Dispatcher:
    """A policy and the loads that it uses. Report each request's first token and end to it."""

    def __init__(self, name: str, make: PolicyFactory, workers: Sequence[str], seed: int) -> None:
        """`workers`: the engines' names as the index has them. Raises `PolicyError` if the policy cannot be made."""
        self.name = name
        self.workers = list(workers)
        self.loads = [Load() for _ in workers]
        self.dispatched = 0
        try:
            self.policy = make(self.workers, seed)
        except Exception as error:
            raise policy_failed(name, "when it was made", error) from error

    @property
    def uses_index(self) -> bool:
        """Whether the policy uses the index."""
        return self.policy.uses_index

    def dispatch(self, prompt: Prompt, match: Depths) -> Dispatched:
        """Choose an engine and count the request to its load. Raises `PolicyError` if the policy fails."""
        try:
            engine = self.policy.choose(prompt, self.loads, match)
        except Exception as error:
            raise policy_failed(self.name, f"at request {self.dispatched}", error) from error
        if engine not in range(len(self.workers)):
            raise PolicyError(
                f"policy {self.name!r} chose {engine!r}: engines are numbered 0 to {len(self.workers) - 1}",
                "policy_failed",
            )
        depth = match.scores().get(self.workers[engine], 0) if self.uses_index else 0
        sent = Dispatched(engine, prompt.uncached(depth) if self.uses_index else prompt.tokens)
        load = self.loads[engine]
        load.in_flight += 1
        load.queued_tokens += sent.queued_tokens
        self.dispatched += 1
        return sent

    def first_token(self, sent: Dispatched) -> None:
        """The prompt has been computed: it is not queued any more."""
        self.loads[sent.engine].queued_tokens -= sent.queued_tokens
        sent.queued_tokens = 0

    def finished(self, sent: Dispatched) -> None:
        """The request is over, however it ended. Call this once."""
        self.first_token(sent)
        self.loads[sent.engine].in_flight -= 1
