"""Flags of the reference Endpoint Picker, as gateways and Helm charts give them, converted to settings of the router.

The names are those of the Gateway API Inference Extension's picker (lwepp, August 2026) and of llm-d's, so that an
image with this command can replace theirs.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import click

POOL_GROUP = "inference.networking.k8s.io"
GRPC_PORT, HEALTH_PORT, METRICS_PORT = 9002, 9003, 9090

_PORTS = {
    "grpc_port": ("router.gateway_bind", GRPC_PORT, "Port at which gateways ask for engines over gRPC."),
    "grpc_health_port": ("router.gateway_health_bind", HEALTH_PORT, "Port of gRPC's health service, for probes."),
    "metrics_port": ("http.admin_bind", METRICS_PORT, "Port of /metrics, /health and /ready over HTTP, without a key."),
}
# The settings that have a flag of the reference instead of their own.
REPLACED = frozenset(
    {path for path, _default, _help in _PORTS.values()}
    | {"router.gateway_tls", "router.gateway_tls_cert", "router.gateway_tls_key"}
)
_TEXTS = {
    "pool_name": ("NAME", "InferencePool whose pods get the requests."),
    "pool_namespace": (
        "NAMESPACE",
        "Namespace of the pool, or of the pods of --endpoint-selector; this pod's own if empty.",
    ),
    "pool_group": ("GROUP", f"API group of the pool; must be {POOL_GROUP}."),
    "endpoint_selector": ("SELECTOR", "Labels of the engines' pods, where there is no pool: app=vllm."),
    "endpoint_target_ports": ("PORT[,PORT...]", "Ports of these pods, an engine at each."),
    "cert_path": (
        "DIR",
        "Directory with tls.crt and tls.key for gateways; a certificate made at the start if not given.",
    ),
    "zap_encoder": ("json|console", "Format of the logs."),
    "zap_log_level": ("LEVEL", "Lowest severity that is logged: debug, info, error, or a number of the reference."),
    "v": ("NUMBER", "Verbosity of the logs, as in the reference: from 4 on, debug."),
}
# Flags that charts and operators of the reference give, and that have nothing to set here: each with the reason.
_WITHOUT_EFFECT = {
    "config_file": "it configures the reference's scorers; see the settings of the router",
    "config_text": "it configures the reference's scorers; see the settings of the router",
    "allow_experimental_plugins": "there are no plugins here",
    "enable_cert_reload": "certificates are always read again when their files change",
    "enable_grpc_stream_metrics": "requests of gateways are always counted, as kvatlas_router_gateway_requests",
    "enable_pprof": "there is no profiler here",
    "ha_enable_leader_election": "each replica has an exact index of its own, and all of them pick: see --peer",
    "health_checking": "gRPC's health service is always there",
    "grpc_max_recv_msg_size": "bodies are limited by --max-body",
    "grpc_max_send_msg_size": "what is sent back is cut into messages that gateways take",
    "metrics_endpoint_auth": "/metrics has no key: keep the port inside the cluster",
    "metrics_staleness_threshold": "engines' metrics are weighed by their age",
    "refresh_metrics_interval": "see --load-interval",
    "refresh_prometheus_metrics_interval": "metrics are made when they are asked for",
    "model_server_metrics_scheme": "metrics are read at each engine's own address",
    "model_server_metrics_path": "metrics are read at each engine's own address",
    "model_server_metrics_port": "metrics are read at each engine's own address",
    "model_server_metrics_https_insecure_skip_verify": "see --upstream-ca",
    "total_queued_requests_metric": "the metrics of vLLM and SGLang are known by name",
    "total_running_requests_metric": "the metrics of vLLM and SGLang are known by name",
    "kv_cache_usage_percentage_metric": "the metrics of vLLM and SGLang are known by name",
    "lora_info_metric": "adapters are asked for at /v1/models",
    "cache_info_metric": "the size of a cache is known from its events and metrics",
    "enable_multi_engine": "engines of several kinds may be in a pool",
    "engine_label_key": "each engine is asked what it is",
    "tracing": "there is no tracing here",
    "zap_devel": "see --log and --log-level",
    "zap_stacktrace_level": "see --log and --log-level",
    "zap_time_encoding": "see --log and --log-level",
}
# Flags whose wish is not fulfilled here: going on would do what the operator does not want.
_REFUSED = {
    "disable_endpoint_subset_filter": "the subset that a gateway sets is always kept to",
    "metrics_client_ca_file": "/metrics has no TLS here: use --bind with --tls-cert and --tls-client-ca",
    "metrics_cert_dir": "/metrics has no TLS here: use --bind with --tls-cert",
}
UNUSED_SECTION = "unused"


@dataclass
class PickerFlags:
    """Settings of the router that result from flags of the reference Endpoint Picker.

    Attributes:
        given: Texts of flags by the settings' paths, as for `read_router_config`.
        usual: Texts of defaults by the settings' paths, for settings not given by flags, variables or a file.
        remarks: Log messages about flags without effect.
    """

    given: dict[str, str] = field(default_factory=dict)
    usual: dict[str, str] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)


def reference_flags(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the flags of the reference Endpoint Picker to a command."""

    def flag(name: str) -> str:
        return "--" + name.replace("_", "-")

    # As in Go, `--flag` is `--flag=true`.
    optional: dict[str, Any] = {"is_flag": False, "flag_value": "true"}
    for name in [*_WITHOUT_EFFECT, *_REFUSED]:
        why = _WITHOUT_EFFECT.get(name) or f"refused: {_REFUSED[name]}"
        option = click.option(flag(name), f"{UNUSED_SECTION}__{name}", metavar="VALUE", help=why, **optional)
        command = option(command)
    for name, (metavar, text) in reversed(_TEXTS.items()):
        short = ("-v",) if name == "v" else ()
        command = click.option(*short, flag(name), name, metavar=metavar, help=text)(command)
    command = click.option(
        "--secure-serving",
        metavar="true|false",
        help="Whether gateways speak TLS.  [default: true]",
        **optional,
    )(command)
    for name, (_path, default, text) in reversed(_PORTS.items()):
        command = click.option(flag(name), name, type=click.IntRange(1, 65535), help=f"{text}  [default: {default}]")(
            command
        )
    return command


