"""`kvatlas top`: a running router in the terminal: its engines, their work, the last decisions."""

from __future__ import annotations

import os
import ssl
import sys
import time
from pathlib import Path
from typing import Any, Self

import click
import httpx
from rich.live import Live
from rich.text import Text

from kvatlas._http import authorization, checked_url, failure
from kvatlas.cli import INTERRUPTED
from kvatlas.cli.console import console
from kvatlas.cli.service_options import hint, key_of, trust
from kvatlas.cli.top_view import Look, View
from kvatlas.errors import ClientError, InvalidArgumentError, KvatlasError, UnreachableError

_DEFAULT_URL = "http://127.0.0.1:8080"
_TIMEOUT = 5.0


@click.command(short_help="Watch a running router: its engines, their work, the last decisions.")
@click.option(
    "--url",
    envvar="KVATLAS_ROUTER_URL",
    default=_DEFAULT_URL,
    show_default=True,
    show_envvar=True,
    help="Address of the router.",
)
@click.option(
    "--key-file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="File with the router's key. Alternatively, set KVATLAS_KEY.",
)
@click.option("--ca", type=click.Path(path_type=Path), metavar="FILE", help="CA certificate in PEM to trust for https.")
@click.option(
    "--interval",
    type=click.FloatRange(0.1, 3600),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="Time between refreshes.",
)
@click.option(
    "--decisions",
    type=click.IntRange(0, 1000),
    default=10,
    show_default=True,
    metavar="N",
    help="Number of the last decisions to show.",
)
@click.option("--once", is_flag=True, help="Print it once and exit, without refreshing.")
def top(url: str, key_file: Path | None, ca: Path | None, interval: float, decisions: int, once: bool) -> None:
    """Watch a running router until Ctrl-C.

    For each engine: whether it takes requests; the state of its event streams and how late events are visible (lag);
    requests that wait for their first token, and run; uncached prompt tokens queued; how full its KV cache is; the
    share of prompt tokens found in its cache (hits), since this command started, or with --once since the router did.

    For each decision: the engine, the prompt's tokens, how many the router expected in the cache and how many the
    engine found there, why it was chosen, how long that took, and the time to the first token.

    Columns that do not fit are left out. Exit status: 0; 1 if the router does not respond or refuses; 2 if an argument
    is invalid; 130 after Ctrl-C.
    """
    out = console()
    try:
        with Asker(url, key_of(key_file, os.environ), trust(ca)) as asker:
            view = View(decisions)
            first = view.show(asker.look(decisions), out)
            if once:
                out.print(first)
                return
            with Live(first, console=out, auto_refresh=False, screen=out.is_terminal) as live:
                while True:
                    time.sleep(interval)
                    try:
                        shown = view.show(asker.look(decisions), out)
                    except UnreachableError as error:
                        shown = Text(str(error), "red")
                    live.update(shown, refresh=True)
                    if not out.is_terminal:
                        out.print(shown)  # one after the other
    except KvatlasError as error:
        click.echo(f"Error: {error}{hint(error, 'kvatlas router', 'KVATLAS_ROUTER_URL')}", err=True)
        sys.exit(1 if isinstance(error, ClientError) else 2)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


class Asker:
    """Asks a router what is shown, within `with`."""

    def __init__(self, url: str, key: str | None, context: ssl.SSLContext | None) -> None:
        try:
            self._url = checked_url(url)
        except ValueError as error:
            raise InvalidArgumentError(f"--url must be http://HOST:PORT, but {error}", "invalid_url") from None
        self._http = httpx.Client(
            base_url=self._url, timeout=_TIMEOUT, headers=authorization(key), trust_env=False, verify=context or True
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_about: object) -> None:
        self._http.close()

    def look(self, decisions: int) -> Look:
        """The router's answers at this moment, with its last `decisions` decisions.

        Raises:
            UnreachableError: The router does not respond.
            ClientError: It refuses, or this is no router.
        """
        router = self._get("/router")
        if not isinstance(router, dict) or "policy" not in router:
            raise ClientError(f"{self._url} is not a kvatlas router: for a service, use `kvatlas workers --watch`")
        last = self._get(f"/decisions?limit={decisions}") if decisions else []
        return Look(self._url, time.monotonic(), router, self._get("/workers"), self._get("/streams"), last)

    def _get(self, path: str) -> Any:
        try:
            answer = self._http.get(path)
        except (httpx.HTTPError, OSError) as error:
            code, words = failure(error)
            raise UnreachableError(f"the router at {self._url} {words}", code) from error
        if answer.status_code != httpx.codes.OK:
            if answer.status_code == httpx.codes.NOT_FOUND:
                raise ClientError(f"{self._url} is not a kvatlas router: it has no {path.partition('?')[0]}")
            raise ClientError(f"GET {path} returned status {answer.status_code}", status=answer.status_code)
        try:
            return answer.json()
        except ValueError:
            raise ClientError(f"{self._url} is not a kvatlas router: GET {path} did not return JSON") from None
