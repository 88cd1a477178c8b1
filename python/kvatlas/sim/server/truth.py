"""True state of an engine, from the engine itself, for comparison with what readers of its events have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Query(NamedTuple):
    """Prompt for which a rank is asked how many blocks it holds."""

    tokens: Sequence[int]
    lora: str | None = None
    salt: str | None = None
    rank: int = 0


@dataclass(frozen=True, slots=True)
class Truth:
    """Blocks of a prompt that a rank holds, at one moment.

    Attributes:
        held: Number of leading full blocks in the rank's cache.
        usable: Number of leading blocks that a request could use; fewer than `held` if the prompt's last token would be
            among them, as it is always computed.
        epoch: Number of restarts of the engine so far.
        seq: Sequence number of the last event batch published in this epoch; None before the first.
        quiet: True if no request, unpublished event or unsent batch remains. Then a reader of all batches up to `seq`
            has the same blocks.
        host: Number of leading full blocks in whole chunks of host memory, which peers can pull.
        loadable: Number of leading full blocks that are in the cache, or can be loaded from host memory or a pool.
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
    """State of a rank at one moment.

    Attributes:
        rank: Number of the rank.
        epoch: Number of restarts of the engine so far.
        seq: Sequence number of the last event batch published in this epoch; None before the first.
        held: Number of distinct blocks in the cache.
        copies: Number of blocks in the cache according to the events: in the vllm dialect, every physical copy counts.
        running: Number of requests in progress.
        waiting: Number of requests that wait.
        quiet: True if no request, unpublished event or delayed batch remains.
        counts: Numbers of injected faults and of requested replays, by name.
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
    """Answer to a request, with its numbers of tokens.

    Attributes:
        text: Generated text.
        prompt_tokens: Number of tokens of the prompt.
        completion_tokens: Number of generated tokens.
        cached_tokens: Number of prompt tokens that were found in the cache.
    """

    text: str
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
