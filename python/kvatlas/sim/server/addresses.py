"""Forms of a host: to bind, and to connect to."""

from __future__ import annotations

_EVERY = ("*", "0.0.0.0")  # noqa: S104  # bound only if told so


def bindable(host: str) -> str:
    """Address to bind an HTTP server to for a configured host."""
    return {"*": "0.0.0.0", "localhost": "127.0.0.1"}.get(host, host)  # noqa: S104  # only if told so


def reachable(host: str) -> str:
    """Host in a URL for clients on this machine."""
    if host in (*_EVERY, "localhost"):
        return "127.0.0.1"
    return f"[{host}]" if ":" in host else host


def zmq_endpoint(host: str, port: int) -> str:
    """Endpoint to bind a ZMQ socket to."""
    return f"tcp://*:{port}" if host in _EVERY else f"tcp://{reachable(host)}:{port}"
