"""Process that runs engines: `python -m kvatlas.sim.server.process`, as `Fleet` starts it.

The process reads one line of JSON (the engines), answers with one line (their addresses, or an error), and serves until
SIGTERM or until its standard input ends, which happens when its parent process ends in any way.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import resource
import signal
import sys
from typing import Any

import zmq

from kvatlas.errors import KvatlasError
from kvatlas.sim.server.config import ServerConfig
from kvatlas.sim.server.server import EngineServer
from kvatlas.sim.server.traffic import Traffic, TrafficConfig

_SOCKETS = 2  # of ZMQ, a rank


async def serve(plan: dict[str, Any]) -> None:
    """Run the engines of `plan` until SIGTERM or the end of standard input."""
    configs = {int(number): ServerConfig.from_dict(data) for number, data in plan["engines"].items()}
    _allow_files()
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    context.set(zmq.MAX_SOCKETS, max(1_023, _SOCKETS * sum(one.ranks + 1 for one in configs.values())))
    engines = {number: EngineServer(one, context=context) for number, one in configs.items()}
    traffic = TrafficConfig.from_dict(plan["traffic"]) if plan["traffic"] else None
    started: list[EngineServer] = []
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    feeding: asyncio.Task[None] | None = None
    try:
        trace = traffic.read() if traffic else None
        for engine in engines.values():
            await engine.start()
            started.append(engine)
        _say({"engines": {number: _where(engine) for number, engine in engines.items()}})
        loop.add_reader(sys.stdin.fileno(), _ended, stop)
        gc.freeze()
        if traffic:
            feeding = loop.create_task(Traffic(traffic, engines, plan["count"]).run(trace))
            feeding.add_done_callback(lambda _: stop.set())
        await stop.wait()
    finally:
        if feeding is not None:
            feeding.cancel()
            await asyncio.wait([feeding])
        await asyncio.gather(*(engine.close() for engine in started))
        context.term()
    if feeding is not None and not feeding.cancelled():
        feeding.result()  # it ended by itself: with an error


def main() -> int:
    """Read a plan of engines from standard input, and run the engines. Returns the exit status."""
    line = sys.stdin.readline()
    if not line:
        return 0
    try:
        asyncio.run(serve(json.loads(line)))
    except KvatlasError as error:
        _say({"error": str(error), "code": error.code})
        return 1
    return 0


def _where(engine: EngineServer) -> dict[str, object]:
    return {
        "http_port": engine.http_port,
        "events_port": engine.events_port,
        "replay_port": engine.replay_port,
        "pull_port": engine.pull_port,
    }


def _say(message: dict[str, object]) -> None:
    with contextlib.suppress(OSError):
        sys.stdout.write(json.dumps(message) + "\n")
        sys.stdout.flush()


def _ended(stop: asyncio.Event) -> None:
    if not os.read(sys.stdin.fileno(), 1):
        stop.set()
        asyncio.get_running_loop().remove_reader(sys.stdin.fileno())


def _allow_files() -> None:
    """Raise the limit of open files to the maximum, for the sockets of all engines and readers."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


if __name__ == "__main__":
    sys.exit(main())
