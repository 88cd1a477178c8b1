"""Answers of a service, as Python values."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal


@dataclass(frozen=True, slots=True)
class WorkerDepth:
    """Number of leading tokens of a prompt that a worker holds: on its best rank, in whole blocks.

    Attributes:
        worker: The worker's name.
        tokens: Number of tokens in the device's memory.
        host: Number of tokens in the device's memory or the host's.
        any_tier: Number of tokens in any tier.
        ranks: Number of tokens in the device's memory, by data-parallel rank; ranks that hold none of the prompt are
            left out.
        block_size: Tokens in a block.
        lag_ms: Time by which the service was behind the engine, in milliseconds, if requested and known.
        state: The state of the stream, if requested.
        usable: Number of `tokens` that the engine can reuse: it always computes a prompt's last token, and a hybrid
            model needs them in every cache group. None if the length of the prompt is unknown.
    """

    worker: str
    tokens: int
    host: int
    any_tier: int
    ranks: Mapping[int, int]
    block_size: int
    lag_ms: float | None = None
    state: str | None = None
    usable: int | None = None

    @property
    def blocks(self) -> int:
        """The number of blocks in the device's memory."""
        return self.tokens // self.block_size


@dataclass(frozen=True, slots=True)
class UntrustedRank:
    """Rank whose blocks in the index may differ from the engine's, with the state of its stream."""

    worker: str
    rank: int
    state: str


