"""Engines that keep blocks in host memory and in a folder that they share: what the index says of each of these."""

from __future__ import annotations

import math
import random
import shutil
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from . import model, scenarios
from .compare import Sample
from .engine import EngineAnswer, Server
from .launch import Offload
from .prober import Prediction, Prober
from .routed import ROUTED, Front, RoutedProber

POOL = "folder"
TIERS = {
    "gpu": "device",
    "cpu": "host",
    "external": "disk",
}  # the index's names, and the engine's for where it found them
PLACES = {"device": "from the device", "host": "from host memory", "disk": "from the folder"}
PULLED = "pulled"
REPORTED = 5.0  # seconds in which an engine's counters have an answer's tokens
LOOK = 1  # seconds between two looks at the folder
DEVICE, HOST = 4_480, 11_200  # tokens that there is room for: one of the longest prompts, and more than two


def room(tokens: int) -> int:
    """The bytes of a prompt's blocks in host memory."""
    shape = (int(model.PLAIN[name]) for name in ("num_hidden_layers", "num_key_value_heads", "head_dim"))
    width = math.prod(shape)
    return tokens * width * 2 * 2  # keys and values, of two bytes


def settings(folder: Path, *, chunk: int) -> Offload:
    """Tiers with a folder that is empty at first."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return Offload(room(HOST), chunk=chunk, folder=folder, resets=True)


def pool(folder: Path) -> list[str]:
    """The flags that tell kvatlas of the folder, which it looks at."""
    return ["--pool", f"{POOL},directory={folder},look_every={LOOK}"]


class TierProber(Prober):
    """Compares all that an engine loads, and what of it comes from where."""

    prefix = "offloaded: "
    pause = 0.05

    def _compare(
        self,
        scenario: str,
        server: Server,
        tokens: Sequence[int],
        send: Callable[[], EngineAnswer],
        salt: str | None,
        adapter: str | None,
        rank: int | None,
    ) -> EngineAnswer:
        instance = self.index.instance(server.name, tokens, lora=adapter, salt=salt)
        before = server.cached_by_source()
        answered = super()._compare(scenario, server, tokens, send, salt, adapter, rank)
        came = reported(server, before, answered.cached)
        whole = self.samples[-1]
        expected_parts = parts(instance, len(tokens), server.engine.block_size)
        if whole.partial:  # what the index takes for lost in host memory may come from there before the folder is asked
            expected_parts["host"] += expected_parts.pop("disk")
            came["host"] += came["disk"]
        for source, expected in expected_parts.items():
            if expected or came[source]:
                place = "from host memory or the folder" if whole.partial and source == "host" else PLACES[source]
                self._add(
                    Sample(
                        scenario=f"{self.prefix}{place}",
                        worker=server.name,
                        prompt=len(tokens),
                        block_size=server.engine.block_size,
                        held=whole.held and expected,
                        usable=expected,
                        cached=came[source],
                        trusted=whole.trusted,
                        partial=whole.partial,
                        upper_bound=whole.upper_bound,
                        note=scenario,
                    )
                )
        return answered

    def _said(
        self, worker: str, tokens: Sequence[int], salt: str | None, adapter: str | None, rank: int | None
    ) -> Prediction:
        instance = self.index.instance(worker, tokens, lora=adapter, salt=salt)
        block = self._block_size
        held = instance.get("used", instance.get("gpu", 0))
        return Prediction(
            held,
            min(held, usable(len(tokens), block)),
            sure=True,
            upper_bound=False,
            more=instance.get("may_hold_more", False),
        )

    _block_size = 32  # of vLLM on a CPU


class RoutedTierProber(RoutedProber):
    """Sends prompts through the router, and compares what it decided to load with what the engine says it did."""

    def __init__(self, front: Front, servers: Sequence[Server], log: Callable[[str], None]) -> None:
        super().__init__(front, log)
        self._servers = {server.name: server for server in servers}

    def _compare(
        self,
        scenario: str,
        server: Server,
        tokens: Sequence[int],
        send: Callable[[], EngineAnswer],
        salt: str | None,
        adapter: str | None,
        rank: int | None,
    ) -> EngineAnswer:
        before = {name: each.cached_by_source() for name, each in self._servers.items()}
        answered = super()._compare(scenario, server, tokens, send, salt, adapter, rank)
        worker, _ = self._front.decided()
        self._moved(scenario, server, answered, reported(self._servers[worker], before[worker], answered.cached))
        return answered

    def _moved(self, scenario: str, server: Server, answered: EngineAnswer, came: Counter[str]) -> None:
        """Compares what was to come from the engine's own tiers, and from other engines."""
        (last,) = self._front.http.get("/decisions", params={"limit": 1}).raise_for_status().json()
        transfer = last["transfer"] or {}
        for what, planned, moved in (
            ("loaded", transfer.get("load_tokens", 0), came["host"] + came["disk"]),
            (PULLED, transfer.get("pull_tokens", 0), came["p2p"]),
        ):
            if planned or moved:
                self._add(
                    Sample(
                        scenario=f"{ROUTED}{what}",
                        worker=last["worker"],
                        prompt=answered.prompt,
                        block_size=server.engine.block_size,
                        held=planned,
                        usable=planned,
                        cached=moved,
                        note=scenario,
                    )
                )


