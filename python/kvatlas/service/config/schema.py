"""All settings of the service, as frozen dataclasses.

Each field carries its kind, flag and help, so that the command line, the environment, the file, the printed
configuration and the documentation are made from this one list.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from kvatlas._http import checked_url, is_bearer
from kvatlas.errors import ConfigError
from kvatlas.service import replicas
from kvatlas.service.config.engines import Engine, Stream, check_names
from kvatlas.service.config.kinds import (
    Address,
    Addresses,
    Choice,
    Directory,
    Duration,
    File,
    Hosts,
    Integer,
    Kind,
    Number,
    Size,
    Text,
    Texts,
)

ENV_PREFIX = "KVATLAS_"
DEFAULT_GROUP = "default"
_ABOVE_0 = Duration()
_FROM_0 = Duration(zero=True)
_PORT = Integer(1, 65_535)


@dataclass(frozen=True)
class Key:
    """One setting: its names and the values it accepts.

    Attributes:
        path: Its name in the file: the section, a dot, the field; or the field alone.
        kind: The kind of value it accepts.
        flag: Its flag on the command line.
        help: What it means.
        default: Its default; None if there is none.
        optional: Whether None is a valid value.
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


def about(kind: Kind, flag: str, text: str) -> dict[str, Any]:
    """What a field of a section says of itself: the kind of its values, its flag and its help."""
    return {"kind": kind, "flag": flag, "help": text}


class Section:
    """Settings of one section. Checks each field against its kind."""

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


def keys_of(section: type[Section]) -> Iterator[Key]:
    """The keys of one dataclass."""
    prefix = f"{section.section}." if section.section else ""
    for each in dataclasses.fields(section):  # type: ignore[arg-type]
        about = each.metadata
        if "kind" in about:
            yield Key(
                prefix + each.name, about["kind"], about["flag"], about["help"], each.default, each.default is None
            )


