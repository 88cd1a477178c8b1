"""Request of a simulated engine."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import Enum

from kvatlas._hashes import Hashes
from kvatlas.sim.loads import Load, PullSource


class State(Enum):
    """Stage in the life of a request."""

    WAITING = "waiting"
    LOADING = "loading"
    PREFILL = "prefill"
    DECODE = "decode"
    FINISHED = "finished"
    REFUSED = "refused"


@dataclass(slots=True, eq=False)
class Request:
    """Request of a simulated engine: a prompt, and the tokens to be generated.

    `content_hashes` and `block_hashes` have one entry for every block that will be full, first those of the prompt,
    then those of the output. The last generated token is never computed on, so it has no KV: `cacheable_tokens` counts
    the others.
    """

    number: int
    prompt_tokens: int
    output_tokens: int
    content_hashes: Hashes
    block_hashes: list[int]

    state: State = State.WAITING
    arrival: float = 0.0  # seconds
    first_token: float | None = None
    finished: float | None = None
    hit_tokens: int = 0  # found in the cache when first admitted
    preempted: int = 0
    session: str | None = None  # its session, if the trace names one
    admitted: float | None = None  # when an engine first let it in
    room: float = 0.0  # seconds in the engine's queue while the first of it had no room
    loading: float = 0.0  # seconds for which it was loaded
    sources: Counter[str] = field(default_factory=Counter)  # loaded tokens when first admitted, by source

    # Orders of its sender about loading it.
    pull: PullSource | None = None  # the peer to pull from
    pull_blocks: int = 0  # leading blocks that it was said to have
    max_load: int | None = None  # most tokens to load beyond the engine's own cache; None: no limit
    load_pool: bool = True  # whether the pool may be used

    # Owned by the engine.
    target: int = 0  # tokens to prefill in this life: the prompt, and what was generated before a preemption
    computed: int = 0  # tokens with KV
    since: float = 0.0  # when `computed` was true
    since_step: int = 0  # the same in steps, where an engine counts those
    stored: int = 0  # blocks cached, and announced or about to be, in this life
    generation: int = 0  # timers of earlier lives are void
    blocks: list[int] = field(default_factory=list)
    load: Load | None = None  # under way
    blocked: float = 0.0  # seconds for which the engine's queue had been without room when it came

    @property
    def cacheable_tokens(self) -> int:
        """Number of tokens that will have KV at the end of the request: all except the last generated one."""
        return cacheable_tokens(self.prompt_tokens, self.output_tokens)


def cacheable_tokens(prompt_tokens: int, output_tokens: int) -> int:
    """Tokens of a finished request that have KV: all except the last generated one."""
    return prompt_tokens + max(output_tokens, 1) - 1
