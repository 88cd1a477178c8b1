"""The addresses of a name as engines, such as those of a headless Service: for those without rights in a cluster."""

from __future__ import annotations

import asyncio
import random
import socket

from kvatlas.service.config import Config, Engine
from kvatlas.service.config.sources import HostName
from kvatlas.service.discovery.sources.base import Member, RemoteSource
from kvatlas.service.replicas import resolve, url_at


class EnginesOfName(RemoteSource):
    """Every address of a name, asked for again and again.

    The system's resolver does not tell for how long a record holds, so the name is asked for as often as a cluster's
    records live.
    """

    def __init__(self, shown: str, name: HostName, config: Config) -> None:
        super().__init__(shown, config.discovery.linger)
        self._name = name
        self._interval = config.discovery.dns_interval

    async def run(self) -> None:
        while True:
            try:
                addresses = await asyncio.to_thread(resolve, self._name.name, self._name.port)
            except socket.gaierror as error:
                why = f"the name server does not answer for {self._name.name}: {error.strerror or error}"
                self.is_away("no_name_server", why)
            else:
                self.counts["list"] += 1
                for address in addresses:
                    self.put(address, (Member(Engine(url_at(address, self._name.port))),))
                self.only(addresses)
                self.is_known_now()
            # Many replicas ask: not all at the same moment.
            await asyncio.sleep(self._interval * random.uniform(0.9, 1.1))
