"""Everything that a service can be told, as frozen dataclasses.

Each field carries its kind, flag and help, so that the command line, the environment, the file, the printed
configuration and the documentation are made from this one list.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from kvatlas._http import is_bearer
from kvatlas.errors import ConfigError
from kvatlas.service.config.engines import Engine, Stream, check_names
from kvatlas.service.config.kinds import Address, Choice, Duration, File, Hosts, Integer, Kind, Size, Text, Texts

ENV_PREFIX = "KVATLAS_"
DEFAULT_GROUP = "default"
_ABOVE_0 = Duration()
_FROM_0 = Duration(zero=True)
_PORT = Integer(1, 65_535)


@dataclass(frozen=True)
class Key:
    """A setting: how it is called where, what it takes.

    Attributes:
        path: Its name in the file: the section, a dot, the field; or the field alone.
        kind: What it takes.
        flag: Its flag.
        help: What it is.
        default: Its value if nobody says anything; None for none.
        optional: Whether None is a value of it.
    """

    path: str
    kind: Kind
    flag: str
    help: str
    default: Any
    optional: bool

    @property
    def env(self) -> str:
        """Its environment variable: named like the flag."""
        return ENV_PREFIX + self.flag.removeprefix("--").replace("-", "_").upper()

    def show_default(self) -> str:
        """The default, as a file would have it; empty if there is none."""
        return "" if self.default in (None, ()) else self.kind.show(self.default)


def _about(kind: Kind, flag: str, text: str) -> dict[str, Any]:
    return {"kind": kind, "flag": flag, "help": text}


class _Section:
    """Checks each field against its kind."""

    section: ClassVar[str] = ""

    def __post_init__(self) -> None:
        for key in keys_of(type(self)):
            name = key.path.rpartition(".")[2]
            value = getattr(self, name)
            if value is None and key.optional:
                continue
            try:
                object.__setattr__(self, name, key.kind.convert(value))
            except ValueError as error:
                raise ConfigError(f"{key.path} {error}") from None


def keys_of(section: type[_Section]) -> Iterator[Key]:
    """The keys of one dataclass."""
    prefix = f"{section.section}." if section.section else ""
    for each in dataclasses.fields(section):  # type: ignore[arg-type]
        about = each.metadata
        if "kind" in about:
            yield Key(
                prefix + each.name, about["kind"], about["flag"], about["help"], each.default, each.default is None
            )


@dataclass(frozen=True)
class HttpConfig(_Section):
    """How queries come in.

    `key` and `admin_key` are the bearer keys themselves, for programs; elsewhere they are in files or variables.
    """

    section: ClassVar[str] = "http"

    bind: str = field(
        default="127.0.0.1:8090", metadata=_about(Address(), "--bind", "Where to listen; port 0 for any free one.")
    )
    admin_bind: str | None = field(
        default=None,
        metadata=_about(
            Address(),
            "--admin-bind",
            "Where to listen besides, for /health, /ready and /metrics only: without TLS and without a key.",
        ),
    )
    threads: int = field(
        default=0, metadata=_about(Integer(0, 1024), "--http-threads", "Threads that answer; 0 for one a core.")
    )
    key_file: Path | None = field(
        default=None,
        metadata=_about(
            File(), "--key-file", "A file with the bearer key that clients must show. Or the key in KVATLAS_KEY."
        ),
    )
    admin_key_file: Path | None = field(
        default=None,
        metadata=_about(
            File(),
            "--admin-key-file",
            "A file with the bearer key that also registers, unregisters and dumps; the other one then only asks. "
            "Or the key in KVATLAS_ADMIN_KEY.",
        ),
    )
    hosts: tuple[str, ...] = field(
        default=(),
        metadata=_about(
            Texts(),
            "--hosts",
            "Host names that requests may name, besides localhost, if it listens on loopback without a key.",
        ),
    )
    tls_cert: Path | None = field(
        default=None, metadata=_about(File(), "--tls-cert", "Certificate chain in PEM; with --tls-key turns TLS on.")
    )
    tls_key: Path | None = field(
        default=None, metadata=_about(File(), "--tls-key", "Private key of the certificate, in PEM.")
    )
    tls_client_ca: Path | None = field(
        default=None,
        metadata=_about(
            File(), "--tls-client-ca", "Authorities in PEM, one of which must have signed each client's certificate."
        ),
    )
    max_body: int = field(default=8 << 20, metadata=_about(Size(), "--max-body", "Bytes of a request's body at most."))
    max_connections: int = field(
        default=4096, metadata=_about(Integer(1, 1_000_000), "--max-connections", "Connections at most.")
    )
    request_timeout: float = field(
        default=10.0,
        metadata=_about(
            _ABOVE_0, "--request-timeout", "Within which a request must have arrived, and then been answered."
        ),
    )
    idle_timeout: float = field(
        default=75.0, metadata=_about(_ABOVE_0, "--idle-timeout", "Without a request, until a connection is closed.")
    )
    access_log: Literal["off", "on"] = field(
        default="off", metadata=_about(Choice("off", "on"), "--access-log", "Whether each request is logged.")
    )
    untrusted: Literal["leave-out", "flag"] = field(
        default="leave-out",
        metadata=_about(
            Choice("leave-out", "flag"),
            "--untrusted",
            "Whether answers leave out workers that are not trusted, or only list them.",
        ),
    )
    key: str | None = field(default=None, repr=False)
    admin_key: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tls_client_ca is not None and self.tls_cert is None:
            raise ConfigError("http.tls_client_ca needs TLS: http.tls_cert and http.tls_key are missing")
        if (self.tls_cert is None) != (self.tls_key is None):
            missing = "http.tls_key" if self.tls_key is None else "http.tls_cert"
            raise ConfigError(f"{missing} is missing: TLS needs both http.tls_cert and http.tls_key")
        _one_key("http.key", self.key, self.key_file)
        _one_key("http.admin_key", self.admin_key, self.admin_key_file)

    def bearer(self) -> str | None:
        """The bearer key for those who ask, if there is one.

        Raises:
            ConfigError: The key file cannot be read, or has no key in it.
        """
        return self.key if self.key_file is None else read_secret(self.key_file, "http.key_file")

    def admin_bearer(self) -> str | None:
        """The bearer key that may do everything, if there is one of its own.

        Raises:
            ConfigError: The key file cannot be read, or has no key in it.
        """
        if self.admin_key_file is None:
            return self.admin_key
        return read_secret(self.admin_key_file, "http.admin_key_file")

    def is_loopback(self) -> bool:
        """Whether only this machine can ask."""
        host = self.bind.rpartition(":")[0]
        return host.startswith("127.") or host == "[::1]"


@dataclass(frozen=True)
class EventsConfig(_Section):
    """How engines' events are followed."""

    section: ClassVar[str] = "events"

    allow: tuple[str, ...] = field(
        default=(),
        metadata=_about(
            Hosts(),
            "--allow",
            "Networks, host names and ipc:// paths, with * for anything, that may be registered over HTTP or by "
            "discovery. If not given: every one where registering needs a key, else loopback.",
        ),
    )
    threads: int = field(default=2, metadata=_about(Integer(1, 1024), "--stream-threads", "Threads that apply events."))
    stale_after: float = field(
        default=30.0,
        metadata=_about(
            _ABOVE_0, "--stale-after", "Silence, replay socket included, after which a stream is not trusted."
        ),
    )
    probe_interval: float = field(
        default=5.0,
        metadata=_about(
            _ABOVE_0, "--probe-interval", "Silence after which an engine is asked whether anything is missing."
        ),
    )
    replay_timeout: float = field(
        default=2.0, metadata=_about(_ABOVE_0, "--replay-timeout", "Within which a replay must bring its next batch.")
    )
    replay_attempts: int = field(
        default=3,
        metadata=_about(Integer(1, 1000), "--replay-attempts", "Replays asked for one gap before it is given up."),
    )
    reorder_grace: float = field(
        default=0.1,
        metadata=_about(_FROM_0, "--reorder-grace", "How long a gap may be mere disorder, where there is no replay."),
    )
    reconnect_min: float = field(
        default=0.1,
        metadata=_about(_ABOVE_0, "--reconnect-min", "First wait before a lost connection is tried again; it doubles."),
    )
    reconnect_max: float = field(
        default=5.0, metadata=_about(_ABOVE_0, "--reconnect-max", "Longest wait before it is tried again.")
    )
    settle_timeout: float = field(
        default=30.0,
        metadata=_about(_ABOVE_0, "--settle-timeout", "How long an engine that was never heard holds back readiness."),
    )
    buffer_batches: int = field(
        default=100_000,
        metadata=_about(Integer(1, 1 << 30), "--buffer-batches", "Batches of a stream kept while a replay runs."),
    )
    buffer_bytes: int = field(default=256 << 20, metadata=_about(Size(), "--buffer-bytes", "Bytes of them."))

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.reconnect_min > self.reconnect_max:
            raise ConfigError(
                f"events.reconnect_min ({self.reconnect_min:g} s) must not be above "
                f"events.reconnect_max ({self.reconnect_max:g} s)"
            )


