"""Entries of a configuration: engines, and streams registered by hand, as objects, as flags and as tables of a file."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self
from urllib.parse import urlsplit

from kvatlas._http import checked_url
from kvatlas._text import nearest
from kvatlas.errors import ConfigError
from kvatlas.service.config.kinds import PORT, Choice, Integer, Kind, Names, Number, Switch, Text, shown

_RANK = Integer(0, (1 << 32) - 1)
_BLOCK_SIZE = Integer(1, 1 << 20)
_PASSWORD = re.compile(r"(?<=//)[^/?#]*@")
_NAMED_URL = re.compile(r"([^=/?#]+)=(\w+://.*)", re.DOTALL)
_BOUND = re.compile(r"bind://[0-9]{1,5}", re.ASCII)
_ENDPOINT = re.compile(r"tcp://\S+:[0-9]{1,5}|ipc://.+", re.DOTALL | re.ASCII)
_MAX_NAME = 256
_STREAM_WANTED = (
    "a stream is WORKER=tcp://HOST:PORT[,replay_endpoint=tcp://HOST:PORT][,rank=N][,topic=T][,model=M][,block_size=N]"
    "[,routing_group=G][,count_copies=false][,aliases=M|M...][,adapters=A|A...]"
)


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
    """Common base of engines and streams: fields with kinds, read from a flag or a table of a file."""

    def __post_init__(self) -> None:
        for each in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, each.name)
            if value is None and each.default is None:
                continue
            try:
                object.__setattr__(self, each.name, each.metadata["kind"].convert(value))
            except ValueError as error:
                raise ConfigError(f"{self._called()}: {each.name} {error}") from None

    def _called(self) -> str:
        raise NotImplementedError

    @classmethod
    def of(cls, value: Any) -> Self:
        """Make an entry from an entry, a flag's text, or a mapping."""
        if isinstance(value, cls):
            return value
        if isinstance(value, str):
            return cls.parse(value)
        if isinstance(value, Mapping):
            return cls.from_table(value)
        raise ConfigError(f"{_word(cls)} must be {cls.__name__}, a string or a table, got {type(value).__name__}")

    @classmethod
    def parse(cls, text: str) -> Self:
        raise NotImplementedError

    @classmethod
    def from_table(cls, table: Mapping[str, Any]) -> Self:
        """Make an entry from a table of a file.

        Raises:
            ConfigError: A key is unknown, missing or wrong.
        """
        known = [each.name for each in dataclasses.fields(cls)]  # type: ignore[arg-type]
        for key in table:
            if key not in known:
                raise ConfigError(f"{_word(cls)}: unknown key {shown(key)}: {nearest(_spelled(key), known)}")
        for each in dataclasses.fields(cls):  # type: ignore[arg-type]
            if each.default is dataclasses.MISSING and each.name not in table:
                raise ConfigError(f"{_word(cls)}: {each.name} is missing")
        return cls(**table)


@dataclass(frozen=True)
class Engine(_Entry):
    """Engine that is asked for the addresses of its events.

    Attributes:
        url: Its HTTP address: `http://host:8000`.
        name: The worker's name; the host and port of the URL if not given.
        model: Name of the model to register, instead of the engine's answer.
        block_size: Tokens in a block, instead of the engine's answer.
        routing_group: Its routing group, if not the general one.
        events_port: Port of rank 0's events, for engines that do not report it.
        replay_port: Port of rank 0's replay socket, likewise.
        ranks: Number of data-parallel ranks of an engine with `events_port`, if its metrics do not show it.
        count_copies: False if the engine announces blocks again without holding another copy of them, as with
            `kv_cache_report_mode` "full"; asked from the engine by default, else true.
        aliases: Other names of the model, besides those that the engine reports.
        adapters: LoRA adapters that requests may name instead of the model, besides those that the engine reports.
        role: The part of requests that a router sends it: "both" (all of a request), or only "prefill" or "decode".
        weight: Its weight in a router's choice among engines; 1 if not given.
    """

    url: str = field(metadata={"kind": Text()})
    name: str | None = _field(_Name())
    model: str | None = _field(Text())
    block_size: int | None = _field(_BLOCK_SIZE)
    routing_group: str | None = _field(Text())
    events_port: int | None = _field(PORT)
    replay_port: int | None = _field(PORT)
    ranks: int | None = _field(Integer(1, 1 << 16))
    count_copies: bool | None = _field(Switch())
    aliases: tuple[str, ...] | None = _field(Names())
    adapters: tuple[str, ...] | None = _field(Names())
    role: str | None = _field(Choice("both", "prefill", "decode"))
    weight: float | None = _field(Number(0.001, 1000))

    def __post_init__(self) -> None:
        super().__post_init__()
        try:
            url = checked_url(self.url)
        except ValueError as error:
            raise ConfigError(f"{self._called()}: an engine is http://HOST:PORT, but {error}") from None
        object.__setattr__(self, "url", url)

    def _called(self) -> str:
        return f"engine {shown(_PASSWORD.sub('***@', self.url))}"

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
        """Make an engine from `[NAME=]URL`."""
        named = _NAMED_URL.fullmatch(text)
        return cls(named[2], name=named[1]) if named else cls(text)

    def show(self) -> str:
        """The engine as a flag has it."""
        return f"{self.name}={self.shown_url}" if self.name else self.shown_url


