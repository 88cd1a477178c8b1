"""A name server that knows one name more, for processes of `kvatlas`."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any


def with_name(name: str, addresses: Callable[[], list[str]]) -> Callable[..., list[Any]]:
    """A `getaddrinfo` that knows one name more."""
    known = socket.getaddrinfo

    def getaddrinfo(host: Any, *more: Any, **options: Any) -> list[Any]:
        if host != name:
            return known(host, *more, **options)
        found = [row for address in addresses() for row in known(address, *more, **options)]
        if not found:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return found

    return getaddrinfo


def know(name: str, file: Path) -> None:
    """This process knows a name from now on.

    The file has the name's addresses, one a line, and may change, as those of a headless Service do. It takes the
    place of the name server only: everything above `getaddrinfo` is what users run.
    """
    socket.getaddrinfo = with_name(name, lambda: file.read_text().split())
