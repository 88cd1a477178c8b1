"""Engines to be asked, and workers registered by hand: as objects, flags and tables of a file."""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self
from urllib.parse import urlsplit

from kvatlas.errors import SettingsError
from kvatlas.service.kinds import Integer, Kind, Text, shown

_PORT = Integer(1, 65_535)
_RANK = Integer(0, (1 << 32) - 1)
_BLOCK_SIZE = Integer(1, 1 << 20)
_NAMED_URL = re.compile(r"([^=/?#]+)=(\w+://.*)", re.DOTALL)
_ENDPOINT = re.compile(r"tcp://\S+:[0-9]{1,5}|ipc://.+", re.DOTALL | re.ASCII)
_MAX_NAME = 256


class _Name(Text):
    wanted = f"a string of 1 to {_MAX_NAME} bytes"

    def convert(self, value: object) -> str:
        if isinstance(value, str) and 0 < len(value.encode(errors="replace")) <= _MAX_NAME and value.strip():
            return value
        raise self.bad(value)


class _AnyText(Text):
    wanted = "a string"

    def convert(self, value: object) -> str:
        if isinstance(value, str):
            return value
        raise self.bad(value)


def _field(kind: Kind, default: Any = None) -> Any:
    return field(default=default, metadata={"kind": kind})


class _Entry:
    """What engines and workers share: fields that know their kinds, and a table of a file that has them."""

    def __post_init__(self) -> None:
        for each in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, each.name)
            if value is None and each.default is None:
                continue
            try:
                object.__setattr__(self, each.name, each.metadata["kind"].convert(value))
            except ValueError as error:
                raise SettingsError(f"{self._called()}: {each.name} {error}") from None

    def _called(self) -> str:
        raise NotImplementedError

    @classmethod
    def of(cls, value: Any) -> Self:
        """From itself, a flag's text, or a mapping."""
        if isinstance(value, cls):
            return value
        if isinstance(value, str):
            return cls.parse(value)
        if isinstance(value, Mapping):
            return cls.from_table(value)
        raise SettingsError(f"{_word(cls)} must be {cls.__name__}, a string or a table, got {type(value).__name__}")

    @classmethod
    def parse(cls, text: str) -> Self:
        raise NotImplementedError

    @classmethod
    def from_table(cls, table: Mapping[str, Any]) -> Self:
        """From a table of a file.

        Raises:
            SettingsError: A key is unknown, missing or wrong.
        """
        known = [each.name for each in dataclasses.fields(cls)]  # type: ignore[arg-type]
        for key in table:
            if key not in known:
                raise SettingsError(f"{_word(cls)}: unknown key {shown(key)}: {nearest(key, known)}")
        for each in dataclasses.fields(cls):  # type: ignore[arg-type]
            if each.default is dataclasses.MISSING and each.name not in table:
                raise SettingsError(f"{_word(cls)}: {each.name} is missing")
        return cls(**table)


@dataclass(frozen=True)
class Engine(_Entry):
    """An engine that is asked where its events are.

    Attributes:
        url: Its HTTP address: `http://host:8000`.
        name: The worker's name; the host and port of the URL if there is none.
        model: Registered under this name, whatever the engine says.
        block_size: Tokens in a block, whatever the engine says.
        routing_group: Its routing group, if not the general one.
        events_port: For engines that do not say where their events are: the port of rank 0.
        replay_port: And where they answer for lost ones.
        ranks: For such engines: how many data-parallel ranks, if their metrics do not say.
    """

    url: str = field(metadata={"kind": Text()})
    name: str | None = _field(_Name())
    model: str | None = _field(Text())
    block_size: int | None = _field(_BLOCK_SIZE)
    routing_group: str | None = _field(Text())
    events_port: int | None = _field(_PORT)
    replay_port: int | None = _field(_PORT)
    ranks: int | None = _field(Integer(1, 1 << 16))

    def __post_init__(self) -> None:
        super().__post_init__()
        url = self.url.strip().rstrip("/")
        wanted = "an engine is http://HOST:PORT"
        try:
            parts = urlsplit(url)
            host, _port = parts.hostname, parts.port
        except ValueError as error:
            raise SettingsError(f"engine {shown(url)}: {error}; {wanted}") from None
        if parts.scheme not in ("http", "https"):
            near = f": did you mean http://{url}?" if "://" not in url and url[:1].isalnum() else ""
            raise SettingsError(f"engine {shown(url)}: the scheme is missing or unknown; {wanted}{near}")
        if not host or any(c.isspace() for c in url):
            raise SettingsError(f"engine {shown(url)}: the host is missing; {wanted}")
        if parts.query or parts.fragment:
            raise SettingsError(f"engine {shown(url)}: it must not have a query or fragment; {wanted}")
        object.__setattr__(self, "url", url)

    def _called(self) -> str:
        return f"engine {shown(self.url)}"

    @property
    def worker(self) -> str:
        """The worker's name."""
        return self.name or urlsplit(self.url).netloc.rpartition("@")[2]

    @property
    def shown_url(self) -> str:
        """The URL without a password."""
        parts = urlsplit(self.url)
        at = parts.netloc.rpartition("@")
        if not at[1]:
            return self.url
        return parts._replace(netloc=f"***@{at[2]}").geturl()

    @classmethod
    def parse(cls, text: str) -> Self:
        """From `[NAME=]URL`."""
        named = _NAMED_URL.fullmatch(text)
        return cls(named[2], name=named[1]) if named else cls(text)

    def show(self) -> str:
        """As a flag has it."""
        return f"{self.name}={self.shown_url}" if self.name else self.shown_url


