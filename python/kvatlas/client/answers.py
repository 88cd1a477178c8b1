"""What a service answers, as values: made of its JSON, and refused with a clear word if they cannot be."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import httpx

from kvatlas.errors import ClientError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class WorkerDepth:
    """How many leading tokens of a prompt a worker holds: its best rank, in whole blocks.

    Attributes:
        worker: The worker's name.
        tokens: In the device's memory.
        host: In the device's memory or the host's.
        any_tier: In any tier.
        ranks: In the device's memory, by data-parallel rank; ranks that hold nothing of it are left out.
        block_size: Tokens in a block, if the answer says it.
        lag_ms: By how much the service was behind the engine, if asked for and known.
        state: The state of the stream, if asked for.
    """

    worker: str
    tokens: int
    host: int
    any_tier: int
    ranks: Mapping[int, int]
    block_size: int | None = None
    lag_ms: float | None = None
    state: str | None = None

    @property
    def blocks(self) -> int | None:
        """Blocks in the device's memory, if the answer says the block size."""
        return None if self.block_size is None else self.tokens // self.block_size


@dataclass(frozen=True, slots=True)
class Level:
    """A depth in tokens, and the workers whose devices hold that much and no more."""

    tokens: int
    workers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Untrusted:
    """A rank whose holdings may not be what its engine holds, and the state of its stream."""

    worker: str
    rank: int
    state: str


@dataclass(frozen=True, slots=True)
class Answer:
    """Who holds how much of a prompt.

    Attributes:
        workers: Those that hold something of it, deepest first.
        levels: The same by depth, if asked for.
        untrusted: Ranks that are not trusted now. Whether `workers` has them, too, is a setting of the service.
        upper_bound: Whether some depths are upper bounds only, as for hybrid models.
        block_size: Tokens in a block, if the answer says it.
    """

    workers: tuple[WorkerDepth, ...]
    levels: tuple[Level, ...] = ()
    untrusted: tuple[Untrusted, ...] = ()
    upper_bound: bool = False
    block_size: int | None = None

    @property
    def best(self) -> WorkerDepth | None:
        """The deepest worker, if any holds something."""
        return self.workers[0] if self.workers else None

    def scores(self) -> dict[str, int]:
        """Tokens in the device's memory by worker; workers that hold none are left out."""
        return {depth.worker: depth.tokens for depth in self.workers if depth.tokens}


@dataclass(frozen=True, slots=True)
class RankDepth:
    """How many leading tokens of a prompt a rank holds, in the device's memory and in any tier."""

    worker: str
    rank: int
    tokens: int
    any_tier: int


@dataclass(frozen=True, slots=True)
class BatchAnswer:
    """Answers to a batch of queries, in its order; each has the ranks that hold something, deepest first."""

    answers: tuple[tuple[RankDepth, ...], ...]
    block_size: int
    untrusted: tuple[Untrusted, ...] = ()
    upper_bound: bool = False