_COUNT = Integer(1, 1 << 40)


@dataclass(frozen=True)
class LimitsConfig(_Section):
    """On what others can make grow. The defaults are far beyond a fleet of 1,000 engines."""

    section: ClassVar[str] = "limits"

    workers: int = field(default=16_384, metadata=_about(_COUNT, "--max-workers", "Registered workers at most."))
    streams: int = field(default=16_384, metadata=_about(_COUNT, "--max-streams", "Streams of all workers at most."))
    keyspaces: int = field(
        default=1024, metadata=_about(_COUNT, "--max-keyspaces", "Models times routing groups at most.")
    )
    blocks_per_rank: int = field(
        default=16 << 20,
        metadata=_about(_COUNT, "--max-blocks-per-rank", "Blocks that one rank of a worker may hold."),
    )
    blocks_per_worker: int = field(
        default=64 << 20,
        metadata=_about(_COUNT, "--max-blocks-per-worker", "Blocks that all ranks of a worker may hold."),
    )
    buffer_bytes: int = field(
        default=2 << 30,
        metadata=_about(Size(), "--max-buffer-bytes", "Bytes that wait in the buffers of all streams together."),
    )


@dataclass(frozen=True)
class DiscoveryConfig(_Section):
    """How engines are asked where their events are. `key` is the engines' API key itself, for programs."""

    section: ClassVar[str] = "discovery"

    interval: float = field(
        default=10.0,
        metadata=_about(
            _ABOVE_0, "--discovery-interval", "How often each engine is asked whether it is still the same."
        ),
    )
    timeout: float = field(
        default=30.0,
        metadata=_about(_FROM_0, "--discovery-timeout", "How long engines that do not answer hold back readiness."),
    )
    request_timeout: float = field(
        default=5.0,
        metadata=_about(_ABOVE_0, "--discovery-request-timeout", "Within which an engine must answer a request."),
    )
    events_port: int | None = field(
        default=None,
        metadata=_about(_PORT, "--events-port", "Where engines too old to say so publish events: port of rank 0."),
    )
    replay_port: int | None = field(
        default=None, metadata=_about(_PORT, "--replay-port", "And where such engines answer for lost ones.")
    )
    key_file: Path | None = field(
        default=None,
        metadata=_about(
            File(), "--engine-key-file", "A file with the engines' API key. Or the key in KVATLAS_ENGINE_KEY."
        ),
    )
    key: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        _one_key("discovery.key", self.key, self.key_file)

    def bearer(self) -> str | None:
        """The engines' API key, if there is one.

        Raises:
            ConfigError: The key file cannot be read, or has no key in it.
        """
        return self.key if self.key_file is None else read_secret(self.key_file, "discovery.key_file")


