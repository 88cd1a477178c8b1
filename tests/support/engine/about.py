"""Answers of engines that are asked where their events are."""

import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

METRICS = 'vllm:cache_config_info{block_size="%s",engine="%d",cache_dtype="auto"} 1.0\n'


def source(endpoint: str, replay_endpoint: str | None) -> dict[str, Any]:
    """vLLM 0.33 about the events of one rank."""
    about = {"enable_kv_cache_events": True, "publisher": "zmq", "buffer_steps": 10_000, "hwm": 100_000}
    return about | {"max_queue_size": 100_000, "topic": "", "endpoint": endpoint, "replay_endpoint": replay_endpoint}


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
    sources = {
        str(rank): source(f"tcp://{host}:{port + rank}", f"tcp://{host}:{port + 100 + rank}") | config
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
    """A free port that is reserved meanwhile."""
    with closing(socket.socket()) as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]
