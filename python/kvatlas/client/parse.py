"""Parser of a service's JSON answers to Python values, with errors that say the reason."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import httpx

from kvatlas.client.answers import (
    Answer,
    BatchAnswer,
    EngineCondition,
    EngineStatus,
    KeyspaceDump,
    RankDepth,
    RankMatch,
    Readiness,
    Stored,
    StreamStatus,
    UntrustedRank,
    WorkerDepth,
    WorkerStatus,
)
from kvatlas.client.prompts import Length
from kvatlas.errors import ClientError

T = TypeVar("T")

_A_ROUTER = (
    "this is the address of a kvatlas router, which answers `workers()`, `engines()`, `query()` and `explain()` only"
)


def parsed(text: str | bytes, make: Callable[[Any], T], url: httpx.URL) -> T:
    """Parse an answer in JSON and convert it to a value by `make`.

    Raises:
        ClientError: The answer is not JSON, or this version of kvatlas does not understand it.
    """
    try:
        return make(json.loads(text))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ClientError(f"{_shown(url)} returned an unexpected answer: {error!r}", "bad_answer") from error


def _shown(url: httpx.URL) -> httpx.URL:
    """The URL without its query string, which may be long."""
    return url.copy_with(query=None)


def refused(answer: httpx.Response) -> ClientError:
    """Create the error for an answer whose status says that the request was refused."""
    status = answer.status_code
    try:
        body = json.loads(answer.content)
        # A router answers in the form in which engines do.
        body = body["error"] | {"error": body["error"]["message"]} if isinstance(body["error"], dict) else body
        code, message = str(body["code"]), str(body["error"])
    except (ValueError, LookupError, TypeError):
        said = " ".join(answer.text.split())[:200] or answer.reason_phrase
        words = f"{_shown(answer.request.url)} returned status {status}, but not in the format of kvatlas: {said}"
        return ClientError(words, f"http_{status}", status)
    return ClientError(f"{_shown(answer.request.url)}: {message} (status {status}, {code})", code, status)


def answer(data: Any, asked: Length) -> Answer:
    """Parse the answer of `/query` and `/query_by_hash`."""
    block_size = int(data["block_size"])
    depths = [_depth(worker, about, block_size, asked) for worker, about in data["instances"].items()]
    depths.sort(key=lambda depth: (-depth.tokens, -depth.host, -depth.any_tier))
    return Answer(
        workers=tuple(depths),
        block_size=block_size,
        length=asked.blocks(block_size),
        prompt_tokens=asked.tokens,
        untrusted=_ranks(data.get("untrusted", ())),
        upper_bound=bool(data.get("upper_bound")),
        partial=_listed(data, "partial"),
        unverified=_listed(data, "unverified"),
        no_salts=_listed(data, "no_salts"),
        lora=_optional(str, data.get("lora_name")),
        wants_tokens=bool(data.get("wants_tokens")),
    )


def _depth(worker: str, about: Mapping[str, Any], block_size: int, asked: Length) -> WorkerDepth:
    tokens = int(about["gpu"])
    return WorkerDepth(
        worker=str(worker),
        tokens=tokens,
        host=int(about["cpu"]),
        any_tier=int(about["longest_matched"]),
        ranks={int(rank): int(tokens) for rank, tokens in about["dp"].items()},
        block_size=block_size,
        lag_ms=_optional(float, about.get("lag_ms")),
        state=_optional(str, about.get("state")),
        usable=usable_tokens(about.get("usable"), tokens, block_size, asked),
    )


def usable_tokens(told: Any, tokens: int, block_size: int, asked: Length) -> int | None:
    """The number of `tokens` that an engine can reuse, as reported by the service.

    Batches report the number only if it is not `tokens`.
    """
    if told is not None:
        return int(told)
    if asked.tokens is None:
        return None
    return min(tokens, max(asked.tokens - 1, 0) // block_size * block_size)


def batch_answer(data: Any, asked: Sequence[Length]) -> BatchAnswer:
    """Parse the answer of `/query_batch`."""
    block_size = int(data["block_size"])
    ranks = [(str(each["instance_id"]), int(each["dp_rank"])) for each in data["workers"]]
    answers = tuple(
        RankMatch(
            ranks=tuple(
                RankDepth(
                    ranks[rank][0],
                    ranks[rank][1],
                    int(tokens),
                    int(any_tier),
                    usable_tokens(usable, int(tokens), block_size, length),
                )
                for rank, tokens, any_tier, usable in zip(
                    each["ranks"],
                    each["tokens"],
                    each.get("any_tier", each["tokens"]),
                    each.get("usable", [None] * len(each["ranks"])),
                    strict=True,
                )
            ),
            block_size=block_size,
            length=length.blocks(block_size),
            prompt_tokens=length.tokens,
        )
        for each, length in zip(data["answers"], asked, strict=True)
    )
    untrusted = _ranks(data.get("untrusted", ()))
    return BatchAnswer(
        answers,
        block_size,
        untrusted,
        bool(data.get("upper_bound")),
        _listed(data, "partial"),
        _listed(data, "no_salts"),
        _optional(str, data.get("lora_name")),
        bool(data.get("wants_tokens")),
        _listed(data, "unverified"),
    )


def worker_statuses(data: Any) -> list[WorkerStatus]:
    """Parse the workers in an answer of `/workers`.

    Raises:
        ClientError: A router answered.
    """
    _check_service(data)
    return [
        WorkerStatus(
            worker=str(each["instance_id"]),
            source=str(each["source"]),
            status=str(each["status"]),
            model=str(each["model_name"]),
            routing_group=str(each["routing_group"]),
            block_size=int(each["block_size"]),
            streams=tuple(_stream(int(rank), about) for rank, about in each["streams"].items()),
            aliases=tuple(map(str, each.get("aliases", ()))),
            adapters=tuple(map(str, each.get("adapters", ()))),
        )
        for each in data
    ]


def engine_condition(about: Mapping[str, Any] | None) -> EngineCondition | None:
    """Parse the condition of an engine in a router's `/workers`; None without a problem."""
    if about is None:
        return None
    words = {name: str(about[name]) for name in ("name", "reason", "advice", "runbook")}
    return EngineCondition(**words, since=float(about.get("since", 0)))


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
        unlinked=int(about.get("unlinked", 0)),
        buffered=int(about.get("buffered", 0)),
        ranks=tuple(map(int, about.get("ranks", (rank,)))),
        counters={str(name): int(count) for name, count in about.get("counters", {}).items()},
        refused={str(name): int(count) for name, count in about.get("refused", {}).items()},
        last_error=_optional(str, about.get("last_error")),
        previous_error=_optional(str, about.get("previous_error")),
        previous_error_ms=_optional(float, about.get("previous_error_ms")),
        unverified=bool(about.get("unverified")),
        count_copies=bool(about.get("count_copies", True)),
        host_chunk=_optional(int, about.get("host_chunk")),
        no_salts=bool(about.get("no_salts")),
        fingerprints={int(rank): str(word) for rank, word in about.get("fingerprints", {}).items()},
        snapshot=_optional(str, (about.get("snapshot") or {}).get("outcome")),
        undescribed=int(about.get("undescribed", 0)),
        chunks={str(tier): int(blocks) for tier, blocks in about.get("chunks", {}).items()},
    )


