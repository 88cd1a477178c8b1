"""Test with a prompt's round trip: through an engine, into the index, and found again in the engine's cache.

If the index has all blocks of the prompt, then events arrive, and router and engine agree in tokens, template and block
size.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

from kvatlas.client import AsyncClient, StreamStatus
from kvatlas.errors import ClientError, KvatlasError, ServiceError
from kvatlas.router.check.ask import Answer, Engine
from kvatlas.router.check.common import CommonPrompt, prompt_of
from kvatlas.router.check.findings import CheckedEngine
from kvatlas.router.check.model_tokenizers import ModelTokenizers
from kvatlas.router.check.tiers import listen, look_at_pulls, report_tiers
from kvatlas.router.check.tokens import tokens_of
from kvatlas.router.config import RouterConfig
from kvatlas.service import Config, HttpConfig, Service
from kvatlas.service.discovery.connectors import ask_connectors
from kvatlas.service.discovery.http import Asker

_EVENTS = 5.0  # seconds for events to arrive; SGLang holds them back for a while
_MORE = 1.0  # seconds for more of them, once there are some
_SETTLE = 4.0  # seconds for streams to be live
_REST = 1.0  # seconds kept for the report, of the time that the engine has
_BLOCK = 16
_LONGEST = 2048  # tokens of a prompt that fills a chunk


class RoundTrip:
    """Sender of test prompts to engines, with a service that follows the engines' events meanwhile."""

    def __init__(self, config: RouterConfig, tokenizers: ModelTokenizers) -> None:
        self._config = config
        self._tokenizers = tokenizers
        self._client: AsyncClient | None = None  # of the service, while it follows
        self._common = CommonPrompt(tokenizers, config.pools)

    @contextlib.asynccontextmanager
    async def following(self, looked: Sequence[CheckedEngine]) -> AsyncIterator[None]:
        """A context in which a service follows the events of the given engines."""
        followed = [one for one in looked if one.found is not None]
        if not followed:
            yield
            return
        config = self._config
        plain = Config(
            http=HttpConfig(bind="127.0.0.1:0"),
            streams=config.streams,
            discovery=config.discovery,
            model=config.model,
            block_size=config.block_size,
            routing_group=config.routing_group,
        )
        try:
            # Engine settings that concern routers only are left out.
            entries = [one.entry.as_followed() for one in followed]
            service = Service(engines=entries, config=plain)
        except ServiceError as error:
            for one in followed:
                one.report.add("index", "problem", str(error), code="not_followed")
            yield
            return
        async with service, service.async_client() as client, self._common.following(followed):
            self._client = client
            yield
        self._client = None

    async def through(self, one: CheckedEngine) -> None:
        """Send a prompt through an engine twice, and add findings to its report."""
        config, report = self._config, one.report
        client = self._client if one.found is not None else None
        if report.role != "both" and one.found is not None and one.found.engine == "sglang":
            report.add(
                "answers",
                "note",
                "not asked alone: SGLang's prefill and decode engines answer in pairs",
                code="answers_in_pairs",
            )
            return
        if client is not None and not await self._live(one, client):
            client = None
        size = one.found.block_size if one.found is not None else config.block_size or _BLOCK
        before = [] if client is None else await self._streams(one, client)
        text = prompt_of(max(3 * size, min(size * (one.connectors.host_chunk or 1), _LONGEST)) + 8)
        try:
            first, messages = await self._ask(one.http, one.model, text)
            again, _ = await self._ask(one.http, one.model, text, chat=messages is not None)
        except ClientError as error:
            report.add("answers", "problem", str(error), "look at the engine's log", code="no_answer")
            return
        report.add("answers", "ok", f"one token in {first.seconds:.2f} s, then in {again.seconds:.2f} s")
        tokens: list[int] | None = None
        if self._tokenizers.path(one.model) is not None:
            try:
                tokens = await tokens_of(one.http, one.model, messages, text, self._tokenizers.local(one.model))
            except KvatlasError as error:
                report.add("index", "problem", f"the prompt has no tokens here: {error}", code="no_tokens")
        self._cached(one, again, size)
        await self._connectors(one)
        if tokens is not None and first.prompt_tokens not in (None, len(tokens)):
            report.add(
                "template",
                "problem",
                f"the engine counts {first.prompt_tokens} prompt tokens, the router {len(tokens)}",
                "give the router the tokenizer and chat template that the engine uses",
                code="token_count_differs",
            )
        if tokens is not None and client is not None:
            await self._indexed(one, client, tokens, size, {stream.rank: stream.seq for stream in before})
        await self._tiers(one, client, before, text, chat=messages is not None)

    async def _connectors(self, one: CheckedEngine) -> None:
        """Ask an engine for its tiers again if it reported none: tiers appear with its first step."""
        is_in_time = asyncio.get_running_loop().time() < one.until - _EVENTS
        if one.connectors.offloads or not is_in_time:
            return
        key = one.entry.key_of(self._config.discovery.bearer())
        async with Asker(self._config.discovery.request_timeout, key) as asker:
            kind = one.found.engine if one.found is not None else "vllm"
            one.connectors = await ask_connectors(asker, one.entry.url, kind)

    async def _tiers(
        self, one: CheckedEngine, client: AsyncClient | None, before: Sequence[StreamStatus], text: str, *, chat: bool
    ) -> None:
        """Report the tiers beyond the engine's device, and if other engines can pull its blocks."""
        if client is not None:
            await listen(
                one,
                before,
                lambda: self._streams(one, client),
                lambda: self._ask(one.http, one.model, text, chat=chat),
            )
            report_tiers(one, self._config.pools)
        await look_at_pulls(one)
        await self._common.through(one)

    async def _ask(
        self, engine: Engine, model: str, text: str, *, chat: bool | None = None
    ) -> tuple[Answer, list[dict[str, Any]] | None]:
        """Request an answer to a chat, or to a completion if the engine serves no chats."""
        messages = [{"role": "user", "content": text}]
        body = {"model": model, "max_tokens": 1, "temperature": 0}
        if chat is not False:
            try:
                return await engine.generate("/v1/chat/completions", {**body, "messages": messages}), messages
            except ClientError as error:
                if chat or error.status not in (400, 404, 405):
                    raise
        return await engine.generate("/v1/completions", {**body, "prompt": text}), None

    async def _live(self, one: CheckedEngine, client: AsyncClient) -> bool:
        streams = await self._streams(one, client)
        clock = asyncio.get_running_loop().time
        deadline = min(clock() + _SETTLE, one.until - _REST)
        while clock() < deadline and not (streams and all(stream.trusted for stream in streams)):
            await asyncio.sleep(0.05)
            streams = await self._streams(one, client)
        if not streams:
            why = [engine.reason for engine in (await client.ready()).engines if engine.worker == one.report.worker]
            words = (why[0] if why else None) or "it could not be registered"
            one.report.add("stream", "problem", words, code="not_registered")
            return False
        bad = [stream for stream in streams if not stream.trusted]
        if not bad:
            held = sum(stream.blocks for stream in streams)
            one.report.add("stream", "ok", f"live, {held:,} blocks known")
            return True
        stream = bad[0]
        change = "open this port to the router; the endpoint in --kv-events-config must have a *, such as tcp://*:5557"
        words = f"rank {stream.rank} is {stream.state}"
        one.report.add(
            "stream",
            "problem",
            f"{words}: {stream.last_error}" if stream.last_error else words,
            change,
            code="stream_not_live",
        )
        return False

    async def _streams(self, one: CheckedEngine, client: AsyncClient) -> list[StreamStatus]:
        name = one.report.worker
        return [stream for worker in await client.workers() if worker.worker == name for stream in worker.streams]

    async def _indexed(
        self, one: CheckedEngine, client: AsyncClient, tokens: list[int], size: int, before: dict[int, int | None]
    ) -> None:
        """Wait until the index has the prompt's blocks, and report the reason if they do not come."""
        assert one.found is not None  # noqa: S101 - said by the caller's condition
        report, wanted, depth = one.report, (len(tokens) - 1) // size, 0
        clock = asyncio.get_running_loop().time
        began, heard = clock(), False
        deadline = min(began + _EVENTS, one.until - _REST)
        while depth < wanted and clock() < deadline:
            await asyncio.sleep(0.02)
            answer = await client.query(tokens=tokens, model=one.found.model, routing_group=self._group(one))
            depth = max(depth, answer.scores().get(report.worker, 0))
            streams = await self._streams(one, client)
            if not heard and any(stream.seq != before.get(stream.rank) for stream in streams):
                heard, deadline = True, min(deadline, clock() + _MORE)
        streams = await self._streams(one, client)
        if depth >= wanted:
            lags = [stream.lag_ms for stream in streams if stream.lag_ms is not None]
            lag = f", events visible after {max(lags):.1f} ms" if lags else ""
            report.add("index", "ok", f"all {wanted} usable blocks of the prompt were found{lag}")
            if not lags:
                report.add(
                    "live",
                    "problem",
                    "no event arrived live: the blocks came from the replay socket only, so the index is always late",
                    "let the router reach the port of the events themselves, not only the replay port",
                    code="no_live_events",
                )
            return
        if any(stream.refused.get("block_size") or stream.refused.get("partial_block") for stream in streams):
            given = "set here" if self._config.block_size or one.entry.block_size else "that it announces"
            report.add(
                "block size",
                "problem",
                f"the blocks of its events have another size than the {size} tokens {given}: none can be matched",
                "leave --block-size out, or set it to the size that `kvatlas decode` shows in the engine's events",
                code="wrong_block_size",
            )
        elif refused := {reason: count for stream in streams for reason, count in stream.refused.items() if count}:
            counts = ", ".join(f"{count} {reason}" for reason, count in sorted(refused.items()))
            why = next((f": {stream.last_error}" for stream in streams if stream.last_error), "")
            report.add(
                "refused",
                "problem",
                f"events of it cannot be used ({counts}), and {depth} of {wanted} blocks were found{why}",
                "`kvatlas decode` shows the events; use an engine's version that kvatlas knows",
                code="events_refused",
            )
        elif depth:
            report.add(
                "index",
                "problem",
                f"the first {depth} of {wanted} blocks were found: tokens differ after that",
                "give the router the tokenizer and chat template that the engine uses",
                code="blocks_differ",
            )
        elif heard:
            report.add(
                "index",
                "problem",
                "the engine announces blocks, but none of this prompt: its tokens differ from the first block on",
                "give the router the tokenizer and chat template that the engine uses",
                code="blocks_differ",
            )
        else:
            report.add(
                "index",
                "problem",
                f"the engine announced nothing within {clock() - began:.0f} s of its answer",
                "turn on prefix caching: vLLM without --no-enable-prefix-caching, SGLang without --disable-radix-cache",
                code="nothing_announced",
            )

    def _group(self, one: CheckedEngine) -> str:
        return one.entry.routing_group or self._config.routing_group

    def _cached(self, one: CheckedEngine, again: Answer, size: int) -> None:
        report = one.report
        if again.cached_tokens is None:
            report.add(
                "cache",
                "note",
                "the engine does not say how many prompt tokens it found in its cache: predictions cannot be checked",
                "start vLLM with --enable-prompt-tokens-details, SGLang with --enable-cache-report",
                code="cache_not_reported",
            )
        elif again.prompt_tokens is not None and again.cached_tokens < (again.prompt_tokens - 1) // size * size:
            usable = (again.prompt_tokens - 1) // size * size
            report.add(
                "cache",
                "warning",
                f"asked again, it found {again.cached_tokens} of {usable} tokens in its cache",
                "" if again.cached_tokens else "turn on prefix caching in the engine",
                code="cache_missed",
            )
        else:
            report.add("cache", "ok", f"asked again, it found {again.cached_tokens} tokens in its cache")
