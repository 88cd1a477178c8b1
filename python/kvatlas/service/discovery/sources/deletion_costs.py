"""Deletion costs of pods: a Deployment that is scaled down first ends pods whose cached blocks other pods hold, too."""

from __future__ import annotations

import asyncio
import json
import logging
import random
from collections.abc import Iterable
from typing import Protocol

from kvatlas.errors import DiscoveryError, KvatlasError
from kvatlas.service.discovery.sources.pod import DELETION_COST
from kvatlas.service.discovery.sources.pods import EnginesOfPods

logger = logging.getLogger("kvatlas.discovery")

_HIGHEST = (1 << 31) - 1
_SHARE = 0.1  # of the cost, by which it may be wrong: each change of a pod is sent to all that watch pods
_NO_POD = "http_404"


class SoleTokens(Protocol):
    """Interface of the native service for counting the tokens that only one worker holds."""

    def sole_tokens(self) -> str: ...


class DeletionCosts:
    """Writer of the annotation by which a ReplicaSet chooses the pods to end: the cached tokens lost with a pod."""

    def __init__(self, sources: Iterable[EnginesOfPods], every: float) -> None:
        """Create a writer, without writing yet.

        Args:
            sources: The sources of pods.
            every: Seconds between two updates of the costs.
        """
        self._sources, self._every = list(sources), every
        self._told: set[str] = set()

    async def run(self, native: SoleTokens) -> None:
        """Write costs until cancelled."""
        while True:
            # Not all replicas at once: a later one finds what the first has written.
            await asyncio.sleep(self._every * random.uniform(0.7, 1.3))
            try:
                tokens: dict[str, int] = json.loads(await asyncio.to_thread(native.sole_tokens))
            except KvatlasError as error:
                logger.warning("deletion costs of pods are not known: %s", error)
                continue
            for source in self._sources:
                await self._write(source, tokens)

    async def _write(self, source: EnginesOfPods, tokens: dict[str, int]) -> None:
        """Write the costs of a source's pods that differ clearly from those in their annotations."""
        wrong = {}
        for pod, (workers, cost) in source.costs().items():
            known = [tokens[worker] for worker in workers if worker in tokens]
            wanted = min(sum(known), _HIGHEST)
            # The blocks of untrusted engines are unknown: their cost stays.
            if len(known) == len(workers) and (cost is None or abs(wanted - cost) > _SHARE * max(wanted, cost)):
                wrong[pod] = wanted
        if not wrong:
            return
        try:
            async with source.api() as (api, http):
                for pod, wanted in wrong.items():
                    try:
                        await api.annotate(http, pod, {DELETION_COST: str(wanted)})
                        source.counts["deletion_cost"] += 1
                    except DiscoveryError as error:
                        if error.code != _NO_POD:
                            raise
        except DiscoveryError as error:
            source.counts[f"deletion_cost_{error.code}"] += 1
            if error.code not in self._told:
                self._told.add(error.code)
                logger.warning("%s: deletion costs are not written: %s", source.shown, error)
