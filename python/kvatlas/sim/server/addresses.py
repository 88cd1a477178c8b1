"""Conversions of a configured host to the address to bind and to the host that clients connect to."""

from __future__ import annotations

_EVERY = ("*", "0.0.0.0")  # noqa: S104  # bound only if told so


def bindable(host: str) -> str:
    """Address to which to bind an HTTP server, for a configured host."""
    return {"*": "0.0.0.0", "localhost": "127.0.0.1"}.get(host, host)  # noqa: S104  # only if told so


def reachable(host: str) -> str:
    """Host in a URL for clients on this machine, for a configured host."""
    if host in (*_EVERY, "localhost"):
        return "127.0.0.1"
    return f"[{host}]" if ":" in host else host


def zmq_endpoint(host: str, port: int) -> str:
    """Endpoint to which to bind a ZMQ socket, for a configured host and port."""
    return f"tcp://*:{port}" if host in _EVERY else f"tcp://{reachable(host)}:{port}"
