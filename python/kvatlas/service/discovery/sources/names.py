"""Engines at the addresses of a DNS name, such as a headless Service: for use without rights in a cluster."""

from __future__ import annotations

import asyncio
import random
import socket

from kvatlas.service.config import Config, Engine
from kvatlas.service.config.sources import HostName
from kvatlas.service.discovery.sources.base import Member, RemoteSource
from kvatlas.service.replicas import resolve, url_at


class EnginesOfName(RemoteSource):
    """Source of the engines at all addresses of a host name, which is resolved again and again.

    The system's resolver does not report a record's lifetime, so the name is resolved as often as a cluster's records
    change.
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
            # Many replicas resolve names: this spreads their requests over time.
            await asyncio.sleep(self._interval * random.uniform(0.9, 1.1))
