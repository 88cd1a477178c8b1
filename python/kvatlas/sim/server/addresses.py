"""Forms of a host: to bind, and to connect to."""

from __future__ import annotations

_EVERY = ("*", "0.0.0.0")  # noqa: S104  # bound only if told so


def bindable(host: str) -> str:
    """The address to bind for HTTP."""
    return {"*": "0.0.0.0", "localhost": "127.0.0.1"}.get(host, host)  # noqa: S104  # only if told so


def reachable(host: str) -> str:
    """The host as part of a URL for clients on this machine."""
    if host in (*_EVERY, "localhost"):
        return "127.0.0.1"
    return f"[{host}]" if ":" in host else host


def zmq_endpoint(host: str, port: int) -> str:
    """The endpoint to bind for ZMQ."""
    return f"tcp://*:{port}" if host in _EVERY else f"tcp://{reachable(host)}:{port}"
