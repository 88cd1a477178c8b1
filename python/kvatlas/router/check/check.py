"""Check of engines: requests to each engine, concurrently, and one prompt through each of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

from kvatlas.router.check.agents import compare_agents, look_at_rendering
from kvatlas.router.check.ask import Engine
from kvatlas.router.check.common import shares
from kvatlas.router.check.findings import CheckedEngine, EngineReport
from kvatlas.router.check.handover import hand_over
from kvatlas.router.check.lmcache import compare_coordinators
from kvatlas.router.check.look import look
from kvatlas.router.check.model_tokenizers import ModelTokenizers
from kvatlas.router.check.round_trip import RoundTrip
from kvatlas.router.check.sites import look_above
from kvatlas.router.check.stores import look_at_store
from kvatlas.router.check.tiers import compare_pools, compare_pulls
from kvatlas.router.check.tokens import compare
from kvatlas.router.config import RouterConfig
from kvatlas.service.config import Engine as EngineEntry
from kvatlas.service.discovery.watch import Discovery

Done = Callable[[EngineReport], None]

LOOK = 6.0
"""Time limit of the first look at an engine, in seconds."""
WORK = 9.0
"""Time limit of the test prompts sent through an engine after the first look, in seconds."""
_SIDE_BY_SIDE = 16


def check(config: RouterConfig, done: Done | None = None) -> list[EngineReport]:
    """Test each engine of a router's configuration and of its engines file.

    Engines are tested concurrently, 16 at a time, each for `LOOK` + `WORK` seconds at most. Each gets two requests for
    one token. No clients are served meanwhile; events are received for these few seconds like by the router. With
    `router.global_url`, the last report is about the service there. Engines that sleep get no requests. A report about
    settings follows those about engines if a tokenizer is given for a model that no engine serves.

    Args:
        config: The router's configuration.
        done: Called with each report as soon as nothing more is added to it.

    Raises:
        ConfigError: A setting is invalid.
        TokenizerError: The tokenizer cannot be read.
    """
    found = asyncio.run(Discovery(config).look())
    entries = [entry for entry in found if isinstance(entry, EngineEntry)]
    return asyncio.run(_check(config, entries, ModelTokenizers(config), done or (lambda _report: None)))


async def _check(
    config: RouterConfig, entries: list[EngineEntry], tokenizers: ModelTokenizers, done: Done
) -> list[EngineReport]:
    async with AsyncExitStack() as stack:
        looked = []
        for entry in entries:
            report = EngineReport(entry.worker, entry.shown_url, entry.role or "both")
            http = Engine(entry.url, config.discovery.bearer(), config.discovery.request_timeout)
            looked.append(CheckedEngine(entry, report, await stack.enter_async_context(http)))
        few = asyncio.Semaphore(_SIDE_BY_SIDE)
        await asyncio.gather(*(_within(few, LOOK, one, lambda one: look(config, one)) for one in looked))
        _compare_models(looked)
        _compare_block_sizes(looked)
        up = [one for one in looked if one.models and not one.is_stuck and not one.is_asleep]
        for one in looked:
            if one not in up:
                done(one.report)
        if up:
            await _send_prompts(config, up, tokenizers, few, done)
    reports = [one.report for one in looked]
    if looked and (unused := tokenizers.look_for_models(looked)) is not None:
        reports.append(unused)
        done(unused)
    for pool in config.pools:
        if pool.mooncake is not None:
            reports.append(await look_at_store(config, pool, {model for one in looked for model in one.models[:1]}))
            done(reports[-1])
    if config.router.global_url is not None:
        reports.append(await look_above(config, [one.entry.worker for one in looked], [one.models for one in looked]))
        done(reports[-1])
    return reports


async def _send_prompts(
    config: RouterConfig, up: list[CheckedEngine], tokenizers: ModelTokenizers, few: asyncio.Semaphore, done: Done
) -> None:
    """Compare tokens with engines, send prompts through them, and test the handover of a prompt between each pair."""
    trip = RoundTrip(config, tokenizers)

    async def send(one: CheckedEngine) -> None:
        await _tokens(one, tokenizers)
        await trip.through(one)

    async def whole(one: CheckedEngine) -> None:
        await _within(few, WORK, one, send)
        if one.report.role == "both" and not shares(one, config.pools):
            done(one.report)

    async with trip.following(up):
        await asyncio.gather(*map(whole, up))
    compare_pulls(up)
    compare_pools(up, config.pools)
    await compare_coordinators(up, config.pools)
    for one in up:
        if one.report.role == "both" and shares(one, config.pools):
            done(one.report)
    in_pairs = [one for one in up if one.report.role != "both"]
    await hand_over(config, [one for one in in_pairs if not one.is_stuck], WORK)
    for one in in_pairs:
        done(one.report)


async def _tokens(one: CheckedEngine, tokenizers: ModelTokenizers) -> None:
    path, tokenizer = tokenizers.path(one.model), tokenizers.local(one.model)
    if path is None:
        one.report.add(
            "tokens",
            "warning",
            "prompts are not tokenized (--tokenizer none): requests are placed by load",
            "give --tokenizer PATH, or `engine`",
            code="not_tokenized",
        )
        return
    await compare(one.http, one.report, one.model, tokenizer, tokenizers.option(one.model))
    if tokenizer is not None:
        await compare_agents(one.http, one.report, one.model, path)
    else:
        await look_at_rendering(one.http, one.report, one.model)


async def _within(
    few: asyncio.Semaphore, limit: float, one: CheckedEngine, test: Callable[[CheckedEngine], Awaitable[None]]
) -> None:
    """Run a test of an engine within a time limit. After the limit, the report names the unanswered request."""
    async with few:
        one.until = asyncio.get_running_loop().time() + limit
        try:
            async with asyncio.timeout_at(one.until):
                await test(one)
        except TimeoutError:
            one.is_stuck = True
            what = f"{one.http.waits_for} had no answer" if one.http.waits_for else "its check did not end"
            one.report.add(
                "hangs",
                "problem",
                f"{what} within the {limit:.0f} s that an engine has: the rest was not tested",
                "look at the engine's log; if it compiles a model for its first request, check again after that",
                code="hangs",
            )


def _compare_models(looked: list[CheckedEngine]) -> None:
    """Report engines that cannot replace each other because they serve different models."""
    named = [one for one in looked if one.models]
    common = set.intersection(*(set(one.models) for one in named)) if named else set()
    if len(named) < 2 or common:
        return
    for one in named:
        others = sorted({name for other in named if other is not one for name in other.models} - set(one.models))
        if others and not any(set(one.models) & set(other.models) for other in named if other is not one):
            one.report.add(
                "models",
                "note",
                f"no other engine serves {one.model}; others serve {', '.join(others[:4])}: requests for one model "
                "never reach the engines of another",
                code="models_differ",
            )


def _compare_block_sizes(looked: list[CheckedEngine]) -> None:
    """Report engines of one model whose depths cannot be compared because their block sizes differ."""
    by_model: dict[str, dict[int, list[str]]] = {}
    for one in looked:
        if one.found is not None:
            by_model.setdefault(one.found.model, {}).setdefault(one.found.block_size, []).append(one.report.worker)
    for one in looked:
        sizes = by_model.get(one.found.model, {}) if one.found is not None else {}
        if one.found is not None and len(sizes) > 1:
            others = "; ".join(
                f"{size} at {', '.join(names[:3])}" for size, names in sizes.items() if size != one.found.block_size
            )
            one.report.add(
                "block size",
                "problem",
                f"its blocks have {one.found.block_size} tokens, but {others}, for the same model",
                "start all engines of a model with the same --block-size (SGLang: --page-size), or give some of them "
                "another --routing-group",
                code="block_sizes_differ",
            )
