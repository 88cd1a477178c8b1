"""All settings of the router: those of the service, which it embeds, and its own.

Declared like the service's, field by field, so that the command line, the environment, the file, the printed
configuration and the documentation are made from one list.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from kvatlas._http import checked_url
from kvatlas.errors import ConfigError
from kvatlas.service.config import Config, Engine, HttpConfig, ResolvedConfig
from kvatlas.service.config.kinds import (
    Address,
    Choice,
    Duration,
    File,
    Integer,
    Number,
    OnOff,
    Origins,
    Pairs,
    Size,
    Switch,
    Text,
    Texts,
    shown,
)
from kvatlas.service.config.read import LISTS, SECRETS, EntryKind, Schema, read_as, show_config
from kvatlas.service.config.schema import SECTIONS
from kvatlas.service.config.section import Section, about, one_key, read_secret
from kvatlas.service.replicas import checked_name, is_name

_ABOVE_0 = Duration()
_FROM_0 = Duration(zero=True)
_COUNT = Integer(1, 1 << 30)
DEFAULT_BLOCK_SIZE = 16


class _AnyText(Text):
    """A string, or none: an empty one."""

    wanted = "a string"

    def convert(self, value: object) -> str:
        if isinstance(value, str):
            return value.strip()
        raise self.bad(value)


SESSION_SOURCES = (
    "own-header",
    "dynamo",
    "claude-code",
    "codex",
    "common-headers",
    "body",
    "metadata",
    "cache-key",
    "prefix",
)
"""The places of a request where its session may be named, in the order in which they are looked at."""


class _Sources(Texts):
    """Places of a request where its session may be named, or none: `off`."""

    wanted = f"a list of {', '.join(SESSION_SOURCES)}, each once, or off"
    metavar = "PLACE[,PLACE...]"

    def convert(self, value: object) -> tuple[str, ...]:
        found = () if value in ("off", ["off"], ("off",)) else super().convert(value)
        if len(set(found)) == len(found) and set(found) <= set(SESSION_SOURCES):
            return found
        raise self.bad(value)


def _checked_peer(peer: str) -> str:
    if not is_name(peer):
        return checked_url(peer)
    checked_name(peer)
    return peer


@dataclass(frozen=True)
class RouterHttpConfig(HttpConfig):
    """The router's HTTP server."""

    bind: str = field(
        default="127.0.0.1:8080",
        metadata=about(Address(), "--bind", "Address to listen on. Port 0 picks a free port."),
    )
    admin_key_file: Path | None = field(
        default=None,
        metadata=about(
            File(),
            "--admin-key-file",
            "File with the bearer key for changes of the fleet (/engines) and of engines, and for other routers. "
            "Alternatively, set KVATLAS_ADMIN_KEY.",
        ),
    )
    origins: tuple[str, ...] = field(
        default=(),
        metadata=about(
            Origins(),
            "--origins",
            "Origins whose web pages may send requests from a browser and read the answers, besides the router's own.",
        ),
    )
    max_body: int = field(default=64 << 20, metadata=about(Size(), "--max-body", "Maximum size of a request body."))
    max_connections: int = field(
        default=65_536,
        metadata=about(Integer(1, 1_000_000), "--max-connections", "Maximum number of open connections."),
    )
    request_timeout: float = field(
        default=60.0,
        metadata=about(_ABOVE_0, "--request-timeout", "Time within which the whole request must arrive."),
    )
    # What the embedded service does with untrusted workers is the router's affair: they are chosen by load.
    untrusted: Literal["leave-out", "flag"] = "leave-out"
    max_head: int = field(
        default=64 << 10, metadata=about(Size(), "--max-head", "Maximum size of a request's header lines.")
    )
    max_headers: int = field(
        default=128, metadata=about(Integer(16, 10_000), "--max-headers", "Maximum number of a request's header lines.")
    )
    write_timeout: float = field(
        default=60.0,
        metadata=about(
            _ABOVE_0,
            "--write-timeout",
            "Time within which a client must read the next 16 KiB of its answer, or the rest of it.",
        ),
    )


