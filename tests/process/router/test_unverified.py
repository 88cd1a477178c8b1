"""An engine without a replay socket that restarts with continued numbers: answers say `unverified`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.engine import MODEL, Engine, Publisher, reply, whole

from kvatlas._native import Stored, encode_batch
from kvatlas.service import Config, HttpConfig, Service, SitesConfig
from kvatlas.sim.server.ports import free_block

from .deciding import BLOCK, expected, prompt, tokens_of
from .running import Router, wait_until

TEXT = "abcdefgh" * 25


@contextmanager
def publishing(port: int) -> Iterator[Publisher]:
    """An engine's events, once a reader has subscribed to them."""
    with Publisher(f"tcp://127.0.0.1:{port}") as publisher:
        publisher.wait_for_reader()
        yield publisher


def publish(publisher: Publisher, number: int) -> None:
    """The next block of the prompt."""
    tokens = tokens_of(TEXT)[number * BLOCK : (number + 1) * BLOCK]
    stored = Stored([number + 1], number or None, tokens, BLOCK)
    publisher.send(number, encode_batch([stored], timestamp=0.0))


def test_what_a_service_says_is_passed_on(engine: Engine, tokenizer: Path) -> None:
    """The same with `--index`: the service follows the events, and the router has only its answers."""
    engine.behaviour = whole(prompt=len(TEXT))
    port = free_block("127.0.0.1")
    config = Config(http=HttpConfig(bind="127.0.0.1:0"))
    with Service(config=config) as service:
        service.client().register("e0", f"tcp://127.0.0.1:{port}", model=MODEL, block_size=BLOCK)
        flags = ("--policy", "kvatlas", "--tokenizer", str(tokenizer), "--block-size", str(BLOCK))
        with Router(engine, flags=(*flags, "--index", service.url)) as router:

            def said() -> tuple[str | None, str | None]:
                headers = router.ask(prompt(TEXT)).headers
                return headers.get("x-kvatlas-cached-tokens"), headers.get("x-kvatlas-unverified")

            with publishing(port) as publisher:
                for number in range(4):
                    publish(publisher, number)
                wait_until(lambda: expected(router, TEXT) == {"e0": 4 * BLOCK}, "the blocks are known")
                assert said() == (str(4 * BLOCK), None)
            with publishing(port) as publisher:
                publish(publisher, 4)
                wait_until(lambda: said()[1] == "1", "it is marked")
                explained = json.loads(router.ask(prompt(TEXT), path="/explain").body)
                assert explained["unverified"] == ["e0"]


def test_what_a_site_says_is_passed_on(engine: Engine, tokenizer: Path) -> None:
    """A site's own router knows its engines: what it says of one is not taken back above it."""
    engine.behaviour = reply("200 OK", {"choices": []}, "x-kvatlas-unverified: 1")
    flags = ("--tokenizer", str(tokenizer), "--block-size", str(BLOCK))
    config = Config(http=HttpConfig(bind="127.0.0.1:0"), sites=SitesConfig(role="global"))
    with Service(config=config) as top, Router(engine, flags=(*flags, "--global", top.url)) as router:
        assert router.ask(prompt(TEXT)).headers["x-kvatlas-unverified"] == "1"
    with Router(engine, flags=(*flags, "--no-events")) as router:
        assert "x-kvatlas-unverified" not in router.ask(prompt(TEXT)).headers


def test_an_answer_says_so_and_so_does_explain(engine: Engine, tokenizer: Path) -> None:
    engine.behaviour = whole(prompt=len(TEXT))
    port = free_block("127.0.0.1")
    flags = ("--policy", "kvatlas", "--tokenizer", str(tokenizer), "--block-size", str(BLOCK))
    with Router(engine, flags=(*flags, "--events-port", str(port)), ready=False) as router:
        with publishing(port) as publisher:
            for number in range(4):
                publish(publisher, number)
            router.wait_ready()

            def is_marked() -> bool:
                return router.ask(prompt(TEXT)).headers.get("x-kvatlas-unverified") == "1"

            wait_until(lambda: expected(router, TEXT) == {"e0": 4 * BLOCK}, "the blocks are known")
            assert not is_marked()
            assert "unverified" not in json.loads(router.ask(prompt(TEXT), path="/explain").body)
        with publishing(port) as publisher:
            publish(publisher, 4)
            wait_until(is_marked, "it is marked")
            explained = json.loads(router.ask(prompt(TEXT), path="/explain").body)
            assert explained["unverified"] == ["e0"]
