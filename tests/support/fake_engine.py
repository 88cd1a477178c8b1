"""Servers that answer as engines do when they are asked where their events are."""

import json
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

METRICS = 'vllm:cache_config_info{block_size="%s",engine="%d",cache_dtype="auto"} 1.0\n'


class FakeEngine:
    """An HTTP server; `answers` by path may be changed while it runs. A dict or list is JSON, an int a status."""

    def __init__(self, answers: dict[str, Any], *, port: int = 0, key: str | None = None) -> None:
        self.answers = answers
        self.key = key
        self.asked: Counter[str] = Counter()
        self.bodies: list[Any] = []  # of POST requests
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                path = self.path.partition("?")[0]
                fake.asked[path] += 1
                answer = fake.answers.get(path, 404)
                if fake.key is not None and self.headers.get("Authorization") != f"Bearer {fake.key}":
                    answer = 401
                status, body = (answer, b"") if isinstance(answer, int) else (200, answer)
                if isinstance(body, dict | list):
                    body = json.dumps(body)
                if isinstance(body, str):
                    body = body.encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def do_POST(self) -> None:
                length = int(self.headers.get("Content-Length", 0))
                fake.bodies.append(json.loads(self.rfile.read(length) or b"null"))
                self.do_GET()

            def log_message(self, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def close(self) -> None:
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
            self._server.server_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def vllm(
    *,
    ranks: int = 1,
    port: int = 5557,
    model: str = "m",
    aliases: tuple[str, ...] = (),
    block_size: object = 16,
    host: str = "*",
    **config: Any,
) -> dict[str, Any]:
    """The answer of vLLM 0.33 about its event sources."""
    about = {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "buffer_steps": 10_000,
        "hwm": 100_000,
        "max_queue_size": 100_000,
        "topic": "",
    }
    sources = {
        str(rank): about
        | {"endpoint": f"tcp://{host}:{port + rank}", "replay_endpoint": f"tcp://{host}:{port + 100 + rank}"}
        | config
        for rank in range(ranks)
    }
    adapter = {"id": "adapter", "parent": model}
    return {
        "/kv_event_sources": sources,
        "/v1/models": {
            "object": "list",
            "data": [adapter, *({"id": name, "parent": None} for name in (model, *aliases))],
        },
        "/metrics": "# HELP x\n" + "".join(METRICS % (block_size, rank) for rank in range(ranks)),
    }


def sglang(*, ranks: int = 1, port: int = 5557, **info: Any) -> dict[str, Any]:
    """The answer of SGLang 0.5.23 about itself and its events."""
    events = {
        "publisher": "zmq",
        "endpoint_host": "*",
        "endpoint_port_base": port,
        "topic": "kv",
        "block_size": 64,
        "dp_size": ranks,
        "replay_endpoint_port_base": port + 100,
    }
    about = {
        "model_path": "/models/m",
        "served_model_name": "m",
        "page_size": 64,
        "dp_size": ranks,
        "kv_events": events,
    }
    return {"/server_info": about | info}


@contextmanager
def closed_port() -> Iterator[int]:
    """A port that nobody listens at, and nobody else gets meanwhile."""
    with closing(socket.socket()) as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]
