"""Seconds from each of ten faults until all places name it, at a router with its usual settings.

Run it from the repository: `python -m tests.process.router.fault_times`. Two simulated engines get six requests a
second; each fault has a fleet and a router of its own. It exits with 1 if a fault is not named within `--limit`.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from kvatlas.sim import EngineConfig
from kvatlas.sim.server import EngineHandle, Fleet, ServerConfig, write_tokenizer

from .running import Router, ask_by_command
from .same_words import MODEL, live, page, places, routing

REQUESTS_PER_SECOND = 6.0
WELL = ServerConfig(engine=EngineConfig(block_size=16, prefill_rate=8_000.0, decode_rate=200.0, blocks=4_000))
GIVEN_UP = 90.0  # seconds

Fault = Callable[[EngineHandle, Router], None]


@dataclass(frozen=True)
class Case:
    """A fault of the first of two engines, or of the router.

    Attributes:
        fault: What happens, in words.
        names: The conditions that name it; the first that all places have counts.
        cause: Makes it happen.
        flags: Flags of the router.
        config: The first engine.
        seen: Where it is named, instead of where conditions are.
    """

    fault: str
    names: tuple[str, ...]
    cause: Fault
    flags: tuple[str, ...] = ("--tokenizer", "none")
    config: ServerConfig = WELL
    seen: Callable[[Router], dict[str, bool]] | None = None


def stop(engine: EngineHandle, _router: Router) -> None:
    os.kill(engine.pid, signal.SIGSTOP)


def kill(engine: EngineHandle, _router: Router) -> None:
    engine.kill()


def with_other_blocks(engine: EngineHandle, _router: Router) -> None:
    """The engine is away for as long as real ones take to start, at least. The time counts from when it is back."""
    engine.kill()
    time.sleep(15)
    engine.config = replace(engine.config, engine=replace(WELL.engine, block_size=32))
    engine.respawn()


def nothing(_engine: EngineHandle, _router: Router) -> None:
    """The engine or the router is so from the beginning: the time counts from the first request."""


def refusals(router: Router) -> dict[str, bool]:
    state = json.loads(router.get("/router")[1])
    return {
        "GET /router": state["refused"].get("queue_full", 0) > 0,
        "top": "queue_full" in ask_by_command(router, "top", "--once").stdout,
        "page": page(router)["refused"].get("queue_full", 0) > 0,
        "metrics": router.metric("kvatlas_router_decisions_refused_total", reason="queue_full") > 0,
        "log": " queue_full" in router.log,
    }


def full_disk(router: Router) -> dict[str, bool]:
    return {
        "GET /router": json.loads(router.get("/router")[1])["record"]["failed"] > 0,
        "top": "The record of decisions lost" in ask_by_command(router, "top", "--once").stdout,
        "metrics": router.metric("kvatlas_router_recorded_decisions_total", result="failed") > 0,
        "log": "No space left on device" in router.log,
    }


def cases(other_tokenizer: Path) -> list[Case]:
    """The faults of the guide "On call"."""
    slow = replace(WELL, engine=replace(WELL.engine, prefill_rate=WELL.engine.prefill_rate / 20))
    full = ("--tokenizer", "none", "--queue", "20")
    return [
        Case("an engine hangs", ("down", "silent", "busy"), stop),
        Case("an engine has died", ("down",), kill),
        Case("its events stop", ("no_events", "overdue"), has(drop=1.0, replay_socket="silent")),
        Case("it is 20 times slower", ("slow",), nothing, config=slow),
        Case("the queue is full", (), flood, flags=full, seen=refusals),
        Case("another chat template", ("other_tokens",), nothing, flags=("--tokenizer", str(other_tokenizer))),
        Case("another block size", ("refused", "misconfigured"), with_other_blocks),
        Case("its events are unreadable", ("refusing",), has(poison_event=1.0)),
        Case("it answers 503", ("busy",), has(http_refuse=1.0)),
        Case(
            "the record's disk is full", (), nothing, ("--tokenizer", "none", "--record", "/dev/full"), seen=full_disk
        ),
    ]


def has(**faults: object) -> Fault:
    """Gives the engine some faults."""

    def cause(engine: EngineHandle, _router: Router) -> None:
        engine.faults(**faults)

    return cause


def flood(_engine: EngineHandle, router: Router) -> None:
    """Three hundred long prompts at once."""
    for number in range(300):
        threading.Thread(target=ask, args=(router, f"{number} " + "word " * 8_000), daemon=True).start()


def ask(router: Router, text: str) -> None:
    """One chat, whatever comes of it."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": 20, "stream": True}
    with contextlib.suppress(OSError, http.client.HTTPException):
        router.ask(body)


