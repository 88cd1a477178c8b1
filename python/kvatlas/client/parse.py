"""What a service answers, from JSON: made into values, or refused with the reason."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import httpx

from kvatlas.client.answers import (
    Answer,
    BatchAnswer,
    KeyspaceDump,
    RankDepth,
    RankMatch,
    Readiness,
    Stored,
    StreamStatus,
    Untrusted,
    WorkerDepth,
    WorkerStatus,
)
from kvatlas.client.prompts import Length
from kvatlas.errors import ClientError

T = TypeVar("T")


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


def answer(data: Any, asked: Length) -> Answer:
    """Of `/query` and `/query_by_hash`."""
    block_size = int(data["block_size"])
    depths = [_depth(worker, about, block_size) for worker, about in data["instances"].items()]
    depths.sort(key=lambda depth: (-depth.tokens, -depth.host, -depth.any_tier))
    return Answer(
        workers=tuple(depths),
        block_size=block_size,
        length=asked.blocks(block_size),
        prompt_tokens=asked.tokens,
        untrusted=_ranks(data.get("untrusted", ())),
        upper_bound=bool(data.get("upper_bound")),
        partial=_partial(data),
    )


def _depth(worker: str, about: Mapping[str, Any], block_size: int) -> WorkerDepth:
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


def batch_answer(data: Any, asked: Sequence[Length]) -> BatchAnswer:
    """Of `/query_batch`."""
    block_size = int(data["block_size"])
    ranks = [(str(each["instance_id"]), int(each["dp_rank"])) for each in data["workers"]]
    answers = tuple(
        RankMatch(
            ranks=tuple(
                RankDepth(ranks[rank][0], ranks[rank][1], int(tokens), int(any_tier))
                for rank, tokens, any_tier in zip(
                    each["ranks"], each["tokens"], each.get("any_tier", each["tokens"]), strict=True
                )
            ),
            block_size=block_size,
            length=length.blocks(block_size),
            prompt_tokens=length.tokens,
        )
        for each, length in zip(data["answers"], asked, strict=True)
    )
    untrusted = _ranks(data.get("untrusted", ()))
    return BatchAnswer(answers, block_size, untrusted, bool(data.get("upper_bound")), _partial(data))


def worker_statuses(data: Any) -> list[WorkerStatus]:
    """Of `/workers`."""
    return [
        WorkerStatus(
            worker=str(each["instance_id"]),
            source=str(each["source"]),
            status=str(each["status"]),
            model=str(each["model_name"]),
            routing_group=str(each["routing_group"]),
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
        count_copies=bool(about.get("count_copies", True)),
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
    waiting = data.get("waiting", {})
    return Readiness(
        ready=bool(data["ready"]),
        holds=tuple(map(str, waiting.get("holds", ()))),
        streams=_ranks(waiting.get("streams", ())),
        draining=bool(waiting.get("draining")),
    )


def _ranks(each: Iterable[Mapping[str, Any]]) -> tuple[Untrusted, ...]:
    return tuple(Untrusted(str(one["instance_id"]), int(one["dp_rank"]), str(one["state"])) for one in each)


def _partial(data: Mapping[str, Any]) -> tuple[tuple[str, int], ...]:
    return tuple((str(one["instance_id"]), int(one["dp_rank"])) for one in data.get("partial", ()))


def _optional(kind: Callable[[Any], T], value: Any) -> T | None:
    return None if value is None else kind(value)
