"""Settings for following engines: their streams, adoption of blocks announced earlier, and discovery."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal

from kvatlas._http import checked_url
from kvatlas.errors import ConfigError
from kvatlas.service.config.kinds import (
    ABOVE_0,
    FROM_0,
    PORT,
    Addresses,
    Choice,
    Directory,
    File,
    Hosts,
    Integer,
    Number,
    OnOff,
    Size,
    Text,
    Texts,
)
from kvatlas.service.config.section import Section, about, one_key, read_secret
from kvatlas.service.config.sources import EngineSources


@dataclass(frozen=True)
class StreamConfig(Section):
    """Settings for following the engines' event streams."""

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
            ABOVE_0,
            "--stale-after",
            "Time without any message, replay answers included, after which a stream is untrusted.",
        ),
    )
    probe_interval: float = field(
        default=5.0,
        metadata=about(
            ABOVE_0,
            "--probe-interval",
            "Time without events after which the replay socket is asked for missing batches.",
        ),
    )
    replay_timeout: float = field(
        default=2.0,
        metadata=about(ABOVE_0, "--replay-timeout", "Time within which a replay must deliver its next batch."),
    )
    resets: str = field(
        default="unknown",
        metadata=about(
            Choice("unknown", "keep", "empty"),
            "--resets",
            "What a reset of an engine's prefix cache does to the blocks that it has offloaded: keep or empty them. "
            "While unknown, they are taken for gone, and answers say that there may be more.",
        ),
    )
    replay_total_timeout: float = field(
        default=300.0,
        metadata=about(
            ABOVE_0,
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
            FROM_0, "--reorder-grace", "Without a replay socket: time to wait for batches that arrive out of order."
        ),
    )
    reconnect_min: float = field(
        default=0.1,
        metadata=about(ABOVE_0, "--reconnect-min", "First delay before reconnecting. It doubles with each attempt."),
    )
    reconnect_max: float = field(
        default=5.0, metadata=about(ABOVE_0, "--reconnect-max", "Longest delay before reconnecting.")
    )
    settle_timeout: float = field(
        default=30.0,
        metadata=about(ABOVE_0, "--settle-timeout", "Longest time that an engine not yet heard from delays readiness."),
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
            OnOff("off", "on"),
            "--keyed-identity",
            "Identify blocks under a secret key instead of by content hash, so that prompts cannot be constructed to "
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


@dataclass(frozen=True)
class AdoptConfig(Section):
    """Settings of adoption: learning blocks that engines announced before the service received their events."""

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
class DiscoveryConfig(Section):
    """Settings of finding engines and their event sockets.

    `key` is the engines' API key, for programs; files and flags name a file with the key instead.
    """

    section: ClassVar[str] = "discovery"

    sources: tuple[str, ...] = field(
        default=(),
        metadata=about(
            EngineSources(),
            "--discover",
            "Source of engines that is followed: pods with certain labels, `k8s:NAMESPACE/SELECTOR` (this pod's own "
            "namespace if empty; `:PORT` or `:PORT,PORT` behind it if they do not say where they listen), the pods of "
            "an InferencePool, `pool:NAMESPACE/NAME`, or every address of a name, `dns:NAME:PORT`. Repeatable.",
        ),
    )
    engine_port: int = field(
        default=8000,
        metadata=about(
            PORT, "--engine-port", "HTTP port of pods without a port named http and without one single port."
        ),
    )
    linger: float = field(
        default=10.0,
        metadata=about(
            FROM_0,
            "--discover-linger",
            "Time for which the events of an engine that its source no longer lists are still followed, without new "
            "requests: it may come back. A pod that has ended is left at once.",
        ),
    )
    dns_interval: float = field(
        default=5.0,
        metadata=about(
            ABOVE_0,
            "--dns-interval",
            "Time between two questions for the addresses of a `dns:` source: the time to live of a cluster's records.",
        ),
    )
    pod_deletion_cost: float = field(
        default=0.0,
        metadata=about(
            FROM_0,
            "--pod-deletion-cost",
            "Time between two looks at what only one pod's engines hold in their caches, which is written into its "
            "annotation controller.kubernetes.io/pod-deletion-cost: a Deployment that is scaled down ends the pods "
            "with the lowest. Needs the right to patch pods. 0 turns this off.",
        ),
    )
    kubernetes_url: str | None = field(
        default=None,
        metadata=about(
            Text(),
            "--kubernetes-url",
            "URL of the Kubernetes API server, or of `kubectl proxy`; inside a cluster it is known.",
        ),
    )
    kubernetes_account: Path = field(
        default=Path("/var/run/secrets/kubernetes.io/serviceaccount"),
        metadata=about(
            Directory(),
            "--kubernetes-account",
            "Directory with the files token, ca.crt and namespace of the service account. They are read again when "
            "they are needed.",
        ),
    )
    interval: float = field(
        default=10.0,
        metadata=about(
            ABOVE_0, "--discovery-interval", "Time between checks of each engine for changed event sockets."
        ),
    )
    timeout: float = field(
        default=30.0,
        metadata=about(FROM_0, "--discovery-timeout", "Longest time that engines that do not respond delay readiness."),
    )
    request_timeout: float = field(
        default=5.0,
        metadata=about(
            ABOVE_0, "--discovery-request-timeout", "Time within which an engine must answer an HTTP request."
        ),
    )
    events_port: int | None = field(
        default=None,
        metadata=about(
            PORT, "--events-port", "Events port of rank 0, for engines that do not report it (vLLM before 0.31)."
        ),
    )
    replay_port: int | None = field(
        default=None, metadata=about(PORT, "--replay-port", "Replay port of rank 0, for the same engines.")
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
        if self.kubernetes_url is not None:
            try:
                object.__setattr__(self, "kubernetes_url", checked_url(self.kubernetes_url))
            except ValueError as error:
                raise ConfigError(
                    f"discovery.kubernetes_url must be http://HOST:PORT or https://HOST:PORT, but {error}"
                ) from None

    def bearer(self) -> str | None:
        """The engines' API key; None if there is none.

        Raises:
            ConfigError: The key file cannot be read, or does not contain a key.
        """
        return self.key if self.key_file is None else read_secret(self.key_file, "discovery.key_file")