@contextmanager
def requests(router: Router) -> Iterator[None]:
    """Chats, a few a second: half of them new, the others turns of five conversations."""
    stopped = threading.Event()

    def run() -> None:
        number = 0
        while not stopped.wait(1 / REQUESTS_PER_SECOND):
            begin = f"new {number} " if number % 2 else f"conversation {number % 5} "
            text = begin + "word " * (1_200 + 10 * (number // 10))
            threading.Thread(target=ask, args=(router, text), daemon=True).start()
            number += 1

    sender = threading.Thread(target=run, daemon=True)
    sender.start()
    try:
        yield
    finally:
        stopped.set()
        sender.join()


def measure(case: Case) -> tuple[str, dict[str, float]]:
    """The name that all places have for a fault, and the seconds until each had it."""
    with ExitStack() as stack:
        first = stack.enter_context(Fleet(1, case.config))
        second = stack.enter_context(Fleet(1, WELL))
        router = stack.enter_context(routing([first[0], second[0]], ("--policy", "kvatlas", *case.flags)))
        wait = time.monotonic()
        while not live(router, 2) and time.monotonic() - wait < GIVEN_UP:
            time.sleep(0.1)
        asking = requests(router)
        if case.cause is not nothing:
            stack.enter_context(asking)
            time.sleep(5)  # of ordinary work
        began = time.monotonic()
        case.cause(first[0], router)
        began = time.monotonic() if case.cause is with_other_blocks else began
        if case.cause is nothing:
            stack.enter_context(asking)
        try:
            return watch(case, router, began)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(first[0].pid, signal.SIGCONT)


def watch(case: Case, router: Router, began: float) -> tuple[str, dict[str, float]]:
    """Looks until one name is in all places."""
    times: dict[str, dict[str, float]] = {}
    while time.monotonic() - began < GIVEN_UP:
        for name in case.names or ("",):
            found = places(router, "e0", name) if case.seen is None else case.seen(router)
            known, now = times.setdefault(name, {}), time.monotonic() - began
            for place, is_named in found.items():
                if is_named:
                    known.setdefault(place, now)
            if len(known) == len(found):
                return name, known
        time.sleep(0.1)
    return "not named", {}


def main() -> int:
    """Measure all faults, or those with some words in them, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limit", type=float, default=15.0, help="seconds (default: 15)")
    parser.add_argument("--only", default="", help="words of a fault")
    args = parser.parse_args()
    in_time = 0
    with TemporaryDirectory() as folder:
        tokenizer = write_tokenizer(Path(folder))
        about = json.loads((tokenizer / "tokenizer_config.json").read_text())
        about["chat_template"] = "<|system|>Today<|end|>" + about["chat_template"]
        (tokenizer / "tokenizer_config.json").write_text(json.dumps(about))
        chosen = [case for case in cases(tokenizer) if args.only in case.fault]
        for case in chosen:
            name, times = measure(case)
            slowest = max(times.values(), default=float("inf"))
            in_time += slowest <= args.limit
            each = ", ".join(f"{place} {seconds:.1f}" for place, seconds in times.items())
            print(f"{case.fault:<26} {name:<13} {slowest:5.1f} s   {each}", flush=True)
    print(f"{in_time} of {len(chosen)} are named in all places within {args.limit:g} s")
    return 0 if in_time == len(chosen) else 1


if __name__ == "__main__":
    sys.exit(main())
