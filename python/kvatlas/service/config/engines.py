"""Entries of a configuration: engines, and streams registered by hand, as objects, flags and tables of a file."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Self
from urllib.parse import urlsplit

from kvatlas._http import checked_url, is_bearer
from kvatlas._text import nearest
from kvatlas.errors import ConfigError
from kvatlas.service.config.kinds import PORT, Choice, Integer, Kind, Names, Number, Switch, Text, shown
from kvatlas.service.config.section import MAX_KEY

_RANK = Integer(0, (1 << 32) - 1)
_BLOCK_SIZE = Integer(1, 1 << 20)
_PASSWORD = re.compile(r"(?<=//)[^/?#]*@")
_PULL = re.compile(r"(?:[\w.-]+|\[[0-9a-fA-F:.]+\]):[1-9]\d{0,4}", re.ASCII)
_NAMED_URL = re.compile(r"([^=/?#]+)=(\w+://.*)", re.DOTALL)
_BOUND = re.compile(r"bind://[0-9]{1,5}", re.ASCII)
_ENDPOINT = re.compile(r"tcp://\S+:[0-9]{1,5}|ipc://.+", re.DOTALL | re.ASCII)
_MAX_NAME = 256
_MOST_RANKS = 1 << 16
_STREAM_WANTED = (
    "a stream is WORKER=tcp://HOST:PORT[,replay_endpoint=tcp://HOST:PORT][,rank=N][,topic=T][,model=M][,block_size=N]"
    "[,routing_group=G][,count_copies=false][,host_chunk=N][,aliases=M|M...][,adapters=A|A...]"
)


class Name(Text):
    """A setting that is the name of a worker or of another thing that users name."""

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


class _Ranks(Kind):
    """A setting that is a number of data-parallel ranks, or a list of their numbers."""

    wanted = f"an integer from 1 to {_MOST_RANKS}, or a list of ranks in ascending order"

    def convert(self, value: object) -> int | tuple[int, ...]:
        if isinstance(value, list | tuple) and value:
            numbers = tuple(_RANK.convert(each) for each in value)
            if all(one < other for one, other in pairwise(numbers)):
                return numbers
        elif isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= _MOST_RANKS:
            return value
        raise self.bad(value)

    def parse(self, text: str) -> int | tuple[int, ...]:
        try:
            numbers = [int(part) for part in text.split(",")]
        except ValueError:
            raise self.bad(text) from None
        return self.convert(numbers if "," in text else numbers[0])


class _Secret(Text):
    """A setting that is a bearer key, which messages do not repeat."""

    def convert(self, value: object) -> str:
        if isinstance(value, str) and len(value) <= MAX_KEY and is_bearer(value):
            return value
        raise ValueError(f"must be visible ASCII characters without white space, {MAX_KEY} bytes at most")


def entry_field(kind: Kind, default: Any = None, *, routing: bool = False) -> Any:
    """Declare a field of an entry. `routing`: True if it concerns requests only, not the receiving of events."""
    return field(default=default, metadata={"kind": kind, "routing": routing}, repr=not isinstance(kind, _Secret))


def parse_fields(parts: Iterable[str], kinds: Mapping[str, Kind], called: str, wanted: str) -> dict[str, Any]:
    """Parse the fields of an entry that a flag gives as `KEY=VALUE`.

    Args:
        parts: The flag's parts.
        kinds: The kind of each field by its name.
        called: The entry's name in messages.
        wanted: The flag's form, for messages.

    Raises:
        ConfigError: A part has another form, an unknown key, a key given before, or a wrong value.
    """
    given: dict[str, Any] = {}
    for part in parts:
        key, equals, value = part.partition("=")
        key = key.strip()
        if not equals:
            raise ConfigError(f"{called}: {shown(part)} is not KEY=VALUE; {wanted}")
        if key not in kinds:
            raise ConfigError(f"{called}: unknown key {shown(key)}: {nearest(key, kinds)}")
        if key in given:
            raise ConfigError(f"{called}: {key} is given twice")
        try:
            given[key] = kinds[key].parse(value)
        except ValueError as error:
            raise ConfigError(f"{called}: {key} {error}") from None
    return given


class Entry:
    """Common base of the entries for engines and streams: fields with kinds, read from a flag or a table of a file."""

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
            ConfigError: A key is unknown or missing, or its value is invalid.
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
class Engine(Entry):
    """Settings of an engine, which is asked for the addresses of its events.

    Attributes:
        url: The engine's HTTP address: `http://host:8000`.
        name: The worker's name; None for the host and port of the URL.
        model: Name of the model to register, instead of the engine's answer.
        block_size: Tokens in a block, instead of the engine's answer.
        routing_group: The engine's routing group, if not the general one.
        events_port: Port of rank 0's events, for engines that do not report it.
        replay_port: Port of rank 0's replay socket, for engines that do not report it.
        ranks: Number of data-parallel ranks of an engine with `events_port`, if its metrics do not show it; or a list
            of the ranks to which a router can send requests.
        count_copies: False if the engine announces blocks again without holding another copy of them, as with
            `kv_cache_report_mode` "full"; None to ask the engine, and True if it does not answer.
        host_chunk: Number of blocks stored together in host memory, instead of the engine's answer or of inference from
            its stores.
        aliases: Other names of the model, besides those that the engine reports.
        adapters: LoRA adapters that requests may name instead of the model, besides those that the engine reports.
        role: The part of requests that a router sends to the engine: "both" (all of a request), or only "prefill" or
            "decode".
        weight: The engine's weight in a router's choice among engines; None for 1.
        drain: True if a router sends the engine no new requests.
        models: The models and adapters that the engine serves, instead of its answer.
        capacity_blocks: Capacity of the engine's cache in blocks, instead of its answer.
        handover: "vllm" or "sglang": the protocol for handing prompts over between prefill and decode, instead of the
            engine's answer.
        version: The engine's version, which determines how it makes prompts, instead of its answer.
        bootstrap_port: Port at which an SGLang prefill engine meets decode engines, instead of its answer.
        pull: `HOST:PORT` at which other engines can pull blocks from its host memory; further ranks have the next
            ports.
        pull_group: A name that is the same for all engines that can pull from each other, if there are several groups.
        rank_header: The numbering by which requests name ranks, "local" (counted from 0) or "global", instead of the
            detected one.
        key: The bearer key for the engine, instead of the key of all engines.
        use_key: False to send the engine no key of all engines.
    """

    url: str = field(metadata={"kind": Text()})
    name: str | None = entry_field(Name())
    model: str | None = entry_field(Text())
    block_size: int | None = entry_field(_BLOCK_SIZE)
    routing_group: str | None = entry_field(Text())
    events_port: int | None = entry_field(PORT)
    replay_port: int | None = entry_field(PORT)
    ranks: int | tuple[int, ...] | None = entry_field(_Ranks())
    count_copies: bool | None = entry_field(Switch())
    host_chunk: int | None = entry_field(_BLOCK_SIZE)
    aliases: tuple[str, ...] | None = entry_field(Names())
    adapters: tuple[str, ...] | None = entry_field(Names())
    role: str | None = entry_field(Choice("both", "prefill", "decode"), routing=True)
    weight: float | None = entry_field(Number(0.001, 1000), routing=True)
    drain: bool | None = entry_field(Switch(), routing=True)
    models: tuple[str, ...] | None = entry_field(Names(), routing=True)
    capacity_blocks: int | None = entry_field(Integer(1, 1 << 40), routing=True)
    handover: str | None = entry_field(Choice("vllm", "sglang"), routing=True)
    version: str | None = entry_field(Text(), routing=True)
    bootstrap_port: int | None = entry_field(PORT, routing=True)
    pull: str | None = entry_field(Text(), routing=True)
    pull_group: str | None = entry_field(Text(), routing=True)
    rank_header: str | None = entry_field(Choice("local", "global"), routing=True)
    key: str | None = entry_field(_Secret())
    use_key: bool | None = entry_field(Switch())

    def __post_init__(self) -> None:
        super().__post_init__()
        try:
            url = checked_url(self.url)
        except ValueError as error:
            raise ConfigError(f"{self._called()}: an engine is http://HOST:PORT, but {error}") from None
        object.__setattr__(self, "url", url)
        if self.pull is not None and not _PULL.fullmatch(self.pull):
            raise ConfigError(f"{self._called()}: pull must be HOST:PORT, got {shown(self.pull)}")

    def _called(self) -> str:
        return f"engine {shown(_PASSWORD.sub('***@', self.url))}"

    def table(self) -> dict[str, Any]:
        """The engine's given settings as a table of a file, including the bearer key."""
        return {
            each.name: list(value) if isinstance(value, tuple) else value
            for each in dataclasses.fields(self)
            if (value := getattr(self, each.name)) is not None
        }

    def as_followed(self) -> Engine:
        """The engine without the settings that concern only a router's choice and requests."""
        without: dict[str, Any] = dict.fromkeys(ROUTING_FIELDS)
        return dataclasses.replace(self, **without)

    def key_of(self, common: str | None) -> str | None:
        """The bearer key to send to the engine; None for none. `common`: the key of all engines."""
        return self.key or (None if self.use_key is False else common)

    @property
    def worker(self) -> str:
        """The worker's name."""
        return self.name or urlsplit(self.url).netloc.rpartition("@")[2]

    @property
    def followed(self) -> Engine:
        """The engine with only the settings for receiving its events."""
        return dataclasses.replace(self, role=None, weight=None)

    @property
    def shown_url(self) -> str:
        """The URL without a password, for messages."""
        parts = urlsplit(self.url)
        at = parts.netloc.rpartition("@")
        if not at[1]:
            return self.url
        return parts._replace(netloc=f"***@{at[2]}").geturl()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse an engine from `[NAME=]URL`."""
        named = _NAMED_URL.fullmatch(text)
        return cls(named[2], name=named[1]) if named else cls(text)

    def show(self) -> str:
        """The engine in the form of a flag: `[NAME=]URL`."""
        return f"{self.name}={self.shown_url}" if self.name else self.shown_url


ROUTING_FIELDS = tuple(each.name for each in dataclasses.fields(Engine) if each.metadata.get("routing"))
"""Names of the settings of engines that only a router uses."""


@dataclass(frozen=True)
class Stream(Entry):
    """Settings of the event stream of one rank of a worker, registered by hand.

    Attributes:
        worker: The worker's name.
        endpoint: The address of the worker's events: `tcp://host:5557`; or `bind://5557` if the engine connects to this
            port of the service (`streams.bind`).
        replay_endpoint: The replay socket, which is asked for lost batches.
        rank: The worker's data-parallel rank.
        topic: The engine's topic, compared as a whole; empty for any. With `bind://`, empty is a topic like others.
        model: The model, if not the general one.
        block_size: Tokens in a block, if not the general one.
        routing_group: The worker's routing group, if not the general one.
        count_copies: True if a block announced n times counts as held until removed n times.
        aliases: Other names of the model.
        adapters: LoRA adapters that requests may name instead of the model.
        host_chunk: Number of blocks that the engine stores together in host memory; None to infer it from its stores.
    """

    worker: str = field(metadata={"kind": Name()})
    endpoint: str = field(metadata={"kind": Text()})
    replay_endpoint: str | None = entry_field(Text())
    rank: int = entry_field(_RANK, 0)
    topic: str = entry_field(_AnyText(), "")
    model: str | None = entry_field(Text())
    block_size: int | None = entry_field(_BLOCK_SIZE)
    routing_group: str | None = entry_field(Text())
    count_copies: bool = entry_field(Switch(), True)
    aliases: tuple[str, ...] | None = entry_field(Names())
    adapters: tuple[str, ...] | None = entry_field(Names())
    host_chunk: int | None = entry_field(_BLOCK_SIZE)

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
        """Check that a registration of the stream, with the given defaults, is complete.

        Raises:
            ConfigError: The model or the block size is missing.
        """
        if self.model is None and model is None:
            raise ConfigError(f"{self._called()}: model is missing: add model=NAME, or set --model for all")
        if self.block_size is None and block_size is None:
            raise ConfigError(f"{self._called()}: block_size is missing: add block_size=N, or set --block-size for all")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a stream from `WORKER=ENDPOINT[,KEY=VALUE...]`."""
        first, *rest = text.split(",")
        name, equals, endpoint = first.partition("=")
        if not equals or not name or not endpoint:
            raise ConfigError(f"stream {shown(text)}: {_STREAM_WANTED}")
        kinds = {each.name: each.metadata["kind"] for each in dataclasses.fields(cls)[2:]}
        called = f"stream of worker {shown(name)}"
        pairs = ((part, *part.partition("=")) for part in rest)
        parts = [f"{_spelled(key.strip())}={value}" if equals else part for part, key, equals, value in pairs]
        return cls(name, endpoint, **parse_fields(parts, kinds, called, _STREAM_WANTED))

    def show(self) -> str:
        """The stream in the form of a flag: `WORKER=ENDPOINT[,KEY=VALUE...]`."""
        parts = [f"{self.worker}={self.endpoint}"]
        for each in dataclasses.fields(self)[2:]:
            value = getattr(self, each.name)
            if value != each.default:
                parts.append(f"{each.name}={_flag(value)}")
        return ",".join(parts)


def check_names(engines: Iterable[Engine], streams: Iterable[Stream], *, shared: bool = False) -> None:
    """Check that each engine has a different name, and that each rank of a worker has one stream.

    Args:
        engines: The engines.
        streams: The streams.
        shared: True if a stream may have the name of an engine, as in a router; the stream then belongs to the engine.

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
