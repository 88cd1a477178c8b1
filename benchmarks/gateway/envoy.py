"""A real Envoy, set up as gateways with an InferencePool set it up."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import httpx

from kvatlas.sim.server.ports import free_block

DESTINATION = "x-gateway-destination-endpoint"
SERVICE = "envoy.service.ext_proc.v3.ExternalProcessor"
TYPES = "type.googleapis.com/envoy.extensions"
DUPLEX = "FULL_DUPLEX_STREAMED"
Endpoint = int | tuple[str, int]
"""A port of this machine, or an address and a port."""
START = 60.0
"""Longest time that a start may take, in seconds."""


@dataclass(frozen=True)
class Gateway:
    """Settings of a gateway.

    Attributes:
        request: Mode of the body of requests.
        response: Mode of the body of answers.
        fail_open: Whether requests go on without the picker.
        subset: Endpoints among which the picker must pick, if there are some.
        tls: Whether the picker is spoken to by TLS.
        health: Whether pickers are asked for their health, so that one that is gone gets nothing more.
        retries: How often a request goes on to the next endpoint of the list.
        message_timeout: Time that the picker has for each message.
        prefix: Prefix of its route, which it takes off before engines get the path.
    """

    request: str = DUPLEX
    response: str = DUPLEX
    fail_open: bool = False
    subset: str | None = None
    tls: bool = False
    health: bool = False
    retries: int = 2
    message_timeout: str = "60s"
    prefix: str = "/"


def envoy_program() -> str | None:
    """Envoy's program: what ENVOY names, or the one on the path."""
    return os.environ.get("ENVOY") or shutil.which("envoy")


def _typed(kind: str, **fields: Any) -> dict[str, Any]:
    return {"@type": f"{TYPES}.{kind}", **fields}


def _cluster(name: str, at: Sequence[Endpoint], **more: Any) -> dict[str, Any]:
    endpoints = [{"endpoint": {"address": _address(endpoint)}} for endpoint in at]
    load = {"cluster_name": name, "endpoints": [{"lb_endpoints": endpoints}]}
    return {"name": name, "type": "STATIC", "load_assignment": load, **more}


