"""The command and the environment that start an engine on a CPU."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .install import Engine

MODEL = "tiny"
WEIGHTS = "model.safetensors"
LONGEST = 4096  # tokens of a prompt and its answer
AT_ONCE = 8  # requests
STARTUP = Path(__file__).parent / "startup"

ENVIRONMENT = {
    "CUDA_VISIBLE_DEVICES": "",
    "GLOO_SOCKET_IFNAME": "lo",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "PYTHONPATH": str(STARTUP),
    "SGLANG_USE_CPU_ENGINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_NUM_OF_RESERVED_CPU": "1",
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_TARGET_DEVICE": "cpu",
}

OFFLOADING = {"UCX_TLS": "tcp,self,posix,cma", "UCX_NET_DEVICES": "lo"}  # copies between engines stay on this machine


@dataclass(frozen=True)
class Offload:
    """The tiers beyond its device in which an engine keeps blocks."""

    room: int  # bytes of host memory
    chunk: int = 1  # blocks
    folder: Path | None = None  # that it shares with other engines
    pulls: bool = False  # whether engines pull from each other
    described: bool = True  # whether its events say what blocks have, besides their names
    seed: str = ""  # of its block hashes, if not vLLM's own
    handshake: int = 30  # seconds that it waits for an engine from which it pulls for the first time
    resets: bool = False  # whether it has the route that resets caches, as in development mode


@dataclass(frozen=True)
class Setup:
    """The setup with which an engine is started."""

    model: Path
    loopback: Path  # a library that lets it listen on this machine only
    tokens: int = 12_800  # that its cache has room for
    buffer: int = 10_000  # batches kept for replay
    adapters: dict[str, Path] = field(default_factory=dict)
    ranks: int = 1
    name: str = MODEL  # by which clients know the model
    flags: tuple[str, ...] = ()  # besides
    offload: Offload | None = None


@dataclass(frozen=True)
class Ports:
    """The ports at which an engine listens, on this machine only."""

    http: int
    events: int
    replay: int
    pulls: int


def environment(engine: Engine, setup: Setup) -> dict[str, str]:
    """The variables that an engine needs besides its parent's environment."""
    variables = ENVIRONMENT | {"VLLM_CPU_OMP_THREADS_BIND": engine.binding, "LD_PRELOAD": str(setup.loopback)}
    if setup.offload is not None:
        variables |= OFFLOADING | {"VLLM_P2P_HANDSHAKE_TIMEOUT_S": str(setup.offload.handshake)}
        variables |= {"PYTHONHASHSEED": setup.offload.seed} if setup.offload.seed else {}
        variables |= {"VLLM_SERVER_DEV_MODE": "1"} if setup.offload.resets else {}
    return variables


def command(engine: Engine, setup: Setup, ports: Ports) -> list[str]:
    """The command line that starts an engine."""
    events = {
        "publisher": "zmq",
        "endpoint": f"tcp://*:{ports.events}",
        "replay_endpoint": f"tcp://*:{ports.replay}",
        "buffer_steps": setup.buffer,
    }
    common = ["--host", "127.0.0.1", "--port", str(ports.http), "--served-model-name", setup.name]
    common += ["--dtype", "bfloat16"]
    if not (setup.model / WEIGHTS).exists():
        common += ["--load-format", "dummy"]
    of = _vllm if engine.product == "vLLM" else _sglang
    tiers = [] if setup.offload is None else ["--kv-transfer-config", json.dumps(_tiers(setup.offload, ports))]
    return [str(engine.python), *of(engine, setup, events), *common, *tiers, *setup.flags]


def _tiers(offload: Offload, ports: Ports) -> dict[str, object]:
    """The settings of vLLM's connector. Its class for tiers needs a GPU; `TieringOnCpu` differs only in copying."""
    tiers: list[dict[str, object]] = []
    if offload.pulls:
        tiers.append({"type": "p2p", "host": "127.0.0.1", "port": ports.pulls})
    if offload.folder is not None:
        shared = {"root_dir": str(offload.folder), "locality": "REMOTE"}
        tiers.append({"type": "fs", "enable_kv_events": True, **shared})
    more = {
        "spec_name": "TieringOnCpu",
        "spec_module_path": "offloading_on_cpu",
        "cpu_bytes_to_use": offload.room,
        "blocks_per_chunk": offload.chunk,
        "self_describing_kv_events": offload.described,
        "offload_prompt_only": False,
        "secondary_tiers": tiers,
    }
    return {"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": more}


def _vllm(engine: Engine, setup: Setup, events: dict[str, object]) -> Sequence[str]:
    parts = ["-m", "vllm.entrypoints.openai.api_server", "--model", str(setup.model), "--enforce-eager"]
    parts += ["--max-model-len", str(LONGEST), "--max-num-seqs", str(AT_ONCE), "--enable-prefix-caching"]
    parts += ["--block-size", str(engine.block_size), "--enable-prompt-tokens-details"]
    parts += ["--num-gpu-blocks-override", str(setup.tokens // engine.block_size)]
    parts += ["--kv-events-config", json.dumps({"enable_kv_cache_events": True} | events)]
    if setup.adapters:
        parts += ["--enable-lora", "--max-lora-rank", "8", "--max-loras", str(len(setup.adapters))]
        parts += ["--lora-modules", *(f"{name}={place}" for name, place in setup.adapters.items())]
    if setup.ranks > 1:
        parts += ["--data-parallel-size", str(setup.ranks), "--data-parallel-address", "127.0.0.1"]
    return parts


def _sglang(engine: Engine, setup: Setup, events: dict[str, object]) -> Sequence[str]:
    parts = ["-m", "sglang.launch_server", "--model-path", str(setup.model), "--device", "cpu"]
    parts += ["--context-length", str(LONGEST), "--max-running-requests", str(AT_ONCE)]
    parts += ["--page-size", str(engine.block_size), "--max-total-tokens", str(setup.tokens)]
    parts += ["--attention-backend", "torch_native", "--sampling-backend", "pytorch", "--mem-fraction-static", "0.1"]
    parts += ["--disable-cuda-graph", "--disable-overlap-schedule", "--enable-cache-report"]
    parts += ["--kv-events-config", json.dumps(events)]
    if setup.adapters:
        parts += ["--enable-lora", "--lora-backend", "torch_native"]
        parts += ["--max-loras-per-batch", str(len(setup.adapters) + 1)]
        parts += ["--lora-paths", *(f"{name}={place}" for name, place in setup.adapters.items())]
    if setup.ranks > 1:
        parts += ["--data-parallel-size", str(setup.ranks)]
    return parts
