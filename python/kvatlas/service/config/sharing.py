"""Settings of snapshots, relays and sites."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from kvatlas._http import checked_url
from kvatlas.errors import ConfigError
from kvatlas.service import replicas
from kvatlas.service.config.kinds import (
    ABOVE_0,
    FROM_0,
    Choice,
    Directory,
    File,
    Integer,
    OnOff,
    Size,
    Text,
)
from kvatlas.service.config.section import Section, about, one_key, read_secret


@dataclass(frozen=True)
class SnapshotConfig(Section):
    """Settings of snapshots: state that a service keeps over a restart, or gets from another service when it starts.

    `peer_key` is the key of the service at `peer`, for programs.
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
        default=60.0, metadata=about(ABOVE_0, "--snapshot-every", "Time from one snapshot to the next.")
    )
    keep: float = field(
        default=300.0,
        metadata=about(
            FROM_0,
            "--snapshot-keep",
            "Time that a loaded snapshot's streams may take to be registered. What is left after it is dropped.",
        ),
    )
    peer: str | None = field(
        default=None,
        metadata=about(
            Text(),
            "--peer-snapshot",
            "URL of a running kvatlas service whose snapshot this one begins with. Or dns:NAME:PORT, with TLS "
            "dns+https:NAME:PORT: of any replica at the addresses of NAME that is ready.",
            native=False,
        ),
    )
    peer_key_file: Path | None = field(
        default=None,
        metadata=about(
            File(),
            "--peer-snapshot-key-file",
            "File with the key that the service at --peer-snapshot needs for this.",
            native=False,
        ),
    )
    peer_timeout: float = field(
        default=60.0,
        metadata=about(
            ABOVE_0,
            "--peer-snapshot-timeout",
            "Time within which that snapshot must arrive. After it, it is given up.",
            native=False,
        ),
    )
    max_bytes: int = field(
        default=1 << 30,
        metadata=about(
            Size(),
            "--snapshot-max-bytes",
            "Size that a snapshot may have, as it is read and unpacked. A larger one is refused.",
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
            raise ConfigError(f"snapshot.peer must be {replicas.PEERS}, but {error}") from None

    def for_native(self) -> dict[str, Any]:
        """The settings in the form of the native service, with a flag if a peer's snapshot will come."""
        self.peer_bearer()  # an error in the file is one now
        return super().for_native() | {"from_peer": self.peer is not None}

    def peer_bearer(self) -> str | None:
        """The bearer key of the service at `peer`; None if there is none.

        Raises:
            ConfigError: The key file cannot be read, or does not contain a key.
        """
        return (
            self.peer_key if self.peer_key_file is None else read_secret(self.peer_key_file, "snapshot.peer_key_file")
        )


@dataclass(frozen=True)
class RelayConfig(Section):
    """Settings of a log in NATS JetStream to which the service publishes or which it reads; no servers for none.

    `key` is the content of `key_file`, for programs. `dedicated`: the service only publishes, and is not ready before
    there is a log.
    """

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
        metadata=about(
            Text(),
            "--from",
            "NATS servers to read from what engines hold, as relays publish it there.",
        ),
    )
    credentials: Path | None = field(
        default=None, metadata=about(File(), "--relay-credentials", "File with the credentials for these servers.")
    )
    ca: Path | None = field(
        default=None,
        metadata=about(
            File(), "--relay-ca", "CA certificate in PEM to trust for these servers instead of the system's."
        ),
    )
    key_file: Path | None = field(
        default=None,
        metadata=about(
            File(),
            "--relay-key-file",
            "File with 64 hexadecimal digits, equal in all relays and their readers: blocks are identified under this "
            "key instead of by content hash. Queries then need tokens. Alternatively, set KVATLAS_RELAY_KEY.",
        ),
    )
    stream: str = field(default="kvatlas", metadata=about(Text(), "--relay-stream", "Name of the JetStream stream."))
    max_age: float = field(
        default=600.0,
        metadata=about(
            ABOVE_0, "--relay-max-age", "Time that messages are kept, where a relay creates the JetStream stream."
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
    snapshots: Literal["off", "on"] = field(
        default="off",
        metadata=about(
            OnOff("off", "on"),
            "--relay-snapshots",
            "Keep a snapshot in NATS's object store, every --snapshot-every, for readers that start later. Messages "
            "that neither it nor the one before it needs are removed from the JetStream stream.",
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
        metadata=about(ABOVE_0, "--relay-heartbeat", "Time after which a relay publishes that an idle engine is well."),
    )
    lost_after: float = field(
        default=7.0,
        metadata=about(ABOVE_0, "--relay-lost-after", "Silence of a relay after which its engines are not trusted."),
    )
    forget_after: float = field(
        default=600.0,
        metadata=about(ABOVE_0, "--relay-forget-after", "Silence of a relay after which its engines are forgotten."),
    )
    key: str | None = field(default=None, repr=False)
    dedicated: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        one_key("relay.key", self.key, self.key_file)
        if self.publish is not None and self.source is not None:
            raise ConfigError("relay.publish and relay.source are both set: what comes by NATS is not published again")
        if self.snapshots == "on" and self.source is None:
            raise ConfigError("relay.snapshots is for readers: it needs relay.source (--from)")
        if re.search(r"[\s.*>/\\]", self.stream):
            raise ConfigError(
                f"relay.stream must be a name of JetStream, without spaces and . * > / \\, got {self.stream!r}"
            )
        for name in ("publish", "source"):
            servers = getattr(self, name)
            _check_servers(
                f"relay.{name}", [] if servers is None else [server.strip() for server in servers.split(",")]
            )

    def for_native(self) -> dict[str, Any]:
        """The settings in the form of the native service, with the keys that programs gave."""
        given = super().for_native() | {"key": self.key, "dedicated": self.dedicated}
        given["from"] = given.pop("source")
        given["in_memory"] = given.pop("storage") == "memory"
        return given


def _check_servers(name: str, servers: list[str]) -> None:
    for server in servers:
        if not server.startswith(("nats://", "tls://")):
            without = "; without NATS, run kvatlas serve beside the engines, and routers with --index"
            raise ConfigError(
                f"{name} must be servers of NATS, nats://HOST:PORT or tls://HOST:PORT, got {server!r}"
                + (without if server.startswith("tcp://") else "")
            )


@dataclass(frozen=True)
class SitesConfig(Section):
    """Settings for sending digests to a service above many sites.

    `key` is the key of the service at `url`, for programs.
    """

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
        metadata=about(
            Text(),
            "--global",
            "URL of the service above many sites. Digests of this one are sent to it.",
            native=False,
        ),
    )
    site: str | None = field(
        default=None,
        metadata=about(Text(), "--site", "Name of this site, for --global. Each site has its own.", native=False),
    )
    key_file: Path | None = field(
        default=None,
        metadata=about(
            File(), "--global-key-file", "File with the admin key of the service at --global.", native=False
        ),
    )
    every: float = field(
        default=5.0, metadata=about(ABOVE_0, "--digest-every", "Time from one digest to the next.", native=False)
    )
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
        metadata=about(ABOVE_0, "--site-unknown-after", "Time without a digest after which a site may hold anything."),
    )
    forget_after: float = field(
        default=3600.0,
        metadata=about(ABOVE_0, "--site-forget-after", "Time without a digest after which a site is forgotten."),
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
            raise ConfigError(f"sites.url must be http://HOST:PORT or https://HOST:PORT, but {error}") from None

    def bearer(self) -> str | None:
        """The bearer key of the service at `url`; None if there is none.

        Raises:
            ConfigError: The key file cannot be read, or does not contain a key.
        """
        return self.key if self.key_file is None else read_secret(self.key_file, "sites.key_file")