@dataclass(frozen=True)
class RouterSection(Section):
    """The placing of requests.

    `index_key`, `global_key` and `peer_key` are the keys of the services at `index` and `global_url` and of the routers
    at `peers` themselves, for programs.
    """

    section: ClassVar[str] = "router"

    policy: str = field(
        default="kvatlas",
        metadata=about(Text(), "--policy", "Routing policy by name, or your own class as module:Class."),
    )
    policy_options: tuple[tuple[str, bool | float | str], ...] = field(
        default=(), metadata=about(Pairs(), "--policy-option", "Setting of the policy. Repeatable.")
    )
    seed: int = field(default=0, metadata=about(Integer(0, (1 << 63) - 1), "--seed", "Seed of all random choices."))
    tokenizer: str = field(
        default="engine",
        metadata=about(
            Text(),
            "--tokenizer",
            "How prompts become tokens: a tokenizer.json, a directory with one, a name on the Hugging Face hub, "
            "`engine` to ask an engine's /tokenize for each prompt, or `none`.",
        ),
    )
    tokenizers: tuple[tuple[str, str], ...] = field(
        default=(),
        metadata=about(Pairs(plain=True), "--model-tokenizer", "Tokenizer of one model, as MODEL=PATH. Repeatable."),
    )
    no_events: bool = field(
        default=False,
        metadata=about(
            Switch(), "--no-events", "Follow no events: predict what engines hold from what was sent to them."
        ),
    )
    index: str | None = field(
        default=None,
        metadata=about(
            Text(), "--index", "URL of a `kvatlas serve` that follows the engines' events in the router's place."
        ),
    )
    index_key_file: Path | None = field(
        default=None,
        metadata=about(
            File(),
            "--index-key-file",
            "File with the key of that service; with its admin key, it is also told what engines had cached. "
            "Alternatively, set KVATLAS_INDEX_KEY.",
            native=False,
        ),
    )
    global_url: str | None = field(
        default=None,
        metadata=about(
            Text(),
            "--global",
            "URL of a `kvatlas serve --role global`, where the engines are sites, each with its site's name: it is "
            "asked what each site can hold, and told what its engine had cached.",
        ),
    )
    global_key_file: Path | None = field(
        default=None,
        metadata=about(
            File(),
            "--global-key-file",
            "File with the admin key of the service at --global. Alternatively, set KVATLAS_GLOBAL_KEY.",
            native=False,
        ),
    )
    global_timeout: float = field(
        default=0.2,
        metadata=about(
            _ABOVE_0,
            "--global-timeout",
            "Time within which that service must answer; after that, the request is placed by load.",
        ),
    )
    peers: tuple[str, ...] = field(
        default=(),
        metadata=about(
            Texts(),
            "--peer",
            "URL of another router in front of the same engines, to which this one reports its work; or dns:NAME:PORT, "
            "for every address of a name but this router's own. Repeatable.",
        ),
    )
    peer_key_file: Path | None = field(
        default=None,
        metadata=about(
            File(),
            "--peer-key-file",
            "File with the key that those routers ask for. Alternatively, set KVATLAS_PEER_KEY.",
            native=False,
        ),
    )
    session_sources: tuple[str, ...] = field(
        default=SESSION_SOURCES,
        metadata=about(
            _Sources(),
            "--session-sources",
            "Places of a request where its session may be named, the first found wins; `off` for no sessions.",
        ),
    )
    session_header: str = field(
        default="",
        metadata=about(
            _AnyText(),
            "--session-header",
            "Your own request header that names a session (`own-header`); empty for none.",
        ),
    )
    session_ttl: float = field(
        default=0.0,
        metadata=about(
            _FROM_0,
            "--session-ttl",
            "Time after a session's last request for which it stays with its engine. 0 turns this off.",
        ),
    )
    priority_header: str = field(
        default="",
        metadata=about(
            _AnyText(),
            "--priority-header",
            "Request header with the priority of waiting requests: an integer, higher goes first. Empty for none.",
        ),
    )
    queue: int = field(
        default=4096,
        metadata=about(
            Integer(0, 1 << 24),
            "--queue",
            "Maximum number of requests that wait in the router while all engines are busy.",
        ),
    )
    queue_timeout: float = field(
        default=60.0,
        metadata=about(_ABOVE_0, "--queue-timeout", "Longest time that a request waits there before it is refused."),
    )
    response_headers: Literal["on", "off"] = field(
        default="on",
        metadata=about(
            OnOff("on", "off"),
            "--response-headers",
            "Say in the headers of each answer which engine gave it, and why.",
        ),
    )
    ask_usage: Literal["on", "off"] = field(
        default="on",
        metadata=about(
            OnOff("on", "off"),
            "--ask-usage",
            "Ask engines for the usage of every stream, and keep it from clients that did not ask for it.",
        ),
    )
    image_ids: Literal["auto", "addresses", "off"] = field(
        default="auto",
        metadata=about(
            Choice("auto", "addresses", "off"),
            "--image-ids",
            "Give images of chats a uuid where engines know them by it (vLLM from 0.11 on), so that cached blocks "
            "behind them are found: images sent as data (auto), or by address too, if what is there never changes.",
        ),
    )
    hedge_after: float = field(
        default=0.0,
        metadata=about(
            Number(0.0, 0.9999),
            "--hedge-after",
            "Quantile of the times to the first token, such as 0.99, after which a streamed request of which no byte "
            "has come is sent to another engine too. The first answer wins. 0 turns this off.",
        ),
    )
    decode_alone: int = field(
        default=256,
        metadata=about(
            Integer(0, 1 << 30),
            "--decode-alone",
            "Maximum number of uncached prompt tokens that a decode engine computes itself, without a prefill engine.",
        ),
    )
    forward_tokens: bool = field(
        default=False,
        metadata=about(
            Switch(),
            "--forward-tokens",
            "Send completions to engines as token ids, where they make the same tokens. Needs a tokenizer here.",
        ),
    )
    forward: tuple[str, ...] = field(
        default=(),
        metadata=about(
            Texts(), "--forward", "Further paths to forward to engines: a path, or a prefix that ends in *."
        ),
    )
    max_ranks: int = field(
        default=1024,
        metadata=about(
            Integer(0, 1 << 20),
            "--max-ranks",
            "Maximum number of engines, each counted with its ranks, up to which POST /engines adds more.",
        ),
    )
    record: Path | None = field(
        default=None,
        metadata=about(
            File(), "--record", "File to append each decision to. It contains hashes of prompts, not their text."
        ),
    )
    decisions: int = field(
        default=256,
        metadata=about(Integer(0, 1 << 20), "--decisions", "Number of the last decisions kept for GET /decisions."),
    )
    index_key: str | None = field(default=None, repr=False)
    global_key: str | None = field(default=None, repr=False)
    peer_key: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        one_key("router.index_key", self.index_key, self.index_key_file)
        one_key("router.global_key", self.global_key, self.global_key_file)
        one_key("router.peer_key", self.peer_key, self.peer_key_file)
        if self.forward_tokens and self.tokenizer in ("engine", "none") and not self.tokenizers:
            raise ConfigError(
                "router.forward_tokens needs a tokenizer here: set router.tokenizer to a tokenizer.json, "
                "a directory or a name on the Hugging Face hub"
            )
        try:
            object.__setattr__(self, "peers", tuple(_checked_peer(peer) for peer in self.peers))
        except ValueError as error:
            raise ConfigError(f"router.peers must be http://HOST:PORT or dns:NAME:PORT, but {error}") from None
        if (self.peer_key is not None or self.peer_key_file is not None) and not self.peers:
            raise ConfigError("router.peer_key is for the routers at router.peers, which are not set")
        self._check_service("index", self.index_key, self.index_key_file)
        self._check_service("global_url", self.global_key, self.global_key_file)
        given = [
            f"router.{name}"
            for name, is_given in (
                ("index", self.index is not None),
                ("global_url", self.global_url is not None),
                ("no_events", self.no_events),
            )
            if is_given
        ]
        if len(given) > 1:
            raise ConfigError(f"{given[0]} and {given[1]} are both set: set one of them")

    def _check_service(self, name: str, key: str | None, key_file: Path | None) -> None:
        """Check the URL of a service, and that there is one if there is a key."""
        url, key_name = getattr(self, name), f"router.{name.removesuffix('_url')}_key"
        if url is None:
            if key is not None or key_file is not None:
                raise ConfigError(f"{key_name} is for the service at router.{name}, which is not set")
            return
        try:
            object.__setattr__(self, name, checked_url(url))
        except ValueError as error:
            raise ConfigError(f"router.{name} must be http://HOST:PORT or https://HOST:PORT, but {error}") from None

    def for_native(self) -> dict[str, Any]:
        """The settings for the native router, with the keys of other services and routers."""
        keys = {"index_key": self.index_bearer(), "global_key": self.global_bearer(), "peer_key": self.peer_bearer()}
        return super().for_native() | keys

    def index_bearer(self) -> str | None:
        """The key of the service at `index`, if there is one.

        Raises:
            ConfigError: The key file cannot be read, or does not hold a key.
        """
        if self.index_key_file is None:
            return self.index_key
        return read_secret(self.index_key_file, "router.index_key_file")

    def global_bearer(self) -> str | None:
        """The key of the service at `global_url`, if there is one.

        Raises:
            ConfigError: The key file cannot be read, or does not hold a key.
        """
        if self.global_key_file is None:
            return self.global_key
        return read_secret(self.global_key_file, "router.global_key_file")

    def peer_bearer(self) -> str | None:
        """The key of the routers at `peers`, if there is one.

        Raises:
            ConfigError: The key file cannot be read, or does not hold a key.
        """
        if self.peer_key_file is None:
            return self.peer_key
        return read_secret(self.peer_key_file, "router.peer_key_file")

    @property
    def is_own_policy(self) -> bool:
        """True if the policy is a Python class of the user's."""
        return ":" in self.policy


