"""Answers of a router, converted to the form of a service's answers.

A router that receives events has the same rows under other paths.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from kvatlas.client import parse
from kvatlas.client.answers import Answer, EngineStatus, UntrustedRank, WorkerDepth, WorkerStatus
from kvatlas.client.prompts import Prompt
from kvatlas.client.requests import DEFAULT_GROUP, Call, Json, Scope
from kvatlas.errors import ClientError

Rows = list[dict[str, Any]]


def engines() -> Call[Rows]:
    """Request for the engines of a router: GET /workers."""
    return Json(list, "GET", "/workers")


def engine_statuses() -> Call[list[EngineStatus]]:
    """Request for the engines of a router, in the form of a service's list of engines: GET /engines."""

    def made(rows: Rows) -> list[EngineStatus]:
        return [EngineStatus(str(row["name"]), str(row["url"]), str(row["standing"])) for row in rows]

    return Json(made, "GET", "/engines")


def streams() -> Call[list[WorkerStatus]]:
    """Request for the engines whose events a router receives, as a service lists its workers: GET /streams."""
    return Json(parse.worker_statuses, "GET", "/streams")


def explain(prompt: Prompt, scope: Scope) -> Call[dict[str, Any]]:
    """Request for a router's comparison of its engines for a prompt: POST /explain.

    Raises:
        ClientError: The prompt is given in content hashes.
    """
    if prompt.is_hashed:
        raise ClientError("a router cannot be asked by content hashes: give it the tokens", "router")
    body: dict[str, Any] = {"model": prompt.lora or scope.keyspace.model, "prompt": prompt.numbers.tolist()}
    if prompt.salt is not None:
        body["cache_salt"] = prompt.salt
    return explain_body(body)


def explain_body(body: Mapping[str, Any], *, hashes: bool = False) -> Call[dict[str, Any]]:
    """Request for a router's comparison of its engines for the body of a request: POST /explain."""
    return Json(dict, "POST", "/explain?hashes=1" if hashes else "/explain", dict(body))


def workers(
    engines: Rows, followed: list[WorkerStatus], model: str | None, routing_group: str | None
) -> list[WorkerStatus]:
    """The workers of a router: engines whose events the router receives, then engines without events."""
    conditions = {str(row["name"]): parse.engine_condition(row.get("condition")) for row in engines}
    fleet = [dataclasses.replace(worker, condition=conditions.get(worker.worker)) for worker in followed]
    known = {worker.worker for worker in fleet}
    for row in engines:
        names = [str(name) for name in row["models"]]
        if str(row["name"]) not in known:
            first = names[0] if names else ""
            fleet.append(
                WorkerStatus(
                    worker=str(row["name"]),
                    source="router",
                    status=str(row["standing"]),
                    model=first,
                    routing_group=DEFAULT_GROUP,
                    block_size=0,
                    streams=(),
                    aliases=tuple(names[1:]),
                    condition=conditions[str(row["name"])],
                )
            )
    return [
        worker
        for worker in fleet
        if model in (None, worker.model, *worker.aliases, *worker.adapters)
        and routing_group in (None, worker.routing_group)
    ]


def answer(explained: dict[str, Any], followed: list[WorkerStatus], prompt: Prompt, scope: Scope) -> Answer:
    """Convert a router's explanation to the answer to a query.

    Raises:
        ClientError: The router's policy does not use the index.
    """
    block_size = int(explained["block_size"])
    length = prompt.length.blocks(block_size)
    if length and not explained["blocks"]:
        words = f"the router's policy {explained['policy']} does not look at what engines hold"
        raise ClientError(words, "router")
    of_streams = {
        (worker.worker, rank): stream for worker in followed for stream in worker.streams for rank in stream.ranks
    }
    wanted = None if scope.among is None else {str(name) for name in scope.among}
    ranks: dict[str, dict[int, dict[str, int]]] = {}
    for each in explained["candidates"]:
        worker, rank = str(each["worker"]), int(each["rank"])
        guess = int(each["cached_tokens"])  # without an index, there is no more to say
        held = each.get("held_tokens") or {"device": guess, "host": guess, "any_tier": guess}
        stream = of_streams.get((worker, rank))
        is_left_out = scope.strict and stream is not None and stream.unverified
        if held["any_tier"] and not is_left_out and (wanted is None or worker in wanted):
            ranks.setdefault(worker, {})[rank] = {name: int(tokens) for name, tokens in held.items()}
    depths = []
    for worker, by_rank in ranks.items():
        tokens = max(held["device"] for held in by_rank.values())
        stream = of_streams.get((worker, next(iter(by_rank))))
        depths.append(
            WorkerDepth(
                worker=worker,
                tokens=tokens,
                host=max(held["host"] for held in by_rank.values()),
                any_tier=max(held["any_tier"] for held in by_rank.values()),
                ranks={rank: held["device"] for rank, held in by_rank.items() if held["device"]},
                block_size=block_size,
                lag_ms=stream.lag_ms if scope.age and stream else None,
                state=stream.state if scope.age and stream else None,
                usable=parse.usable_tokens(None, tokens, block_size, prompt.length),
            )
        )
    depths.sort(key=lambda depth: (-depth.tokens, -depth.host, -depth.any_tier))

    def marked(name: str) -> tuple[tuple[str, int], ...]:
        return tuple(of for of, stream in of_streams.items() if getattr(stream, name))

    return Answer(
        workers=tuple(depths[: scope.top_k]),
        block_size=block_size,
        length=length,
        prompt_tokens=prompt.length.tokens,
        untrusted=tuple(
            UntrustedRank(worker, rank, stream.state)
            for (worker, rank), stream in of_streams.items()
            if not stream.trusted
        ),
        upper_bound=bool(marked("upper_bound")),
        partial=marked("partial"),
        no_salts=marked("no_salts"),
        unverified=marked("unverified"),
    )
