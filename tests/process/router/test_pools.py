"""Blocks of pools that engines did not load although they should have: they count no longer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.engine import Behaviour, Engine, Talk, whole

from kvatlas import content_hashes, prefix_hashes
from kvatlas.sim.server import Publisher
from kvatlas.wire import Stored, encode_batch

from .deciding import BLOCK, exact, expected, prompt, tokens_of
from .running import Router, wait_until

CHUNK = 4
GONE = "kvatlas_pool_gone_blocks_total"
CACHED = "x-kvatlas-cached-tokens"


def text(name: str, blocks: int) -> str:
    """A prompt of whole blocks and one token."""
    return (name + " ").ljust(blocks * BLOCK, "x") + "."


def in_pool(prompt: str) -> Stored:
    """The event by which an engine says that it has written a prompt's whole chunks to the pool."""
    tokens = tokens_of(prompt)
    tokens = tokens[: len(tokens) // (CHUNK * BLOCK) * CHUNK * BLOCK]
    names = prefix_hashes(content_hashes(tokens, BLOCK)).tolist()
    return Stored(names, None, tokens, BLOCK, medium="STORAGE", locality="REMOTE")


class Fleet:
    """A router in front of two engines that share a pool."""

    def __init__(self, router: Router, engines: dict[str, Engine], writer: Publisher) -> None:
        self.router, self.engines, self.writer = router, engines, writer

    def write(self, *prompts: str) -> None:
        """Announce that prompts are in the pool, and wait until that is known."""
        self.writer.publish(encode_batch(list(map(in_pool, prompts)), timestamp=time.time()))
        wanted = {sent: len(in_pool(sent).block_hashes) * BLOCK for sent in prompts}
        wait_until(lambda: wanted == {sent: self.known(sent, "e1") for sent in prompts}, "it is known")

    def known(self, sent: str, name: str) -> int:
        """Tokens of a prompt that an engine is expected to have."""
        return expected(self.router, sent)[name]

    def ask(self, sent: str, behaviour: Behaviour) -> tuple[int, str]:
        """Ask for a prompt. Returns the tokens that the engine was expected to have, and the other engine's name.

        Of the engine that was asked it is also expected that it has the prompt now.
        """
        for engine in self.engines.values():
            engine.behaviour = behaviour
        answer = self.router.ask(prompt(sent))
        assert answer.status == 200, answer
        return int(answer.headers[CACHED]), {"e0": "e1", "e1": "e0"}[answer.headers["x-kvatlas-worker"]]

    def gone(self) -> float:
        return self.router.metric(GONE, reason="not_loaded")


@contextmanager
def fleet(tokenizer: Path, settings: str = "") -> Iterator[Fleet]:
    with Engine() as a, Engine() as b, Publisher() as from_a, Publisher() as from_b:
        flags = exact(tokenizer, (a, from_a), (b, from_b))
        pool = f"folder,members=e0|e1,chunk={CHUNK}{settings}"
        with Router(a, b, flags=(*flags, "--pool", pool)) as router:
            wait_until(lambda: all(row["ranks"][0]["trusted"] for row in router.workers()), "events are followed")
            yield Fleet(router, router.engines, from_b)


def cached(sent: str, tokens: int) -> Behaviour:
    """An answer that says how many tokens of the prompt were cached."""
    return whole(prompt=len(tokens_of(sent)), cached=tokens)


def test_what_was_deleted_from_a_pool_is_expected_once(tokenizer: Path) -> None:
    """The chunk that was not loaded is dropped, and what follows it; the ones before it stay, and other prompts."""
    sent, other = text("one", 12), text("other", 8)
    with fleet(tokenizer) as it:
        it.write(sent, other)
        assert it.ask(other, cached(other, 8 * BLOCK))[0] == 8 * BLOCK
        assert it.gone() == 0
        # The second chunk was deleted.
        held, idle = it.ask(sent, cached(sent, 4 * BLOCK))
        assert held == 12 * BLOCK
        # The last block of this chunk, by which it is looked up, and the four of the next one.
        wait_until(lambda: it.gone() == 5, "two chunks are dropped")
        assert it.known(sent, idle) == 4 * BLOCK
        assert it.known(other, idle) == 8 * BLOCK
        it.write(sent)
        assert it.gone() == 5


def test_what_is_written_again_while_the_engine_answers_stays(tokenizer: Path) -> None:
    """An engine that does not find a chunk computes it and writes it before its answer ends."""
    sent, later = text("again", 8), text("later", 4)
    with fleet(tokenizer) as it:
        it.write(sent)

        async def writes_first(talk: Talk) -> None:
            await asyncio.to_thread(it.write, sent, later)
            await cached(sent, 0)(talk)

        held, idle = it.ask(sent, writes_first)
        assert held == 8 * BLOCK
        assert it.ask(later, cached(later, 0))[0] == 4 * BLOCK
        wait_until(lambda: it.gone() > 0, "the one that was decided later is dropped")
        assert it.gone() == 1
        assert it.known(sent, idle) == 8 * BLOCK


def test_blocks_whose_removal_would_have_been_announced_stay(tokenizer: Path) -> None:
    sent = text("sure", 8)
    with fleet(tokenizer, ",announces_removals=true") as it:
        it.write(sent)
        held, idle = it.ask(sent, cached(sent, 0))
        assert held == 8 * BLOCK
        it.write(text("later", 4))
        assert it.known(sent, idle) == 8 * BLOCK
        assert it.gone() == 0


def test_reports_of_other_prompts_drop_nothing(tokenizer: Path) -> None:
    """An engine that counts other tokens has computed another prompt."""
    sent = text("other tokens", 8)
    with fleet(tokenizer) as it:
        it.write(sent)
        _, idle = it.ask(sent, cached(sent + "x", 0))
        it.write(text("later", 4))
        assert it.known(sent, idle) == 8 * BLOCK
        assert it.gone() == 0
