"""Discovery and metrics of simulated engines: the addresses of their event streams, and their load."""

from __future__ import annotations

from typing import get_args

from aiohttp import web

import kvatlas
from kvatlas.sim.loads import Source
from kvatlas.sim.server.engine import ServedEngine
from kvatlas.sim.server.rank import Rank

# The version of each imitated engine.
_VERSIONS = {"vllm": "0.33.0", "sglang": "0.5.23"}
_HWM = 100_000


def routes(engine: ServedEngine) -> list[web.RouteDef]:
    """Routes of health, discovery, metrics and reset, as in the engine that `engine` imitates."""
    answers = _Discovery(engine)
    common = [
        web.get("/health", answers.health),
        web.get("/metrics", answers.metrics),
        web.get("/v1/models", answers.models),
    ]
    if engine.config.dialect == "vllm":
        return [
            *common,
            web.get("/ping", answers.health),
            web.get("/version", answers.version),
            web.get("/kv_event_sources", answers.kv_event_sources),
            web.post("/reset_prefix_cache", answers.reset),
            *([web.get("/server_info", answers.settings)] if engine.config.dev_mode else ()),
        ]
    return [
        *common,
        web.get("/health_generate", answers.health),
        web.get("/server_info", answers.server_info),
        web.get("/get_server_info", answers.server_info),
        web.get("/model_info", answers.model_info),
        web.get("/get_model_info", answers.model_info),
        web.route("*", "/flush_cache", answers.reset),
    ]