@dataclass(frozen=True)
class Worker(_Entry):
    """One rank of a worker, registered by hand.

    Attributes:
        id: The worker's name.
        endpoint: Where its events are published: `tcp://host:5557`.
        replay: Where it answers for lost ones.
        rank: Its data-parallel rank.
        topic: The prefix of the topics to subscribe to; empty for all.
        model: The model, if not the general one.
        block_size: Tokens in a block, if not the general one.
        routing_group: Its routing group, if not the general one.
    """

    id: str = field(metadata={"kind": _Name()})
    endpoint: str = field(metadata={"kind": Text()})
    replay: str | None = _field(Text())
    rank: int = _field(_RANK, 0)
    topic: str = _field(_AnyText(), "")
    model: str | None = _field(Text())
    block_size: int | None = _field(_BLOCK_SIZE)
    routing_group: str | None = _field(Text())

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("endpoint", "replay"):
            address = getattr(self, name)
            if address is not None and not _ENDPOINT.fullmatch(address):
                raise SettingsError(
                    f"{self._called()}: {name} must be tcp://HOST:PORT or ipc://PATH, got {shown(address)}"
                )

    def _called(self) -> str:
        return f"worker {shown(self.id)}"

    def check(self, *, model: str | None, block_size: int | None) -> None:
        """Whether all is known that a registration needs, with these general values."""
        if self.model is None and model is None:
            raise SettingsError(f"{self._called()}: model is missing: say model=NAME, or --model for all")
        if self.block_size is None and block_size is None:
            raise SettingsError(f"{self._called()}: block_size is missing: say block_size=N, or --block-size for all")

    @classmethod
    def parse(cls, text: str) -> Self:
        """From `ID=tcp://host:port[,replay=...][,rank=N][,topic=...][,model=...][,block_size=N]`."""
        wanted = "a worker is ID=tcp://HOST:PORT[,replay=tcp://HOST:PORT][,rank=N][,topic=T][,model=M][,block_size=N]"
        first, *rest = text.split(",")
        name, equals, endpoint = first.partition("=")
        if not equals or not name or not endpoint:
            raise SettingsError(f"worker {shown(text)}: {wanted}")
        kinds = {each.name: each.metadata["kind"] for each in dataclasses.fields(cls)[2:]}
        given: dict[str, Any] = {}
        for part in rest:
            key, equals, value = part.partition("=")
            key = key.strip().replace("-", "_")
            if not equals:
                raise SettingsError(f"worker {shown(name)}: {shown(part)} is no KEY=VALUE; {wanted}")
            if key not in kinds:
                raise SettingsError(f"worker {shown(name)}: unknown key {shown(key)}: {nearest(key, list(kinds))}")
            if key in given:
                raise SettingsError(f"worker {shown(name)}: {key} is there twice")
            try:
                given[key] = kinds[key].parse(value)
            except ValueError as error:
                raise SettingsError(f"worker {shown(name)}: {key} {error}") from None
        return cls(name, endpoint, **given)

    def show(self) -> str:
        """As a flag has it."""
        parts = [f"{self.id}={self.endpoint}"]
        for each in dataclasses.fields(self)[2:]:
            value = getattr(self, each.name)
            if value != each.default:
                parts.append(f"{each.name}={value}")
        return ",".join(parts)


def check_names(engines: Iterable[Engine], workers: Iterable[Worker]) -> None:
    """Whether each engine has a name of its own, and each worker's rank is there once.

    Raises:
        SettingsError: Names two that clash.
    """
    seen: dict[str, Engine] = {}
    for engine in engines:
        if (other := seen.setdefault(engine.worker, engine)) is not engine:
            raise SettingsError(
                f"engines {other.shown_url} and {engine.shown_url} are both called {shown(engine.worker)}: "
                "give one of them a name of its own, NAME=URL"
            )
    ranks: set[tuple[str, int]] = set()
    for worker in workers:
        if worker.id in seen:
            raise SettingsError(f"worker {shown(worker.id)} is called like engine {seen[worker.id].shown_url}")
        if (worker.id, worker.rank) in ranks:
            raise SettingsError(f"worker {shown(worker.id)}: rank {worker.rank} is there twice")
        ranks.add((worker.id, worker.rank))


def nearest(wrong: str, known: list[str]) -> str:
    """The nearest right name, or all of them."""
    near = difflib.get_close_matches(wrong.lower().replace("-", "_"), known, n=1)
    return f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"


def _word(cls: type) -> str:
    return cls.__name__.lower()