def _check_service(data: Any) -> None:
    if isinstance(data, list) and data and isinstance(data[0], dict) and "standing" in data[0]:
        raise ClientError(_A_ROUTER, "router")


def engine_statuses(data: Any) -> list[EngineStatus]:
    """Parse the engines in an answer of `/engines` or `/ready`.

    Raises:
        ClientError: A router answered.
    """
    _check_service(data)
    return [
        EngineStatus(
            worker=str(each["instance_id"]),
            url=str(each["url"]),
            state=str(each["state"]),
            rank=_optional(int, each.get("dp_rank")),
            code=_optional(str, each.get("code")),
            reason=_optional(str, each.get("reason")),
            since_ms=int(each["since_ms"]),
        )
        for each in data
    ]


def dump(data: Any) -> list[KeyspaceDump]:
    """Parse the contents of an answer of `/dump`."""
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
    """Parse the readiness in an answer of `/ready`; for a router, the readiness of its index."""
    waiting = data.get("waiting", {})
    is_incomplete = data.get("index_ready") is False
    return Readiness(
        ready=bool(data["ready"]) and not is_incomplete,
        holds=("index",) if is_incomplete else tuple(map(str, waiting.get("holds", ()))),
        streams=_ranks(waiting.get("streams", ())),
        draining=bool(waiting.get("draining") or data.get("leaving")),
        engines=tuple(engine_statuses(waiting.get("engines", ()))),
    )


def _ranks(each: Iterable[Mapping[str, Any]]) -> tuple[UntrustedRank, ...]:
    return tuple(UntrustedRank(str(one["instance_id"]), int(one["dp_rank"]), str(one["state"])) for one in each)


def _listed(data: Mapping[str, Any], name: str) -> tuple[tuple[str, int], ...]:
    return tuple((str(one["instance_id"]), int(one["dp_rank"])) for one in data.get(name, ()))


def _optional(kind: Callable[[Any], T], value: Any) -> T | None:
    return None if value is None else kind(value)
