"""Engines whose events have blocks of another size than they announce, or than is set, and blocks that are not full."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.support.engine import Engine, Publisher, stored, vllm
from tests.support.waiting import until

from kvatlas.service import Config, DiscoveryConfig, Service

from .dialect.tools import ask
from .http_tools import register
from .process import address_of, logged, serving
from .test_publishers import stream

FAST = DiscoveryConfig(interval=0.1, timeout=60, request_timeout=30)
SIZE = 64


@contextlib.contextmanager
def announcing(size: int, publisher: Publisher) -> Iterator[Engine]:
    """An engine that announces this size at `/metrics`."""
    answers = vllm(block_size=size)
    source = answers["/kv_event_sources"]["0"]
    source |= {"endpoint": publisher.endpoint, "replay_endpoint": publisher.replay_endpoint}
    with Engine(answers) as engine:
        yield engine


@contextlib.contextmanager
def publishing() -> Iterator[Publisher]:
    with Publisher(replay_endpoint="tcp://127.0.0.1:*") as publisher:
        yield publisher


@contextlib.contextmanager
def following(*engines: Engine, **settings: Any) -> Iterator[Service]:
    named = [f"e{number}={engine.url}" for number, engine in enumerate(engines)]
    with Service(named, config=Config(discovery=FAST, **settings)) as service:
        yield service


def query(service: Service, tokens: list[int]) -> dict[str, Any]:
    address = service.url.removeprefix("http://")
    answer = ask(address, "POST", "/query", {"model_name": "m", "token_ids": tokens})
    assert answer.status == 200, answer
    found: dict[str, Any] = answer.json
    return found


def hybrid(group: int, kind: str, size: int, names: list[int], tokens: list[int]) -> dict[str, Any]:
    return stored(names, tokens, block_size=size) | {"group_idx": group, "kv_cache_spec_kind": kind}


@pytest.mark.parametrize(("announced", "size"), [(4, 256), (16, 64), (64, 16)])
def test_the_size_of_the_events_counts_for_more_than_the_announced_one(
    announced: int, size: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Hybrids, whose metric shows the smallest of all groups."""
    tokens = list(range(3 * size))
    with publishing() as publisher, announcing(announced, publisher) as engine, following(engine) as service:
        publisher.wait_for_reader()
        publisher.publish(hybrid(0, "full_attention", size, [1, 2, 3], tokens))
        until(lambda: query(service, tokens)["scores"] == {"e0": {"0": 3 * size}})
        assert query(service, tokens)["block_size"] == size
        # What follows is used as it comes.
        publisher.publish(stored([4], list(range(1000, 1000 + size)), parent=3, block_size=size))
        until(lambda: query(service, tokens + list(range(1000, 1000 + size)))["scores"] == {"e0": {"0": 4 * size}})
    said = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert any(f"announces blocks of {announced} tokens, and its events have blocks of {size}" in line for line in said)


def test_all_engines_of_a_model_that_only_announce_theirs() -> None:
    """One of them has said nothing yet: an index has one size."""
    tokens = list(range(2 * SIZE))
    with (
        publishing() as one,
        publishing() as two,
        announcing(4, one) as first,
        announcing(4, two) as second,
        following(first, second) as service,
    ):
        one.wait_for_reader()
        one.publish(stored([1, 2], tokens, block_size=SIZE))
        until(lambda: query(service, tokens)["scores"] == {"e0": {"0": 2 * SIZE}})
        two.publish(stored([7, 8], tokens, block_size=SIZE))
        until(lambda: query(service, tokens)["scores"] == {name: {"0": 2 * SIZE} for name in ("e0", "e1")})


def test_a_size_that_is_set_stays_and_is_warned_about() -> None:
    tokens = list(range(2 * SIZE))
    with (
        publishing() as publisher,
        announcing(SIZE, publisher) as engine,
        serving("--engine", f"e0={engine.url}", "--block-size", "16", "--discovery-interval", "0.1") as process,
    ):
        try:
            address, _log = address_of(process)
            publisher.wait_for_reader()
            publisher.publish(stored([1, 2], tokens, block_size=SIZE))
            logged(process, f"WARN.*blocks of {SIZE} tokens.*set or announced is 16")
            # Looked at again meanwhile.
            asked = engine.times("/kv_event_sources")
            until(lambda: engine.times("/kv_event_sources") > asked + 2)
            body = {"model_name": "m", "token_ids": tokens}
            answer = ask(address, "POST", "/query", body).json
            assert (answer["block_size"], answer["scores"]) == (16, {})
        finally:
            process.kill()


def test_blocks_that_are_not_full(service: Any, publishers: Callable[[], Publisher]) -> None:
    publisher = publishers()
    assert register(service, "e", publisher.endpoint, block_size=SIZE).status == 201
    publisher.wait_for_reader()
    tokens = list(range(3 * SIZE))
    # A part first: an engine with short prompts may begin so.
    publisher.publish(stored([100], tokens[:16], block_size=16))
    until(lambda: stream(service, "e")["refused"] == {"partial_block": 1})
    publisher.publish(stored([1, 2], tokens[: 2 * SIZE], block_size=SIZE))
    # Parts after full ones: in an event of their own, or at the end of one.
    publisher.publish(stored([101], tokens[2 * SIZE : 2 * SIZE + 16], parent=2, block_size=16))
    publisher.publish(stored([3, 102], [*tokens[2 * SIZE :], 7, 8], parent=2, block_size=SIZE))
    publisher.publish(stored([103], [5] * 32, block_size=32))
    until(lambda: stream(service, "e")["seq"] == 4)
    its = stream(service, "e")
    assert its["refused"] == {"partial_block": 4}
    assert not its["partial"], "nothing that a prompt could be found by is missed"
    assert "last_error" not in its
    assert its["blocks"] == 3
