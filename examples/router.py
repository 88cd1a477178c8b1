"""The router as a command in front of simulated engines, used by a plain HTTP client, and why it decided as it did."""

import json
import socket
import subprocess
import sys
import time
import urllib.request
from typing import Any

from kvatlas.sim.server import Fleet, ServerConfig


def free_port() -> int:
    """A free port."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def ask(url: str, body: dict[str, Any] | None = None) -> Any:
    """The JSON that the router answers; a POST if there is a body."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        return json.loads(answer.read() or "null")


def wait_ready(url: str, seconds: float) -> None:
    """Wait until the router has read what its engines hold."""
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


def main() -> None:
    """Send two turns of a conversation; the second finds the first in a cache."""
    with Fleet(2, ServerConfig(speed=100)) as fleet:
        engines = [flag for engine in fleet.engines for flag in ("--engine", f"{engine.name}={engine.url}")]
        address = f"127.0.0.1:{free_port()}"
        command = [sys.executable, "-m", "kvatlas.cli", "router", "--bind", address, "--tokenizer", "none", *engines]
        router = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        try:
            url = f"http://{address}"
            wait_ready(url, 20)

            prompt = list(range(640))
            ask(f"{url}/v1/completions", {"model": "sim-model", "prompt": prompt, "max_tokens": 4})
            time.sleep(0.5)  # the engine's events come a little later than its answer
            turn = {"model": "sim-model", "prompt": [*prompt, *range(9_000, 9_100)], "max_tokens": 4}
            usage = ask(f"{url}/v1/completions", turn)["usage"]
            cached = usage["prompt_tokens_details"]["cached_tokens"]
            print(f"second turn: {cached} of {usage['prompt_tokens']} tokens were cached")

            decision = ask(f"{url}/decisions")[0]
            print(f"sent to {decision['worker']}, which was expected to have {decision['cached_tokens']} tokens")
        finally:
            router.terminate()
            router.wait(10)


if __name__ == "__main__":
    main()
