"""Engines that say much more of themselves than anybody needs."""

from __future__ import annotations

import asyncio
import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest
from tests.support.engine import Behaviour, chunk, head, raw, reply, vllm
from tests.support.engine import Engine as FakeEngine
from tests.support.waiting import until

from kvatlas.errors import ClientError, DiscoveryError, TokenizerError
from kvatlas.router.check.ask import Engine as CheckedEngine
from kvatlas.service import Config, DiscoveryConfig, Engine
from kvatlas.service.discovery import EngineDescription
from kvatlas.service.discovery.http import Asker
from kvatlas.service.discovery.probe import Prober
from kvatlas.tokenize import EngineTokenizer

from .process import address_of, serving

KIB, MIB = 1 << 10, 1 << 20
FAST = DiscoveryConfig(interval=0.05, timeout=60, request_timeout=30)


def probe(answers: dict[str, Any]) -> EngineDescription:
    async def ask(url: str) -> EngineDescription:
        async with Asker(30.0) as asker:
            return await Prober(asker, Engine.of(url), Config(discovery=FAST), lambda _endpoint, _host: None).whole()

    with FakeEngine(answers) as engine:
        return asyncio.run(ask(engine.url))


def long_answer(body: bytes) -> Behaviour:
    return raw(head("200 OK", f"content-length: {len(body)}") + body)


def nested(size: int) -> bytes:
    return b"[" + b'{"":[]},' * (size // 8) + b"0]"


@pytest.mark.parametrize("path", ["/kv_event_sources", "/v1/models"])
@pytest.mark.parametrize("size", [MIB + 1, 15 * MIB])
def test_a_long_answer_is_no_answer(path: str, size: int) -> None:
    with pytest.raises(DiscoveryError, match=rf"GET {path} returned more than 1024 KiB") as caught:
        probe(vllm() | {path: long_answer(nested(size))})
    assert (caught.value.code, caught.value.temporary) == ("bad_answer", False)


def test_an_answer_without_end_is_given_up() -> None:
    async def act(talk: Any) -> None:
        await talk.send(head("200 OK", "transfer-encoding: chunked"))
        while True:
            await talk.send(chunk(b"[" * KIB) * 64)

    with pytest.raises(DiscoveryError, match="more than 1024 KiB"):
        probe(vllm() | {"/kv_event_sources": act})


def test_a_packed_answer_is_not_unpacked() -> None:
    body = gzip.compress(b" " * (100 * MIB))
    packed = reply("200 OK", body, "content-encoding: gzip")
    with pytest.raises(DiscoveryError, match="packed answer, which was not asked for"):
        probe(vllm() | {"/kv_event_sources": packed})


def test_metrics_are_read_line_by_line() -> None:
    wanted = 'vllm:cache_config_info{block_size="32",engine="0"} 1.0\n'
    more = "".join(f'vllm:other{{engine="{number}"}} 1\n' for number in range(200_000))
    assert probe(vllm() | {"/metrics": more + wanted + "# " + "x" * MIB + "\n" + more}).block_size == 32
    with pytest.raises(DiscoveryError, match="GET /metrics returned more than 16384 KiB"):
        probe(vllm() | {"/metrics": long_answer(b"vllm:x 1\n" * (17 * MIB // 9))})
    with pytest.raises(DiscoveryError, match="GET /metrics returned more than 1024 KiB"):
        probe(vllm() | {"/metrics": wanted * (2 * MIB // len(wanted))})


def test_only_what_is_needed_of_sources_is_kept() -> None:
    sources = vllm()["/kv_event_sources"]
    sources["0"] |= {"more": json.loads(nested(100 * KIB)), "long": "x" * (100 * KIB)}
    assert probe(vllm() | {"/kv_event_sources": sources}).ranks == [0]
    many = {"9" * 5000: sources["0"] | {"more": None, "long": None}}
    with pytest.raises(DiscoveryError, match="did not return a JSON object of ranks"):
        probe(vllm() | {"/kv_event_sources": many})


def test_a_service_takes_little_memory_for_engines_that_say_much() -> None:
    answers = vllm() | {path: long_answer(nested(15 * MIB)) for path in ("/kv_event_sources", "/v1/models", "/metrics")}
    engines = [FakeEngine(dict(answers)) for _ in range(4)]
    flags = [flag for number, engine in enumerate(engines) for flag in ("--engine", f"e{number}={engine.url}")]
    process = serving(*flags, "--discovery-interval", "200ms")
    try:
        address_of(process)
        until(lambda: all(engine.times("/kv_event_sources") >= 3 for engine in engines))
        status = Path(f"/proc/{process.pid}/status").read_text(encoding="ascii")
        found = re.search(r"VmHWM:\s+(\d+) kB", status)
        assert found is not None
        assert int(found[1]) * KIB < 256 * MIB
    finally:
        process.kill()
        process.communicate()
        for engine in engines:
            engine.stop()


def test_the_check_of_a_router_and_the_tokenizer_give_up_too() -> None:
    async def ask(url: str) -> None:
        async with CheckedEngine(url, None, 30.0) as checked:
            await checked.json("GET", "/v1/models")

    answers = {"/v1/models": long_answer(nested(15 * MIB)), "/tokenize": long_answer(nested(17 * MIB))}
    with FakeEngine(answers) as engine:
        with pytest.raises(ClientError, match="returned more than 1024 KiB"):
            asyncio.run(ask(engine.url))
        with EngineTokenizer(engine.url) as tokenizer, pytest.raises(TokenizerError, match="more than 16 MiB"):
            tokenizer.encode("hello")