@dataclass(frozen=True)
class Stream(_Entry):
    """Events of one rank of a worker, registered by hand.

    Attributes:
        worker: The worker's name.
        endpoint: The address of its events: `tcp://host:5557`; or `bind://5557` if the engine connects to this
            port of the service (`streams.bind`).
        replay_endpoint: The replay socket, which is asked for lost batches.
        rank: The worker's data-parallel rank.
        topic: The engine's topic, compared as a whole; empty for any. With `bind://`, empty is a topic like others.
        model: The model, if not the general one.
        block_size: Tokens in a block, if not the general one.
        routing_group: Its routing group, if not the general one.
        count_copies: Whether a block announced n times is held until it is removed n times.
        aliases: Other names of the model.
        adapters: LoRA adapters that requests may name instead of the model.
    """

    worker: str = field(metadata={"kind": _Name()})
    endpoint: str = field(metadata={"kind": Text()})
    replay_endpoint: str | None = _field(Text())
    rank: int = _field(_RANK, 0)
    topic: str = _field(_AnyText(), "")
    model: str | None = _field(Text())
    block_size: int | None = _field(_BLOCK_SIZE)
    routing_group: str | None = _field(Text())
    count_copies: bool = _field(Switch(), True)
    aliases: tuple[str, ...] | None = _field(Names())
    adapters: tuple[str, ...] | None = _field(Names())

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("endpoint", "replay_endpoint"):
            address = getattr(self, name)
            if address is None or _ENDPOINT.fullmatch(address):
                continue
            if name == "endpoint" and _BOUND.fullmatch(address):
                continue
            bound = ", or bind://PORT for an engine that connects" if name == "endpoint" else ""
            raise ConfigError(
                f"{self._called()}: {name} must be tcp://HOST:PORT or ipc://PATH{bound}, got {shown(address)}"
            )

    def _called(self) -> str:
        return f"stream of worker {shown(self.worker)}"

    def check(self, *, model: str | None, block_size: int | None) -> None:
        """Check that the stream, with these defaults, has everything that a registration needs.

        Raises:
            ConfigError: The model or the block size is missing.
        """
        if self.model is None and model is None:
            raise ConfigError(f"{self._called()}: model is missing: add model=NAME, or set --model for all")
        if self.block_size is None and block_size is None:
            raise ConfigError(f"{self._called()}: block_size is missing: add block_size=N, or set --block-size for all")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Make a stream from `WORKER=ENDPOINT[,KEY=VALUE...]`."""
        first, *rest = text.split(",")
        name, equals, endpoint = first.partition("=")
        if not equals or not name or not endpoint:
            raise ConfigError(f"stream {shown(text)}: {_STREAM_WANTED}")
        kinds = {each.name: each.metadata["kind"] for each in dataclasses.fields(cls)[2:]}
        called = f"stream of worker {shown(name)}"
        given: dict[str, Any] = {}
        for part in rest:
            key, equals, value = part.partition("=")
            key = _spelled(key.strip())
            if not equals:
                raise ConfigError(f"{called}: {shown(part)} is not KEY=VALUE; {_STREAM_WANTED}")
            if key not in kinds:
                raise ConfigError(f"{called}: unknown key {shown(key)}: {nearest(key, kinds)}")
            if key in given:
                raise ConfigError(f"{called}: {key} is given twice")
            try:
                given[key] = kinds[key].parse(value)
            except ValueError as error:
                raise ConfigError(f"{called}: {key} {error}") from None
        return cls(name, endpoint, **given)

    def show(self) -> str:
        """The stream as a flag has it."""
        parts = [f"{self.worker}={self.endpoint}"]
        for each in dataclasses.fields(self)[2:]:
            value = getattr(self, each.name)
            if value != each.default:
                parts.append(f"{each.name}={_flag(value)}")
        return ",".join(parts)


def check_names(engines: Iterable[Engine], streams: Iterable[Stream], *, shared: bool = False) -> None:
    """Check that each engine has a name of its own, and that each rank of a worker has one stream.

    Args:
        engines: The engines.
        streams: The streams.
        shared: True if a stream may have the name of an engine, as in a router, and belongs to it then.

    Raises:
        ConfigError: Two entries clash; the message names them.
    """
    seen: dict[str, Engine] = {}
    for engine in engines:
        if (other := seen.setdefault(engine.worker, engine)) is not engine:
            raise ConfigError(
                f"engines {other.shown_url} and {engine.shown_url} are both named {shown(engine.worker)}: "
                "give one of them another name with NAME=URL"
            )
    ranks: set[tuple[str, int]] = set()
    for stream in streams:
        if not shared and stream.worker in seen:
            raise ConfigError(
                f"worker {shown(stream.worker)} of a stream has the name of engine {seen[stream.worker].shown_url}: "
                "leave the engine out, as it would be asked for its streams"
            )
        if (stream.worker, stream.rank) in ranks:
            raise ConfigError(f"worker {shown(stream.worker)}: rank {stream.rank} has two streams")
        ranks.add((stream.worker, stream.rank))


def _flag(value: object) -> str:
    if isinstance(value, tuple):
        return "|".join(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def _spelled(key: str) -> str:
    return key.lower().replace("-", "_")


def _word(cls: type) -> str:
    return cls.__name__.lower()
