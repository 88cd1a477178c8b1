"""One version: two engines and an index, all scenarios, and what happens to engines and index besides."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import httpx

from . import agents, model, scenarios, tiers, vision
from .compare import Sample
from .complaints import OTHER, Complaints, Row
from .engine import DidNotStart, Server
from .index import Index
from .install import Engine
from .launch import Offload, Setup
from .prober import PATIENCE, Prober
from .pulls import FLAGS, HANDSHAKE, SEED, PullProber, Pulls
from .routed import ROUTED, Front, RoutedProber
from .standins import loopback

SMALL_BUFFER = 5  # batches
NO_ADAPTERS = "does not compute adapters on a CPU; that scenario was left out"


@dataclass
class Outcome:
    """The outcome of one version of an engine."""

    engine: str
    found: str = ""  # how the index found the engines' sockets
    samples: list[Sample] = field(default_factory=list)
    noted: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    complaints: list[Row] = field(default_factory=list)


class Run:
    """The scenarios of one version."""

    def __init__(self, engine: Engine, home: Path, seed: int, log: Callable[[str], None]) -> None:
        self.engine = engine
        self.home = home
        self.seed = seed
        self.outcome = Outcome(engine.name)
        self._log = log
        self._logs = home / "logs"
        self._logs.mkdir(parents=True, exist_ok=True)
        self._loopback = loopback(home)
        self._plain = model.write(home / "models" / "plain", model.PLAIN)
        model.write_weights(self._plain, model.PLAIN)
        self._hybrid = model.write(home / "models" / "hybrid", model.HYBRID)
        self._adapters = {
            name: model.write_adapter(home / "models" / name, number)
            for number, name in enumerate(scenarios.ADAPTERS if engine.adapters else ())
        }

    def all(self, only: Sequence[str] = ()) -> Outcome:
        """Runs everything, or some parts. One that cannot be run is noted, and the others are run."""
        parts = (self.two, self.hybrid, self.ranks, self.images, self.agents, self.offload, self.pulls, self.complaints)
        for part in parts:
            if only and part.__name__ not in only:
                continue
            self._log(f"{self.engine.name}: {part.__name__}")
            try:
                part()
            except (RuntimeError, OSError, ValueError, httpx.HTTPError) as error:
                self._log(f"  failed: {error}")
                self.outcome.failed.append(f"{part.__name__}: {error}")
        return self.outcome

    def two(self) -> None:
        """Two engines of the plain model."""
        if not self._adapters:
            self._note(NO_ADAPTERS)
        setup = Setup(self._plain, self._loopback, adapters=self._adapters)
        with self._fleet({"a": setup, "b": setup}) as (prober, servers):
            self.outcome.found = "URL alone" if prober.index.by_url else "URL and ports"
            scenarios.turns(prober, servers, self.seed)
            scenarios.chats(prober, servers, self.seed + 1)
            scenarios.siblings(prober, servers, self.seed + 2)
            scenarios.salts(prober, servers, self.seed + 3)
            if servers[0].setup.adapters:
                scenarios.adapters(prober, servers, self.seed + 4)
            scenarios.pressure(prober, servers, self.seed + 5)
            scenarios.together(prober, servers, self.seed + 6)
            self._routed(prober, servers)
            self._restart(prober, *servers)
            self._kill(prober, *servers)
            self._late(prober, *servers)

    def hybrid(self) -> None:
        """An engine of the hybrid model."""
        if not self.engine.hybrid:
            return
        with self._fleet({"h": Setup(self._hybrid, self._loopback, tokens=6_400)}) as (prober, servers):
            scenarios.hybrid(prober, servers[0], self.seed + 20)
            scenarios.hybrid_whole(prober, servers[0], self.seed + 21)
            self._refused(prober, servers[0])

    def ranks(self) -> None:
        """An engine with two data-parallel ranks."""
        if not self.engine.two_ranks:
            return
        with self._fleet({"d": Setup(self._plain, self._loopback, ranks=2)}) as (prober, servers):
            scenarios.ranks(prober, servers[0], self.seed + 30)

    def images(self) -> None:
        """Two engines of a model that takes images, and the router in front of them."""
        if not self.engine.sees:
            self._note("images were left out: this engine is installed without torchvision")
            return
        seeing = vision.write(self.home / "models" / "vision")
        setup = Setup(seeing, self._loopback)
        with self._fleet({"v": setup, "w": setup}) as (_prober, servers), Front(servers, self._logs, seeing) as front:
            routed = RoutedProber(front, self._log)
            routed.samples = self.outcome.samples
            vision.chats(routed, front, self.seed + 50)

    def agents(self) -> None:
        """Two engines of a model that calls tools, and the router in front of them: as it is, then with a tokenizer."""
        if self.engine.product != "vLLM":
            return
        calling = agents.write(self.home / "models" / "agents")
        setup = Setup(calling, self._loopback, flags=agents.FLAGS)
        with self._fleet({"t": setup, "u": setup}) as (_prober, servers):
            for number, (how, tokenizer) in enumerate(((agents.ENGINE, None), (agents.OWN, calling))):
                with Front(servers, self._logs, tokenizer) as front:
                    routed = RoutedProber(front, self._log)
                    routed.samples = self.outcome.samples
                    agents.sessions(routed, front, self.seed + 60 + number, how)

    def offload(self) -> None:
        """Engines that keep blocks in host memory and in a folder that they share, in chunks of two blocks."""
        if not self.engine.offloads:
            return
        folder = self.home / "folder"
        flags = tiers.pool(folder)
        setup = Setup(self._plain, self._loopback, tokens=tiers.DEVICE, offload=tiers.settings(folder, chunk=2))
        with self._fleet({"e": setup, "f": setup}, flags) as (plain, servers):
            prober = tiers.TierProber(plain.index, self._log)
            prober.samples = self.outcome.samples
            tiers.all_of(prober, servers, self.seed + 70)
            tiers.resets(prober, servers[0], flags, self.seed + 80)
            with Front(servers, self._logs, flags=flags) as front:
                routed = tiers.RoutedTierProber(front, servers, self._log)
                routed.samples = self.outcome.samples
                scenarios.pressure(routed, [front], self.seed + 90, prompts=40)
            servers[1].stop()
            servers[1].start()
            servers[1].wait()
            prober.index.wait(servers[1].name, trusted=True)
            tiers.again(prober, servers, self.seed + 73)
            tiers.cleaned(prober, servers, folder, self.seed + 100)

    def pulls(self) -> None:
        """Engines that pull blocks from each other through the router, and sources that fail."""
        if not self.engine.offloads:
            return
        offload = Offload(tiers.room(60_000), pulls=True, handshake=HANDSHAKE)
        setup = Setup(self._plain, self._loopback, offload=offload, flags=FLAGS)
        setups = {"a": setup, "b": setup, "c": replace(setup, offload=replace(offload, seed=SEED))}
        with self._fleet(setups) as (prober, servers):
            pulls = Pulls(servers, prober.index, self.seed + 110, self._log)
            try:
                with Front(servers, self._logs) as front:
                    routed = PullProber(front, servers, self._log)
                    routed.samples = self.outcome.samples
                    pulls.healthy(routed, front)
                    pulls.other_seed(front)
                for part in (pulls.frozen, pulls.dead):
                    with Front(servers, self._logs) as front:  # which knows nothing of failed pairs
                        part(front)
                pulls.direct()
            finally:
                self.outcome.complaints += pulls.rows
                self.outcome.noted += pulls.notes

    def complaints(self) -> None:
        """Faults that were reported of routers: two engines of one model, and one of another name."""
        setup = Setup(self._plain, self._loopback)
        setups = {"a": setup, "b": setup, "c": replace(setup, name=OTHER)}
        with self._fleet(setups) as (prober, servers):
            if not prober.index.by_url:
                self._note("complaints were not tried: this engine does not tell its sockets")
                return
            complaints = Complaints(servers, self.home, self._log)
            try:
                complaints.all()
            finally:
                self.outcome.complaints += complaints.rows

    def _routed(self, prober: Prober, servers: Sequence[Server]) -> None:
        """The router in front of both: whatever engine it chooses, what it expects there is held against the answer."""
        if not prober.index.by_url:
            self._note(
                "the router was left out: it is started with URLs alone, and this engine does not tell its sockets"
            )
            return
        front = Front(servers, self._logs)
        front.start()
        try:
            routed = RoutedProber(front, self._log)
            routed.samples = self.outcome.samples
            scenarios.turns(routed, [front], self.seed + 40)
            scenarios.chats(routed, [front], self.seed + 41)
            scenarios.siblings(routed, [front], self.seed + 42)
            scenarios.salts(routed, [front], self.seed + 43)
            if servers[0].setup.adapters:
                scenarios.adapters(routed, [front], self.seed + 44)
            chosen = Counter(each.worker for each in routed.samples if each.scenario.startswith(ROUTED))
            self._note(
                "the router chose " + ", ".join(f"{name} {count} times" for name, count in sorted(chosen.items()))
            )
        finally:
            front.stop()

    def _restart(self, prober: Prober, kept: Server, restarted: Server) -> None:
        """Restarts an engine: what it had is gone, and the index notices."""
        random_ = random.Random(self.seed + 10)
        prompts = [scenarios.some(random_, 200) for _ in range(8)]
        scenarios.mixed(prober, (kept, restarted), "before a restart", prompts)
        before = prober.index.stream(restarted.name)
        assert before is not None
        restarted.stop()
        restarted.start()
        restarted.wait()
        took = prober.index.wait(restarted.name, trusted=True)
        self._note(f"trusted again {took:.1f} s after the restarted engine answered")
        scenarios.mixed(prober, (restarted, kept), "after a restart", [*prompts, *prompts])

    def _kill(self, prober: Prober, kept: Server, killed: Server) -> None:
        """Kills an engine: the index says so. It comes back with a small buffer of batches."""
        random_ = random.Random(self.seed + 11)
        prompts = [scenarios.some(random_, 200) for _ in range(8)]
        scenarios.mixed(prober, (kept, killed), "before a kill", prompts)
        killed.kill()
        took = prober.index.wait(killed.name, trusted=False)
        self._note(f"untrusted {took:.1f} s after it was killed")
        scenarios.mixed(prober, (kept,), "while one is down", prompts)
        killed.setup = replace(killed.setup, buffer=SMALL_BUFFER)
        killed.start()
        killed.wait()
        took = prober.index.wait(killed.name, trusted=True)
        self._note(f"trusted again {took:.1f} s after the killed engine answered")
        scenarios.mixed(prober, (killed, kept), "after a kill", [*prompts, *prompts])

    def _late(self, prober: Prober, whole: Server, small: Server) -> None:
        """Starts the index anew, late: one engine has all its batches yet, the other the last few."""
        random_ = random.Random(self.seed + 12)
        prompts = [scenarios.some(random_, 200) for _ in range(20)]
        prober.index.stop()
        for prompt in prompts:
            for server in (whole, small):
                server.complete(prompt)
        prober.index.start()
        scenarios.mixed(prober, (whole,), "late, all replayed", prompts)
        scenarios.mixed(prober, (small,), "late, beyond the buffer", prompts)

    def _refused(self, prober: Prober, server: Server) -> None:
        stream = prober.index.stream(server.name)
        if stream is not None and stream.refused:
            refused = ", ".join(f"{reason} {count}" for reason, count in stream.refused.items())
            self._note(f"hybrid: events refused: {refused}")

    def _lateness(self, prober: Prober) -> None:
        late = sorted(prober.lateness)
        if late:
            middle, most = late[len(late) // 2], late[-1]
            ms = f"{middle * 1e3:.0f} ms after it (median; at most {most * 1e3:.0f} ms)"
            self._note(f"the blocks of an answer were in the index {ms}")
        if prober.unseen:
            self._note(f"those of {prober.unseen} answers were not all there after {PATIENCE:.0f} s")

    def _note(self, text: str) -> None:
        self._log(f"  {text}")
        self.outcome.noted.append(text)

    def _start(self, servers: Sequence[Server]) -> None:
        """Starts engines; without adapters if they do not start with them."""
        try:
            for server in servers:
                server.start()
            for server in servers:
                server.wait()
        except DidNotStart:
            if not any(server.setup.adapters for server in servers):
                raise
            self._note(NO_ADAPTERS)
            for server in servers:
                server.kill()
                server.setup = replace(server.setup, adapters={})
            self._start(servers)

    @contextmanager
    def _fleet(self, setups: dict[str, Setup], flags: Sequence[str] = ()) -> Iterator[tuple[Prober, list[Server]]]:
        servers = [Server(name, self.engine, setup, self._logs) for name, setup in setups.items()]
        index: Index | None = None
        try:
            self._start(servers)
            index = Index(servers, self._logs, flags)
            index.start()
            prober = Prober(index, self._log)
            prober.samples = self.outcome.samples
            yield prober, servers
            if len(servers) > 1:
                self._lateness(prober)
        finally:
            if index is not None:
                index.stop()
            for server in servers:
                server.kill()