class _Discovery:
    def __init__(self, engine: ServedEngine) -> None:
        self.engine = engine
        self.config = engine.config
        # Engines that bind all addresses report a wildcard, for which clients use the host of the engine's URL.
        wild = self.config.host in ("127.0.0.1", "localhost", "::1", "0.0.0.0", "::", "*")  # noqa: S104
        self.host = "*" if wild else self.config.host

    async def health(self, _request: web.Request) -> web.Response:
        return web.Response()

    async def version(self, _request: web.Request) -> web.Response:
        return web.json_response({"version": _VERSIONS["vllm"], "simulated_by": f"kvatlas {kvatlas.__version__}"})

    async def models(self, _request: web.Request) -> web.Response:
        config, created, model = self.config, int(self.engine.started), self.engine.model
        owner = config.dialect

        def card(name: str, parent: str | None) -> dict[str, object]:
            return {
                "id": name,
                "object": "model",
                "created": created,
                "owned_by": owner,
                "root": name,
                "parent": parent,
                "max_model_len": config.longest,
            }

        cards = [card(model, None), *(card(name, model) for name in config.loras)]
        return web.json_response({"object": "list", "data": cards})

    async def kv_event_sources(self, _request: web.Request) -> web.Response:
        engine = self.engine
        return web.json_response(
            {
                str(rank.number): {
                    "enable_kv_cache_events": True,
                    "publisher": "zmq",
                    "endpoint": self._endpoint(engine.events_port, rank),
                    "replay_endpoint": None if engine.replay_port is None else self._endpoint(engine.replay_port, rank),
                    "buffer_steps": self.config.buffer_steps,
                    "hwm": _HWM,
                    "max_queue_size": _HWM,
                    "topic": self.config.topic,
                }
                for rank in engine.ranks
            }
        )

    async def server_info(self, _request: web.Request) -> web.Response:
        engine, config = self.engine, self.config
        events: dict[str, object] = {
            "publisher": "zmq",
            "endpoint_host": self.host,
            "endpoint_port_base": engine.events_port,
            "topic": config.topic,
            "block_size": config.engine.block_size,
            "dp_size": config.ranks,
        }
        if engine.replay_port is not None:
            events["replay_endpoint_port_base"] = engine.replay_port
        return web.json_response(
            {
                "model_path": engine.model,
                "served_model_name": engine.model,
                "tokenizer_path": engine.model,
                "host": config.host,
                "port": engine.http_port,
                "page_size": config.engine.block_size,
                "dp_size": config.ranks,
                "tp_size": 1,
                "context_length": config.longest,
                "max_total_num_tokens": config.engine.blocks * config.engine.block_size,
                "max_running_requests": config.engine.max_running,
                "chunked_prefill_size": config.engine.chunk,
                "disaggregation_mode": {"both": "null"}.get(config.role, config.role),
                "disaggregation_bootstrap_port": engine.http_port,
                "enable_lora": bool(config.loras),
                "lora_paths": list(config.loras),
                "enable_hierarchical_cache": bool(config.tiers.host_tokens),
                "hicache_write_policy": "write_through",
                "hicache_storage_backend": None,
                "version": _VERSIONS["sglang"],
                "status": "ready",
                "kv_events": events,
            }
        )

    async def settings(self, _request: web.Request) -> web.Response:
        """Return the offloading settings as vLLM does in its answer to `/server_info` in development mode."""
        transfer: dict[str, object] | None = None
        if self.engine.ranks[0].core.offload is not None:
            transfer = {"kv_connector": "OffloadingConnector", "kv_role": "kv_both"}
            transfer["kv_connector_extra_config"] = self._extra()
        env = {"VLLM_P2P_HANDSHAKE_TIMEOUT_S": 30.0, "VLLM_SERVER_DEV_MODE": True}
        return web.json_response({"vllm_config": {"kv_transfer_config": transfer}, "vllm_env": env, "system_env": {}})

    def _extra(self) -> dict[str, object]:
        config = self.config
        tiers: list[dict[str, object]] = []
        if self.engine.pull_port is not None:
            tiers.append({"type": "p2p", "host": config.host, "port": self.engine.pull_port})
        if config.pool_folder:
            folder: dict[str, object] = {"type": "fs", "root_dir": config.pool_folder}
            folder |= {"enable_kv_events": True} if config.announces_pool else {}
            tiers.append(folder | ({"locality": "REMOTE"} if config.pool_locality else {}))
        described = {"self_describing_kv_events": True} if config.describes else {}
        return {"spec_name": "TieringOffloadingSpec", "secondary_tiers": tiers, **described}

    async def model_info(self, _request: web.Request) -> web.Response:
        return web.json_response(
            {
                "model_path": self.engine.model,
                "tokenizer_path": self.engine.model,
                "is_generation": True,
                "preferred_sampling_params": None,
                "weight_version": "default",
            }
        )

    async def reset(self, request: web.Request) -> web.Response:
        done = self.engine.reset(with_host=request.query.get("reset_external", "").lower() in ("1", "true"))
        return web.json_response({"success": done}, status=200 if done else 400)

    async def metrics(self, _request: web.Request) -> web.Response:
        lines = _vllm_metrics(self.engine) if self.config.dialect == "vllm" else _sglang_metrics(self.engine)
        return web.Response(text=lines, headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

    def _endpoint(self, base: int, rank: Rank) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"tcp://{host}:{base + rank.number}"


def _vllm_metrics(engine: ServedEngine) -> str:
    config, out = engine.config.engine, _Metrics()
    for rank in engine.ranks:
        core = rank.core
        counters = core.counters
        labels = {"model_name": engine.model, "engine": str(rank.number)}
        out.add("vllm:num_requests_running", "gauge", labels, len(core.running))
        out.add("vllm:num_requests_waiting", "gauge", labels, len(core.waiting))
        out.add("vllm:kv_cache_usage_perc", "gauge", labels, 1 - core.pool.free / core.pool.size)
        out.add("vllm:prefix_cache_queries_total", "counter", labels, counters.prompt_tokens)
        out.add("vllm:prefix_cache_hits_total", "counter", labels, counters.hit_tokens)
        out.add("vllm:prompt_tokens_total", "counter", labels, counters.prompt_tokens)
        if core.offload is not None:
            loaded = counters.loaded_tokens
            by_source = {"device": counters.hit_tokens - sum(loaded.values()), **dict.fromkeys(get_args(Source), 0)}
            for source, tokens in (by_source | loaded).items():
                what = {**labels, "source": source}
                out.add("vllm:prompt_tokens_cached_by_source_total", "counter", what, tokens)
            kinds = ["p2p"] * (engine.pull_port is not None) + ["fs"] * bool(engine.config.pool_folder)
            for number, kind in enumerate(kinds, 1):
                tier = {**labels, "tier": f"{number}:{kind}"}
                out.add("vllm:kv_offload_tiering_active_promotion_jobs", "gauge", tier, 0)
            tiers = engine.config.tiers
            sizes = {
                "cpu_num_chunks": str(tiers.host_slots(config.block_size)),
                "cpu_blocks_per_chunk": str(tiers.chunk),
            }
            out.add("vllm:kv_offload_config_info", "gauge", {**labels, **sizes}, 1)
        out.add("vllm:num_preemptions_total", "counter", labels, counters.preemptions)
        about = {
            "block_size": str(config.block_size),
            "num_gpu_blocks": str(config.blocks),
            "enable_prefix_caching": "True",
            "prefix_caching_hash_algo": engine.config.hash_algorithm,
        }
        out.add("vllm:cache_config_info", "gauge", {**labels, **about}, 1)
    return out.text()


def _sglang_metrics(engine: ServedEngine) -> str:
    config, out = engine.config.engine, _Metrics()
    for rank in engine.ranks:
        core = rank.core
        counters, pool = core.counters, core.pool
        labels = {"model_name": engine.model, "engine_type": "unified", "tp_rank": "0", "pp_rank": "0"}
        labels["dp_rank"] = str(rank.number)
        used = pool.size - pool.free
        out.add("sglang:num_running_reqs", "gauge", labels, len(core.running))
        out.add("sglang:num_queue_reqs", "gauge", labels, len(core.waiting))
        out.add("sglang:num_used_tokens", "gauge", labels, used * config.block_size)
        out.add("sglang:token_usage", "gauge", labels, used / pool.size)
        out.add("sglang:max_total_num_tokens", "gauge", labels, pool.size * config.block_size)
        out.add("sglang:page_size", "gauge", labels, config.block_size)
        out.add("sglang:num_pages", "gauge", labels, pool.size)
        rate = counters.hit_tokens / counters.prompt_tokens if counters.prompt_tokens else 0.0
        out.add("sglang:cache_hit_rate", "gauge", labels, rate)
        out.add("sglang:prompt_tokens_total", "counter", labels, counters.prompt_tokens)
        out.add("sglang:cached_tokens_total", "counter", {**labels, "cache_source": "device"}, counters.hit_tokens)
    return out.text()


class _Metrics:
    """Metrics in Prometheus' text format, grouped by name."""

    def __init__(self) -> None:
        self._lines: dict[str, list[str]] = {}

    def add(self, name: str, kind: str, labels: dict[str, str], value: float) -> None:
        lines = self._lines.setdefault(name, [f"# TYPE {name} {kind}"])
        inside = ",".join(f'{key}="{_escape(value)}"' for key, value in labels.items())
        lines.append(f"{name}{{{inside}}} {float(value)!r}")

    def text(self) -> str:
        return "".join(f"{line}\n" for lines in self._lines.values() for line in lines)


def _escape(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
