"""Prober of an engine, which finds its models and its events: vLLM, SGLang, and versions that do not report these."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeGuard
from urllib.parse import urlsplit

from kvatlas.errors import DiscoveryError, KvatlasError
from kvatlas.service.config import Config
from kvatlas.service.config.engines import Engine
from kvatlas.service.discovery.endpoints import at, bound_port, check_listening, reachable
from kvatlas.service.discovery.http import LIST, Asker

logger = logging.getLogger("kvatlas.discovery")

__all__ = ["EngineDescription", "Prober", "Source"]

_NO_EVENTS = "it publishes no KV events: start it with --kv-events-config"
_NO_RANKS = "GET /kv_event_sources did not return a JSON object of ranks: is this an engine?"
_NO_ENGINE = "it has none of the HTTP routes of vLLM and SGLang: is this the address of an engine?"
_INFO = re.compile(r"^vllm:(cache|kv_offload)_config_info\{(.*)\}")
_INFO_NAMES = ("vllm:cache_config_info{", "vllm:kv_offload_config_info{")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_OF_SOURCE = ("enable_kv_cache_events", "publisher", "endpoint", "replay_endpoint", "topic", "kv_cache_report_mode")
_OF_EVENTS = (
    *(
        "publisher",
        "endpoint_host",
        "endpoint_port_base",
        "replay_endpoint_port_base",
        "topic",
        "block_size",
        "dp_size",
    ),
    "kv_cache_report_mode",
)
_MOST_RANKS = 1 << 10
_MOST_DIGITS = 9
_MOST_NAMES = 1000
_MOST_BYTES = 256  # of a name
_MOST_TEXT = 64 << 10  # bytes of another text that an engine says


@dataclass(frozen=True)
class Source:
    """Addresses of one rank's events."""

    rank: int
    endpoint: str
    replay_endpoint: str | None
    topic: str
    count_copies: bool = True
    host_chunk: int | None = None


@dataclass(frozen=True)
class EngineDescription:
    """Description of an engine, from its own answers.

    Attributes:
        engine: "vllm" or "sglang".
        model: The model's name.
        block_size: Number of tokens in a block.
        sources: Sources of events, one for each rank.
        aliases: Other names of the model.
        adapters: Names of the engine's LoRA adapters.
        rank_header: Numbering of ranks in requests, for ranks that do not start at 0: "local", counted from 0, or
            "global", the ranks' own numbers; None if unknown or without effect.
    """

    engine: str
    model: str
    block_size: int
    sources: tuple[Source, ...]
    aliases: tuple[str, ...] = ()
    adapters: tuple[str, ...] = ()
    rank_header: str | None = None

    @property
    def ranks(self) -> list[int]:
        """Numbers of the engine's ranks, in ascending order."""
        return sorted(source.rank for source in self.sources)

    @property
    def has_choice_of_numbers(self) -> bool:
        """True if the ranks are not numbered from 0, so that requests may have to number them differently."""
        return len(self.ranks) > 1 and self.ranks != list(range(len(self.ranks)))


@dataclass(frozen=True)
class _Models:
    """Names of models and adapters from `/v1/models`."""

    served: tuple[str, ...] = ()
    adapters: tuple[str, ...] = ()


@dataclass
class _Metrics:
    """Block sizes and chunk lengths in vLLM's metrics, by the number of the rank."""

    block_sizes: dict[str, int | None] = field(default_factory=dict)
    host_chunks: dict[str, int] = field(default_factory=dict)

    def host_chunk(self, rank: int) -> int | None:
        """Number of blocks in a chunk of a rank's host memory; None if unknown.

        A rank without a value of its own gets the value of the engine's other ranks.
        """
        return self.host_chunks.get(str(rank)) or next(iter(self.host_chunks.values()), None)


@dataclass(frozen=True)
class _ServerAnswer:
    """The answers of an engine that determine its description: while they stay equal, nothing has changed."""

    engine: str
    content: dict[str, Any]


