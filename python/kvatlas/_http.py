"""Common code of the HTTP clients of kvatlas: addresses, bearer keys, settings of httpx, descriptions of its errors.

Used by the clients of the service, the discovery of engines and the tokenizer that asks an engine.
"""

from __future__ import annotations

import os
import re
import socket
import ssl
from typing import Any, TypeAlias
from urllib.parse import urlsplit

import httpx

from kvatlas.errors import InvalidArgumentError, InvalidTypeError

ClientCert: TypeAlias = tuple[str | os.PathLike[str], str | os.PathLike[str]]
"""Paths of the PEM files with a client's certificate and its private key."""

_KEY = re.compile(r"[!-~]+", re.ASCII)


def checked_url(url: str) -> str:
    """Check the base address of a server.

    Returns it without a trailing slash, and without the `/v1` of an OpenAI client's base URL.

    Raises:
        ValueError: The address is not valid; the message says why.
    """
    address = url.strip().rstrip("/")
    parts = urlsplit(address)
    host, _port = parts.hostname, parts.port
    if parts.scheme not in ("http", "https"):
        near = f": did you mean http://{address}?" if "://" not in address and address[:1].isalnum() else ""
        raise ValueError(f"the scheme is missing or unknown{near}")
    if not host or not address.isprintable() or " " in address:
        raise ValueError("the host is missing")
    if "?" in address or "#" in address:
        raise ValueError("it must not have a query or a fragment")
    base = parts.path.removesuffix("/v1").rstrip("/")
    for segment in base.split("/")[1:]:
        if segment.lower() == "v1":
            raise ValueError(f"leave out what begins with /v1 in {parts.path!r}: kvatlas adds the paths itself")
        if segment.lower().replace("%2e", ".") in ("", ".", ".."):
            raise ValueError(f"the path {parts.path!r} has an empty part, or one of dots")
    return f"{parts.scheme}://{parts.netloc}{base}"


def is_bearer(key: str) -> bool:
    """True if a key can be sent in a header: visible ASCII characters without white space."""
    return _KEY.fullmatch(key) is not None


def authorization(key: str | None) -> dict[str, str]:
    """The HTTP header that carries a bearer key; empty without a key."""
    return {"Authorization": f"Bearer {key}"} if key else {}


async def read_whole(answer: httpx.Response, most: int) -> bytes | None:
    """Read the body of an answer as it was sent; None if it exceeds `most` bytes, or is compressed and so unbounded."""
    if answer.headers.get("Content-Encoding", "identity") != "identity":
        return None
    body = bytearray()
    async for piece in answer.aiter_raw():
        body += piece
        if len(body) > most:
            return None
    return bytes(body)


def tls_context(client_cert: ClientCert | None = None, trusted: str | None = None) -> ssl.SSLContext:
    """Create a TLS context that trusts the certificates in a file, or the system's, and presents a client certificate.

    Raises:
        InvalidArgumentError: The client certificate or its key cannot be used ("invalid_certificate").
    """
    context = ssl.create_default_context(cafile=trusted)
    if client_cert is not None:
        cert, key = client_cert
        try:
            # A pass phrase cannot be asked for: there may be no terminal.
            context.load_cert_chain(cert, key, password="")
        except (OSError, ValueError) as error:
            message = (
                f"client_cert must be PEM files of a certificate and its key without a pass phrase, got {cert} and"
            )
            raise InvalidArgumentError(f"{message} {key}: {reason(error)}", "invalid_certificate") from error
    return context


def options(
    url: str,
    key: str | None,
    timeout: float,
    ssl_context: ssl.SSLContext | None = None,
    client_cert: ClientCert | None = None,
) -> dict[str, Any]:
    """Arguments for the httpx client of one server. Proxies named by the environment are ignored: servers are internal.

    Raises:
        InvalidArgumentError: The URL, the key, the timeout or the certificate cannot be used ("invalid_url",
            "invalid_key", "out_of_range", "invalid_certificate"), or there is a context and a certificate
            ("conflicting_arguments").
        InvalidTypeError: The URL is not a string.
    """
    if not isinstance(url, str):
        raise InvalidTypeError(f"url must be a str, got {type(url).__name__}")
    if not timeout > 0:
        raise InvalidArgumentError(f"timeout must be above 0 seconds, got {timeout}", "out_of_range")
    if key and not is_bearer(key):
        raise InvalidArgumentError("key must be visible ASCII characters without white space", "invalid_key")
    try:
        address = checked_url(url)
    except ValueError as error:
        raise InvalidArgumentError(f"url must be http://HOST:PORT, got {url!r}: {error}", "invalid_url") from error
    if ssl_context is not None and client_cert is not None:
        message = "give ssl_context or client_cert, not both: load the certificate into the context"
        raise InvalidArgumentError(message, "conflicting_arguments")
    # Reading the system's certificates takes a while, and plain HTTP needs none.
    is_tls = address.startswith("https:") or client_cert is not None
    return {
        "base_url": address,
        "headers": authorization(key),
        "timeout": timeout,
        "verify": ssl_context or (tls_context(client_cert) if is_tls else False),
        "trust_env": False,
    }


def failure(error: Exception) -> tuple[str, str]:
    """The code of an error of httpx, "timeout" or "unreachable", and a description.

    The description continues a sentence that begins with the server: "did not answer in time".
    """
    if isinstance(error, httpx.TimeoutException):
        return "timeout", "did not answer in time"
    if isinstance(error, httpx.RemoteProtocolError):
        return "unreachable", f"did not answer in HTTP: {reason(error)}"
    return "unreachable", f"cannot be reached: {reason(error)}"


def origin(error: BaseException) -> BaseException:
    """The operating system's error that caused a chain of httpx errors; the given error itself if there is none."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLError) or (isinstance(cause, OSError) and cause.errno):
            return cause
        cause = cause.__cause__ or cause.__context__
    return error


def reason(error: BaseException) -> str:
    """Description of the operating system's error that caused an error."""
    cause = origin(error)
    if isinstance(cause, socket.gaierror) and cause.strerror:
        return cause.strerror
    if isinstance(cause, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {cause.verify_message}"
    if isinstance(cause, ssl.SSLError) and cause.reason == "WRONG_VERSION_NUMBER":
        return "it does not speak TLS: is it http:// instead of https://?"
    if isinstance(cause, OSError) and not isinstance(cause, ssl.SSLError) and cause.errno:
        return os.strerror(cause.errno)
    return str(error) or type(error).__name__