def settings_of(
    gateway: Gateway, port: int, admin: int, pickers: Sequence[Endpoint], engines: Sequence[Endpoint]
) -> dict[str, Any]:
    """The settings of an Envoy; without pickers it asks none."""
    options = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
    http2 = _typed("upstreams.http.v3.HttpProtocolOptions", explicit_http_config={"http2_protocol_options": {}})
    fallback = _typed("load_balancing_policies.round_robin.v3.RoundRobin")
    by_pick = _typed(
        "load_balancing_policies.override_host.v3.OverrideHost",
        override_host_sources=[{"metadata": {"key": "envoy.lb", "path": [{"key": DESTINATION}]}}],
        selected_host_key={"key": "envoy.lb", "path": [{"key": f"{DESTINATION}-served"}]},
        fallback_policy={"policies": [{"typed_extension_config": {"name": "fallback", "typed_config": fallback}}]},
    )
    trailers = {True: "SEND", False: "SKIP"}
    processing = _typed(
        "filters.http.ext_proc.v3.ExternalProcessor",
        grpc_service={"envoy_grpc": {"cluster_name": "picker"}, "timeout": "60s"},
        message_timeout=gateway.message_timeout,
        failure_mode_allow=gateway.fail_open,
        processing_mode={
            "request_header_mode": "SEND",
            "response_header_mode": "SEND",
            "request_body_mode": gateway.request,
            "response_body_mode": gateway.response,
            "request_trailer_mode": trailers[gateway.request == DUPLEX],
            "response_trailer_mode": trailers[gateway.response == DUPLEX],
        },
        metadata_options={
            "forwarding_namespaces": {"untyped": ["envoy.lb.subset_hint", "envoy.lb"]},
            "receiving_namespaces": {"untyped": ["envoy.lb"]},
        },
    )
    filters = [{"name": "router", "typed_config": _typed("filters.http.router.v3.Router")}]
    if pickers:
        filters.insert(0, {"name": "picker", "typed_config": processing})
    if gateway.subset is not None:
        value = {f"{DESTINATION}-subset": gateway.subset}
        hint = [{"metadata_namespace": "envoy.lb.subset_hint", "value": value}]
        filters.insert(
            0, {"name": "hint", "typed_config": _typed("filters.http.set_metadata.v3.Config", metadata=hint)}
        )
    retries = {"retry_on": "connect-failure,refused-stream,reset", "num_retries": gateway.retries}
    # With the slash, so that the path of the engine has one.
    prefix = gateway.prefix.rstrip("/") + "/"
    route: dict[str, Any] = {"cluster": "pool", "timeout": "60s", "retry_policy": retries}
    if gateway.prefix != "/":
        route["prefix_rewrite"] = "/"
    manager = _typed(
        "filters.network.http_connection_manager.v3.HttpConnectionManager",
        stat_prefix="test",
        http_filters=filters,
        route_config={
            "virtual_hosts": [
                {"name": "all", "domains": ["*"], "routes": [{"match": {"prefix": prefix}, "route": route}]}
            ]
        },
    )
    listener = {
        "name": "listener",
        "per_connection_buffer_limit_bytes": 8 << 20 if gateway.request == "BUFFERED" else 32 << 10,
        "address": _address(port),
        "filter_chains": [{"filters": [{"name": "manager", "typed_config": manager}]}],
    }
    pool = {"policies": [{"typed_extension_config": {"name": "picked", "typed_config": by_pick}}]}
    asked: dict[str, Any] = {"typed_extension_protocol_options": {options: http2}}
    if gateway.tls:
        context = _typed("transport_sockets.tls.v3.UpstreamTlsContext", common_tls_context={"alpn_protocols": ["h2"]})
        asked["transport_socket"] = {"name": "tls", "typed_config": context}
    if gateway.health:
        times: dict[str, Any] = {"timeout": "1s", "interval": "0.2s", "no_traffic_interval": "0.2s"}
        times |= {"unhealthy_threshold": 1, "healthy_threshold": 1}
        asked["health_checks"] = [times | {"grpc_health_check": {"service_name": SERVICE}}]
    clusters = [_cluster("pool", engines, load_balancing_policy=pool)]
    if pickers:
        clusters.append(_cluster("picker", pickers, **asked))
    return {
        "admin": {"address": _address(admin)},
        "static_resources": {"listeners": [listener], "clusters": clusters},
    }


def _address(endpoint: Endpoint) -> dict[str, Any]:
    host, port = ("127.0.0.1", endpoint) if isinstance(endpoint, int) else endpoint
    return {"socket_address": {"address": host, "port_value": port}}


class Envoy:
    """A running Envoy.

    Attributes:
        url: Where clients ask.
    """

    def __init__(self, gateway: Gateway, pickers: Sequence[Endpoint], engines: Sequence[Endpoint]) -> None:
        program, port = envoy_program() or "envoy", free_block("127.0.0.1", 2)
        self.url, self._admin = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{port + 1}"
        settings = json.dumps(settings_of(gateway, port, port + 1, pickers, engines))
        flags = ["--concurrency", "1", "--disable-hot-restart", "-l", "error", "--config-yaml", settings]
        self._process = subprocess.Popen([program, *flags], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def __enter__(self) -> Self:
        end = time.monotonic() + START
        while not self._is_live():
            assert time.monotonic() < end, "Envoy does not start"
            time.sleep(0.01)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def healthy_pickers(self) -> int:
        """Number of pickers that get requests."""
        lines = httpx.get(f"{self._admin}/clusters").text.splitlines()
        states = [line for line in lines if re.match(r"picker::127\.0\.0\.1:\d+::health_flags::", line)]
        return sum(line.endswith("::healthy") for line in states)

    def sent_to_pickers(self) -> int:
        """Messages of requests that pickers were sent so far."""
        lines = httpx.get(f"{self._admin}/stats?filter=stream_msgs_sent$").text.splitlines()
        return sum(int(line.rsplit(": ", 1)[1]) for line in lines)

    def _is_live(self) -> bool:
        assert self._process.poll() is None, "Envoy has ended: its settings are wrong"
        try:
            return httpx.get(f"{self._admin}/ready").text == "LIVE\n"
        except httpx.HTTPError:
            return False
