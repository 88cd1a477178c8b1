"""Decisions on the attempts of calls."""

import asyncio

from kvatlas.litellm.asked import AskedPrompt, read
from kvatlas.litellm.lookup import Holdings
from kvatlas.litellm.placing import Placer

WORKERS = ["a", "b", "c"]


def asked(**more: object) -> AskedPrompt:
    return read("m", [{"role": "user", "content": "x" * 640}], more)


def held(depths: dict[str, int] | None, hashes: list[int] | None = None, block_size: int = 16) -> Holdings:
    hashes = list(range(40)) if hashes is None else hashes
    return Holdings(40 * block_size, block_size, hashes, depths)


def place(placer: Placer, call_id: str, workers: list[str], found: Holdings) -> tuple[str | None, str]:
    return asyncio.run(placer.place(call_id, workers, asked(), found))


def test_an_attempt_goes_where_the_prompt_is_cached_and_the_next_one_elsewhere() -> None:
    placer = Placer()
    assert placer.untried("call", WORKERS) == WORKERS
    assert place(placer, "call", WORKERS, held({"b": 640})) == ("b", "policy")
    assert placer.shown("call") == ("b", 624, "policy")  # the last token is always computed
    left = placer.untried("call", WORKERS)
    assert left == ["a", "c"]
    second, _ = place(placer, "call", left, held({"b": 640, "c": 320}))
    assert second == "c"
    assert placer.untried("call", WORKERS) == ["a"]
    # If all have failed it, all may try again.
    assert place(placer, "call", ["a"], held({}))[0] == "a"
    assert placer.untried("call", WORKERS) == WORKERS
    assert (placer.in_flight, placer.counts()["failed"]) == (0, 3)


def test_an_attempt_that_litellm_placed_itself_counts_as_one() -> None:
    placer = Placer()
    assert placer.untried("call", WORKERS) == WORKERS
    assert placer.untried("call", WORKERS, "a") == ["b", "c"]
    assert placer.untried("call", WORKERS, "c") == ["b"]
    assert placer.untried(None, WORKERS, "a") == WORKERS


def test_work_counts_until_it_ends() -> None:
    placer = Placer()
    for number in range(6):
        found = held({}, list(range(1_000 * number, 1_000 * number + 40)))
        assert place(placer, f"call-{number}", WORKERS, found)[0] in WORKERS
    assert placer.in_flight == 6
    assert {placer.shown(f"call-{number}")[0] for number in range(6)} == set(WORKERS)  # type: ignore[index]
    for number in range(6):
        placer.first_token(f"call-{number}")
        placer.finish(f"call-{number}", 0, 5)
    placer.finish("call-0", 0, 5)
    placer.finish("never placed", 0, 5)
    assert (placer.in_flight, placer.counts()["finished"]) == (0, 6)


def test_a_failure_of_another_worker_ends_nothing() -> None:
    placer = Placer()
    place(placer, "call", WORKERS, held({"a": 640}))
    placer.fail("call", "b")
    assert placer.in_flight == 1
    placer.fail("call")
    assert placer.in_flight == 0


def test_prompts_that_were_just_sent_draw_others_that_begin_alike() -> None:
    placer = Placer()
    first, _ = place(placer, "one", WORKERS, held({}))
    placer.first_token("one")
    again, _ = place(placer, "two", WORKERS, held({}))
    assert again == first
    assert placer.shown("two") == (first, 624, "policy")


def test_reports_that_cannot_be_are_not_believed() -> None:
    placer = Placer()
    place(placer, "call", WORKERS, held({}))
    placer.finish("call", 10_000, -3)
    assert placer.counts()["finished"] == 1
    assert placer.counts()["reported_cached"] == 0


def test_engines_with_blocks_of_another_size_are_decided_by_these() -> None:
    placer = Placer()
    assert place(placer, "one", ["x", "y"], held({"y": 40 * 64}, block_size=64))[0] == "y"
    assert placer.shown("one") == ("y", 39 * 64, "policy")
    assert placer.in_flight == 1
    # Of a prompt that could not be read, the size of the engines' blocks is remembered.
    unread = Holdings(100, None, None, None, unread="no_tokenizer")
    worker, why = place(placer, "two", ["x", "y"], unread)
    assert (worker, why) == ("x", "no_tokens")
    assert placer.in_flight == 2


def test_who_is_not_trusted_is_not_believed() -> None:
    placer = Placer()
    found = Holdings(640, 16, list(range(40)), {"a": 640, "b": 320}, frozenset(["a"]))
    assert place(placer, "call", WORKERS, found)[0] == "b"


def test_a_request_waits_for_an_engine_that_has_enough_to_do_if_it_may() -> None:
    async def run() -> None:
        placer = Placer(wait=3_600)
        long = Holdings(640_000, 16, list(range(40_000)), {})  # more than a minute of work
        assert (await placer.place("one", ["a"], asked(), long))[0] == "a"
        waits = asyncio.create_task(placer.place("two", ["a"], asked(), held({}, list(range(50_000, 50_040)))))
        for _ in range(5):
            await asyncio.sleep(0.02)
        assert not waits.done()
        placer.finish("one", 0, 1)
        assert (await waits)[0] == "a"
        # One that is given up no longer counts.
        assert (await placer.place("three", ["a"], asked(), Holdings(640_000, 16, list(range(60_000, 100_000)), {})))[0]
        waits = asyncio.create_task(placer.place("four", ["a"], asked(), held({}, list(range(200_000, 200_040)))))
        await asyncio.sleep(0.02)
        waits.cancel()
        await asyncio.gather(waits, return_exceptions=True)
        assert placer.in_flight == 2

    asyncio.run(run())


def test_nothing_waits_by_default() -> None:
    placer = Placer()
    for number in range(3):
        begin = 100_000 * number
        assert place(placer, f"call-{number}", ["a"], Holdings(640_000, 16, list(range(begin, begin + 40_000)), {}))[0]
    assert placer.counts()["waited"] == 0


def test_a_call_that_begins_anew_under_an_old_id_may_go_anywhere() -> None:
    placer = Placer()
    place(placer, "call", WORKERS, held({"b": 640}))
    placer.begin("call")
    assert placer.untried("call", WORKERS) == WORKERS
    placer.begin("unknown")
    placer.begin(None)
