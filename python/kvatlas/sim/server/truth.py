"""True state of an engine, from the engine itself: the oracle for readers of its streams."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Query(NamedTuple):
    """Prompt to query a rank for."""

    tokens: Sequence[int]
    lora: str | None = None
    salt: str | None = None
    rank: int = 0


@dataclass(frozen=True, slots=True)
class Truth:
    """Blocks of a prompt that a rank holds.

    Attributes:
        held: Leading full blocks held.
        usable: Blocks that a request could use: the prompt's last token is always computed.
        epoch: The engine's restarts so far.
        seq: The last batch published in this epoch; None before the first.
        quiet: Whether nothing is under way. Then a reader of all batches up to `seq` has the same blocks.
        host: Leading full blocks in whole chunks of host memory, which peers can pull.
        loadable: Leading full blocks that are held, or can be loaded from host memory or a pool.
    """

    held: int
    usable: int
    epoch: int
    seq: int | None
    quiet: bool
    host: int = 0
    loadable: int = 0


@dataclass(frozen=True, slots=True)
class RankState:
    """State of a rank.

    Attributes:
        rank: Its number.
        epoch: The engine's restarts so far.
        seq: The last batch published in this epoch; None before the first.
        held: Distinct blocks held.
        copies: Blocks held by the events: in the vllm dialect further copies of a block count too.
        running: Requests in progress.
        waiting: Requests that wait.
        quiet: Whether no request, unpublished event or delayed batch is left.
        counts: Numbers of faults and of requested replays.
    """

    rank: int
    epoch: int
    seq: int | None
    held: int
    copies: int
    running: int
    waiting: int
    quiet: bool
    counts: dict[str, int]


@dataclass(frozen=True, slots=True)
class Completion:
    """Answer to a request, with its usage.

    Attributes:
        text: The text that was generated.
        prompt_tokens: Tokens of the prompt.
        completion_tokens: Tokens generated.
        cached_tokens: Tokens of the prompt that were found in the cache.
    """

    text: str
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
