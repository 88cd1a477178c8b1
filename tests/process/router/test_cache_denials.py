"""Engines whose reports of what they had cached are not what their events say that they hold."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.engine import Behaviour, Engine, Publisher, Talk, whole

from kvatlas import content_hashes, prefix_hashes
from kvatlas.wire import Removed, encode_batch

from .deciding import BLOCK, exact, expected, prompt, stored, tokens_of
from .running import Router, ask_by_command, wait_until
from .test_complaints import text_of

OFF = "kvatlas_router_cached_tokens_off_count"
LEARNT = 5  # reports after which a constant shortfall is expected


class Cache:
    """A router in front of one engine, what the engine holds, and the way in which it reports that."""

    def __init__(self, router: Router, engine: Engine, publisher: Publisher) -> None:
        self.router, self.engine, self.publisher = router, engine, publisher
        self.asked = 0

    def hold(self, text: str) -> None:
        self.publisher.publish(stored(text))
        blocks = len(text) // BLOCK
        wait_until(lambda: expected(self.router, text + "?")["e0"] > 0 or blocks < 2, "its blocks are known")

    def ask(self, text: str, cached: int) -> int:
        """Send a prompt with `cached` tokens in the engine's cache. Returns how many were expected."""
        self.engine.behaviour = whole(prompt=len(text), cached=cached)
        answer = self.router.ask(prompt(text))
        assert answer.status == 200, answer
        self.asked += 1
        wait_until(lambda: self.router.metric(OFF) == self.asked, "the report is counted")
        return int(answer.headers["x-kvatlas-cached-tokens"])

    def off(self, reason: str) -> float:
        return self.router.metric(OFF, reason=reason)

    def condition(self) -> dict[str, Any]:
        found: dict[str, Any] = self.router.workers()[0]["condition"] or {}
        return found


@pytest.fixture
def cache(engine: Engine, tokenizer: Path) -> Iterator[Cache]:
    with (
        Publisher(replay_endpoint="tcp://127.0.0.1:*") as publisher,
        Router(engine, flags=exact(tokenizer, (engine, publisher))) as router,
    ):
        yield Cache(router, engine, publisher)


