"""Settings for choosing engines, and checks of settings that depend on each other."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from kvatlas._http import checked_url
from kvatlas._native import routing_defaults
from kvatlas.errors import ConfigError
from kvatlas.service.config.kinds import (
    ABOVE_0,
    FROM_0,
    Address,
    Choice,
    File,
    Integer,
    Number,
    OnOff,
    Pairs,
    Switch,
    Text,
    Texts,
)
from kvatlas.service.config.section import Section, about, one_key, read_secret
from kvatlas.service.replicas import PEERS, checked_name, is_name

_OBJECT_KIND = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?/v[0-9a-z]{1,20}", re.ASCII)
_DECISIONS = routing_defaults()  # what the decision core has, where a setting is one of its own


class _AnyText(Text):
    """A setting that is a string; empty for none."""

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
"""Places in a request where its session may be named, in order of precedence."""


class _ObjectKind(Text):
    """A setting that is an API group and version of a cluster; empty for none."""

    wanted = 'an API group and version, such as "llm-d.ai/v1alpha2", or empty'
    metavar = "GROUP/VERSION"

    def convert(self, value: object) -> str:
        if value == "" or (isinstance(value, str) and _OBJECT_KIND.fullmatch(value)):
            return value
        raise self.bad(value)


class _Sources(Texts):
    """A setting that is a list of places where a request may name its session, or `off`."""

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
class RouterSection(Section):
    """Settings for choosing engines for requests.

    `index_key`, `global_key` and `peer_key` are the keys of the services at `index` and `global_url` and of the routers
    at `peers`, for programs; files and flags name files with the keys instead.
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
            ABOVE_0,
            "--global-timeout",
            "Time within which that service must answer; after that, the request is placed by load.",
        ),
    )
    peers: tuple[str, ...] = field(
        default=(),
        metadata=about(
            Texts(),
            "--peer",
            "URL of another router in front of the same engines, to which this one reports its requests; or "
            "dns:NAME:PORT, with TLS dns+https:NAME:PORT, for every address of a name but this router's own. "
            "Repeatable.",
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
        default=_DECISIONS["session_ttl"],
        metadata=about(
            FROM_0,
            "--session-ttl",
            "Time after a session's last request for which it stays with its engine. 0 turns this off.",
            native="routing.session_ttl",
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
    objectives: str = field(
        default="",
        metadata=about(
            _ObjectKind(),
            "--objectives",
            "API group and version of InferenceObjectives, `inference.networking.x-k8s.io/v1alpha2` or "
            "`llm-d.ai/v1alpha2`: a request has the priority of the one that its header x-llm-d-inference-objective or "
            "x-gateway-inference-objective names. They are followed in the namespace of the engines; with a `pool:`, "
            "those of the pool. Empty for none.",
            native=False,
        ),
    )
    queue: int = field(
        default=int(_DECISIONS["queue_limit"]),
        metadata=about(
            Integer(0, 1 << 24),
            "--queue",
            "Maximum number of requests that wait in the router while all engines are busy.",
            native="routing.queue_limit",
        ),
    )
    queue_timeout: float = field(
        default=_DECISIONS["queue_timeout"],
        metadata=about(
            ABOVE_0,
            "--queue-timeout",
            "Longest time that a request waits there: then it is sent, wherever it may go.",
            native="routing.queue_timeout",
        ),
    )
    source_heard: float = field(
        default=_DECISIONS["source_heard"],
        metadata=about(
            ABOVE_0,
            "--source-heard",
            "Time within which an engine must have been heard of for others to pull blocks from it.",
            native="routing.source_heard",
        ),
    )
    pair_out: float = field(
        default=_DECISIONS["pair_out"],
        metadata=about(
            FROM_0,
            "--pair-out",
            "Time for which a pair of engines is left alone that did not pull what was expected.",
            native="routing.pair_out",
        ),
    )
    wait_for_engine: float = field(
        default=30.0,
        metadata=about(
            FROM_0,
            "--wait-for-engine",
            "Time that a request waits for an engine if none is up: none is known yet, all refuse connections, or all "
            "are asleep. 0 refuses it at once.",
        ),
    )
    response_headers: Literal["on", "off"] = field(
        default="on",
        metadata=about(
            OnOff("on", "off"),
            "--response-headers",
            "Say in the headers of each answer which engine gave it, and why.",
        ),
    )
    comment_after: float = field(
        default=15.0,
        metadata=about(
            FROM_0,
            "--comment-after",
            "Time after which the client of a streamed request that has no token yet gets a comment, so that no proxy "
            "closes the connection, and between two of them. What is wrong is told as an event from then on. 0 turns "
            "this off.",
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
    engine_fields: Literal["admin", "all"] = field(
        default="admin",
        metadata=about(
            Choice("admin", "all"),
            "--engine-fields",
            "Who may send what is between the router and its engines, such as kv_transfer_params, bootstrap_room or "
            "X-data-parallel-rank: only requests with the admin key (admin), or all. Others are refused (400).",
        ),
    )
    hedge_after: float = field(
        default=0.0,
        metadata=about(
            Number(0.0, 0.9999),
            "--hedge-after",
            "Quantile of the times to the first token, such as 0.99, after which a streamed request without a first "
            "byte is sent to another engine too. The first answer wins. 0 turns this off.",
        ),
    )
    decode_alone: int = field(
        default=256,
        metadata=about(
            Integer(0, 1 << 30),
            "--decode-alone",
            "Maximum number of uncached prompt tokens that a vLLM decode engine computes itself, without prefill; "
            "SGLang's compute none.",
        ),
    )
    warm_up: int = field(
        default=0,
        metadata=about(
            Integer(0, 1 << 30),
            "--warm-up",
            "Maximum number of prompt tokens that an engine which joins, or comes back empty, is brought by pulls "
            "before it gets much traffic, where engines pull from each other. 0 turns this off.",
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
    state_file: Path | None = field(
        default=None,
        metadata=about(
            File(),
            "--state-file",
            "File that keeps which engines were added, removed and drained over HTTP. Each router needs its own.",
            native=False,
        ),
    )
    record: Path | None = field(
        default=None,
        metadata=about(
            File(), "--record", "File to append each decision to. It contains hashes of prompts, not their text."
        ),
    )
    gateway_bind: str | None = field(
        default=None,
        metadata=about(
            Address(),
            "--gateway-bind",
            "Address at which gateways ask over gRPC for the engine of a request (Envoy's external processing, as an "
            "Endpoint Picker of the Gateway API). Without a key, and without TLS unless --gateway-tls is given.",
        ),
    )
    gateway_health_bind: str | None = field(
        default=None,
        metadata=about(
            Address(),
            "--gateway-health-bind",
            "Address at which probes ask gRPC's health service whether gateways are served; always without TLS.",
        ),
    )
    gateway_tls: bool = field(
        default=False,
        metadata=about(
            Switch(),
            "--gateway-tls",
            "Speak TLS with gateways, with a certificate made at the start unless --gateway-tls-cert names one.",
        ),
    )
    gateway_tls_cert: Path | None = field(
        default=None,
        metadata=about(File(), "--gateway-tls-cert", "Certificate chain in PEM that gateways are shown."),
    )
    gateway_tls_key: Path | None = field(
        default=None,
        metadata=about(File(), "--gateway-tls-key", "Private key of that certificate, in PEM."),
    )
    gateway_conformance: bool = field(
        default=False,
        metadata=about(
            Switch(),
            "--gateway-conformance",
            "Let clients of gateways choose engines by the header test-epp-endpoint-selection, and tell them which one "
            "answered: for conformance tests of gateways alone.",
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
            raise ConfigError(f"router.peers must be {PEERS}, but {error}") from None
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
        self._check_gateway()

    def _check_gateway(self) -> None:
        if (self.gateway_tls_cert is None) != (self.gateway_tls_key is None):
            missing = "router.gateway_tls_key" if self.gateway_tls_key is None else "router.gateway_tls_cert"
            raise ConfigError(f"{missing} is missing: a certificate for gateways needs both it and its key")
        if self.gateway_tls_cert is not None and not self.gateway_tls:
            raise ConfigError(
                "router.gateway_tls_cert is for TLS with gateways: set router.gateway_tls (--gateway-tls)"
            )
        if self.gateway_bind is None and (self.gateway_health_bind is not None or self.gateway_tls):
            given = "gateway_tls" if self.gateway_tls else "gateway_health_bind"
            raise ConfigError(f"router.{given} is for gateways that ask at router.gateway_bind, which is not set")

    def _check_service(self, name: str, key: str | None, key_file: Path | None) -> None:
        """Check the URL of a service. A key without a URL is refused."""
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
        """The settings in the form of the native router, with the keys of other services and routers."""
        keys = {"index_key": self.index_bearer(), "global_key": self.global_bearer(), "peer_key": self.peer_bearer()}
        return super().for_native() | keys

    def index_bearer(self) -> str | None:
        """The bearer key of the service at `index`; None without one.

        Raises:
            ConfigError: The key file cannot be read, or does not contain a key.
        """
        if self.index_key_file is None:
            return self.index_key
        return read_secret(self.index_key_file, "router.index_key_file")

    def global_bearer(self) -> str | None:
        """The bearer key of the service at `global_url`; None without one.

        Raises:
            ConfigError: The key file cannot be read, or does not contain a key.
        """
        if self.global_key_file is None:
            return self.global_key
        return read_secret(self.global_key_file, "router.global_key_file")

    def peer_bearer(self) -> str | None:
        """The bearer key of the routers at `peers`; None without one.

        Raises:
            ConfigError: The key file cannot be read, or does not contain a key.
        """
        if self.peer_key_file is None:
            return self.peer_key
        return read_secret(self.peer_key_file, "router.peer_key_file")

    @property
    def is_own_policy(self) -> bool:
        """True if the policy is a user's Python class."""
        return ":" in self.policy
