"""Settings of a service's HTTP server, limits and log."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from kvatlas.errors import ConfigError
from kvatlas.service.config.kinds import (
    ABOVE_0,
    Address,
    Choice,
    File,
    Integer,
    OnOff,
    Size,
    Texts,
)
from kvatlas.service.config.section import Section, about, one_key, read_secret


@dataclass(frozen=True)
class HttpConfig(Section):
    """Settings of the HTTP server.

    `key` and `admin_key` are the bearer keys, for programs; otherwise the keys are in files or variables.
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
            File(),
            "--key-file",
            "File with the bearer key that clients must send. Alternatively, set KVATLAS_KEY.",
            reread="content",
        ),
    )
    admin_key_file: Path | None = field(
        default=None,
        metadata=about(
            File(),
            "--admin-key-file",
            "File with the bearer key for /register, /unregister and /dump. With it, the other key only allows "
            "queries. Alternatively, set KVATLAS_ADMIN_KEY.",
            reread="content",
        ),
    )
    hosts: tuple[str, ...] = field(
        default=(),
        metadata=about(
            Texts(),
            "--hosts",
            "Host names that requests may name, besides localhost and addresses. Without any, names are checked only "
            "where the server listens on loopback without a key.",
            reread="value",
        ),
    )
    tls_cert: Path | None = field(
        default=None,
        metadata=about(
            File(),
            "--tls-cert",
            "Certificate chain in PEM. Together with --tls-key, enables TLS.",
            native=False,
            reread="content",
        ),
    )
    tls_key: Path | None = field(
        default=None,
        metadata=about(File(), "--tls-key", "Private key of the certificate, in PEM.", native=False, reread="content"),
    )
    tls_client_ca: Path | None = field(
        default=None,
        metadata=about(
            File(),
            "--tls-client-ca",
            "Certificate authorities in PEM. Clients must send a certificate signed by one.",
            native=False,
            reread="content",
        ),
    )
    max_body: int = field(default=8 << 20, metadata=about(Size(), "--max-body", "Maximum size of a request body."))
    body_memory: int | None = field(
        default=None,
        metadata=about(
            Size(),
            "--body-memory",
            "Maximum memory for the bodies of all requests together, at least twice the size of one. By default four "
            "times that size, and at least 64 MiB.",
        ),
    )
    max_head: int = field(
        default=64 << 10, metadata=about(Size(), "--max-head", "Maximum size of a request's header lines.")
    )
    max_headers: int = field(
        default=128, metadata=about(Integer(16, 10_000), "--max-headers", "Maximum number of a request's header lines.")
    )
    max_connections: int = field(
        default=4096, metadata=about(Integer(1, 1_000_000), "--max-connections", "Maximum number of open connections.")
    )
    request_timeout: float = field(
        default=10.0,
        metadata=about(ABOVE_0, "--request-timeout", "Time within which a request must arrive, and then be answered."),
    )
    idle_timeout: float = field(
        default=75.0,
        metadata=about(ABOVE_0, "--idle-timeout", "Time after which a connection without requests is closed."),
    )
    write_timeout: float = field(
        default=10.0,
        metadata=about(
            ABOVE_0,
            "--write-timeout",
            "Time within which a client must read the next 16 KiB of its answer, or the rest of it.",
        ),
    )
    access_log: Literal["off", "on"] = field(
        default="off", metadata=about(OnOff("off", "on"), "--access-log", "Log each request.", reread="value")
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
        if self.body_memory is not None and self.body_memory < 2 * self.max_body:
            least = 2 * self.max_body
            raise ConfigError(
                f"http.body_memory must be at least twice http.max_body, {least} bytes, got {self.body_memory}"
            )
        one_key("http.key", self.key, self.key_file)
        one_key("http.admin_key", self.admin_key, self.admin_key_file)

    def for_native(self) -> dict[str, Any]:
        """The settings in the form of the native server: TLS in a separate table, with the keys that programs gave."""
        self.bearer(), self.admin_bearer()  # reports errors in the files here, with their keys' names
        tls = None
        if self.tls_cert is not None:
            authority = None if self.tls_client_ca is None else str(self.tls_client_ca)
            tls = {"cert": str(self.tls_cert), "key": str(self.tls_key), "client_ca": authority}
        return super().for_native() | {"key": self.key, "admin_key": self.admin_key, "tls": tls}

    def bearer(self) -> str | None:
        """The bearer key for queries; None if there is none.

        Raises:
            ConfigError: The key file cannot be read, or does not contain a key.
        """
        return self.key if self.key_file is None else read_secret(self.key_file, "http.key_file", warn=False)

    def admin_bearer(self) -> str | None:
        """The bearer key for all routes, if it is set separately; else None.

        Raises:
            ConfigError: The key file cannot be read, or does not contain a key.
        """
        if self.admin_key_file is None:
            return self.admin_key
        return read_secret(self.admin_key_file, "http.admin_key_file", warn=False)

    def is_loopback(self) -> bool:
        """True if the server listens on loopback addresses only, so that only this machine can connect."""
        host = self.bind.rpartition(":")[0]
        return host.startswith("127.") or host == "[::1]"


_COUNT = Integer(1, 1 << 40)


@dataclass(frozen=True)
class LimitsConfig(Section):
    """Limits on streams, blocks and memory of the service. The defaults are well above the needs of 1,000 engines."""

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
class LogConfig(Section):
    """Settings of the log that `kvatlas serve` writes to stderr."""

    section: ClassVar[str] = "log"

    format: Literal["text", "json"] = field(
        default="text", metadata=about(Choice("text", "json"), "--log", "Format of the logs.")
    )
    level: Literal["debug", "info", "warning", "error"] = field(
        default="info",
        metadata=about(
            Choice("debug", "info", "warning", "error"),
            "--log-level",
            "Lowest severity that is logged.",
            reread="value",
        ),
    )
