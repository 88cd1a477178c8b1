"""Long prompts are read beside the threads that serve: other requests do not wait for them."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from tests.support.engine import Engine

from .deciding import exact, prompt
from .running import Router, wait_until


def test_health_does_not_wait_for_a_long_prompt_that_is_explained(engine: Engine, tokenizer: Path) -> None:

    text = "".join(f"{number} " for number in range(1_200_000))
    flags = (*exact(tokenizer), "--no-events", "--http-threads", "1")
    with Router(engine, flags=flags) as router:
        took: list[float] = []

        def ask() -> None:
            began = time.monotonic()
            assert router.ask(prompt(text), path="/explain").status == 200
            took.append(time.monotonic() - began)

        asking = threading.Thread(target=ask)
        asking.start()
        longest = 0.0
        while asking.is_alive():
            began = time.monotonic()
            assert router.get("/health")[0] == 200
            longest = max(longest, time.monotonic() - began)
            time.sleep(0.005)
        asking.join()
        # On the thread that serves, it would take nearly all of that time.
        assert longest < took[0] / 2, (longest, took)
        wait_until(lambda: router.in_flight() == 0, "nothing is in flight")