@dataclass(frozen=True, slots=True)
class StreamStatus:
    """What the service knows about one stream of events.

    Attributes:
        rank: The rank it is registered under.
        endpoint: Where the events come from.
        replay_endpoint: Where lost ones are asked for.
        topic: The prefix of the topics subscribed to.
        state: "connecting", "replaying", "live", "gap", "stale" or "stopped".
        trusted: Whether the holdings are those that the engine announced.
        partial: Whether the engine may hold more, because something was lost that no replay brought.
        upper_bound: Whether depths are upper bounds only.
        epoch: Lives of the engine seen so far.
        seq: The number of the last batch applied.
        lag_ms: By how much the last batch was behind the engine.
        lag_max_ms: The longest lag so far.
        silence_ms: How long ago the engine was heard.
        blocks: Blocks held.
        parked: Blocks that wait for the one before them.
        buffered: Batches that wait.
        ranks: Ranks that the stream feeds.
        counters: What happened how often: "gaps", "lost_batches", "resets" and so on.
        refused: Events that could not be used, by reason.
        last_error: What went wrong last.
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
    parked: int
    buffered: int
    ranks: tuple[int, ...]
    counters: Mapping[str, int]
    refused: Mapping[str, int]
    last_error: str | None = None


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """A registered worker. `source` says who registered it, `status` the worst of its streams in one word."""

    worker: str
    source: str
    status: str
    model: str
    group: str
    block_size: int
    streams: tuple[StreamStatus, ...]


@dataclass(frozen=True, slots=True)
class Stored:
    """Blocks that a rank holds in a row, as a dump has them."""

    worker: str
    rank: int
    tier: str
    parent: int | None
    block_hashes: tuple[int, ...]
    content_hashes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class KeyspaceDump:
    """Everything that is held for a model and routing group."""

    model: str
    group: str
    block_size: int
    stored: tuple[Stored, ...]


@dataclass(frozen=True, slots=True)
class Readiness:
    """Whether answers are whole, and if not, what they wait for.

    Attributes:
        ready: Whether they are.
        holds: What has not been let go: "discovery".
        streams: Ranks whose first replay is neither through nor given up.
        draining: Whether the service is going down.
    """

    ready: bool
    holds: tuple[str, ...] = ()
    streams: tuple[Untrusted, ...] = ()
    draining: bool = False

    def __bool__(self) -> bool:
        return self.ready

    def __str__(self) -> str:
        if self.ready:
            return "ready"
        if self.draining:
            return "it is going down"
        waits = [*self.holds, *(f"{each.worker}, rank {each.rank} ({each.state})" for each in self.streams[:8])]
        more = len(self.streams) - 8
        return "it waits for " + "; ".join(waits) + (f"; {more} more" if more > 0 else "")


# From JSON


def parsed(text: str | bytes, make: Callable[[Any], T], url: object) -> T:
    """`make` of an answer in JSON.

    Raises:
        ClientError: The answer is no JSON, or not what this version of kvatlas understands.
    """
    try:
        return make(json.loads(text))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ClientError(f"{url} gave an answer that cannot be understood: {error!r}", "bad_answer") from error


def refused(answer: httpx.Response) -> ClientError:
    """The error for an answer whose status says that the request was refused."""
    status = answer.status_code
    try:
        body = json.loads(answer.content)
        code, message = str(body["code"]), str(body["error"])
    except (ValueError, LookupError, TypeError):
        said = " ".join(answer.text.split())[:200] or answer.reason_phrase
        words = f"{answer.request.url} answers with status {status}, but not as kvatlas does: {said}"
        return ClientError(words, f"http_{status}", status)
    return ClientError(f"{answer.request.url}: {message} (status {status}, {code})", code, status)


def answer(data: Any) -> Answer:
    """Of `/query` and `/query_by_hash`."""
    block_size = _optional(int, data.get("block_size"))
    depths = [_depth(worker, about, block_size) for worker, about in data["instances"].items()]
    depths.sort(key=lambda depth: (-depth.tokens, -depth.host, -depth.any_tier))
    levels = tuple(Level(int(level["tokens"]), tuple(map(str, level["workers"]))) for level in data.get("levels", ()))
    return Answer(tuple(depths), levels, _ranks(data.get("untrusted", ())), bool(data.get("upper_bound")), block_size)


def _depth(worker: str, about: Mapping[str, Any], block_size: int | None) -> WorkerDepth:
    return WorkerDepth(
        worker=str(worker),
        tokens=int(about["gpu"]),
        host=int(about["cpu"]),
        any_tier=int(about["longest_matched"]),
        ranks={int(rank): int(tokens) for rank, tokens in about["dp"].items()},
        block_size=block_size,
        lag_ms=_optional(float, about.get("lag_ms")),
        state=_optional(str, about.get("state")),
    )


def batch_answer(data: Any) -> BatchAnswer:
    """Of `/query_batch`."""
    ranks = [(str(each["instance_id"]), int(each["dp_rank"])) for each in data["workers"]]
    answers = tuple(
        tuple(
            RankDepth(ranks[rank][0], ranks[rank][1], int(tokens), int(any_tier))
            for rank, tokens, any_tier in zip(
                each["ranks"], each["tokens"], each.get("any_tier", each["tokens"]), strict=True
            )
        )
        for each in data["answers"]
    )
    return BatchAnswer(
        answers, int(data["block_size"]), _ranks(data.get("untrusted", ())), bool(data.get("upper_bound"))
    )


def worker_statuses(data: Any) -> list[WorkerStatus]:
    """Of `/workers`."""
    return [
        WorkerStatus(
            worker=str(each["instance_id"]),
            source=str(each["source"]),
            status=str(each["status"]),
            model=str(each["model_name"]),
            group=str(each["routing_group"]),
            block_size=int(each["block_size"]),
            streams=tuple(_stream(int(rank), about) for rank, about in each["streams"].items()),
        )
        for each in data
    ]


def _stream(rank: int, about: Mapping[str, Any]) -> StreamStatus:
    return StreamStatus(
        rank=rank,
        endpoint=str(about["endpoint"]),
        replay_endpoint=_optional(str, about.get("replay_endpoint")),
        topic=str(about.get("topic", "")),
        state=str(about["state"]),
        trusted=bool(about["trusted"]),
        partial=bool(about["partial"]),
        upper_bound=bool(about.get("upper_bound")),
        epoch=int(about["epoch"]),
        seq=_optional(int, about.get("seq")),
        lag_ms=_optional(float, about.get("lag_ms")),
        lag_max_ms=float(about.get("lag_max_ms") or 0),
        silence_ms=_optional(float, about.get("silence_ms")),
        blocks=int(about["blocks"]),
        parked=int(about.get("unlinked", 0)),
        buffered=int(about.get("buffered", 0)),
        ranks=tuple(map(int, about.get("ranks", (rank,)))),
        counters={str(name): int(count) for name, count in about.get("counters", {}).items()},
        refused={str(name): int(count) for name, count in about.get("refused", {}).items()},
        last_error=_optional(str, about.get("last_error")),
    )


def dump(data: Any) -> list[KeyspaceDump]:
    """Of `/dump`."""
    return [
        KeyspaceDump(
            str(each["model_name"]),
            str(each["routing_group"]),
            int(each["block_size"]),
            tuple(_stored(event) for event in each["events"]),
        )
        for each in data["keyspaces"]
    ]


def _stored(event: Mapping[str, Any]) -> Stored:
    stored = event["event"]["data"]["stored"]
    return Stored(
        worker=str(event["worker_id"]),
        rank=int(event["event"]["dp_rank"]),
        tier=str(event["storage_tier"]),
        parent=_optional(int, stored["parent_hash"]),
        block_hashes=tuple(int(block["block_hash"]) for block in stored["blocks"]),
        content_hashes=tuple(int(block["tokens_hash"]) for block in stored["blocks"]),
    )


def readiness(data: Any) -> Readiness:
    """Of `/ready`."""
    if data["ready"]:
        return Readiness(ready=True)
    waiting = data["waiting"]
    return Readiness(
        ready=False,
        holds=tuple(map(str, waiting["holds"])),
        streams=_ranks(waiting["streams"]),
        draining=bool(waiting["draining"]),
    )


def _ranks(each: Iterable[Mapping[str, Any]]) -> tuple[Untrusted, ...]:
    return tuple(Untrusted(str(one["instance_id"]), int(one["dp_rank"]), str(one["state"])) for one in each)


def _optional(kind: Callable[[Any], T], value: Any) -> T | None:
    return None if value is None else kind(value)
