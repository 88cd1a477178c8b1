"""What both clients do with httpx: how it is set up, and which of its errors mean what."""

from __future__ import annotations

import os
import re
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from kvatlas.errors import ClientError, InvalidArgumentError, InvalidTypeError, UnreachableError

_KEY = re.compile(r"[!-~]+", re.ASCII)


def options(url: str, key: str | None, timeout: float, ssl_context: ssl.SSLContext | None) -> dict[str, Any]:
    """How httpx is set up. Proxies of the environment are not used: the service is inside."""
    if not isinstance(url, str):
        raise InvalidTypeError(f"url must be a str, got {type(url).__name__}")
    if not timeout > 0:
        raise InvalidArgumentError(f"timeout must be above 0 seconds, got {timeout}", "out_of_range")
    if key and not _KEY.fullmatch(key):
        raise InvalidArgumentError("key must be visible ASCII characters without white space", "invalid_key")
    address = url.strip().rstrip("/")
    try:
        parts = httpx.URL(address)
    except httpx.InvalidURL as error:
        raise InvalidArgumentError(f"url must be http://HOST:PORT, got {url!r}: {error}", "invalid_url") from error
    if parts.scheme not in ("http", "https") or not parts.host:
        raise InvalidArgumentError(f"url must be http://HOST:PORT, got {url!r}", "invalid_url")
    # Reading the system's certificates takes a while, and plain HTTP needs none.
    context: ssl.SSLContext | bool = ssl_context or (ssl.create_default_context() if parts.scheme == "https" else False)
    return {
        "base_url": address,
        "headers": {"Authorization": f"Bearer {key}"} if key else {},
        "timeout": timeout,
        "verify": context,
        "trust_env": False,
    }


@contextmanager
def errors(url: str, *, closed: bool) -> Iterator[None]:
    """Within, httpx's errors become kvatlas's. A client that is closed is told so first."""
    if closed:
        raise ClientError(f"the client of {url} is closed", "closed")
    try:
        yield
    except httpx.TimeoutException as error:
        raise UnreachableError(f"{url} did not answer in time", "timeout") from error
    except httpx.RemoteProtocolError as error:
        raise UnreachableError(f"{url} gave no answer in HTTP: {reason(error)}") from error
    except httpx.HTTPError as error:
        raise UnreachableError(f"nobody answers at {url}: {reason(error)}") from error


def reason(error: BaseException) -> str:
    """The innermost cause in words: httpx wraps the system's several times over."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, socket.gaierror) and cause.strerror:
            return cause.strerror
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"its certificate is not trusted: {cause.verify_message}"
        if isinstance(cause, ssl.SSLError) and cause.reason == "WRONG_VERSION_NUMBER":
            return "it does not speak TLS: is it http:// instead of https://?"
        if isinstance(cause, OSError) and not isinstance(cause, ssl.SSLError) and cause.errno:
            return os.strerror(cause.errno)
        cause = cause.__cause__ or cause.__context__
    return str(error) or type(error).__name__
