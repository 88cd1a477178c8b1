"""Sources of engines besides flags and files: pods of a cluster or of an InferencePool, addresses of a host name."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TypeAlias

from kvatlas.service.config.kinds import Texts, shown
from kvatlas.service.replicas import checked_name, is_name

PODS = "k8s:"
POOL = "pool:"
_POOL_NAME = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?", re.ASCII)
_MOST_PORTS = 8
_NAMESPACE = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?", re.ASCII)
# One requirement: KEY, !KEY, KEY=VALUE, KEY==VALUE, KEY!=VALUE, KEY in (…), KEY notin (…).
_KEY = r"(?:[A-Za-z0-9.-]{1,253}/)?[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"
_VALUE = r"[A-Za-z0-9._-]{0,63}"
_SET = rf"\(\s*{_VALUE}(?:\s*,\s*{_VALUE})*\s*\)"
_REQUIREMENT = rf"(?:!?{_KEY}|{_KEY}\s*(?:=|==|!=)\s*{_VALUE}|{_KEY}\s+(?:in|notin)\s+{_SET})"
_SELECTOR = re.compile(rf"\s*{_REQUIREMENT}\s*(?:,\s*{_REQUIREMENT}\s*)*", re.ASCII)
_BETWEEN = re.compile(r"\s+(?=(?:k8s|pool|dns):)")


@dataclass(frozen=True)
class PodSelection:
    """A selection of pods of a namespace by labels.

    Attributes:
        namespace: The pods' namespace; empty for that in which this process runs.
        selector: A label selector, as for `kubectl get pods -l`.
        ports: The ports at which each pod has an engine; if empty, each pod's annotations give them.
    """

    namespace: str
    selector: str
    ports: tuple[int, ...] = ()


@dataclass(frozen=True)
class PoolName:
    """The name of an InferencePool, whose pods are engines at its ports.

    Attributes:
        namespace: The pool's namespace; empty for that in which this process runs.
        name: The pool's name.
    """

    namespace: str
    name: str


@dataclass(frozen=True)
class HostName:
    """A host name whose addresses are engines, such as a headless Service with the addresses of its pods."""

    name: str
    port: int


Selection: TypeAlias = PodSelection | PoolName | HostName


def selection(text: str) -> Selection:
    """Parse the source of engines that a text names.

    Raises:
        ValueError: The text names no source; the message says why.
    """
    if is_name(text):
        host = checked_name(text)
        if host.is_https:
            raise ValueError(f"{shown(text)}: engines behind a name are asked without TLS: write dns:NAME:PORT")
        return HostName(host.host, host.port)
    if text.startswith(POOL):
        namespace, slash, name = text.removeprefix(POOL).partition("/")
        if not slash or (namespace and not _NAMESPACE.fullmatch(namespace)) or not _POOL_NAME.fullmatch(name):
            raise ValueError(f"{shown(text)} is not pool:NAMESPACE/NAME, such as pool:llm/qwen3")
        return PoolName(namespace, name)
    if not text.startswith(PODS):
        raise ValueError(f"{shown(text)} is none of k8s:NAMESPACE/SELECTOR, pool:NAMESPACE/NAME and dns:NAME:PORT")
    namespace, slash, rest = text.removeprefix(PODS).partition("/")
    if not slash or (namespace and not _NAMESPACE.fullmatch(namespace)):
        raise ValueError(f"{shown(text)} is not k8s:NAMESPACE/SELECTOR, such as k8s:llm/app=vllm")
    return pods(namespace, rest)


def pods(namespace: str, text: str) -> PodSelection:
    """Parse a selection of pods: SELECTOR, SELECTOR:PORT or SELECTOR:PORT,PORT.

    Raises:
        ValueError: The text is not a selection; the message says why.
    """
    selector, colon, ports = text.partition(":")
    if not _SELECTOR.fullmatch(selector):
        raise ValueError(f"{shown(selector)} is not a label selector, such as app=vllm or app in (a,b)")
    return PodSelection(namespace, selector.strip(), _ports(ports) if colon else ())


def _ports(text: str) -> tuple[int, ...]:
    numbers = tuple(int(part) if part.isdecimal() and len(part) < 6 else 0 for part in text.split(","))
    if len(numbers) > _MOST_PORTS or len(set(numbers)) < len(numbers) or not all(0 < it < 1 << 16 for it in numbers):
        raise ValueError(f"{shown(text)} is not a list of from 1 to {_MOST_PORTS} ports, such as 8000 or 8000,8001")
    return numbers


class EngineSources(Texts):
    """A list of sources of engines, separated in text by lines or white space, since selectors contain commas."""

    wanted = 'a list of sources: "k8s:llm/app=vllm", "pool:llm/qwen3", "dns:vllm.llm:8000"'
    metavar = "k8s:NAMESPACE/SELECTOR|pool:NAMESPACE/NAME|dns:NAME:PORT"

    def convert(self, value: object) -> tuple[str, ...]:
        found = super().convert(value)
        for text in found:
            try:
                selection(text)
            except ValueError as error:
                raise ValueError(f"must be {self.wanted}, but {error}") from None
        if len(set(found)) < len(found):
            twice = next(text for text in found if found.count(text) > 1)
            raise ValueError(f"has {shown(twice)} twice: leave one out")
        return found

    def parse(self, text: str) -> tuple[str, ...]:
        return self.convert(_BETWEEN.split(text.strip())) if text.strip() else ()
