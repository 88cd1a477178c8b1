"""Every part as a process of its own, as a script that starts containers would: engines, two services, two routers.

The routers ask the services what engines hold. One service is stopped on the way: its router goes on by load, and the
other one as before.
"""

import contextlib
import json
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from typing import Any

from kvatlas.sim.server import Fleet, ServerConfig


def free_port() -> int:
    """A free port."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@contextlib.contextmanager
def part(name: str, *flags: str) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """A part of kvatlas in a process of its own, with its address. It is stopped in the end."""
    address = f"127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "kvatlas.cli", name, "--bind", address, *flags]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        yield f"http://{address}", process
    finally:
        process.terminate()
        process.wait(10)


def ask(url: str, body: dict[str, Any] | None = None) -> Any:
    """The JSON of an answer; a POST if there is a body."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        return json.loads(answer.read() or "null")


def wait_ready(url: str, seconds: float = 20) -> None:
    """Wait until a service or a router is ready."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            ask(f"{url}/ready")
        except OSError:  # not listening yet, or an answer of 503
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
        else:
            return


def complete(router: str, prompt: list[int]) -> int:
    """Send a prompt; the tokens of it that the engine had cached."""
    answer = ask(f"{router}/v1/completions", {"model": "sim-model", "prompt": prompt, "max_tokens": 2})
    return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])


def main() -> None:
    """Send a prompt through each router, with both services and with one."""
    with contextlib.ExitStack() as stack:
        fleet = stack.enter_context(Fleet(3, ServerConfig(speed=100)))
        engines = [flag for engine in fleet.engines for flag in ("--engine", f"{engine.name}={engine.url}")]
        services = [stack.enter_context(part("serve", *engines)) for _ in range(2)]
        routers = [
            stack.enter_context(part("router", "--index", url, "--tokenizer", "none", *engines))[0]
            for url, _ in services
        ]
        for url in (*(url for url, _ in services), *routers):
            wait_ready(url)

        prompt = list(range(1_280))
        complete(routers[0], prompt)
        time.sleep(0.5)  # the engine's events come a little later than its answer
        print(f"the other router finds {complete(routers[1], prompt)} of 1280 tokens cached")

        services[0][1].terminate()
        services[0][1].wait(10)
        answered = complete(routers[0], list(range(5_000, 5_640))) == 0
        print(f"without its service, a router answers by load: {answered}")
        print(f"the other one finds {complete(routers[1], prompt)} tokens")


if __name__ == "__main__":
    main()
