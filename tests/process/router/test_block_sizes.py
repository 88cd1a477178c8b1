"""A router in front of engines whose events have blocks of another size than they announce."""

from pathlib import Path

import pytest
from tests.support.engine import METRICS, MODEL, Engine, Publisher, whole

from kvatlas.wire import Stored, encode_batch

from .deciding import BLOCK, exact, expected, prompt, stored
from .running import Router, wait_until
from .test_complaints import text_of
from .test_conditions import condition

FLAGS = ("--policy", "kvatlas", "--model", MODEL, "--discovery-interval", "100ms")


@pytest.mark.parametrize("announced", [4, 64])
def test_prompts_are_looked_up_by_the_size_of_the_events(engine: Engine, tokenizer: Path, announced: int) -> None:
    """Hybrids announce the smallest of their groups' sizes, by which nothing would ever be found."""
    text = text_of(1, 20 * BLOCK)
    engine.answers = engine.answers | {"/metrics": METRICS % (announced, 0)}
    engine.behaviour = whole(prompt=len(text) + 1, cached=len(text))
    with Publisher(replay_endpoint="tcp://127.0.0.1:*") as publisher:
        engine.publishers = {0: publisher}
        with Router(engine, flags=(*FLAGS, "--tokenizer", str(tokenizer))) as router:
            publisher.publish(stored(text))
            wait_until(lambda: expected(router, text + "?")["e0"] == len(text), "the prompt is found")
            answer = router.ask(prompt(text + "?"))
            assert int(answer.headers["x-kvatlas-cached-tokens"]) == len(text)
            said = f"announces blocks of {announced} tokens, and its events have blocks of {BLOCK}"
            wait_until(lambda: router.log.count(said) == 1, "the log names both, once")
            wait_until(lambda: router.workers()[0]["condition"] is None, "the engine is well")


def test_a_topic_that_is_only_the_beginning_of_one(engine: Engine, tokenizer: Path) -> None:
    """Nothing of the engine's events is read, which is a condition with a reason."""
    text = text_of(1, 20 * BLOCK)
    with Publisher(replay_endpoint="tcp://127.0.0.1:*", topic=b"kv@host") as publisher:
        flags = (*exact(tokenizer, (engine, publisher)), "--stream")
        given = f"e0={publisher.endpoint},topic=kv@,replay_endpoint={publisher.replay_endpoint}"
        with Router(engine, flags=(*flags, given), ready=False) as router:
            publisher.publish(stored(text))
            wait_until(lambda: condition(router).get("name") == "misconfigured", "the engine is misconfigured")
            assert "another topic" in condition(router)["reason"]


def test_parts_of_blocks_are_no_trouble(engine: Engine, tokenizer: Path) -> None:
    """The end of a prompt is announced as a block of its own: it is left out, and the engine is well."""
    text = text_of(1, 20 * BLOCK)
    with (
        Publisher(replay_endpoint="tcp://127.0.0.1:*") as publisher,
        Router(engine, flags=exact(tokenizer, (engine, publisher))) as router,
    ):
        part = encode_batch([Stored([999], None, [1, 2, 3, 4], 4)], timestamp=0.0)
        publisher.publish(part)
        wait_until(lambda: condition(router).get("name") == "misconfigured", "as far as anybody can tell")
        publisher.publish(stored(text))
        wait_until(lambda: expected(router, text + "?")["e0"] == len(text), "the prompt is found")
        wait_until(lambda: condition(router) == {}, "the engine is well again")
        publisher.publish(part)
        refused = "kvatlas_stream_refused_total"
        wait_until(lambda: router.metric(refused, reason="partial_block") == 2, "it is counted")
        assert condition(router) == {}