def removed(text: str, blocks: int) -> bytes:
    """The engine evicts the last blocks of a prompt."""
    tokens = tokens_of(text)
    names = prefix_hashes(content_hashes(tokens[: len(tokens) // BLOCK * BLOCK], BLOCK)).tolist()
    return encode_batch([Removed([name]) for name in reversed(names[-blocks:])], timestamp=0.0)


@pytest.mark.parametrize("lacks", [1, 2])
def test_a_constant_shortfall_is_expected_in_the_end(cache: Cache, lacks: int) -> None:
    """A drafting head: the last block that matches is computed again."""
    for number in range(LEARNT):
        text = text_of(number, (8 + number) * BLOCK)
        cache.hold(text)
        assert cache.ask(text + "?", len(text) - lacks * BLOCK) == len(text)
    assert cache.off("less_than_known") == LEARNT
    text = text_of(100, 20 * BLOCK)
    cache.hold(text)
    for _ in range(3):
        assert cache.ask(text + "?", len(text) - lacks * BLOCK) == len(text) - lacks * BLOCK
    # Of a prompt that is held as a whole one block cannot be used; the others lack below that.
    assert cache.ask(text, len(text) - (lacks + 1) * BLOCK) == len(text) - (lacks + 1) * BLOCK
    assert cache.off("as_expected") == 4
    assert cache.off("evicted_meanwhile") == 0
    assert cache.condition() == {}
    # The head is taken off.
    for _ in range(3):
        cache.ask(text + "?", len(text))
    assert cache.ask(text + "?", len(text)) == len(text)


def test_an_engine_that_denies_again_and_again(cache: Cache) -> None:
    texts = [text_of(number, 10 * BLOCK) for number in range(10)]
    for text in texts:
        cache.hold(text)
    for text in texts[:LEARNT]:
        assert cache.ask(text + "?", 0) == len(text)
    assert (cache.off("evicted_meanwhile"), cache.off("less_than_known")) == (0, LEARNT)
    wait_until(lambda: cache.condition().get("name") == "denying", "the engine is denying")
    about = cache.condition()
    assert "0 of the 50 blocks" in about["reason"]
    assert about["advice"]
    assert about["runbook"].endswith("docs/runbooks/denying.md")
    assert cache.router.metric("kvatlas_router_engine_condition", engine="e0", condition="denying") == 1
    assert "denying" in ask_by_command(cache.router, "top", "--once").stdout
    wait_until(lambda: cache.router.log.count("the engine is denying") == 1, "the log says so, once")
    # What it holds counts for nothing as long as it has nothing of it; its index is as it was.
    assert cache.ask(texts[5] + "?", 0) == 0
    for text in texts[6:]:
        cache.ask(text + "?", len(text))
    for _ in range(3):
        cache.ask(texts[9] + "?", len(texts[9]))
    assert cache.ask(texts[9] + "?", len(texts[9])) == len(texts[9])
    wait_until(lambda: cache.condition() == {}, "it is well again")


def test_it_goes_by_the_share_that_it_had(engine: Engine, other: Engine, tokenizer: Path) -> None:
    """Requests go where less is held and had, rather than where much is held and little had."""
    with (
        Publisher(replay_endpoint="tcp://127.0.0.1:*") as one,
        Publisher(replay_endpoint="tcp://127.0.0.1:*") as two,
        Router(engine, other, flags=exact(tokenizer, (engine, one), (other, two))) as router,
    ):
        text = text_of(1, 100 * BLOCK)
        one.publish(stored(text))
        two.publish(stored(text[: 60 * BLOCK]))
        wait_until(lambda: expected(router, text + "?") == {"e0": 100 * BLOCK, "e1": 60 * BLOCK}, "all is known")
        engine.behaviour = whole(prompt=len(text) + 1, cached=25 * BLOCK)
        other.behaviour = whole(prompt=len(text) + 1, cached=60 * BLOCK)
        answers = [router.ask(prompt(text + "?")).headers["x-kvatlas-worker"] for _ in range(12)]
        assert answers[:5] == ["e0"] * 5
        # The first that went to the other one has put all of the prompt there, as far as is known.
        assert answers[-1] == "e1"
        wait_until(lambda: router.in_flight() == 0, "all is over")
        held = expected(router, text + "?")
        assert held["e0"] == 25 * BLOCK


def test_what_was_removed_meanwhile_was_evicted_and_nothing_is_learnt_of_it(cache: Cache) -> None:
    for number in range(2 * LEARNT):
        text = text_of(number, 10 * BLOCK)
        cache.hold(text)
        cache.engine.behaviour = evicting(cache, text, 4)
        answer = cache.router.ask(prompt(text + "?"))
        cache.asked += 1
        assert int(answer.headers["x-kvatlas-cached-tokens"]) == len(text)
        wait_until(lambda: cache.router.metric(OFF) == cache.asked, "the report is counted")
    assert cache.off("evicted_meanwhile") == 2 * LEARNT
    assert cache.condition() == {}
    text = text_of(100, 10 * BLOCK)
    cache.hold(text)
    assert cache.ask(text + "?", len(text)) == len(text)


def evicting(cache: Cache, text: str, blocks: int) -> Behaviour:
    """An engine that evicts the last blocks of the prompt before it looks, and answers when the router has heard."""
    answer = whole(prompt=len(text) + 1, cached=len(text) - blocks * BLOCK)
    removals = "kvatlas_stream_removed_blocks_total"

    async def act(talk: Talk) -> None:
        before = await asyncio.to_thread(cache.router.metric, removals)
        cache.publisher.publish(removed(text, blocks))
        while await asyncio.to_thread(cache.router.metric, removals) < before + blocks:
            await asyncio.sleep(0.01)
        await answer(talk)

    return act


@pytest.mark.parametrize("what", ["logprobs", "salt", "other tokens"])
def test_prompts_of_which_an_engine_has_less_for_good_reason(cache: Cache, what: str) -> None:
    text = text_of(1, 10 * BLOCK)
    cache.hold(text)
    fields: dict[str, dict[str, Any]] = {"logprobs": {"prompt_logprobs": 1}, "salt": {"cache_salt": "tenant"}}
    more = fields.get(what, {})
    cache.engine.behaviour = whole(prompt=len(text) + (30 if what == "other tokens" else 1), cached=0)
    for _ in range(2 * LEARNT):
        assert cache.router.ask(prompt(text + "?") | more).status == 200
        cache.asked += 1
    wait_until(lambda: cache.router.metric(OFF) == cache.asked, "all reports are counted")
    if what == "other tokens":
        wait_until(lambda: cache.condition().get("name") == "other_tokens", "that is the trouble, and no denial")
    else:
        assert cache.condition() == {}
    assert cache.ask(text + "?", len(text)) == len(text)
