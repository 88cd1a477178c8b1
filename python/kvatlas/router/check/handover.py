"""Test of the handover of a prompt's KV cache from a prefill to a decode engine."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from kvatlas.errors import ClientError
from kvatlas.router.check.ask import Answer, Engine
from kvatlas.router.check.findings import CheckedEngine
from kvatlas.router.config import RouterConfig

_BOOTSTRAP_PORT = 8998  # SGLang's own default
_GIVE = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}


async def hand_over(config: RouterConfig, looked: Sequence[CheckedEngine], limit: float) -> None:
    """Test each prefill engine with a decode engine, and each decode engine with a prefill engine.

    Pairs are tested concurrently, each for `limit` seconds at most.
    """
    prefill = [one for one in looked if one.report.role == "prefill"]
    decode = [one for one in looked if one.report.role == "decode"]
    if not prefill or not decode:
        return

    async def pair(giver: CheckedEngine, taker: CheckedEngine) -> None:
        where = f"{giver.report.worker} to {taker.report.worker}"
        try:
            async with asyncio.timeout(limit):
                answer = await _pair(config, giver, taker)
        except (ClientError, TimeoutError) as failed:
            error = f"no answer within {limit:.0f} s" if isinstance(failed, TimeoutError) else failed
            giver.report.add(
                "handover",
                "problem",
                f"{where}: {error}",
                "vLLM: start both with a KV connector (--kv-transfer-config); SGLang: with --disaggregation-mode; each "
                "must reach the other's ports",
                code="handover_failed",
            )
            return
        cached = "" if answer.cached_tokens is None else f", {answer.cached_tokens} tokens taken over"
        taker.report.add("handover", "ok", f"{where}: answered in {answer.seconds:.2f} s{cached}")

    pairs = range(max(len(prefill), len(decode)))
    await asyncio.gather(*(pair(prefill[i % len(prefill)], decode[i % len(decode)]) for i in pairs))


async def _pair(config: RouterConfig, giver: CheckedEngine, taker: CheckedEngine) -> Answer:
    body: dict[str, Any] = {
        "model": giver.model,
        "prompt": f"Check {secrets.token_hex(8)}: " + "hand this over, please. " * 40,
        "max_tokens": 2,
        "temperature": 0,
    }
    key, timeout = config.discovery.bearer(), config.discovery.request_timeout
    async with Engine(giver.entry.url, key, timeout) as first, Engine(taker.entry.url, key, timeout) as second:
        info = await sglang_info(first)
        if info is not None:
            return await _sglang(first, second, body, giver, info)
        given = await first.generate("/v1/completions", {**body, "max_tokens": 1, "kv_transfer_params": _GIVE})
        params = given.body.get("kv_transfer_params")
        if not isinstance(params, dict):
            raise ClientError("the prefill engine's answer has no kv_transfer_params: it has no KV connector")
        return await second.generate("/v1/completions", {**body, "kv_transfer_params": params})


async def sglang_info(engine: Engine) -> dict[str, Any] | None:
    """SGLang's server information; None for another engine."""
    try:
        info = await engine.json("GET", "/server_info")
    except ClientError as error:
        if error.status is None:
            raise
        return None
    return info if isinstance(info, dict) and "disaggregation_mode" in info else None


async def _sglang(
    first: Engine, second: Engine, body: dict[str, Any], giver: CheckedEngine, info: dict[str, Any]
) -> Answer:
    if info["disaggregation_mode"] != "prefill":
        raise ClientError(f"the prefill engine's disaggregation_mode is {info['disaggregation_mode']!r}")
    room = {
        "bootstrap_host": urlsplit(giver.entry.url).hostname,
        "bootstrap_port": info.get("disaggregation_bootstrap_port") or _BOOTSTRAP_PORT,
        "bootstrap_room": secrets.randbits(63),
    }
    both = (engine.generate("/v1/completions", {**body, **room}) for engine in (first, second))
    _given, taken = await asyncio.gather(*both)
    return taken
