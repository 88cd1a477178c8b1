"""The truth about an engine, from itself: the oracle for whoever reads its streams."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Query(NamedTuple):
    """A prompt to ask a rank about."""

    tokens: Sequence[int]
    lora: str | None = None
    salt: str | None = None
    rank: int = 0


@dataclass(frozen=True, slots=True)
class Truth:
    """The blocks that a rank holds of a prompt.

    Attributes:
        held: Leading full blocks held.
        usable: Those of them that a request could use: the prompt's last token is always computed.
        epoch: The engine's restarts so far.
        seq: The last batch published in this epoch; None before the first.
        quiet: True if nothing is under way. Then a reader of all batches up to `seq` knows the same.
    """

    held: int
    usable: int
    epoch: int
    seq: int | None
    quiet: bool


@dataclass(frozen=True, slots=True)
class RankState:
    """The state of a rank.

    Attributes:
        rank: Its number.
        epoch: The engine's restarts so far.
        seq: The last batch published in this epoch; None before the first.
        held: Distinct blocks held.
        copies: Blocks as announced: in the vllm dialect further copies of a block count too.
        running: Requests in progress.
        waiting: Requests that wait.
        quiet: True if nothing is under way: no request, nothing to publish, no batch held back on its way.
        counts: Faults that happened, and replays asked for.
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
    """An answer to a request, and what it took.

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
