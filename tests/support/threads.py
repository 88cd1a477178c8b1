"""Pieces of work in threads of their own."""

import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

PATIENCE = 120.0  # seconds, for what takes one or two


def times(number: int) -> int:
    """The number, or a tenth of it where the tests are to be quick, as property tests are: see `conftest.py`."""
    return number // 10 if os.environ.get("HYPOTHESIS_PROFILE") == "quick" else number


def run(enough: Callable[[], bool], *work: Callable[[], None]) -> None:
    """Each piece of work again and again in a thread of its own, until it is `enough` or one fails.

    Each is done once at least. So the same is tested on a slow machine as on a quick one. Raises AssertionError if it
    is not enough after two minutes.
    """
    end = time.monotonic() + PATIENCE
    failed = threading.Event()

    def repeat(piece: Callable[[], None]) -> None:
        try:
            while not failed.is_set():
                piece()
                if enough():
                    return
                assert time.monotonic() < end, "it is never enough"
        except BaseException:
            failed.set()
            raise

    with ThreadPoolExecutor(len(work)) as pool:
        for done in [pool.submit(repeat, piece) for piece in work]:
            done.result()