class _Match:
    """Methods common to all matches of kvatlas, in blocks in the device's memory."""

    __slots__ = ()

    unit: ClassVar[Literal["blocks"]] = "blocks"
    block_size: int

    def token_scores(self) -> dict[str, int]:
        """The number of tokens in the device's memory by worker, deepest first; workers that hold none are left out."""
        raise NotImplementedError

    @property
    def depth(self) -> int:
        """The number of leading blocks of the prompt that the deepest worker holds; 0 if no worker holds any."""
        return self.tokens // self.block_size

    @property
    def tokens(self) -> int:
        """The number of leading tokens of the prompt that the deepest worker holds; 0 if no worker holds any."""
        return max(self.token_scores().values(), default=0)

    def scores(self) -> dict[str, int]:
        """The number of blocks in the device's memory by worker, deepest first; workers that hold none are left out."""
        return {worker: tokens // self.block_size for worker, tokens in self.token_scores().items()}

    def levels(self) -> list[tuple[int, list[str]]]:
        """Depths in blocks, deepest first, each with the workers of exactly that depth."""
        levels: dict[int, list[str]] = {}
        for worker, depth in self.scores().items():
            levels.setdefault(depth, []).append(worker)
        return sorted(levels.items(), reverse=True)

    def best(self, top_k: int = 1, among: Iterable[str] | None = None) -> list[tuple[str, int]]:
        """The deepest workers with their depths in blocks, deepest first.

        Args:
            top_k: Maximum number of workers.
            among: Names of the workers to consider; None for all.
        """
        allowed = None if among is None else set(among)
        scores = ((worker, depth) for worker, depth in self.scores().items() if allowed is None or worker in allowed)
        return heapq.nlargest(top_k, scores, key=lambda score: score[1])


@dataclass(frozen=True, slots=True)
class Answer(_Match):
    """Answer to a query: how much of a prompt each worker holds.

    `depth`, `length`, `levels()`, `scores()` and `best()` are in blocks, as in every match of kvatlas. Figures in
    tokens say so in their names; `workers` has everything known about each worker.

    Attributes:
        workers: The workers that hold any of the prompt in any tier, deepest first.
        block_size: Tokens in a block.
        length: Whole blocks of the prompt, the maximum of a depth.
        prompt_tokens: Tokens of the prompt; None if the query gave content hashes.
        untrusted: Ranks that are untrusted now. The service's setting `http.untrusted` decides whether `workers`
            includes them.
        partial: Ranks that may hold more than their depths say, because events were lost.
        upper_bound: True if some depths are upper bounds only, as for hybrid models and for ranks in `no_salts`.
        no_salts: Ranks whose engine does not report cache salts (vLLM before 0.17). A prompt without a salt may find
            fewer cached blocks at these ranks than its depth; for a prompt with a salt, the depth is unknown.
        lora: The adapter if the query's model names one; tokens were hashed for it.
        wants_tokens: True if tokens would let the service adopt more blocks than content hashes do. Clients that hash
            locally then send each new prompt once as tokens.
        unverified: Ranks whose engine has reconnected, while only a sequence number shows that the engine has not
            restarted: it may hold none of the blocks in its depth. A `strict` query leaves them out.
    """

    workers: tuple[WorkerDepth, ...]
    block_size: int
    length: int
    prompt_tokens: int | None = None
    untrusted: tuple[UntrustedRank, ...] = ()
    upper_bound: bool = False
    partial: tuple[tuple[str, int], ...] = ()
    no_salts: tuple[tuple[str, int], ...] = ()
    lora: str | None = None
    wants_tokens: bool = False
    unverified: tuple[tuple[str, int], ...] = ()

    def token_scores(self) -> dict[str, int]:
        """The number of tokens in the device's memory by worker, deepest first; workers that hold none are left out."""
        return {depth.worker: depth.tokens for depth in self.workers if depth.tokens}


@dataclass(frozen=True, slots=True)
class RankDepth:
    """Number of leading tokens of a prompt that a rank holds, in the device's memory and in any tier.

    `usable` is the number of `tokens` that the engine can reuse; None if the length of the prompt is unknown.
    """

    worker: str
    rank: int
    tokens: int
    any_tier: int
    usable: int | None = None


@dataclass(frozen=True, slots=True)
class RankMatch(_Match):
    """Answer to one query of a batch, with the methods of `Answer` and the ranks.

    Attributes:
        ranks: The ranks that hold any of the prompt, deepest first.
        block_size: Tokens in a block.
        length: Whole blocks of the prompt, the maximum of a depth.
        prompt_tokens: Tokens of the prompt; None if the query gave content hashes.
    """

    ranks: tuple[RankDepth, ...]
    block_size: int
    length: int
    prompt_tokens: int | None = None

    def token_scores(self) -> dict[str, int]:
        """The number of tokens in the device's memory by worker, its best rank; workers that hold none are left out."""
        scores: dict[str, int] = {}
        for rank in self.ranks:
            if rank.tokens:
                scores[rank.worker] = max(rank.tokens, scores.get(rank.worker, 0))
        return scores


@dataclass(frozen=True, slots=True)
class BatchAnswer:
    """Answers to a batch of queries, in the order of the queries."""

    answers: tuple[RankMatch, ...]
    block_size: int
    untrusted: tuple[UntrustedRank, ...] = ()
    upper_bound: bool = False
    partial: tuple[tuple[str, int], ...] = ()
    no_salts: tuple[tuple[str, int], ...] = ()
    lora: str | None = None
    wants_tokens: bool = False
    unverified: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class StreamStatus:
    """The status of one event stream.

    Attributes:
        rank: The registered rank.
        endpoint: The endpoint of the events.
        replay_endpoint: The endpoint of the replay socket.
        topic: The topic of its batches; empty for any.
        count_copies: True if repeated announcements of a block count as copies.
        host_chunk: Blocks in a chunk of host memory, as registered; None if inferred from the engine's stores.
        state: "connecting", "replaying", "live", "gap", "stale", "conflict", "stopped", "limited" (a limit of the
            service is reached, and nothing of the stream is held) or "unreadable" (events of unknown types keep
            coming).
        trusted: True if the known blocks are exactly those that the engine announced.
        partial: True if the engine may hold more, because batches were lost that no replay recovered.
        upper_bound: True if depths are upper bounds only.
        no_salts: True if the engine does not report cache salts (vLLM before 0.17).
        epoch: The number of the epoch, which grows by one with each restart of the engine.
        seq: The number of the last batch applied.
        lag_ms: Time from the engine's timestamp in the last live batch until it was visible in answers.
        lag_max_ms: The longest lag so far.
        silence_ms: Time since the last message of the engine.
        blocks: Blocks held.
        unlinked: Blocks that match nothing, because an earlier block of their chain is missing.
        undescribed: Blocks announced on other tiers by their block hashes alone, whose contents are not known yet.
        buffered: Batches buffered during a replay.
        ranks: Ranks that the stream feeds.
        chunks: Blocks in a chunk of each tier beyond the device, "cpu", "disk" or "external", as registered or as
            stores show.
        counters: Counts by name: "gaps", "lost_batches", "resets" and so on.
        refused: Events that were refused, by reason.
        last_error: The present error, or the one that made the stream partial; None without errors.
        previous_error: The last error that has ended.
        previous_error_ms: Time since `previous_error` was noticed.
        unverified: True if, after a reconnection, only a sequence number shows that the engine has not restarted.
        fingerprints: For each rank, one word for the blocks that it holds, in hexadecimal. Services with equal words
            hold the same blocks on the same tiers.
        snapshot: The fate of the stream's blocks from a snapshot: "proving", "kept", or why they were dropped; None if
            the snapshot had none.
    """

    rank: int
    endpoint: str
    replay_endpoint: str | None
    topic: str
    state: str
    trusted: bool
    partial: bool
    upper_bound: bool
    epoch: int
    seq: int | None
    lag_ms: float | None
    lag_max_ms: float
    silence_ms: float | None
    blocks: int
    unlinked: int
    buffered: int
    ranks: tuple[int, ...]
    counters: Mapping[str, int]
    refused: Mapping[str, int]
    last_error: str | None = None
    count_copies: bool = True
    host_chunk: int | None = None
    previous_error: str | None = None
    previous_error_ms: float | None = None
    unverified: bool = False
    no_salts: bool = False
    fingerprints: Mapping[int, str] = field(default_factory=dict)
    snapshot: str | None = None
    chunks: Mapping[str, int] = field(default_factory=dict)
    undescribed: int = 0


@dataclass(frozen=True, slots=True)
class EngineCondition:
    """The worst problem of an engine that a router knows.

    Attributes:
        name: The condition's name in metrics and logs: "down", "no_events", "refused", "slow", …
        reason: The reason, in words.
        advice: Recommended action.
        runbook: URL of a page about the problem.
        since: The time at which the condition began, in seconds since 1970.
    """

    name: str
    reason: str
    advice: str
    runbook: str
    since: float


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """A registered worker of a service.

    `source` is the origin of the registration, `status` the worst status of the worker's streams. `aliases` are other
    names of its model, and `adapters` the LoRA adapters that can be given as the model. `condition` is the problem that
    a router knows of the worker: None without one, and at a service.
    """

    worker: str
    source: str
    status: str
    model: str
    routing_group: str
    block_size: int
    streams: tuple[StreamStatus, ...]
    aliases: tuple[str, ...] = ()
    adapters: tuple[str, ...] = ()
    condition: EngineCondition | None = None


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """Engine or stream that the service is configured to follow.

    Attributes:
        worker: The worker's name.
        url: The engine's URL, or the stream's endpoint.
        state: "registered", or the reason why not: "asking" (for the first time), "unreachable", "no_events",
            "unusable" (what it reports cannot be used) or "refused" (by the service). A router says "up", "down",
            "failing", "silent", "busy", "asleep" or "draining".
        rank: The rank of a configured stream; None for an engine.
        code: The code of the last problem, if there is one.
        reason: The last problem in words.
        since_ms: Time in this state, in milliseconds.
    """

    worker: str
    url: str
    state: str
    rank: int | None = None
    code: str | None = None
    reason: str | None = None
    since_ms: int = 0

    @property
    def is_registered(self) -> bool:
        """True if the service follows the engine."""
        return self.state == "registered"


@dataclass(frozen=True, slots=True)
class Stored:
    """Consecutive blocks of one chain that a rank holds, in a dump."""

    worker: str
    rank: int
    tier: str
    parent: int | None
    block_hashes: tuple[int, ...]
    content_hashes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class KeyspaceDump:
    """All blocks held for a model and routing group."""

    model: str
    routing_group: str
    block_size: int
    stored: tuple[Stored, ...]


@dataclass(frozen=True, slots=True)
class Readiness:
    """Readiness of a service: True if it accepts queries, and what is missing until its answers are complete.

    Attributes:
        ready: True if answers are complete, or have been before; with `strict`, only if they are complete now.
        holds: Conditions that the service waits for, such as "discovery".
        streams: Ranks whose first replay is still running.
        draining: True if the service is shutting down.
        engines: Engines that are not registered, with the reason. The service does not wait for them, unless none is
            registered.
    """

    ready: bool
    holds: tuple[str, ...] = ()
    streams: tuple[UntrustedRank, ...] = ()
    draining: bool = False
    engines: tuple[EngineStatus, ...] = ()

    def __bool__(self) -> bool:
        return self.ready

    def __str__(self) -> str:
        if self.draining:
            return "not ready: shutting down"
        waits = [*self.holds, *(f"{each.worker}, rank {each.rank} ({each.state})" for each in self.streams[:8])]
        if len(self.streams) > 8:
            waits.append(f"{len(self.streams) - 8} more")
        state = "ready" if self.ready else "not ready"
        if waits:
            state += f", waiting for {'; '.join(waits)}"
        if self.engines:
            state += f"; not registered: {', '.join(f'{each.worker} ({each.state})' for each in self.engines[:8])}"
        if len(self.engines) > 8:
            state += f" and {len(self.engines) - 8} more"
        return state