@dataclass(frozen=True)
class HttpConfig(Section):
    """The HTTP server.

    `key` and `admin_key` are the bearer keys themselves, for programs; otherwise the keys are in files or variables.
    """

    section: ClassVar[str] = "http"

    bind: str = field(
        default="127.0.0.1:8090",
        metadata=about(Address(), "--bind", "Address to listen on. Port 0 picks a free port."),
    )
    admin_bind: str | None = field(
        default=None,
        metadata=about(
            Address(),
            "--admin-bind",
            "Additional address for /health, /ready, /metrics and /version only, without TLS and without a key.",
        ),
    )
    threads: int = field(
        default=0,
        metadata=about(Integer(0, 1024), "--http-threads", "Threads that answer requests. 0 means one per core."),
    )
    key_file: Path | None = field(
        default=None,
        metadata=about(
            File(), "--key-file", "File with the bearer key that clients must send. Alternatively, set KVATLAS_KEY."
        ),
    )
    admin_key_file: Path | None = field(
        default=None,
        metadata=about(
            File(),
            "--admin-key-file",
            "File with the bearer key for /register, /unregister and /dump. With it, the other key only allows "
            "queries. Alternatively, set KVATLAS_ADMIN_KEY.",
        ),
    )
    hosts: tuple[str, ...] = field(
        default=(),
        metadata=about(
            Texts(),
            "--hosts",
            "Host names accepted besides localhost when the service listens on loopback without a key.",
        ),
    )
    tls_cert: Path | None = field(
        default=None,
        metadata=about(File(), "--tls-cert", "Certificate chain in PEM. Together with --tls-key, enables TLS."),
    )
    tls_key: Path | None = field(
        default=None, metadata=about(File(), "--tls-key", "Private key of the certificate, in PEM.")
    )
    tls_client_ca: Path | None = field(
        default=None,
        metadata=about(
            File(), "--tls-client-ca", "Certificate authorities in PEM. Clients must send a certificate signed by one."
        ),
    )
    max_body: int = field(default=8 << 20, metadata=about(Size(), "--max-body", "Maximum size of a request body."))
    max_connections: int = field(
        default=4096, metadata=about(Integer(1, 1_000_000), "--max-connections", "Maximum number of open connections.")
    )
    request_timeout: float = field(
        default=10.0,
        metadata=about(
            _ABOVE_0, "--request-timeout", "Time within which a request must arrive, and then its answer be sent."
        ),
    )
    idle_timeout: float = field(
        default=75.0,
        metadata=about(_ABOVE_0, "--idle-timeout", "Time after which a connection without requests is closed."),
    )
    access_log: Literal["off", "on"] = field(
        default="off", metadata=about(Choice("off", "on"), "--access-log", "Log each request.")
    )
    untrusted: Literal["leave-out", "flag"] = field(
        default="leave-out",
        metadata=about(
            Choice("leave-out", "flag"),
            "--untrusted",
            "Leave untrusted workers out of answers, or include and flag them.",
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
        one_key("http.key", self.key, self.key_file)
        one_key("http.admin_key", self.admin_key, self.admin_key_file)

    def bearer(self) -> str | None:
        """The bearer key for queries, if there is one.

        Raises:
            ConfigError: The key file cannot be read, or does not hold a key.
        """
        return self.key if self.key_file is None else read_secret(self.key_file, "http.key_file")

    def admin_bearer(self) -> str | None:
        """The bearer key for all routes, if it is set separately.

        Raises:
            ConfigError: The key file cannot be read, or does not hold a key.
        """
        if self.admin_key_file is None:
            return self.admin_key
        return read_secret(self.admin_key_file, "http.admin_key_file")

    def is_loopback(self) -> bool:
        """Whether only this machine can connect."""
        host = self.bind.rpartition(":")[0]
        return host.startswith("127.") or host == "[::1]"


@dataclass(frozen=True)
class StreamConfig(Section):
    """How the engines' event streams are followed."""

    section: ClassVar[str] = "streams"

    allow: tuple[str, ...] = field(
        default=(),
        metadata=about(
            Hosts(),
            "--allow",
            "Networks, host names and ipc:// paths (* matches anything) of the streams that HTTP clients and discovery "
            "may register. By default: any if registering needs a key, otherwise only loopback.",
        ),
    )
    bind: tuple[str, ...] = field(
        default=(),
        metadata=about(
            Addresses(),
            "--streams-bind",
            "Addresses to listen on for engines that connect their publisher (register them with bind://PORT).",
        ),
    )
    threads: int = field(default=2, metadata=about(Integer(1, 1024), "--stream-threads", "Threads that apply events."))
    stale_after: float = field(
        default=30.0,
        metadata=about(
            _ABOVE_0,
            "--stale-after",
            "Time without any message, replay answers included, after which a stream is untrusted.",
        ),
    )
    probe_interval: float = field(
        default=5.0,
        metadata=about(
            _ABOVE_0,
            "--probe-interval",
            "Time without events after which the replay socket is asked for missing batches.",
        ),
    )
    replay_timeout: float = field(
        default=2.0,
        metadata=about(_ABOVE_0, "--replay-timeout", "Time within which a replay must deliver its next batch."),
    )
    replay_total_timeout: float = field(
        default=300.0,
        metadata=about(
            _ABOVE_0,
            "--replay-total-timeout",
            "Time within which missing batches must be recovered, replays included. After it, they are given up.",
        ),
    )
    replay_attempts: int = field(
        default=3,
        metadata=about(
            Integer(1, 1000), "--replay-attempts", "Number of replays requested for one gap before it is given up."
        ),
    )
    reorder_grace: float = field(
        default=0.1,
        metadata=about(
            _FROM_0, "--reorder-grace", "Without a replay socket: time to wait for batches that arrive out of order."
        ),
    )
    reconnect_min: float = field(
        default=0.1,
        metadata=about(_ABOVE_0, "--reconnect-min", "First delay before reconnecting. It doubles with each attempt."),
    )
    reconnect_max: float = field(
        default=5.0, metadata=about(_ABOVE_0, "--reconnect-max", "Longest delay before reconnecting.")
    )
    settle_timeout: float = field(
        default=30.0,
        metadata=about(
            _ABOVE_0, "--settle-timeout", "Longest time that an engine not yet heard from delays readiness."
        ),
    )
    buffer_batches: int = field(
        default=100_000,
        metadata=about(
            Integer(1, 1 << 30),
            "--buffer-batches",
            "Maximum number of live batches buffered per stream during a replay.",
        ),
    )
    buffer_bytes: int = field(
        default=256 << 20, metadata=about(Size(), "--buffer-bytes", "Maximum size of these buffered batches.")
    )
    keyed_identity: Literal["off", "on"] = field(
        default="off",
        metadata=about(
            Choice("off", "on"),
            "--keyed-identity",
            "Identify blocks under a secret key instead of by content hash, so that nobody can construct prompts that "
            "match others. Queries then need tokens.",
        ),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.reconnect_min > self.reconnect_max:
            raise ConfigError(
                f"streams.reconnect_min ({self.reconnect_min:g} s) must not be above "
                f"streams.reconnect_max ({self.reconnect_max:g} s)"
            )


_COUNT = Integer(1, 1 << 40)


@dataclass(frozen=True)
class LimitsConfig(Section):
    """Limits on what the service holds. The defaults are well above the needs of 1,000 engines."""

    section: ClassVar[str] = "limits"

    workers: int = field(default=16_384, metadata=about(_COUNT, "--max-workers", "Maximum number of workers."))
    streams: int = field(default=16_384, metadata=about(_COUNT, "--max-streams", "Maximum number of streams."))
    keyspaces: int = field(
        default=1024, metadata=about(_COUNT, "--max-keyspaces", "Maximum number of pairs of model and routing group.")
    )
    blocks_per_rank: int = field(
        default=16 << 20,
        metadata=about(_COUNT, "--max-blocks-per-rank", "Maximum number of blocks of one rank of a worker."),
    )
    blocks_per_worker: int = field(
        default=64 << 20,
        metadata=about(_COUNT, "--max-blocks-per-worker", "Maximum number of blocks of all ranks of a worker."),
    )
    buffer_bytes: int = field(
        default=2 << 30,
        metadata=about(Size(), "--max-buffer-bytes", "Maximum size of the buffers of all streams together."),
    )


@dataclass(frozen=True)
class AdoptConfig(Section):
    """How the service learns of blocks that engines announced before it followed them."""

    section: ClassVar[str] = "adopt"

    share: float = field(
        default=0.1,
        metadata=about(
            Number(0, 1),
            "--adopt-share",
            "Share of one core used to find blocks announced before the service followed the engine. 0 turns it off.",
        ),
    )
    hash_seeds: tuple[str, ...] = field(
        default=(),
        metadata=about(
            Texts(), "--hash-seed", "Values of PYTHONHASHSEED that vLLM engines were started with, if it was set."
        ),
    )


@dataclass(frozen=True)
class SnapshotConfig(Section):
    """What the service keeps over a restart, or takes from another one when it starts.

    `peer_key` is the key of the service at `peer` itself, for programs.
    """

    section: ClassVar[str] = "snapshot"

    dir: Path | None = field(
        default=None,
        metadata=about(
            Directory(),
            "--snapshot-dir",
            "Directory for snapshots of the index, one per service. A service that restarts begins with the last one.",
        ),
    )
    every: float = field(
        default=60.0, metadata=about(_ABOVE_0, "--snapshot-every", "Time from one snapshot to the next.")
    )
    keep: float = field(
        default=300.0,
        metadata=about(
            _FROM_0,
            "--snapshot-keep",
            "Time that a loaded snapshot's streams may take to be registered. What is left after it is dropped.",
        ),
    )
    peer: str | None = field(
        default=None,
        metadata=about(
            Text(),
            "--peer-snapshot",
            "URL of a running kvatlas service whose snapshot this one begins with. Or dns:NAME:PORT: of any replica "
            "at the addresses of NAME that is ready.",
        ),
    )
    peer_key_file: Path | None = field(
        default=None,
        metadata=about(
            File(), "--peer-snapshot-key-file", "File with the key that the service at --peer-snapshot needs for this."
        ),
    )
    peer_timeout: float = field(
        default=60.0,
        metadata=about(
            _ABOVE_0,
            "--peer-snapshot-timeout",
            "Time within which that snapshot must arrive. After it, it is given up.",
        ),
    )
    peer_key: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        one_key("snapshot.peer_key", self.peer_key, self.peer_key_file)
        if self.peer is None:
            if self.peer_key_file is not None:
                raise ConfigError("snapshot.peer_key_file is for the service at snapshot.peer, which is not set")
            return
        try:
            if replicas.is_name(self.peer):
                replicas.checked_name(self.peer)
            else:
                object.__setattr__(self, "peer", checked_url(self.peer))
        except ValueError as error:
            raise ConfigError(f"snapshot.peer must be http://HOST:PORT or dns:NAME:PORT, but {error}") from None

    def peer_bearer(self) -> str | None:
        """The key of the service at `peer`, if there is one.

        Raises:
            ConfigError: The key file cannot be read, or does not hold a key.
        """
        return (
            self.peer_key if self.peer_key_file is None else read_secret(self.peer_key_file, "snapshot.peer_key_file")
        )


@dataclass(frozen=True)
class RelayConfig(Section):
    """A log in NATS JetStream between this service and others. Empty if there is none."""

    section: ClassVar[str] = "relay"

    publish: str | None = field(
        default=None,
        metadata=about(
            Text(),
            "--publish",
            "NATS servers to publish to what the followed engines hold: nats://HOST:PORT or tls://HOST:PORT, separated "
            "by commas.",
        ),
    )
    source: str | None = field(
        default=None,
        metadata=about(Text(), "--from", "NATS servers to read from what engines hold, as relays publish it there."),
    )
    credentials: Path | None = field(
        default=None, metadata=about(File(), "--relay-credentials", "File with the credentials for these servers.")
    )
    ca: Path | None = field(
        default=None,
        metadata=about(File(), "--relay-ca", "CA certificate in PEM to trust for these servers, besides the system's."),
    )
    key_file: Path | None = field(
        default=None,
        metadata=about(
            File(),
            "--relay-key-file",
            "File with 64 hexadecimal digits, equal in all relays and their readers: blocks are identified under this "
            "key instead of by content hash. Queries then need tokens.",
        ),
    )
    stream: str = field(default="kvatlas", metadata=about(Text(), "--relay-stream", "Name of the JetStream stream."))
    max_age: float = field(
        default=600.0,
        metadata=about(
            _ABOVE_0, "--relay-max-age", "Time that messages are kept, where a relay creates the JetStream stream."
        ),
    )
    max_bytes: int = field(
        default=1 << 30,
        metadata=about(Size(), "--relay-max-bytes", "Size that is kept, where a relay creates the JetStream stream."),
    )
    storage: Literal["file", "memory"] = field(
        default="file",
        metadata=about(
            Choice("file", "memory"), "--relay-storage", "Where messages are kept, where a relay creates the stream."
        ),
    )
    buffer_bytes: int = field(
        default=64 << 20,
        metadata=about(
            Size(),
            "--relay-buffer-bytes",
            "Size of what waits to be published, of all engines together. Beyond it, what waits of an engine is "
            "dropped and replaced by a copy of all that it holds.",
        ),
    )
    heartbeat: float = field(
        default=2.0,
        metadata=about(
            _ABOVE_0, "--relay-heartbeat", "Time after which a relay publishes that an idle engine is well."
        ),
    )
    lost_after: float = field(
        default=7.0,
        metadata=about(_ABOVE_0, "--relay-lost-after", "Silence of a relay after which its engines are not trusted."),
    )
    forget_after: float = field(
        default=600.0,
        metadata=about(_ABOVE_0, "--relay-forget-after", "Silence of a relay after which its engines are forgotten."),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.publish is not None and self.source is not None:
            raise ConfigError("relay.publish and relay.source are both set: what comes by NATS is not published again")
        for name in ("publish", "source"):
            servers = getattr(self, name)
            for server in () if servers is None else servers.split(","):
                if not server.strip().startswith(("nats://", "tls://")):
                    raise ConfigError(
                        f"relay.{name} must be nats://HOST:PORT or tls://HOST:PORT, got {server.strip()!r}"
                    )

    def for_native(self) -> dict[str, Any]:
        """What the native service is told."""
        told = dataclasses.asdict(self)
        for name in ("credentials", "ca", "key_file"):
            told[name] = None if told[name] is None else str(told[name])
        told["from"] = told.pop("source")
        told["in_memory"] = told.pop("storage") == "memory"
        return told


@dataclass(frozen=True)
class SitesConfig(Section):
    """How the service goes together with other sites. `key` is the key of the service at `url` itself, for programs."""

    section: ClassVar[str] = "sites"

    role: Literal["site", "global"] = field(
        default="site",
        metadata=about(
            Choice("site", "global"),
            "--role",
            "What the service does: follow engines, or take in the digests of sites and answer which to ask.",
        ),
    )
    url: str | None = field(
        default=None,
        metadata=about(Text(), "--global", "URL of the service above many sites. Digests of this one are sent to it."),
    )
    site: str | None = field(
        default=None, metadata=about(Text(), "--site", "Name of this site, for --global. Each site has its own.")
    )
    key_file: Path | None = field(
        default=None,
        metadata=about(File(), "--global-key-file", "File with the admin key of the service at --global."),
    )
    every: float = field(default=5.0, metadata=about(_ABOVE_0, "--digest-every", "Time from one digest to the next."))
    grain: int = field(
        default=32,
        metadata=about(
            Integer(1, 1 << 16),
            "--digest-grain",
            "Blocks between two marks of a chain in a digest. The same for all sites and the service above them.",
        ),
    )
    unknown_after: float = field(
        default=30.0,
        metadata=about(_ABOVE_0, "--site-unknown-after", "Time without a digest after which a site may hold anything."),
    )
    forget_after: float = field(
        default=3600.0,
        metadata=about(_ABOVE_0, "--site-forget-after", "Time without a digest after which a site is forgotten."),
    )
    key: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        one_key("sites.key", self.key, self.key_file)
        if self.url is None:
            for name in ("site", "key_file"):
                if getattr(self, name) is not None:
                    raise ConfigError(f"sites.{name} is for digests sent to sites.url (--global), which is not set")
            return
        if self.role == "global":
            raise ConfigError(
                "sites.role is global, so sites.url must not be set: such a service has no digests to send"
            )
        if not self.site:
            raise ConfigError("sites.url needs sites.site (--site), the name of this site")
        try:
            object.__setattr__(self, "url", checked_url(self.url))
        except ValueError as error:
            raise ConfigError(f"sites.url must be http://HOST:PORT, but {error}") from None

    def bearer(self) -> str | None:
        """The key of the service at `url`, if there is one.

        Raises:
            ConfigError: The key file cannot be read, or does not hold a key.
        """
        return self.key if self.key_file is None else read_secret(self.key_file, "sites.key_file")


@dataclass(frozen=True)
class DiscoveryConfig(Section):
    """How the event sockets of engines are discovered. `key` is the engines' API key itself, for programs."""

    section: ClassVar[str] = "discovery"

    interval: float = field(
        default=10.0,
        metadata=about(
            _ABOVE_0, "--discovery-interval", "Time between checks of each engine for changed event sockets."
        ),
    )
    timeout: float = field(
        default=30.0,
        metadata=about(
            _FROM_0, "--discovery-timeout", "Longest time that engines that do not respond delay readiness."
        ),
    )
    request_timeout: float = field(
        default=5.0,
        metadata=about(
            _ABOVE_0, "--discovery-request-timeout", "Time within which an engine must answer an HTTP request."
        ),
    )
    events_port: int | None = field(
        default=None,
        metadata=about(
            _PORT, "--events-port", "Events port of rank 0, for engines that do not report it (vLLM before 0.31)."
        ),
    )
    replay_port: int | None = field(
        default=None, metadata=about(_PORT, "--replay-port", "Replay port of rank 0, for the same engines.")
    )
    key_file: Path | None = field(
        default=None,
        metadata=about(
            File(), "--engine-key-file", "File with the API key of the engines. Alternatively, set KVATLAS_ENGINE_KEY."
        ),
    )
    key: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        one_key("discovery.key", self.key, self.key_file)

    def bearer(self) -> str | None:
        """The engines' API key, if there is one.

        Raises:
            ConfigError: The key file cannot be read, or does not hold a key.
        """
        return self.key if self.key_file is None else read_secret(self.key_file, "discovery.key_file")


@dataclass(frozen=True)
class LogConfig(Section):
    """What `kvatlas serve` writes to stderr."""

    section: ClassVar[str] = "log"

    format: Literal["text", "json"] = field(
        default="text", metadata=about(Choice("text", "json"), "--log", "Format of the logs.")
    )
    level: Literal["debug", "info", "warning", "error"] = field(
        default="info",
        metadata=about(Choice("debug", "info", "warning", "error"), "--log-level", "Lowest severity that is logged."),
    )


@dataclass(frozen=True)
class Config(Section):
    """The whole configuration. Durations are in seconds, sizes in bytes.

    Raises:
        ConfigError: A value has the wrong type or is out of range. The message names it and says what is allowed.
    """

    section: ClassVar[str] = ""

    engines: tuple[Engine, ...] = ()
    static_streams: tuple[Stream, ...] = ()
    engines_file: Path | None = field(
        default=None,
        metadata=about(File(), "--engines-file", "TOML file of engines and streams, reloaded when it changes."),
    )
    model: str | None = field(
        default=None,
        metadata=about(Text(), "--model", "Model name for all engines and streams, instead of the one engines report."),
    )
    block_size: int | None = field(
        default=None,
        metadata=about(
            Integer(1, 1 << 20),
            "--block-size",
            "Tokens per block for all engines and streams, instead of what engines report.",
        ),
    )
    routing_group: str = field(
        default=DEFAULT_GROUP, metadata=about(Text(), "--routing-group", "Routing group of the engines.")
    )
    drain_timeout: float = field(
        default=10.0,
        metadata=about(_FROM_0, "--drain-timeout", "Time that open requests get to finish when the service stops."),
    )
    drain_delay: float = field(
        default=0.0,
        metadata=about(
            _FROM_0,
            "--drain-delay",
            "Time for which a stopping service reports not ready but still accepts requests.",
        ),
    )
    http: HttpConfig = field(default_factory=HttpConfig)
    streams: StreamConfig = field(default_factory=StreamConfig)
    limits: LimitsConfig = field(default_factory=LimitsConfig)
    adopt: AdoptConfig = field(default_factory=AdoptConfig)
    snapshot: SnapshotConfig = field(default_factory=SnapshotConfig)
    relay: RelayConfig = field(default_factory=RelayConfig)
    sites: SitesConfig = field(default_factory=SitesConfig)
    discovery: DiscoveryConfig = field(default_factory=DiscoveryConfig)
    log: LogConfig = field(default_factory=LogConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, kind in SECTIONS.items():
            if name and not isinstance(getattr(self, name), kind):
                raise ConfigError(f"{name} must be {kind.__name__}, got {type(getattr(self, name)).__name__}")
        object.__setattr__(self, "engines", tuple(map(Engine.of, self.engines)))
        object.__setattr__(self, "static_streams", tuple(map(Stream.of, self.static_streams)))
        check_names(self.engines, self.static_streams)
        for stream in self.static_streams:
            stream.check(model=self.model, block_size=self.block_size)
        kept = [f"snapshot.{name}" for name in ("dir", "peer") if getattr(self.snapshot, name) is not None]
        if self.streams.keyed_identity == "on" and kept:
            raise ConfigError(
                f"streams.keyed_identity and {kept[0]} are both set: snapshots need content hashes, "
                "because the key is lost when the service stops"
            )
        for name in ("publish", "source"):
            if self.streams.keyed_identity == "on" and getattr(self.relay, name) is not None:
                raise ConfigError(
                    f"streams.keyed_identity and relay.{name} are both set: services that share a log need one key: "
                    "set relay.key_file instead"
                )

        if self.streams.keyed_identity == "on" and self.sites.url is not None:
            raise ConfigError(
                "streams.keyed_identity and sites.url are both set: digests need content hashes, which other sites "
                "compute alike"
            )

    @property
    def follows_events(self) -> bool:
        """Whether the engines' events are followed here."""
        return True

    def for_native(self, holds: tuple[str, ...] = (), *, log: bool = False) -> dict[str, Any]:
        """The configuration of the native service: JSON types, durations in seconds, files by their path."""
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
        self.http.bearer(), self.http.admin_bearer()  # reports errors in the files here, with their keys' names
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
        streams = dataclasses.asdict(self.streams) | {
            "allow": list(self.streams.allow),
            "bind": list(self.streams.bind),
            "keyed_identity": self.streams.keyed_identity == "on",
            "limits": dataclasses.asdict(self.limits),
        }
        adopt = {"share": self.adopt.share, "hash_seeds": list(self.adopt.hash_seeds)}
        snapshot = {
            "dir": None if self.snapshot.dir is None else str(self.snapshot.dir),
            "every": self.snapshot.every,
            "keep": self.snapshot.keep,
            "from_peer": self.snapshot.peer is not None,
        }
        self.snapshot.peer_bearer()  # an error in the file is one now
        sites = {name: getattr(self.sites, name) for name in ("role", "grain", "unknown_after", "forget_after")}
        self.sites.bearer()
        native = {"http": http, "streams": streams, "adopt": adopt, "snapshot": snapshot, "sites": sites}
        native["relay"] = self.relay.for_native()
        return {**native, "holds": list(holds), "log": logs}


SECTIONS: dict[str, type[Section]] = {
    "": Config,
    "http": HttpConfig,
    "streams": StreamConfig,
    "limits": LimitsConfig,
    "adopt": AdoptConfig,
    "snapshot": SnapshotConfig,
    "relay": RelayConfig,
    "sites": SitesConfig,
    "discovery": DiscoveryConfig,
    "log": LogConfig,
}


def all_keys() -> tuple[Key, ...]:
    """Every setting with a single value, in the order of the sections."""
    return tuple(key for section in SECTIONS.values() for key in keys_of(section))


def one_key(name: str, key: str | None, file: Path | None) -> None:
    """Check a key that is given as itself or in a file.

    Raises:
        ConfigError: It is given both ways, or cannot be sent in a header.
    """
    if key is not None:
        check_secret(key, name)
        if file is not None:
            raise ConfigError(f"{name} and {name}_file are both given: give one of them")


def read_secret(path: Path, name: str) -> str:
    """The key in a file of one line.

    Raises:
        ConfigError: The file cannot be read, is empty or does not hold a key.
    """
    try:
        with path.open("rb") as file:
            text = file.read(65_537).decode()
    except (OSError, UnicodeDecodeError) as error:
        why = (error.strerror or str(error)) if isinstance(error, OSError) else "it is not text"
        raise ConfigError(f"{name}: cannot read {path}: {why}") from error
    return check_secret(text.strip(), f"{name}: {path}")


def check_secret(secret: object, name: str) -> str:
    """The key, if it can be sent in a header. No message contains it."""
    if not isinstance(secret, str) or not is_bearer(secret):
        raise ConfigError(f"{name} must hold one key of visible ASCII characters without white space")
    return secret
