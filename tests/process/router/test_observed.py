"""A router tells the index in another process what engines had cached, so that one that began late learns by it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.engine import MODEL, Engine, Talk, reply, whole

from .deciding import BLOCK, prompt, tokens_of
from .running import Router, wait_until

TEXT = "abcdefgh" * 25


class Index(Engine):
    """An index that knows nothing, and says of reports whether it could use them."""

    def __init__(self) -> None:
        self.wanted = False
        self.status = "200 OK"
        super().__init__(behaviour=self.say)

    async def say(self, talk: Talk) -> None:
        if talk.request.path.startswith("/query_by_hash"):
            await reply("200 OK", {"instances": {}, "block_size": BLOCK})(talk)
            return
        await reply(self.status, {"status": "ok", "wanted": self.wanted})(talk)

    @property
    def reports(self) -> list[dict[str, Any]]:
        return [json.loads(one.body) for one in self.received if one.path == "/observed"]


@pytest.fixture
def index() -> Iterator[Index]:
    with Index() as made:
        yield made


def flags(index: Index, tokenizer: Path) -> tuple[str, ...]:
    return ("--policy", "kvatlas", "--tokenizer", str(tokenizer), "--block-size", str(BLOCK), "--index", index.url)


def counted(router: Router, result: str) -> float:
    return router.metric("kvatlas_router_index_reports_total", result=result)


def ask(router: Router, text: str = TEXT) -> None:
    assert router.ask(prompt(text)).status == 200


def test_what_an_engine_had_cached_is_reported(engine: Engine, index: Index, tokenizer: Path) -> None:
    engine.behaviour = whole(prompt=len(TEXT), cached=5 * BLOCK)
    with Router(engine, flags=flags(index, tokenizer)) as router:
        ask(router)
        wait_until(lambda: counted(router, "not_needed") == 1, "the index was told")
        (report,) = index.reports
        # It may have been on its way for as long as it is waited for.
        assert 2.0 <= report.pop("age") < 20.0
        assert report == {
            "instance_id": "e0",
            "model_name": MODEL,
            "routing_group": "default",
            "dp_rank": 0,
            "token_ids": tokens_of(TEXT),
            "cached_tokens": 5 * BLOCK,
        }


def test_all_are_reported_once_one_was_of_use(engine: Engine, index: Index, tokenizer: Path) -> None:
    engine.behaviour = whole(prompt=len(TEXT), cached=BLOCK)
    index.wanted = True
    with Router(engine, flags=flags(index, tokenizer)) as router:
        ask(router)
        wait_until(lambda: counted(router, "used") == 1, "the index could use it")
        for _ in range(5):
            ask(router)
        wait_until(lambda: counted(router, "used") == 6, "all are reported")


def test_answers_about_another_prompt_are_not_reported(engine: Engine, index: Index, tokenizer: Path) -> None:
    engine.behaviour = whole(prompt=len(TEXT) + 1, cached=BLOCK)  # the engine makes other tokens of it
    with Router(engine, flags=flags(index, tokenizer)) as router:
        ask(router)
        assert index.reports == []


def test_an_index_that_asks_for_its_admin_key_is_named(engine: Engine, index: Index, tokenizer: Path) -> None:
    engine.behaviour = whole(prompt=len(TEXT), cached=BLOCK)
    index.status = "403 Forbidden"
    with Router(engine, flags=flags(index, tokenizer)) as router:
        ask(router)
        wait_until(lambda: counted(router, "refused") == 1, "it was refused")
        wait_until(lambda: "must be its admin key" in router.log, "it says so")
