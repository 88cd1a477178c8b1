"""Hybrid models over sockets: what a real engine's cache managers published, and how far they themselves could serve.

The recordings come from vLLM 0.33.0's `KVCacheManager`, driven without a model, with the cache groups that its first
line names: its batches, and now and then a prompt with the tokens of it that the engine can serve (`hit`), and those
that it would not have computed again if this had been the whole prompt (`capped`).
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.engine import Publisher, stored
from tests.support.waiting import until

from kvatlas import content_hashes
from kvatlas._native import Service
from kvatlas.client import Client, Query

from .dialect.tools import MODEL, ask
from .http_tools import register

RECORDINGS = Path(__file__).parent / "recordings"
BLOCK = 16
EXACT = [
    "window",
    "window-dense",
    "window-first",
    "two-windows",
    "coarse-window",
    "two-full",
    "mamba",
    "only-window-dense",
    "only-windows-dense",
]
"""Recordings: what kinds of groups there are, and whether all full blocks are kept or, as by default, the tails."""


def records(name: str) -> Iterator[dict[str, Any]]:
    with gzip.open(RECORDINGS / f"hybrid-{name}.jsonl.gz", "rt", encoding="utf-8") as lines:
        yield from map(json.loads, lines)


class Engine:
    """One whose batches are replayed from a recording."""

    def __init__(self, service: Service, publisher: Publisher) -> None:
        self.service = service
        self.publisher = publisher
        assert register(service, "e", publisher.endpoint, block_size=BLOCK).status == 201
        publisher.wait_for_reader()

    def publish(self, record: dict[str, Any]) -> None:
        payload = base64.b64decode(record["payload"])
        self.publisher.send(record["seq"], payload)

    def stream(self) -> dict[str, Any]:
        workers = ask(self.service.address, "GET", "/workers").json
        stream: dict[str, Any] = workers[0]["streams"]["0"]
        return stream

    def ask(self, path: str, **body: Any) -> Any:
        answer = ask(self.service.address, "POST", path, {"model_name": MODEL} | body)
        assert answer.status == 200, answer
        return answer.json

    def depths(self, record: dict[str, Any]) -> set[int]:
        """The depth of a prompt, as each kind of answer has it."""
        tokens, salt = record["tokens"], record["salt"]
        given = {} if salt is None else {"cache_salt": salt}
        plain = self.ask("/query", token_ids=tokens, levels=True, **given)
        hashes = [int(content) for content in content_hashes(tokens, block_size=BLOCK, salt=salt)]
        by_hash = self.ask("/query_by_hash", block_hashes=hashes, top_k=1)
        batch = self.ask("/query_batch", queries=[{"token_ids": tokens, **given}], among=["e"])
        assert "upper_bound" not in plain, plain
        found = {answer["scores"].get("e", {}).get("0", 0) for answer in (plain, by_hash)}
        found |= {answer["instances"].get("e", {}).get("longest_matched", 0) for answer in (plain, by_hash)}
        found.add(next((level["tokens"] for level in plain["levels"]), 0))
        return found | {next(iter(batch["answers"][0]["tokens"]), 0)}

    def usable(self, record: dict[str, Any], client: Client) -> set[int]:
        """The tokens of a prompt that the engine can reuse, as each kind of answer has them."""
        tokens, salt = record["tokens"], record["salt"]
        given = {} if salt is None else {"cache_salt": salt}
        hashes = [int(content) for content in content_hashes(tokens, block_size=BLOCK, salt=salt)]
        plain = self.ask("/query", token_ids=tokens, **given)
        by_hash = self.ask("/query_by_hash", content_hashes=hashes, prompt_tokens=len(tokens))
        found = {answer["instances"].get("e", {"usable": 0})["usable"] for answer in (plain, by_hash)}
        single = client.query(tokens=tokens, salt=salt, model=MODEL).workers
        (batch,) = client.query_batch([Query(tokens=tokens, salt=salt)], model=MODEL).answers
        return found | {each[0].usable or 0 if each else 0 for each in (single, batch.ranks)}


@pytest.mark.parametrize("name", EXACT)
def test_every_answer_of_the_engine(service: Service, publishers: Callable[[], Publisher], name: str) -> None:
    engine = Engine(service, publishers())
    last, judged, hits = -1, 0, 0
    wrong, wrong_usable = [], []
    client = Client(f"http://{service.address}")
    for record in records(name):
        match record["type"]:
            case "batch":
                engine.publish(record)
                last = record["seq"]
            case "truth":
                until(lambda last=last: engine.stream()["seq"] == (None if last < 0 else last))
                judged += 1
                hits += record["hit"] > 0
                if (found := engine.depths(record)) != {record["hit"]}:
                    wrong.append((record["after_seq"], record["hit"], found))
                if (found := engine.usable(record, client)) != {record["capped"]}:
                    wrong_usable.append((record["after_seq"], record["capped"], found))
    client.close()
    assert judged > 50
    assert hits > 4
    assert not wrong, (judged, len(wrong), wrong[:10])
    assert not wrong_usable, (judged, len(wrong_usable), wrong_usable[:10])
    stream = engine.stream()
    assert stream["refused"] == {}
    assert stream["counters"]["group_events"] > 0
    assert not stream["upper_bound"]


def test_of_windows_alone_the_events_may_not_tell(service: Service, publishers: Callable[[], Publisher]) -> None:
    """vLLM names by default the blocks of a window that it keeps, without saying which ones they are."""
    engine = Engine(service, publishers())
    last = -1
    for record in records("only-window"):
        if record["type"] == "batch":
            engine.publish(record)
            last = record["seq"]
    until(lambda: engine.stream()["seq"] == last)
    stream = engine.stream()
    assert (stream["partial"], stream["upper_bound"], stream["refused"]) == (True, False, {})
    answer = engine.ask("/query", token_ids=[1] * 64)
    assert answer["instances"] == {}
    assert answer["partial"] == [{"instance_id": "e", "dp_rank": 0}]


def test_what_a_group_holds_goes_with_the_rest(service: Service, publishers: Callable[[], Publisher]) -> None:
    """A lost batch without a replay socket costs everything; so does leaving."""
    engine = Engine(service, publishers())
    *_, truth = (record for record in records("window") if record["type"] == "truth" and record["hit"])
    batches = [record for record in records("window") if record["type"] == "batch"][: truth["after_seq"] + 1]
    for record in batches:
        engine.publish(record)
    until(lambda: engine.stream()["seq"] == batches[-1]["seq"])
    # A gap, and after it the whole life again as if nothing had been.
    for record in batches:
        engine.publish(record | {"seq": record["seq"] + batches[-1]["seq"] + 5})
    until(lambda: engine.stream()["seq"] == 2 * batches[-1]["seq"] + 5)
    assert engine.stream()["counters"]["resets"] == 1
    assert engine.depths(truth) == {truth["hit"]}
    assert ask(service.address, "POST", "/unregister", {"instance_id": "e"}).status == 200
    other = Engine(service, publishers())
    tokens = list(range(32))
    other.publisher.publish(stored([1, 2], tokens, block_size=BLOCK))
    until(lambda: other.stream()["seq"] == 0)
    assert other.ask("/query", token_ids=tokens)["scores"] == {"e": {"0": 32}}, "of a plain model"