class Prober:
    """Client that queries one engine for its description."""

    def __init__(
        self,
        asker: Asker,
        engine: Engine,
        config: Config,
        allowed: Callable[[str, str], None],
        *,
        names_ranks: bool = False,
    ) -> None:
        """Create a prober, without querying the engine yet.

        Args:
            asker: Sends the requests.
            engine: The engine to query.
            config: The configuration.
            allowed: Function that raises `KvatlasError` if connecting to an endpoint that the engine reports is not
                allowed.
            names_ranks: True if requests will name ranks, so that their numbering must be determined.
        """
        self._names_ranks = names_ranks
        self._rank_header: tuple[list[int], str] | None = None  # found out for these ranks
        self._allowed = allowed
        self._asker = asker
        self._engine = engine
        self._config = config
        self.host = urlsplit(engine.url).hostname or ""
        self._said: _ServerAnswer | None = None
        self._left_out = 0  # models, when they were last asked for
        self._models = _Models()
        self._metrics: _Metrics | None = None

    async def changed(self) -> bool:
        """True if the engine's answers differ from those of the last call of `whole`.

        Raises:
            DiscoveryError: The engine does not answer.
        """
        return self._said is None or await self._ask() != self._said

    async def whole(self) -> EngineDescription:
        """Query the engine for its whole description.

        Raises:
            DiscoveryError: The engine cannot be registered as it is.
        """
        self._said = None
        said = await self._ask()
        found = await (self._vllm(said) if said.engine == "vllm" else self._sglang(said))
        if not found.sources:
            raise DiscoveryError(_NO_EVENTS, "no_events")
        if len(found.sources) > _MOST_RANKS:
            raise _too_many(len(found.sources))
        if self._names_ranks and found.has_choice_of_numbers:
            with contextlib.suppress(DiscoveryError):  # a busy engine is registered all the same
                found = dataclasses.replace(found, rank_header=await self._header_of(found))
        self._said = said
        return found

    async def _header_of(self, found: EngineDescription) -> str | None:
        """Determine how requests must number the engine's ranks.

        Frontends of vLLM differ, and none reports its numbering, so a request with one token tests it.
        """
        if self._rank_header is None or self._rank_header[0] != found.ranks:
            self._rank_header = None
            # If counted from 0, the highest rank number does not exist.
            status, words = await self._try_rank(found, found.ranks[-1])
            header = "global" if status < 300 else "local"
            if header == "local" and "out of range" not in words:
                status, words = await self._try_rank(found, len(found.ranks) - 1)
                if status >= 300:
                    return None
            self._rank_header = (found.ranks, header)
        return self._rank_header[1]

    async def _try_rank(self, found: EngineDescription, number: int) -> tuple[int, str]:
        body = {"model": (*self._models.served, found.model)[0], "prompt": "1", "max_tokens": 1}
        return await self._asker.post(f"{self._engine.url}/v1/completions", body, {"X-data-parallel-rank": str(number)})

    async def _ask(self) -> _ServerAnswer:
        try:
            return await self._asked()
        except DiscoveryError:
            self._rank_header = None  # it may be another one when it answers again
            raise

    async def _asked(self) -> _ServerAnswer:
        sources = await self._asker.get_json(f"{self._engine.url}/kv_event_sources", absent=(404, 405), most=LIST)
        if sources is not None:
            if not isinstance(sources, dict):
                raise DiscoveryError(_NO_RANKS, "bad_answer")
            if len(sources) > _MOST_RANKS:
                raise _too_many(len(sources))
            about = {
                rank: _plain(said, *_OF_SOURCE) if isinstance(said, dict) else None for rank, said in sources.items()
            }
            return _ServerAnswer("vllm", about)
        # In its development mode, an older vLLM answers at the first of these paths too, by dozens of processes.
        for path in () if await self._vllm_version() else ("/server_info", "/get_server_info"):
            info = await self._asker.get_json(self._engine.url + path, absent=(404, 405), most=LIST)
            if isinstance(info, dict) and ("kv_events" in info or "kv_events_config" in info):
                names = ("kv_events_config", "served_model_name", "model_path", "page_size", "dp_size")
                said = dict.fromkeys(names) | _plain(info, *names)
                return _ServerAnswer("sglang", said | {"kv_events": _events(info.get("kv_events"))})
        return _ServerAnswer("vllm", {"": await self._old_vllm()})

    # vLLM

    async def _vllm(self, said: _ServerAnswer) -> EngineDescription:
        block_size = self._engine.block_size or self._config.block_size
        if "" in said.content or block_size is None:
            self._metrics = await self._vllm_metrics()
        else:
            with contextlib.suppress(DiscoveryError):  # what was known before stays
                self._metrics = await self._vllm_metrics()
        metrics = self._metrics or _Metrics()
        if "" in said.content:
            sources = self._by_ports(metrics.block_sizes, await self._vllm_version())
        else:
            sources = tuple([await self._vllm_source(rank, config) for rank, config in said.content.items()])
            if not sources:
                raise DiscoveryError(_NO_EVENTS, "no_events")
        model = self._engine.model or self._config.model
        if model is None:
            model = (await self._ask_models()).served[0]
        else:
            await self._try_models()
        if block_size is None:
            block_size = _one_block_size(metrics.block_sizes)
        sources = tuple(
            dataclasses.replace(source, host_chunk=self._engine.host_chunk or metrics.host_chunk(source.rank))
            for source in sources
        )
        return EngineDescription("vllm", model, block_size, sources, *self._names(model))

    def _names(self, model: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Aliases and adapters: those that the engine reports, and the configured ones."""
        aliases = (*self._models.served, *(self._engine.aliases or ()))
        adapters = (*self._models.adapters, *(self._engine.adapters or ()))
        return _others(aliases, model), _others(adapters, model)

    async def _vllm_source(self, name: str, config: object) -> Source:
        if not isinstance(config, dict) or not _is_number(name):
            raise DiscoveryError(_NO_RANKS, "bad_answer")
        if not config.get("enable_kv_cache_events", True) or config.get("publisher", "zmq") != "zmq":
            raise DiscoveryError(
                f"rank {name} publishes no events over ZMQ: its --kv-events-config needs "
                '"enable_kv_cache_events": true and "publisher": "zmq"',
                "no_events",
            )
        endpoint = await self._live(_text(config.get("endpoint")), f"rank {name}'s endpoint")
        replay = _text(config.get("replay_endpoint"))
        if replay:
            replay, _listens = reachable(replay, self.host, f"rank {name}'s replay endpoint")
        return Source(int(name), endpoint, replay or None, _text(config.get("topic")), self._counts_copies(config))

    async def _live(self, said: str, what: str) -> str:
        """The endpoint to register for an address at which the engine publishes."""
        port = bound_port(said, self.host, self._config.streams.bind)
        if port is not None:
            return f"bind://{port}"
        endpoint, listens = reachable(said, self.host, what)
        if not listens:
            try:
                self._allowed(endpoint, self.host)
            except KvatlasError as error:
                raise DiscoveryError(str(error), error.code) from error
            await check_listening(endpoint, what, self._config.discovery.request_timeout)
        return endpoint

    def _counts_copies(self, events: dict[str, Any]) -> bool:
        """True if a block announced again is another copy; false if the engine reports that it announces hits, too."""
        if self._engine.count_copies is not None:
            return self._engine.count_copies
        return events.get("kv_cache_report_mode") != "full"

    async def _ask_models(self) -> _Models:
        """Query the names of the models (at least one) and of the engine's adapters."""
        models = await self._asker.get_json(f"{self._engine.url}/v1/models", most=LIST)
        cards = models.get("data") if isinstance(models, dict) else None
        served: list[str] = []
        adapters: list[str] = []
        left_out = 0
        for card in cards if isinstance(cards, list) else []:
            if isinstance(card, dict) and isinstance(card.get("id"), str) and card["id"]:
                if len(served) + len(adapters) == _MOST_NAMES or not _fits(card["id"]):
                    left_out += 1
                    continue
                # Adapters have the model as their parent.
                (adapters if card.get("parent") else served).append(card["id"])
        self._say_left_out(left_out)
        if not served:
            raise DiscoveryError("GET /v1/models lists no models: set the model with --model", "bad_answer")
        self._models = _Models(tuple(served), tuple(adapters))
        return self._models

    def _say_left_out(self, models: int) -> None:
        """Log the number of models of the engine that are left out, once for each number."""
        if models and models != self._left_out:
            words = "engine %s: %d of its models are left out: it lists more than %d, or names of more than %d bytes"
            logger.warning(words, self._engine.shown_url, models, _MOST_NAMES, _MOST_BYTES)
        self._left_out = models

    async def _try_models(self) -> None:
        """Query the names if the model's name is known otherwise. Without an answer, the names stay as they are."""
        with contextlib.suppress(DiscoveryError):
            await self._ask_models()

    async def _vllm_metrics(self) -> _Metrics:
        """Block sizes and chunk lengths by data-parallel rank, from the engine's metrics."""
        lines = await self._asker.lines(f"{self._engine.url}/metrics", *_INFO_NAMES, absent=(404, 405))
        found = _Metrics()
        for match in filter(None, map(_INFO.match, lines[: 2 * (_MOST_RANKS + 1)])):
            labels = dict(_LABEL.findall(match[2]))
            rank = labels.get("engine", "0")
            if match[1] == "cache":
                found.block_sizes[rank] = _count(labels.get("block_size", ""))
            elif chunk := _count(labels.get("cpu_blocks_per_chunk", "")):
                found.host_chunks[rank] = chunk
        return found

    async def _old_vllm(self) -> str:
        """Check that an engine answers. Returns its model's name."""
        try:
            return (await self._ask_models()).served[0]
        except DiscoveryError as problem:
            if problem.temporary or "status 404" not in str(problem):
                raise
            raise DiscoveryError(_NO_ENGINE, "bad_answer") from problem

    async def _vllm_version(self) -> str:
        """Version of vLLM, such as `0.22.1`; empty if the engine does not report it."""
        with contextlib.suppress(DiscoveryError):
            answer = await self._asker.get_json(f"{self._engine.url}/version", absent=(404, 405))
            if isinstance(answer, dict) and isinstance(answer.get("version"), str):
                return str(answer["version"])[:40]
        return ""

    def _by_ports(self, metrics: dict[str, int | None], version: str) -> tuple[Source, ...]:
        engine, discovery = self._engine, self._config.discovery
        events = engine.events_port or discovery.events_port
        replay = engine.replay_port or discovery.replay_port
        if events is None:
            raise DiscoveryError(_ports_wanted(version, self._config.command), "unknown_address")
        given = engine.ranks
        ranks = (
            range(given)
            if isinstance(given, int)
            else given or sorted(int(name) for name in metrics if _is_number(name)) or [0]
        )
        counts = self._counts_copies({})
        return tuple(
            Source(rank, at(self.host, events + rank), at(self.host, replay + rank) if replay else None, "", counts)
            for rank in ranks
        )

    # SGLang

    async def _sglang(self, said: _ServerAnswer) -> EngineDescription:
        info = said.content
        events = info["kv_events"]
        if not isinstance(events, dict):
            events = self._sglang_config(info)
        if events.get("publisher", "zmq") != "zmq":
            raise DiscoveryError(
                'it publishes no events over ZMQ: its --kv-events-config needs "publisher": "zmq"', "no_events"
            )
        model = self._engine.model or self._config.model or info["served_model_name"] or info["model_path"]
        if not isinstance(model, str) or not model:
            raise DiscoveryError("GET /server_info does not report the model: set it with --model", "bad_answer")
        block_size = self._engine.block_size or self._config.block_size or events.get("block_size") or info["page_size"]
        if not _is_positive(block_size):
            raise DiscoveryError(
                "GET /server_info does not report the block size: set it with --block-size", "bad_answer"
            )
        ranks = events.get("dp_size") or info["dp_size"] or 1
        if not _is_positive(ranks) or ranks > _MOST_RANKS:
            raise DiscoveryError(
                f"GET /server_info reports dp_size {ranks!r}; expected an integer from 1 to {_MOST_RANKS}", "bad_answer"
            )
        own = _publishers(events.get("publishers"))
        sources = []
        for rank in range(ranks):
            what = f"rank {rank}'s endpoint"
            said_at = own.get(rank) or _address(events, "endpoint_port_base", rank)
            endpoint = await self._live(said_at or "", what)
            replay = _address(events, "replay_endpoint_port_base", rank)
            if replay:
                host = urlsplit(endpoint).hostname if rank in own and not endpoint.startswith("bind://") else None
                replay, _listens = reachable(replay, host or self.host, f"rank {rank}'s replay endpoint")
            topic, counts = _text(events.get("topic")), self._counts_copies(events)
            sources.append(Source(rank, endpoint, replay, topic, counts, self._engine.host_chunk))
        await self._try_models()
        return EngineDescription("sglang", model, block_size, tuple(sources), *self._names(model))

    def _sglang_config(self, info: dict[str, Any]) -> dict[str, Any]:
        """Event sources from the engine's command-line flag, for versions without `kv_events` in their answers."""
        config = info["kv_events_config"]
        if not isinstance(config, str) or not config:
            raise DiscoveryError(_NO_EVENTS, "no_events")
        try:
            given = json.loads(config)
        except (ValueError, RecursionError) as error:
            raise DiscoveryError("its --kv-events-config is not JSON", "bad_answer") from error
        if not isinstance(given, dict):
            raise DiscoveryError("its --kv-events-config is not a JSON object", "bad_answer")
        events = {"publisher": given.get("publisher", "null"), "topic": given.get("topic", "")}
        for name, default in (("endpoint", "tcp://*:5557"), ("replay_endpoint", None)):
            address = given.get(name, default)
            if address is None:
                continue
            host, _, port = _text(address).removeprefix("tcp://").rpartition(":")
            if not _is_number(port):
                raise DiscoveryError(f"its {name} is {address!r}, expected tcp://HOST:PORT", "bad_answer")
            events |= {f"{name}_port_base": int(port), "endpoint_host": host}
        return events


def _ports_wanted(version: str, command: str) -> str:
    """Advice for an engine that does not report its event sockets, with the settings of this command."""
    engine = f"vLLM {version}" if version else "this engine"
    config = {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": "tcp://*:5557",
        "replay_endpoint": "tcp://*:5757",
    }
    return (
        f"{engine} does not report where its KV events are: it has no GET /kv_event_sources, which vLLM has since "
        f"0.31. Add --events-port 5557 --replay-port 5757 to `{command}` (or events_port and replay_port to its "
        f"[[engine]] table), and start the engine with the same ports: vllm serve MODEL --kv-events-config "
        f"'{json.dumps(config)}'"
    )


def _publishers(publishers: object) -> dict[int, str]:
    """Addresses of publishers of single ranks on several hosts, by rank."""
    each = publishers if isinstance(publishers, list) else []
    return {
        item["dp_rank"]: item["endpoint"]
        for item in each
        if isinstance(item, dict) and isinstance(item.get("dp_rank"), int) and isinstance(item.get("endpoint"), str)
    }


def _address(events: dict[str, Any], name: str, rank: int) -> str | None:
    base = events.get(name)
    if not _is_positive(base):
        return None
    host = _text(events.get("endpoint_host")) or "*"
    return at(host.removeprefix("[").removesuffix("]"), base + rank)


def _one_block_size(sizes: dict[str, int | None]) -> int:
    known = {size for size in sizes.values() if size is not None}
    if len(known) != 1:
        said = "reports several block sizes" if known else "does not report the block size"
        raise DiscoveryError(f"GET /metrics {said}: set it with --block-size", "bad_answer")
    return known.pop()


def _others(names: tuple[str, ...], model: str) -> tuple[str, ...]:
    """Distinct names other than the model's own, within the service's limits on number and length."""
    fit = (name for name in names if name != model and _fits(name))
    return tuple(dict.fromkeys(fit))[:_MOST_NAMES]


def _fits(name: str) -> bool:
    return len(name.encode(errors="replace")) <= _MOST_BYTES


def _plain(value: object, *names: str) -> dict[str, Any]:
    """The fields `names` of an answer, as far as their values are plain."""
    if not isinstance(value, dict):
        return {}
    found = {name: value[name] for name in names if isinstance(value.get(name, ...), str | int | float | bool | None)}
    return {name: said for name, said in found.items() if not isinstance(said, str) or len(said) <= _MOST_TEXT}


def _events(value: object) -> dict[str, Any] | None:
    """The usable part of SGLang's answer about its events; None if there is none."""
    if not isinstance(value, dict):
        return None
    found = _plain(value, *_OF_EVENTS)
    each = value.get("publishers")
    if isinstance(each, list):
        found["publishers"] = [_plain(one, "dp_rank", "endpoint") for one in each[:_MOST_RANKS]]
    return found


def _is_number(text: str) -> bool:
    return text.isdecimal() and len(text) <= _MOST_DIGITS


def _count(text: str) -> int | None:
    return int(text) if _is_number(text) and int(text) else None


def _is_positive(number: object) -> TypeGuard[int]:
    return isinstance(number, int) and not isinstance(number, bool) and number > 0


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _too_many(ranks: int) -> DiscoveryError:
    return DiscoveryError(f"it names {ranks} ranks; kvatlas follows at most {_MOST_RANKS} of an engine", "bad_answer")
