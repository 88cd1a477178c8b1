"""The Kubernetes API server: its address and the credentials of this pod's service account."""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Mapping
from pathlib import Path

import httpx

from kvatlas._http import authorization, is_bearer
from kvatlas.errors import ConfigError, DiscoveryError
from kvatlas.service.config.following import DiscoveryConfig
from kvatlas.service.config.kinds import PORT
from kvatlas.service.replicas import url_at

_HOST, _PORT = "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"
_MAX_FILE = 1 << 20
# A machine that has failed does not close connections: this is noticed after about half a minute.
_KEEPALIVE = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)] + [
    (socket.IPPROTO_TCP, getattr(socket, name), value)
    for name, value in (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))
    if hasattr(socket, name)
]


class Account:
    """Address and credentials of the API server, read at each use, because the kubelet replaces the files."""

    def __init__(self, config: DiscoveryConfig, env: Mapping[str, str] | None = None) -> None:
        """Find the API server.

        Raises:
            ConfigError: The address is unknown, or the port in the environment is invalid.
        """
        env = os.environ if env is None else env
        url = config.kubernetes_url
        if url is None and (host := env.get(_HOST)):
            url = url_at(host, _port(env.get(_PORT) or "443"), "https")
        if url is None:
            raise ConfigError(
                "discovery.sources has k8s: but this is not in a cluster: set discovery.kubernetes_url "
                "(--kubernetes-url), for instance to http://127.0.0.1:8001 beside `kubectl proxy`"
            )
        self.url = url
        self.folder = config.kubernetes_account

    def namespace(self) -> str:
        """Namespace in which this process runs.

        Raises:
            DiscoveryError: The namespace is unknown.
        """
        return self._read("namespace", "no_namespace")

    def headers(self) -> dict[str, str]:
        """Credentials for a request, as headers; none for a server without TLS, such as `kubectl proxy`.

        Raises:
            DiscoveryError: The token cannot be read.
        """
        if self.url.startswith("http://"):
            return {}
        token = self._read("token", "no_token")
        if not is_bearer(token):
            raise DiscoveryError(f"{self.folder / 'token'} does not hold a token", "no_token")
        return authorization(token)

    def client(self, timeout: float) -> httpx.AsyncClient:
        """Create an HTTP client that trusts the cluster's authority.

        Raises:
            DiscoveryError: The certificate cannot be used.
        """
        authority = self.folder / "ca.crt"
        context: ssl.SSLContext | bool = False
        if self.url.startswith("https://"):
            try:
                context = ssl.create_default_context(cafile=str(authority) if authority.exists() else None)
            except (OSError, ssl.SSLError) as error:
                raise DiscoveryError(f"cannot use {authority}: {error}", "no_authority") from error
        return httpx.AsyncClient(
            base_url=self.url,
            timeout=httpx.Timeout(timeout, pool=None),
            headers={"Accept": "application/json", "Accept-Encoding": "identity"},
            transport=httpx.AsyncHTTPTransport(verify=context, socket_options=_KEEPALIVE, trust_env=False),
            trust_env=False,
            follow_redirects=False,
        )

    def _read(self, name: str, code: str) -> str:
        path: Path = self.folder / name
        try:
            with path.open("rb") as file:
                return file.read(_MAX_FILE).decode("ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            why = (error.strerror or str(error)) if isinstance(error, OSError) else "it is not text"
            wanted = "the pod needs automountServiceAccountToken: true, or set --kubernetes-account"
            raise DiscoveryError(f"cannot read {path}: {why}: {wanted}", code) from error


def _port(text: str) -> int:
    try:
        return PORT.parse(text)
    except ValueError as error:
        raise ConfigError(f"the environment variable {_PORT} {error}") from None