@dataclass(frozen=True)
class LogConfig(_Section):
    """What `kvatlas serve` writes to stderr."""

    section: ClassVar[str] = "log"

    format: Literal["text", "json"] = field(
        default="text", metadata=_about(Choice("text", "json"), "--log", "Logs for people or for programs.")
    )
    level: Literal["debug", "info", "warning", "error"] = field(
        default="info",
        metadata=_about(Choice("debug", "info", "warning", "error"), "--log-level", "The least of what is logged."),
    )


@dataclass(frozen=True)
class Config(_Section):
    """All of it. Durations are in seconds, sizes in bytes.

    Raises:
        ConfigError: A value is of the wrong type or of no use; the message names it and says what would be right.
    """

    section: ClassVar[str] = ""

    engines: tuple[Engine, ...] = ()
    streams: tuple[Stream, ...] = ()
    engines_file: Path | None = field(
        default=None,
        metadata=_about(File(), "--engines-file", "A TOML file of engines and streams, read again when it changes."),
    )
    model: str | None = field(
        default=None,
        metadata=_about(
            Text(), "--model", "Register engines under this model name, whatever they say; the model of --stream."
        ),
    )
    block_size: int | None = field(
        default=None,
        metadata=_about(
            Integer(1, 1 << 20), "--block-size", "Tokens in a block, whatever engines say; the block size of --stream."
        ),
    )
    routing_group: str = field(
        default=DEFAULT_GROUP, metadata=_about(Text(), "--routing-group", "The routing group of the engines.")
    )
    drain_timeout: float = field(
        default=10.0,
        metadata=_about(_FROM_0, "--drain-timeout", "How long requests may take to finish when the service stops."),
    )
    drain_delay: float = field(
        default=0.0,
        metadata=_about(
            _FROM_0,
            "--drain-delay",
            "How long a service that stops says that it is not ready before it takes no more requests.",
        ),
    )
    http: HttpConfig = field(default_factory=HttpConfig)
    events: EventsConfig = field(default_factory=EventsConfig)
    limits: LimitsConfig = field(default_factory=LimitsConfig)
    discovery: DiscoveryConfig = field(default_factory=DiscoveryConfig)
    log: LogConfig = field(default_factory=LogConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, kind in SECTIONS.items():
            if name and not isinstance(getattr(self, name), kind):
                raise ConfigError(f"{name} must be {kind.__name__}, got {type(getattr(self, name)).__name__}")
        object.__setattr__(self, "engines", tuple(map(Engine.of, self.engines)))
        object.__setattr__(self, "streams", tuple(map(Stream.of, self.streams)))
        check_names(self.engines, self.streams)
        for stream in self.streams:
            stream.check(model=self.model, block_size=self.block_size)

    def for_native(self, holds: tuple[str, ...] = (), *, log: bool = False) -> dict[str, Any]:
        """What the native service is told: JSON's types, durations in seconds."""
        http: dict[str, Any] = {
            name: getattr(self.http, name)
            for name in (
                "bind",
                "admin_bind",
                "threads",
                "max_body",
                "max_connections",
                "request_timeout",
                "idle_timeout",
                "untrusted",
            )
        }
        self.http.bearer(), self.http.admin_bearer()  # what is wrong with a file is said here, in our words
        for name in ("key", "admin_key"):
            file = getattr(self.http, f"{name}_file")
            http[name] = getattr(self.http, name)
            http[f"{name}_file"] = None if file is None else str(file)
        http["access_log"] = self.http.access_log == "on"
        http["hosts"] = list(self.http.hosts)
        logs = {"format": self.log.format, "level": self.log.level if log else "off"}
        if self.http.tls_cert is not None:
            authority = self.http.tls_client_ca
            http["tls"] = {
                "cert": str(self.http.tls_cert),
                "key": str(self.http.tls_key),
                "client_ca": None if authority is None else str(authority),
            }
        streams = dataclasses.asdict(self.events) | {
            "allow": list(self.events.allow),
            "limits": dataclasses.asdict(self.limits),
        }
        return {"http": http, "streams": streams, "holds": list(holds), "log": logs}


SECTIONS: dict[str, type[_Section]] = {
    "": Config,
    "http": HttpConfig,
    "events": EventsConfig,
    "limits": LimitsConfig,
    "discovery": DiscoveryConfig,
    "log": LogConfig,
}


def all_keys() -> tuple[Key, ...]:
    """Every setting that has one value, in the order of the sections."""
    return tuple(key for section in SECTIONS.values() for key in keys_of(section))


def _one_key(name: str, key: str | None, file: Path | None) -> None:
    if key is not None:
        check_secret(key, name)
        if file is not None:
            raise ConfigError(f"{name} and {name}_file are both given: give one of them")


def read_secret(path: Path, name: str) -> str:
    """The one line of a file, which is a key.

    Raises:
        ConfigError: It cannot be read, is empty or is no key.
    """
    try:
        with path.open("rb") as file:
            text = file.read(65_537).decode()
    except (OSError, UnicodeDecodeError) as error:
        why = (error.strerror or str(error)) if isinstance(error, OSError) else "it is not text"
        raise ConfigError(f"{name}: cannot read {path}: {why}") from error
    return check_secret(text.strip(), f"{name}: {path}")


def check_secret(secret: object, name: str) -> str:
    """The key, if it can be sent in a header. It is in no message."""
    if not isinstance(secret, str) or not is_bearer(secret):
        raise ConfigError(f"{name} must hold one key of visible ASCII characters without white space")
    return secret
