"""The protocol of a routing policy.

Write your own as a class with these two methods and name it on the command line: `--policy mymodule:MyPolicy`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from kvatlas._hashes import Hashes


class Depths(Protocol):
    """The part of `kvatlas.Match` that policies use."""

    def scores(self) -> dict[str, int]:
        """Leading blocks of the prompt that each worker holds; workers that hold none are absent."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A request as a router sees it: its tokens, as content hashes of its full blocks."""

    tokens: int
    content_hashes: Hashes  # shape (tokens // block_size,), uint64
    block_size: int

    def uncached(self, depth: int) -> int:
        """Tokens to compute on an engine that holds `depth` leading blocks: at least the last one."""
        usable = (self.tokens - 1) // self.block_size
        return self.tokens - min(depth, usable) * self.block_size


@dataclass(slots=True)
class Load:
    """The load of an engine as the router knows it, from what it sent there and what came back."""

    in_flight: int = 0  # requests sent and not finished
    queued_tokens: int = 0  # prompt tokens sent that have not led to a first token, less those known to be cached


class Policy(Protocol):
    """Picks an engine for each request. Built once per replay, as `Class(workers, seed)`."""

    uses_index: bool  # whether what `match` says was weighed: then `Load.queued_tokens` counts only uncached tokens

    def __init__(self, workers: Sequence[str], seed: int) -> None: ...

    def choose(self, prompt: Prompt, loads: Sequence[Load], match: Depths) -> int:
        """The number of the engine to send `prompt` to; `loads` has one entry for each."""