def take_reference_flags(options: dict[str, Any]) -> PickerFlags:
    """Remove the flags of the reference Endpoint Picker from the options of a command, and convert them to settings.

    Raises:
        click.UsageError: The flags contradict each other, or one requests an unsupported feature.
    """
    found = PickerFlags()
    texts = {name: options.pop(name) for name in _TEXTS}
    secure = options.pop("secure_serving")
    unused = {name: options.pop(f"{UNUSED_SECTION}__{name}") for name in [*_WITHOUT_EFFECT, *_REFUSED]}
    for name, (path, default, _help) in _PORTS.items():
        port = options.pop(name)
        (found.usual if port is None else found.given)[path] = f"{_any_address()}:{port or default}"
    _take_tls(found, secure, texts["cert_path"])
    _take_engines(found, texts)
    _take_log(found, texts)
    for name, value in unused.items():
        if value is None:
            continue
        flag = "--" + name.replace("_", "-")
        if name in _REFUSED and (name != "disable_endpoint_subset_filter" or _truth(flag, value)):
            raise click.UsageError(f"{flag}: {_REFUSED[name]}.")
        if name in _WITHOUT_EFFECT:
            found.remarks.append(f"{flag} has no effect here: {_WITHOUT_EFFECT[name]}")
    return found


def _take_tls(found: PickerFlags, secure: str | None, cert_path: str | None) -> None:
    if secure is None:
        found.usual["router.gateway_tls"] = "true"
    else:
        found.given["router.gateway_tls"] = "true" if _truth("--secure-serving", secure) else "false"
    if cert_path is None:
        return
    if found.given.get("router.gateway_tls") == "false":
        found.remarks.append("--cert-path has no effect here: --secure-serving is false")
        return
    found.given["router.gateway_tls_cert"] = f"{cert_path}/tls.crt"
    found.given["router.gateway_tls_key"] = f"{cert_path}/tls.key"


def _take_engines(found: PickerFlags, texts: Mapping[str, str | None]) -> None:
    name, selector, ports = texts["pool_name"], texts["endpoint_selector"], texts["endpoint_target_ports"]
    if texts["pool_group"] not in (None, POOL_GROUP):
        raise click.UsageError(f"--pool-group must be {POOL_GROUP}, whose version v1 is read here.")
    if name is not None and selector is not None:
        raise click.UsageError("--pool-name and --endpoint-selector are both given: give one of them.")
    if (selector is None) != (ports is None):
        missing = "--endpoint-target-ports" if ports is None else "--endpoint-selector"
        raise click.UsageError(f"{missing} is missing: pods without a pool need both their labels and their ports.")
    namespace = texts["pool_namespace"] or ""
    if name is not None:
        found.given["discovery.sources"] = f"pool:{namespace}/{name}"
    elif selector is not None:
        found.given["discovery.sources"] = f"k8s:{namespace}/{selector}:{ports}"
    elif namespace:
        found.remarks.append("--pool-namespace has no effect here: --pool-name is not given")


def _take_log(found: PickerFlags, texts: Mapping[str, str | None]) -> None:
    formats = {"json": "json", "console": "text"}
    if (encoder := texts["zap_encoder"]) is not None:
        if encoder not in formats:
            raise click.UsageError(f"--zap-encoder must be json or console, got {encoder!r}.")
        found.given["log.format"] = formats[encoder]
    verbosity, level = texts["v"], texts["zap_log_level"]
    if level is None and verbosity is not None:
        if not verbosity.isdecimal():
            raise click.UsageError(f"-v must be a number, got {verbosity!r}.")
        level = "debug" if int(verbosity) >= 4 else "info"
    if level is not None:
        # A number is a verbosity there; panic is what is beyond an error.
        named = {"debug": "debug", "info": "info", "error": "error", "panic": "error"}
        if level not in named and not level.isdecimal():
            raise click.UsageError(f"--zap-log-level must be debug, info, error, panic or a number, got {level!r}.")
        found.given["log.level"] = named.get(level) or "debug"


def _truth(flag: str, text: str) -> bool:
    if text.lower() in ("true", "t", "1"):
        return True
    if text.lower() in ("false", "f", "0"):
        return False
    raise click.UsageError(f"{flag} must be true or false, got {text!r}.")


def _any_address() -> str:
    """The address that stands for all addresses of the machine, IPv6 and IPv4.

    Gateways in a cluster may use either family.
    """
    return "[::]" if socket.has_dualstack_ipv6() else "0.0.0.0"  # noqa: S104 - a picker is for other machines
