"""Reader of one pod: its engines, or the reason why it is left out."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from kvatlas.errors import ConfigError, DiscoveryError
from kvatlas.service.config import Config, Engine
from kvatlas.service.config.kinds import PORT, Kind, shown
from kvatlas.service.discovery.sources.base import NOT_READY, READY, TERMINATING, Member
from kvatlas.service.replicas import url_at

ANNOTATION = "kvatlas.dev/"
DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
_LEADER = "leaderworkerset.sigs.k8s.io/worker-index"
_FIELDS: dict[str, Kind] = {
    each.name.replace("_", "-"): each.metadata["kind"]
    for each in dataclasses.fields(Engine)
    if each.name not in ("url", "name", "key")  # annotations are no place for secrets
}
_SCHEMES = ("http", "https")


class Pod:
    """Parts of a pod's object at the API server that discovery reads."""

    def __init__(self, about: dict[str, Any]) -> None:
        meta, self.spec, self.status = (_table(about, name) for name in ("metadata", "spec", "status"))
        self.name, self.namespace, self.uid = (_text(meta, name) for name in ("name", "namespace", "uid"))
        self.version = _text(meta, "resourceVersion")
        self.labels, self.annotations = _table(meta, "labels"), _table(meta, "annotations")
        self.is_terminating = meta.get("deletionTimestamp") is not None

    @property
    def deletion_cost(self) -> int | None:
        """Deletion cost in the pod's annotation; None if there is none."""
        text = str(self.annotations.get(DELETION_COST, ""))
        return int(text) if text.removeprefix("-").isdecimal() and len(text) < 12 else None

    @property
    def is_ready(self) -> bool:
        """True if the pod's condition Ready is true."""
        conditions = [it for it in _tables(self.status, "conditions") if it.get("type") == "Ready"]
        return any(it.get("status") == "True" for it in conditions)

    @property
    def starts(self) -> int:
        """Number of restarts of the pod's containers."""
        counts = [it.get("restartCount") for it in _tables(self.status, "containerStatuses")]
        return sum(count for count in counts if isinstance(count, int))

    def ports(self) -> list[tuple[str, int]]:
        """Ports of the pod's containers, including sidecars, by name and number."""
        sidecars = [it for it in _tables(self.spec, "initContainers") if it.get("restartPolicy") == "Always"]
        found = []
        for container in [*_tables(self.spec, "containers"), *sidecars]:
            for port in _tables(container, "ports"):
                number = port.get("containerPort")
                if isinstance(number, int) and port.get("protocol", "TCP") == "TCP":
                    found.append((_text(port, "name"), number))
        return found

    def http_ports(self, usual: int) -> list[int]:
        """Ports at which the pod's engines answer. `usual`: the port to use if the pod's annotations give none."""
        given = self.annotations.get(ANNOTATION + "port")
        if given is not None:
            return [_parsed("port", PORT, part) for part in str(given).split(",")]
        ports = self.ports()
        named = [number for name, number in ports if name == "http"]
        # A rank each: http-0, http-1, …
        named = named or [number for name, number in ports if name.startswith("http-")]
        others = [number for name, number in ports if not name.startswith("kv-")]
        return named or (others if len(others) == 1 else [usual])

    def fields(self) -> dict[str, Any]:
        """Settings of the pod's engines from its annotations."""
        found = {}
        for key, value in self.annotations.items():
            name = str(key).removeprefix(ANNOTATION)
            if name == key or name in ("port", "scheme"):
                continue
            if name not in _FIELDS:
                known = ", ".join(["port", "scheme", *_FIELDS])
                raise DiscoveryError(
                    f"annotation {shown(key)} is unknown: after {ANNOTATION} comes one of {known}", "bad_annotation"
                )
            found[name.replace("-", "_")] = _parsed(name, _FIELDS[name], str(value))
        return found


def members_of(pod: Pod, config: Config, *, qualified: bool, target_ports: tuple[int, ...] = ()) -> tuple[Member, ...]:
    """Find the engines of a pod, as members of the source.

    Args:
        pod: The pod.
        config: The configuration.
        qualified: True if names include the namespace, because pods of several namespaces are used.
        target_ports: The ports at which all pods have engines; if empty, each pod's annotations give them.

    Raises:
        DiscoveryError: The pod is not used; the error is temporary if the pod may be used later.
    """
    if pod.labels.get(_LEADER, "0") != "0":
        raise DiscoveryError("only the leader of its group serves HTTP", "not_leader", temporary=True)
    if pod.status.get("phase") in ("Succeeded", "Failed"):
        raise DiscoveryError("it has ended", "ended", temporary=True)
    address = _text(pod.status, "podIP")
    if not address:
        raise DiscoveryError("it has no address yet", "no_address", temporary=True)
    scheme = str(pod.annotations.get(ANNOTATION + "scheme", "http"))
    if scheme not in _SCHEMES:
        raise DiscoveryError(f"{ANNOTATION}scheme must be http or https, got {shown(scheme)}", "bad_annotation")
    ports, fields = list(target_ports) or pod.http_ports(config.discovery.engine_port), pod.fields()
    if target_ports and (given := pod.annotations.get(ANNOTATION + "port")) is not None:
        wanted = ",".join(map(str, target_ports))
        if str(given) != wanted:
            raise DiscoveryError(
                f"{ANNOTATION}port is {shown(given)}, but the ports of these pods are given as {wanted}: leave the "
                "annotation out",
                "bad_annotation",
            )
    if len(ports) == 1:
        declared = dict(pod.ports())
        for field, name in (("events_port", "kv-events"), ("replay_port", "kv-replay")):
            if name in declared and config.follows_events:
                fields.setdefault(field, declared[name])
    state = TERMINATING if pod.is_terminating else READY if pod.is_ready else NOT_READY
    base = f"{pod.name}.{pod.namespace}" if qualified else pod.name
    members = []
    for port in ports:
        name = base if len(ports) == 1 else f"{base}:{port}"
        members.append(Member(_engine(url_at(address, port, scheme), name, fields, config), pod.uid, pod.starts, state))
    return tuple(members)


def _engine(url: str, name: str, fields: dict[str, Any], config: Config) -> Engine:
    try:
        engine = Engine(url, name, **fields)
        config.check_engine(engine)
    except ConfigError as error:
        raise DiscoveryError(str(error), "bad_annotation") from error
    # Several commands read the same annotations, and not all of them concern each.
    without: dict[str, Any] = dict.fromkeys(config.without_effect(engine))
    return dataclasses.replace(engine, **without)


def _parsed(name: str, kind: Kind, text: str) -> Any:
    try:
        return kind.parse(text)
    except ValueError as error:
        raise DiscoveryError(f"{ANNOTATION}{name} {error}", "bad_annotation") from error


def _table(about: dict[str, Any], name: str) -> dict[str, Any]:
    value = about.get(name)
    return value if isinstance(value, dict) else {}


def _tables(about: dict[str, Any], name: str) -> Iterator[dict[str, Any]]:
    value = about.get(name)
    return (it for it in (value if isinstance(value, list) else []) if isinstance(it, dict))


def _text(about: dict[str, Any], name: str) -> str:
    value = about.get(name)
    return value if isinstance(value, str) else ""
