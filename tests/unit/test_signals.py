"""Signals that ask to stop, whenever they come."""

import os
import signal
import subprocess
import sys
import time

from kvatlas._signals import stop_signals

PATIENCE = 60.0  # seconds after which a process hangs
WAITS = """
import signal
from kvatlas._signals import stop_signals

signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("waiting", flush=True)
noticed = 0
while noticed < 1000:
    with stop_signals() as stop:
        while not stop.wait(0.000_01):
            pass
        noticed += 1
"""
"""Stops a thousand times, each time at the next signal."""


def test_a_signal_at_any_moment_of_waiting_is_noticed() -> None:
    """With the lock of a `threading.Event` in the handler, the process hangs within some hundred signals."""
    with subprocess.Popen([sys.executable, "-c", WAITS], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"waiting\n"
            end = time.monotonic() + PATIENCE
            while process.poll() is None and time.monotonic() < end:
                process.send_signal(signal.SIGTERM)
            assert process.poll() == 0
        finally:
            process.kill()


def test_further_signals_are_passed_on_and_a_reload_is_taken_once() -> None:
    again: list[int] = []
    with stop_signals(again.append, reload=True) as stop:
        os.kill(os.getpid(), signal.SIGHUP)
        begin = time.monotonic()
        assert not stop.wait(60)
        assert time.monotonic() - begin < 30, "a reload ends the wait"
        assert [stop.take_reload(), stop.take_reload()] == [True, False]
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(os.getpid(), number)
        assert stop.wait(60)
        assert (stop.number, again) == (signal.SIGINT, [signal.SIGTERM])
