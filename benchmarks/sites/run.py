"""One simulated fleet of sites under one policy, and what was measured."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np
from benchmarks.sites.fleet import Site
from benchmarks.sites.load import Prompt, Words
from benchmarks.sites.wire import Cost

from kvatlas import BlockIndex
from kvatlas.errors import InvalidArgumentError
from kvatlas.sites import SiteChoice, SitePublisher, Sites

Policy = Literal["digests", "exact", "blind"]
_FADE = 60.0  # seconds after which a load counts 1/e


@dataclass(frozen=True, slots=True)
class Shape:
    """A fleet and how its digests go."""

    sites: int
    workers: int  # of each site
    cache: int  # blocks of each worker
    block_size: int = 16
    grain: int = 32
    every: float = 5.0  # seconds between digests
    delay: float = 0.1  # seconds that a digest is on its way
    more: int | None = None  # see Asking
    most: int = 4
    lost: int = 0  # sites whose digests stop in the middle
    liars: int = 0  # sites that claim what all others hold
    stale_after: float = 30.0
    seed: int = 0


@dataclass(slots=True)
class Result:
    """The counts of one run of a policy on a shape of sites."""

    policy: Policy
    shape: Shape
    requests: int = 0
    asked_blocks: int = 0  # of all prompts
    hit_blocks: int = 0
    questions: int = 0
    best_asked: int = 0  # requests whose deepest site was among those asked
    looked: int = 0  # requests for which that was looked up
    regret: int = 0  # blocks that the best site had beyond the best one asked
    wrong: int = 0  # lower bounds that were above what there was
    compared: int = 0
    liar_asked: int = 0
    to_liar: int = 0
    stored: int = 0  # blocks
    removed: int = 0
    digest_bytes: int = 0
    wholes: int = 0
    top_bytes: int = 0
    top: dict[str, int] = field(default_factory=dict)
    site_bytes: int = 0
    publisher_bytes: int = 0
    blocks: int = 0  # held at the end, by all workers
    distinct: int = 0  # by site
    copied: int = 0  # ranks
    spread: float = 0.0  # work of the busiest site by the mean
    event_bytes: int = 0
    compact_bytes: int = 0

    def row(self) -> dict[str, Any]:
        """The figures that are compared with bars, and what they come from."""
        count = max(self.requests, 1)
        return {
            **asdict(self.shape),
            "policy": self.policy,
            "requests": self.requests,
            "hit_rate": self.hit_blocks / max(self.asked_blocks, 1),
            "asked": self.questions / count,
            "best_asked": self.best_asked / max(self.looked, 1),
            "regret": self.regret / max(self.asked_blocks, 1),
            "wrong": self.wrong / max(self.compared, 1),
            "memory": self.top_bytes / max(self.site_bytes, 1),
            "traffic": self.digest_bytes / max(self.event_bytes, 1),
            "traffic_compact": self.digest_bytes / max(self.compact_bytes, 1),
            "blocks": self.blocks,
            "distinct": self.distinct,
            "stored": self.stored,
            "removed": self.removed,
            "site_bytes": self.site_bytes,
            "top_bytes": self.top_bytes,
            "publisher_bytes": self.publisher_bytes,
            "digest_bytes": self.digest_bytes,
            "marks": self.top.get("marks", 0),
            "sets": self.top.get("sets", 0),
            "doubted": self.top.get("doubted", 0),
            "probes": self.top.get("probes", 0),
            "wholes": self.wholes,
            "liar_asked": self.liar_asked / count,
            "to_liar": self.to_liar / count,
            "spread": self.spread,
        }


class Run:
    """Sites, the index above them, and one exact index of all sites to compare with."""

    def __init__(self, shape: Shape, policy: Policy, cost: Cost) -> None:
        self.shape = shape
        self.result = Result(policy, shape)
        self._cost = cost
        numbers = range(shape.sites)
        self._sites = [Site(f"site-{at}", shape.workers, shape.cache, shape.block_size, at) for at in numbers]
        self._at = {site.name: at for at, site in enumerate(self._sites)}
        # One holder for each site: its copies of a block are counted.
        self._truth = BlockIndex(block_size=shape.block_size)
        self._publishers = [SitePublisher(site.name, grain=shape.grain, life=1) for site in self._sites]
        self._top = Sites(shape.block_size, grain=shape.grain, stale_after=shape.stale_after)
        self._random = random.Random(shape.seed)
        self._load = np.zeros(shape.sites)
        self._on_the_way: deque[tuple[float, int, bytes]] = deque()
        self._liars = set(range(shape.liars))
        self._lost = set(range(shape.sites - shape.lost, shape.sites))
        self._lost_from = float("inf")

    def run(self, prompts: Iterable[Prompt], half: float) -> Result:
        """Serve all prompts; `half` is when the lost sites are lost, in seconds."""
        self._lost_from = half
        next_digest = self.shape.every
        for prompt in prompts:
            while prompt.at >= next_digest:
                self._digests(next_digest)
                next_digest += self.shape.every
            self._arrive(prompt.at)
            self._serve(prompt)
        self._measure()
        return self.result

    def _digests(self, now: float) -> None:
        factor = float(np.exp(-self.shape.every / _FADE))
        self._load *= factor
        for site in self._sites:
            site.fade(factor)
        if self.result.policy != "digests":
            return
        for at, (site, publisher) in enumerate(zip(self._sites, self._publishers, strict=True)):
            if at in self._liars:
                continue
            self.result.copied += publisher.look(site.index)[1]
            message = publisher.delta() if now > self.shape.every else publisher.whole()
            self._send(at, message, now)
        for at in self._liars:
            # All that anybody holds, as its own.
            self._publishers[at].look(self._truth)
            message = self._publishers[at].delta() if now > self.shape.every else self._publishers[at].whole()
            self._send(at, message, now)

    def _send(self, at: int, message: bytes, now: float) -> None:
        if at not in self._liars:
            self.result.digest_bytes += len(message)
        if not (at in self._lost and now >= self._lost_from):
            self._on_the_way.append((now + self.shape.delay, at, message))

    def _arrive(self, now: float) -> None:
        while self._on_the_way and self._on_the_way[0][0] <= now:
            _, at, message = self._on_the_way.popleft()
            try:
                self._top.apply(message, now=now)
            except InvalidArgumentError as error:
                if error.code != "whole_wanted":
                    raise
                self.result.wholes += 1
                whole = self._publishers[at].whole()
                self.result.digest_bytes += len(whole)
                self._top.apply(whole, now=now)

    def _serve(self, prompt: Prompt) -> None:
        result = self.result
        result.requests += 1
        result.asked_blocks += prompt.names.size
        levels = self._truth.find(content_hashes=prompt.contents).levels()
        at = {"digests": self._by_digests, "exact": self._by_truth, "blind": self._blindly}[result.policy](
            prompt, levels
        )
        site = self._sites[at]
        hit, stored, removed = site.run(prompt)
        result.hit_blocks += hit
        result.to_liar += at in self._liars
        self._load[at] += prompt.names.size - hit
        self._follow(site, prompt, stored, removed)

    def _follow(self, site: Site, prompt: Prompt, stored: list[Words], removed: list[Words]) -> None:
        for names in removed:
            self._truth.remove(site.name, block_hashes=names)
        if stored:
            first = prompt.names.size - sum(names.size for names in stored)
            parent = int(prompt.names[first - 1]) if first else None
            self._truth.store(
                site.name, block_hashes=prompt.names[first:], content_hashes=prompt.contents[first:], parent=parent
            )
            self.result.event_bytes += self._cost.stored(prompt.names.size - first)
            self.result.compact_bytes += self._cost.compact_stored(prompt.names.size - first)
        for names in removed:
            self.result.event_bytes += self._cost.removed(names.size)
            self.result.compact_bytes += self._cost.compact_removed(names.size)

    def _price(self, at: int, depth: int, prompt: Prompt) -> float:
        """The price of a site, in blocks: those that it would have to compute, and more if it is busier than others."""
        mean = float(self._load.mean()) + prompt.names.size
        excess = max(0.0, self._load[at] / mean - 1.0)
        return float(prompt.names.size - depth + excess * prompt.names.size)

    def _idle(self) -> int:
        two = [self._random.randrange(len(self._sites)) for _ in range(2)]
        return min(two, key=lambda at: self._load[at])

    def _by_truth(self, prompt: Prompt, levels: list[tuple[int, list[str]]]) -> int:
        answers = [
            (depth, min((self._at[name] for name in sites), key=self._load.__getitem__)) for depth, sites in levels
        ]
        answers.append((0, self._idle()))
        return min(answers, key=lambda it: self._price(it[1], it[0], prompt))[1]

    def _blindly(self, prompt: Prompt, _levels: list[tuple[int, list[str]]]) -> int:
        del prompt
        return self._idle()

    def _by_digests(self, prompt: Prompt, levels: list[tuple[int, list[str]]]) -> int:
        match = self._top.find(content_hashes=prompt.contents, now=prompt.at)
        load = self._load
        asking = SiteChoice(
            match, load=lambda name: float(load[self._at[name]]), more=self.shape.more, most=self.shape.most
        )
        answers: dict[int, int] = {}
        while (question := asking.next()) is not None:
            at = self._at[question.site]
            depth = self._sites[at].depth(prompt)
            answers[at] = depth
            asking.answered(question.site, depth)
            self._top.compare(question.site, at_least=question.at_least, at_most=question.at_most, was=depth)
            self.result.compared += 1
            self.result.wrong += depth < question.at_least
            self.result.liar_asked += at in self._liars
        idle = self._idle()
        chosen = min([*answers, idle], key=lambda at: self._price(at, answers.get(at, 0), prompt))
        # The chosen site is asked which of its workers should serve it; that answer counts, too.
        answers.setdefault(chosen, self._sites[chosen].depth(prompt))
        self.result.questions += len(answers)
        most = levels[0][0] if levels else 0
        best = max(answers.values())
        self.result.looked += 1
        self.result.best_asked += best >= most
        self.result.regret += max(most - best, 0)
        return chosen

    def _measure(self) -> None:
        result = self.result
        for site in self._sites:
            stats = site.index.stats()
            result.site_bytes += stats["bytes"]
            result.blocks += stats["blocks"]
            result.distinct += stats["positions"]
            result.stored += site.stored
            result.removed += site.removed
        result.top = self._top.stats()
        result.top_bytes = result.top["bytes"]
        result.publisher_bytes = sum(publisher.nbytes for publisher in self._publishers)
        result.spread = float(self._load.max() / max(self._load.mean(), 1e-9))
