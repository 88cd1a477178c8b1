"""Options and error handling of the commands that query a service."""

from __future__ import annotations

import socket
import ssl
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click
import httpx

from kvatlas._http import origin
from kvatlas.cli.router_reader import ROUTER_URL
from kvatlas.client import DEFAULT_URL, Client
from kvatlas.errors import ClientError, InvalidArgumentError, KvatlasError, UnreachableError
from kvatlas.service.config.section import check_secret, read_secret


def asks(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of a command that queries a service."""
    for option in reversed(
        (
            click.option(
                "--url",
                envvar="KVATLAS_URL",
                show_default=f"{DEFAULT_URL}, or {ROUTER_URL} if only a router listens",
                show_envvar=True,
                help="Address of the service, or of a router.",
            ),
            authenticates("its key"),
            click.option(
                "--timeout",
                type=click.FloatRange(min=0, min_open=True),
                default=10.0,
                show_default=True,
                metavar="SECONDS",
                help="Time within which it must answer.",
            ),
        )
    ):
        command = option(command)
    return command


def authenticates(key: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorator that adds the options --key-file and --ca to a command.

    `key`: text that says whose key the file has.
    """
    key_file = click.option(
        "--key-file",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help=f"File with {key}. Alternatively, set KVATLAS_KEY.",
    )
    ca = click.option(
        "--ca", type=click.Path(path_type=Path), metavar="FILE", help="CA certificate in PEM to trust for https."
    )
    return lambda command: key_file(ca(command))


@contextmanager
def asking(url: str | None, key_file: Path | None, ca: Path | None, timeout: float, env: Any) -> Iterator[Client]:
    """A context with a client. Its errors end the command: with status 1 if the service caused them, else 2.

    Without a URL, the client uses the service at its usual port, or the router at its usual port if nothing listens at
    the service's.
    """
    if url is None:
        is_router = not _listens(DEFAULT_URL) and _listens(ROUTER_URL)
        url = ROUTER_URL if is_router else DEFAULT_URL
    with (
        ending("kvatlas serve", "KVATLAS_URL"),
        Client(url, key=key_of(key_file, env), timeout=timeout, ssl_context=trust(ca)) as client,
    ):
        yield client


def _listens(url: str) -> bool:
    parts = urlsplit(url)
    try:
        with socket.create_connection((parts.hostname or "", parts.port or 80), timeout=1.0):
            return True
    except OSError:
        return False


@contextmanager
def ending(command: str, variable: str) -> Iterator[None]:
    """A context whose errors end the command with one line: status 1 if the queried server caused them, else 2.

    Args:
        command: The command that starts the queried server.
        variable: The environment variable, or the flag, with the server's address.
    """
    try:
        yield
    except KvatlasError as error:
        click.echo(f"Error: {error}{hint(error, command, variable)}", err=True)
        sys.exit(1 if isinstance(error, ClientError) or error.code in ("unreachable", "timeout") else 2)


def hint(error: KvatlasError, command: str, variable: str) -> str:
    """A hint that follows the message of a client's error; empty if none is known.

    Args:
        error: The error.
        command: The command that starts the queried server.
        variable: The environment variable with the server's address.
    """
    if isinstance(error, ClientError) and error.status == httpx.codes.UNAUTHORIZED:
        return ": set KVATLAS_KEY or --key-file"
    if not isinstance(error, UnreachableError) or error.__cause__ is None:
        return ""
    if isinstance(cause := origin(error.__cause__), ssl.SSLCertVerificationError):
        return ": if it is the right one, name the CA that signed it with --ca"
    # A server that answers in another protocol is running.
    nobody = isinstance(cause, OSError) and not isinstance(cause, ssl.SSLError | TimeoutError)
    return f": start `{command}` there, or set --url or {variable} to its address" if nobody else ""


def key_of(key_file: Path | None, env: Mapping[str, str]) -> str | None:
    """The bearer key in a file, or in the variable KVATLAS_KEY; None without either.

    Raises:
        ConfigError: The file cannot be read or does not contain a key.
    """
    if key_file is not None:
        return read_secret(key_file, "--key-file")
    key = env.get("KVATLAS_KEY")
    return None if key is None else check_secret(key.strip(), "KVATLAS_KEY")


def no_workers(client: Client, model: str | None, routing_group: str | None) -> str:
    """Message that no worker matches, with the models and routing groups that exist."""
    words = "no workers"
    if model is not None:
        words += f" for model {model!r}"
    if routing_group is not None:
        words += f" in routing group {routing_group!r}"
    fleet = client.workers()
    models = sorted({worker.model for worker in fleet})
    groups = sorted({worker.routing_group for worker in fleet})
    if model not in (None, *models):
        return f"{words}; it has models {', '.join(models)}" if models else words
    return f"{words}; it has routing groups {', '.join(groups)}" if groups else words


def trust(ca: Path | None) -> ssl.SSLContext | None:
    """Create a TLS context that trusts the certificates in a file; None without a file, to use the system's.

    Raises:
        InvalidArgumentError: The file cannot be used.
    """
    if ca is None:
        return None
    try:
        return ssl.create_default_context(cafile=str(ca))
    except (OSError, ssl.SSLError) as error:
        raise InvalidArgumentError(f"--ca: cannot use {ca}: {error.strerror or error}") from error