@dataclass(frozen=True)
class UpstreamConfig(Section):
    """Connections to engines."""

    section: ClassVar[str] = "upstream"

    connect_timeout: float = field(
        default=2.0,
        metadata=about(_ABOVE_0, "--connect-timeout", "Time within which a connection to an engine must be open."),
    )
    first_byte_timeout: float = field(
        default=600.0,
        metadata=about(_ABOVE_0, "--first-byte-timeout", "Time within which an engine must begin to answer."),
    )
    stall_timeout: float = field(
        default=300.0,
        metadata=about(_ABOVE_0, "--stall-timeout", "Longest time between two pieces of an engine's answer."),
    )
    retries: int = field(
        default=2,
        metadata=about(
            Integer(0, 100),
            "--retries",
            "Number of times that a failed request is tried again, before any of its answer was sent. Once at most if "
            "an engine may have worked on it.",
        ),
    )
    idle_connections: int = field(
        default=256,
        metadata=about(_COUNT, "--upstream-connections", "Idle connections kept per engine and thread."),
    )
    idle_timeout: float = field(
        default=4.0,
        metadata=about(
            _ABOVE_0, "--upstream-idle-timeout", "Time for which idle connections are kept. vLLM closes them after 5 s."
        ),
    )
    ca: Path | None = field(
        default=None,
        metadata=about(
            File(), "--upstream-ca", "Certificate authorities in PEM, for engines, --index and --global with https."
        ),
    )


