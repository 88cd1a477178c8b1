"""Pieces of work in threads of their own."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor


def run(seconds: float, *work: Callable[[], None]) -> None:
    """Each piece of work again and again in a thread of its own, until the time is over or one fails."""
    end = time.monotonic() + seconds
    failed = threading.Event()

    def repeat(piece: Callable[[], None]) -> None:
        try:
            while time.monotonic() < end and not failed.is_set():
                piece()
        except BaseException:
            failed.set()
            raise

    with ThreadPoolExecutor(len(work)) as pool:
        for done in [pool.submit(repeat, piece) for piece in work]:
            done.result()