def usable(prompt: int, block: int) -> int:
    """The most tokens of a prompt that can come from a cache: the last one is always computed."""
    return (prompt - 1) // block * block


def parts(instance: dict[str, Any], prompt: int, block: int) -> Counter[str]:
    """Return the tokens that the index expects from each kind of cache, by the engine's names of the kinds."""
    most = min(usable(prompt, block), instance.get("used", prompt))
    found: Counter[str] = Counter({"device": 0, "host": 0, "disk": 0})
    if "loadable" not in instance:
        found["device"] = min(instance.get("gpu", 0), most)
    for each in instance.get("loadable", ()):
        found[TIERS[each["tier"]]] += max(0, min(each["to"], most) - each["from"])
    return found


def reported(server: Server, before: Counter[str], cached: int) -> Counter[str]:
    """Return the engine's counts of tokens by source since then, once they add up to all cached tokens of an answer."""
    end = time.monotonic() + REPORTED
    while True:
        came = server.cached_by_source()
        came.subtract(before)
        if came.total() == cached:
            return came
        if time.monotonic() > end:
            raise RuntimeError(f"{server.name} reports {dict(came)} tokens by source, and {cached} in its answer")
        time.sleep(0.02)


def all_of(prober: TierProber, servers: Sequence[Server], seed: int) -> None:
    """Prompts of all kinds on engines whose devices have room for few of them."""
    scenarios.turns(prober, servers, seed, conversations=6, length=5)
    scenarios.siblings(prober, servers, seed + 1, families=3)
    scenarios.salts(prober, servers, seed + 2, prompts=4)
    scenarios.pressure(prober, servers, seed + 3, prompts=70)


def again(prober: TierProber, servers: Sequence[Server], seed: int) -> None:
    """Prompts of before, once one of the engines has been started again: the folder still has them."""
    scenarios.pressure(prober, servers, seed, prompts=30)


RESETS = {"unknown": (False, True), "keep": (False,), "empty": (True,)}  # what kvatlas is told; whether host memory too


def resets(prober: TierProber, server: Server, flags: Sequence[str], seed: int) -> None:
    """Caches are reset, the device's alone or those in host memory too, by what kvatlas is told that resets do.

    It starts anew each time, so it also reads the tiers' events from the engines' buffers.
    """
    random_ = random.Random(seed)
    prompts = [scenarios.some(random_, 500) for _ in range(4)]
    for told, kinds in RESETS.items():
        prober.index.stop()
        prober.index.flags = [*flags, "--resets", told]
        prober.index.start()
        for host in kinds:
            for prompt in prompts:
                prober.ask("before a reset", server, prompt)
            server.reset(host=host)
            server.complete(scenarios.some(random_, 40))  # an engine with nothing to do announces no clear
            name = f"after a reset{' with reset_external' if host else ''}, resets = {told}"
            for prompt in (*prompts, *prompts):
                prober.ask(name, server, prompt)
    prober.index.stop()
    prober.index.flags = flags
    prober.index.start()


def cleaned(prober: TierProber, servers: Sequence[Server], folder: Path, seed: int) -> None:
    """Files of the folder are deleted, as a cleaner does, while the engines have these blocks nowhere else."""
    random_ = random.Random(seed)
    prompts = [scenarios.some(random_, 600) for _ in range(6)]
    for prompt in prompts:
        prober.ask("before files are deleted", servers[0], prompt)
    for _ in range(14):  # more than fits in host memory
        servers[0].complete(scenarios.some(random_, 1_500))
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix != ".json")
    for path in random_.sample(files, len(files) // 2):
        path.unlink()
    time.sleep(2 * LOOK + 1)
    for prompt in prompts:
        for server in servers:
            prober.ask("after files were deleted", server, prompt)