@dataclass(frozen=True)
class HealthConfig(Section):
    """Health checks of engines."""

    section: ClassVar[str] = "health"

    path: str = field(default="/health", metadata=about(Text(), "--health-path", "Path of an engine's health check."))
    interval: float = field(
        default=5.0,
        metadata=about(_FROM_0, "--health-interval", "Time between health checks of an engine. 0 means none."),
    )
    timeout: float = field(
        default=2.0,
        metadata=about(_ABOVE_0, "--health-timeout", "Time within which an engine must answer a health check."),
    )
    failures: int = field(
        default=3,
        metadata=about(
            Integer(1, 1000),
            "--health-failures",
            "Failures in a row after which an engine is left out: health checks, connections, and requests that "
            "another engine then answered.",
        ),
    )
    open: float = field(
        default=1.0,
        metadata=about(
            _ABOVE_0,
            "--health-open",
            "Time for which a failing engine is left out at first. Doubles with each further failure.",
        ),
    )
    open_max: float = field(
        default=30.0,
        metadata=about(_ABOVE_0, "--health-open-max", "Longest time for which a failing engine is left out."),
    )
    silence: float = field(
        default=60.0,
        metadata=about(
            _FROM_0,
            "--health-silence",
            "Time after which an engine that has requests but sends nothing is left out. 0 means never.",
        ),
    )
    load_interval: float = field(
        default=1.0,
        metadata=about(
            _FROM_0, "--load-interval", "Time between reads of an engine's metrics. 0 means that they are not read."
        ),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.path.startswith("/"):
            raise ConfigError(f"health.path must begin with /, got {shown(self.path)}")
        if self.open > self.open_max:
            raise ConfigError(f"health.open ({self.open:g} s) must not be above health.open_max ({self.open_max:g} s)")


@dataclass(frozen=True)
class RouterConfig(Config):
    """The whole configuration of a router. Durations are in seconds, sizes in bytes.

    Raises:
        ConfigError: A value has the wrong type or is out of range. The message names it and says what is allowed.
    """

    command: ClassVar[str] = "kvatlas router"

    drain_timeout: float = field(
        default=60.0,
        metadata=about(_FROM_0, "--drain-timeout", "Time that open requests get to finish when the router stops."),
    )
    http: RouterHttpConfig = field(default_factory=RouterHttpConfig)
    router: RouterSection = field(default_factory=RouterSection)
    upstream: UpstreamConfig = field(default_factory=UpstreamConfig)
    health: HealthConfig = field(default_factory=HealthConfig)

    def __post_init__(self) -> None:
        for name, kind in ROUTER_SECTIONS.items():
            if name and not isinstance(getattr(self, name), kind):
                raise ConfigError(f"{name} must be {kind.__name__}, got {type(getattr(self, name)).__name__}")
        super().__post_init__()
        if not self.follows_events and (self.snapshot.dir is not None or self.snapshot.peer is not None):
            raise ConfigError(
                "snapshot.dir and snapshot.peer are for a router that follows events itself: "
                "leave out router.index, router.global_url and router.no_events, or give them to the service at "
                "router.index"
            )
        roles = {engine.role or "both" for engine in self.engines}
        for role, other in (("prefill", "decode"), ("decode", "prefill")):
            if role in roles and not roles & {other, "both"} and self.engines_file is None:
                raise ConfigError(f"there are {role} engines but none for {other}: add --{other} URL")

    @property
    def sends_requests(self) -> bool:
        """True: streams may have the name of an engine."""
        return True

    @property
    def follows_events(self) -> bool:
        """True if the engines' events are followed here."""
        own = self.router
        return own.index is None and own.global_url is None and not own.no_events

    def engine_for_native(self, engine: Engine, ranks: Collection[int] = ()) -> dict[str, Any]:
        """An engine as the native router takes it.

        Args:
            engine: The engine.
            ranks: The ranks whose streams are given by hand.
        """
        about_it = {
            "name": engine.worker,
            "url": engine.url,
            "role": engine.role or "both",
            "weight": engine.weight,
            "model": engine.model or self.model,
            "models": [name for name in (engine.model, *(engine.aliases or ()), *(engine.adapters or ())) if name],
            "block_size": engine.block_size or self.block_size,
            "ranks": engine.ranks or (sorted(ranks) or None),
        }
        if not engine.model:
            about_it["models"] = []  # it is asked, all of it
        return {name: value for name, value in about_it.items() if value is not None}

    def router_for_native(
        self, tokenizer: str | None, tokenizers: Mapping[str, str], holds: tuple[str, ...] = (), *, log: bool = False
    ) -> dict[str, Any]:
        """The configuration of the native router: JSON types, durations in seconds, files by their path.

        Args:
            tokenizer: `router.tokenizer` as a path, `engine`, or None.
            tokenizers: `router.tokenizers` likewise.
            holds: What the embedded service waits for before it says that it is ready.
            log: Whether the native part writes its log.
        """
        service = self.for_native(holds, log=log)
        sections = {"http": service.pop("http")}
        sections |= {name: getattr(self, name).for_native() for name in ("upstream", "health")}
        sections["upstream"]["key"] = self.discovery.bearer()
        own = self.router.for_native() | {"tokenizer": tokenizer, "tokenizers": dict(tokenizers)}
        return {
            **sections,
            **own,
            "engines": [
                self.engine_for_native(
                    engine, [stream.rank for stream in self.static_streams if stream.worker == engine.worker]
                )
                for engine in self.engines
            ],
            "service": service if self.follows_events else None,
            "routing_group": self.routing_group,
            "block_size": self.block_size or DEFAULT_BLOCK_SIZE,
            "log": service["log"],
        }


class _InRole:
    """Reads engines of one role."""

    def __init__(self, role: str) -> None:
        self._role = role

    def of(self, value: Any, /) -> Engine:
        engine = Engine.of(value)
        if engine.role not in (None, self._role):
            raise ConfigError(
                f"engine {shown(engine.shown_url)}: role is {engine.role!r}, but it is given as {self._role}"
            )
        return dataclasses.replace(engine, role=self._role)


ROUTER_SECTIONS: dict[str, type[Section]] = {
    "": RouterConfig,
    "http": RouterHttpConfig,
    "router": RouterSection,
    "upstream": UpstreamConfig,
    "health": HealthConfig,
    **{name: section for name, section in SECTIONS.items() if name not in ("", "http", "sites")},
}
ROUTER_LISTS: dict[str, tuple[str, str, EntryKind]] = {
    **LISTS,
    "prefill": ("--prefill", "KVATLAS_PREFILL", _InRole("prefill")),
    "decode": ("--decode", "KVATLAS_DECODE", _InRole("decode")),
}
ROUTER_SECRETS = SECRETS | {
    "router.index_key": ("KVATLAS_INDEX_KEY", "router.index_key_file"),
    "router.global_key": ("KVATLAS_GLOBAL_KEY", "router.global_key_file"),
    "router.peer_key": ("KVATLAS_PEER_KEY", "router.peer_key_file"),
}
ROUTER = Schema(
    RouterConfig,
    ROUTER_SECTIONS,
    ROUTER_LISTS,
    {"engine": "engines", "prefill": "engines", "decode": "engines", "stream": "static_streams"},
    ROUTER_SECRETS,
)
"""The settings of `kvatlas router`."""


def read_router_config(
    flags: Mapping[str, Any] | None = None, env: Mapping[str, str] | None = None, file: Path | str | None = None
) -> ResolvedConfig[RouterConfig]:
    """Put a router's configuration together, as `kvatlas.service.read_config` does for a service.

    Args:
        flags: Texts of flags by the settings' paths; lists for "engine", "prefill", "decode" and "stream".
        env: The environment; that of the process if not given.
        file: The configuration file; else the one that KVATLAS_CONFIG names. Without either, no file is read.

    Raises:
        ConfigError: Something is unknown or wrong; the message says what, where, and what would be right.
    """
    return read_as(ROUTER, flags, env, file)


def show_router_config(resolved: ResolvedConfig[RouterConfig]) -> str:
    """The settings in force as TOML, each with where it came from; bearer keys are left out."""
    return show_config(resolved, ROUTER)
