"""A router that is asked what a service is asked: `kvatlas workers`, `kvatlas query`, and the client in Python."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.support.engine import MODEL, Engine, whole

from kvatlas import content_hashes
from kvatlas.client import AsyncClient, Client, EngineStatus
from kvatlas.errors import ClientError
from kvatlas.sim.server.ports import free_block

from .deciding import BLOCK, tokens_of
from .running import Router, ask_by_command, wait_until
from .test_unverified import TEXT, publish, publishing

HELD = 4 * BLOCK


@contextmanager
def knowing(engine: Engine, tokenizer: Path) -> Iterator[Router]:
    """A router that knows four blocks of the prompt at its only engine."""
    port = free_block("127.0.0.1")
    flags = ("--policy", "kvatlas", "--tokenizer", str(tokenizer), "--block-size", str(BLOCK))
    with (
        Router(engine, flags=(*flags, "--events-port", str(port)), ready=False) as router,
        publishing(port) as publisher,
    ):
        for number in range(4):
            publish(publisher, number)
        router.wait_ready()
        wait_until(lambda: json.loads(router.get("/streams")[1])[0]["streams"]["0"]["blocks"] == 4, "it knows them")
        yield router


def test_commands(engine: Engine, tokenizer: Path) -> None:
    engine.behaviour = whole(prompt=len(TEXT))
    with knowing(engine, tokenizer) as router:
        shown = ask_by_command(router, "workers")
        assert shown.returncode == 0, shown
        assert "1 worker, 1 stream" in shown.stdout
        assert "e0" in shown.stdout
        (listed,) = json.loads(ask_by_command(router, "workers", "--json").stdout)
        assert (listed["worker"], listed["model"], listed["streams"][0]["blocks"]) == ("e0", MODEL, 4)
        numbers = ",".join(map(str, tokens_of(TEXT)))
        asked = ask_by_command(router, "query", "--tokens", numbers, "--json")
        (depth,) = json.loads(asked.stdout)["workers"]
        assert (depth["worker"], depth["tokens"], depth["blocks"]) == ("e0", HELD, 4)
        assert f"{len(TEXT)} tokens for {MODEL}" in ask_by_command(router, "query", "--tokens", numbers).stdout
        refused = ask_by_command(router, "query", "--content-hashes", "1,2,3")
        assert (refused.returncode, "give it the tokens" in refused.stderr) == (1, True), refused


def test_clients(engine: Engine, tokenizer: Path) -> None:
    with knowing(engine, tokenizer) as router, Client(f"http://127.0.0.1:{router.port}") as client:
        client.wait_ready(60)
        assert [worker.block_size for worker in client.workers(model=MODEL)] == [BLOCK]
        assert client.workers(model="another") == []
        answer = client.query(tokens=tokens_of(TEXT), model=MODEL, age=True)
        assert answer.token_scores() == {"e0": HELD}
        # No replay socket shows what was announced before.
        assert [each.worker for each in answer.workers if each.state == "live"] == ["e0"]
        assert client.query(tokens=tokens_of(TEXT), model=MODEL, salt="s").workers == ()
        assert client.query(tokens=tokens_of(TEXT), model=MODEL, among=["another"]).workers == ()
        with pytest.raises(ClientError, match="no engine serves the model"):
            client.query(tokens=tokens_of(TEXT), model="another")
        assert client.engines() == [EngineStatus("e0", engine.url, "up")]
        body = {"model": MODEL, "prompt": TEXT}
        explained = client.explain(body)
        assert [each["held_tokens"]["device"] for each in explained["candidates"]] == [HELD]
        hashes = content_hashes(tokens_of(TEXT), BLOCK).tolist()
        assert client.explain(body, hashes=True) == {**explained, "content_hashes": hashes}

        async def depth() -> int:
            async with AsyncClient(client.url) as other:
                return (await other.query(tokens=tokens_of(TEXT), model=MODEL)).depth

        assert asyncio.run(depth()) == 4


def test_a_router_that_follows_no_events(router: Router) -> None:
    shown = ask_by_command(router, "workers")
    assert shown.returncode == 0, shown
    assert f"no event stream: e0, up, model {MODEL}" in shown.stdout
    listed = json.loads(ask_by_command(router, "workers", "--json").stdout)
    assert [(each["worker"], each["streams"]) for each in listed] == [("e0", []), ("e1", [])]
    asked = ask_by_command(router, "query", "--tokens", ",".join(map(str, range(64))))
    assert (asked.returncode, "does not look at what engines hold" in asked.stderr) == (1, True), asked
