"""Other routers of the group (peers): fetching their orders at the start, and making changes at all of them."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple
from urllib.parse import quote

import httpx

from kvatlas._http import authorization, failure, tls_context
from kvatlas.errors import ConfigError
from kvatlas.router.config import RouterConfig
from kvatlas.router.fleet.orders import Order
from kvatlas.service import replicas

logger = logging.getLogger("kvatlas.router")

_FIRST = 2.0  # seconds within which peers are to answer a router that starts
_PATIENCE = 5.0  # seconds within which they are to make a change
_AGAIN = 5.0  # seconds between questions, until one has answered
_AT_ONCE = 16


class PeerAddress(NamedTuple):
    """Address of another router: its URL, and the host name in its certificate if it differs from the URL's host."""

    url: str
    certified: str | None


class PeerRouters:
    """Client of the other routers of the group."""

    def __init__(self, config: RouterConfig, own: str) -> None:
        """Create the client, without sending a request yet.

        Args:
            config: The configuration, with the peers, their key and their certificate authority.
            own: The IP address and port of this router, which is left out.
        """
        self._peers = config.router.peers
        self._key = config.router.peer_bearer()
        self._ca = config.upstream.ca
        self._own = own
        self._said: dict[str, str] = {}  # why a peer has not answered, by its URL

    def addresses(self) -> list[PeerAddress]:
        """Current addresses of the peers. Waits for the name server; an unknown host name has no addresses."""
        found: list[PeerAddress] = []
        for peer in self._peers:
            if not replicas.is_name(peer):
                found.append(PeerAddress(peer, None))
                continue
            name, port, is_https = replicas.checked_name(peer)
            scheme, certified = ("https", name) if is_https else ("http", None)
            try:
                addresses = replicas.resolve(name, port)
            except socket.gaierror as error:
                logger.warning("%s: %s", peer, error.strerror or error)
                continue
            urls = replicas.others(addresses, port, self._own, scheme)
            found += [PeerAddress(url, certified) for url in urls]
        return list(dict.fromkeys(found))

    def orders(self, timeout: float = _FIRST) -> tuple[list[Order], bool]:
        """Fetch the orders of the peers. Returns the newest for each engine, and True if any peer has answered."""
        newest: dict[str, Order] = {}
        answered = False
        for url, answer in self._ask(self.addresses(), "GET", "/peers/engines", None, timeout):
            try:
                if answer["status"] != httpx.codes.OK:
                    raise ConfigError(answer["message"] or f"it answered with status {answer['status']}")
                orders = [Order.of(order) for order in answer["body"]["orders"]]
            except (ConfigError, KeyError, TypeError) as error:
                if self._said.get(url) != str(error):
                    self._said[url] = str(error)
                    logger.info("router %s has not said what was changed over HTTP: %s", url, error)
                continue
            answered = True
            if left_out := answer["body"].get("left_out"):
                logger.warning(
                    "router %s keeps back %d engines with keys of their own: it does not know this router's key "
                    "(--peer-key-file)",
                    *(url, left_out),
                )
            for order in orders:
                if order.name not in newest or order.at > newest[order.name].at:
                    newest[order.name] = order
        return list(newest.values()), answered

    def tell(self, action: str, name: str | None, body: str | None) -> list[dict[str, Any]]:
        """Make a change at all peers. Returns for each peer its URL, the status, and the reason of a failure."""
        methods = {"add": ("POST", "/engines"), "remove": ("DELETE", f"/engines/{_quoted(name)}")}
        method, path = methods.get(action, ("POST", f"/engines/{_quoted(name)}/{action}"))
        return [
            {"router": url, "status": answer["status"], "code": answer["code"], "message": answer["message"]}
            for url, answer in self._ask(self.addresses(), method, path, body, _PATIENCE)
        ]

    def _ask(
        self, peers: list[PeerAddress], method: str, path: str, body: str | None, timeout: float
    ) -> Iterable[tuple[str, dict[str, Any]]]:
        """Send a request to all peers concurrently. Returns their answers."""
        if not peers:
            return []
        trusted = None if self._ca is None else str(self._ca)
        is_tls = any(peer.url.startswith("https:") for peer in peers)
        with (
            httpx.Client(
                timeout=timeout,
                headers=authorization(self._key),
                trust_env=False,
                verify=tls_context(None, trusted) if is_tls else False,
            ) as client,
            ThreadPoolExecutor(min(len(peers), _AT_ONCE), "kvatlas-peers") as pool,
        ):
            answers = list(pool.map(lambda peer: _asked(client, method, peer, path, body), peers))
        return [(peer.url, answer) for peer, answer in zip(peers, answers, strict=True)]


class PeerOrders:
    """Thread that asks the peers for their orders until one has answered."""

    def __init__(self, peers: PeerRouters, take: Callable[[list[Order]], None]) -> None:
        self._peers = peers
        self._take = take
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kvatlas-peer-orders", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(_AGAIN):
            orders, answered = self._peers.orders()
            if answered and not self._stop.is_set():
                self._take(orders)
                return

    def stop(self) -> None:
        """Stop asking."""
        self._stop.set()
        self._thread.join()


def _asked(client: httpx.Client, method: str, peer: PeerAddress, path: str, body: str | None) -> dict[str, Any]:
    """Send a request to a peer. Returns status, code, message and body; the status is None without an answer."""
    headers = {"Content-Type": "application/json"} if body is not None else {}
    try:
        named = {} if peer.certified is None else {"sni_hostname": peer.certified}
        answer = client.request(method, peer.url + path, content=body, headers=headers, extensions=named)
    except (httpx.HTTPError, OSError) as error:
        code, words = failure(error)
        return {"status": None, "code": code, "message": f"it {words}", "body": None}
    try:
        said = answer.json()
    except ValueError:
        said = None
    refusal = said.get("error") if isinstance(said, dict) and not answer.is_success else None
    about: dict[str, Any] = refusal if isinstance(refusal, dict) else {}
    return {
        "status": answer.status_code,
        "code": about.get("code"),
        "message": about.get("message"),
        "body": said if isinstance(said, dict) else None,
    }


def _quoted(name: str | None) -> str:
    return quote(name or "", safe="")
