"""A router in this process, with the service that it embeds."""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Iterable
from typing import Any

from kvatlas.errors import ConfigError
from kvatlas.router import native
from kvatlas.router.config import RouterConfig
from kvatlas.router.fleet import FleetKeeper, Orders, PeerOrders, PeerRouters, StateFile
from kvatlas.router.tokenizers import resolve
from kvatlas.routing.policies import check_name, own_policy
from kvatlas.service.config import Engine
from kvatlas.service.config.kinds import shown
from kvatlas.service.discovery.watch import HOLD, Discovery
from kvatlas.service.server_handle import ServerHandle, registration_of

logger = logging.getLogger("kvatlas.router")


class Router(ServerHandle[native.NativeRouter]):
    """A router in this process, which sends each request to the engine of least cost, like `kvatlas router`.

    It runs from its creation until `close`, or to the end of a `with` or `async with` block. Point any OpenAI client at
    its `url`:

        with Router(engines=["http://host-a:8000", "http://host-b:8000"]) as router:
            router.wait_ready(60)
            client = openai.OpenAI(base_url=f"{router.url}/v1", api_key="none")
    """

    _what = "router"
    _config: RouterConfig

    def __init__(
        self,
        engines: Iterable[Engine | str] = (),
        config: RouterConfig | None = None,
        *,
        prefill: Iterable[Engine | str] = (),
        decode: Iterable[Engine | str] = (),
        policy: object | None = None,
        log: bool = False,
    ) -> None:
        """Start the router.

        Args:
            engines: Engines to which requests are sent, besides those of the configuration: `[NAME=]URL`.
            config: All other settings; None for the defaults.
            prefill: Engines that only compute prompts, for `decode` engines.
            decode: Engines that generate answers to prompts computed by `prefill` engines.
            policy: A policy object with `choose(request, candidates)`, instead of `config.router.policy`.
            log: True to write the native part's log to stderr, as set by `config.log`; the first service or router of a
                process decides. The Python part logs to the logger "kvatlas".

        Raises:
            ConfigError: An argument or a setting is invalid.
            PolicyError: The policy is unknown, or has no option of a given name.
            ServiceError: The router cannot be started: the port is in use, a certificate cannot be read.
            TokenizerError: A tokenizer cannot be read.
        """
        given = config or RouterConfig()
        added: list[Engine] = []
        for name, items in (("engines", engines), ("prefill", prefill), ("decode", decode)):
            if isinstance(items, str):
                raise ConfigError(f"{name} must be a list, got a string: [{shown(items)}]")
            role = None if name == "engines" else name
            added += [_in_role(Engine.of(item), role) for item in items]
        self._config = config = _replace(given, (*given.engines, *added))
        if policy is None and config.router.is_own_policy:
            policy = own_policy(config.router.policy, config.router.seed, dict(config.router.policy_options))
        elif policy is None:
            check_name(config.router.policy)
        tokenizer, tokenizers = resolve(config.router.tokenizer), dict(config.router.tokenizers)
        self._peers = PeerRouters(config, config.http.bind) if config.router.peers else None
        orders, has_heard = self._first_orders()
        discovery = Discovery(config, orders)
        asks = discovery.has_any
        self._keeper = FleetKeeper(config, orders, discovery, self._peers)
        self._asking: PeerOrders | None = None
        started = native.start(
            config.router_for_native(
                tokenizer,
                {model: path for model, name in tokenizers.items() if (path := resolve(str(name))) is not None},
                holds=(HOLD,) if asks and config.follows_events else (),
                engines=_at_start(discovery, config),
                log=log,
            ),
            policy,
            self._keeper,
        )
        super().__init__(started, config, discovery)
        try:
            if config.follows_events:
                self._fetch_snapshot(config.upstream.ca)
                self._read_listings()
                for stream in config.static_streams:
                    stream.check(model=config.model, block_size=config.block_size)
                    self._native.register(registration_of(stream, config))
            discovery.watcher = watcher = native.Engines(self._native, config)
            thread = self._discover(self._native if config.follows_events else native.EngineRegistry(self._native))
            self._keeper.begin(watcher, thread.start, self.url)
            if self._peers is not None and not has_heard:
                self._asking = PeerOrders(self._peers, self._keeper.merge)
        except BaseException:
            self._native.close()
            raise

    def _stop_discovery(self) -> None:
        asking, self._asking = self._asking, None
        if asking is not None:
            asking.stop()
        super()._stop_discovery()

    def _first_orders(self) -> tuple[Orders, bool]:
        """The orders (changes of engines) from the state file and the peers, and True if a peer has answered."""
        path = self._config.router.state_file
        file = None if path is None else StateFile(path)
        orders = Orders([] if file is None else file.read(), save=None if file is None else file.write)
        if file is not None:
            file.check(orders.all())
        if self._peers is None:
            return orders, True
        heard, has_heard = self._peers.orders()
        if not has_heard:
            logger.info("no other router has answered yet: what was changed over HTTP there is taken in when one does")
        orders.merge(heard)
        return orders, has_heard

    @property
    def config(self) -> RouterConfig:
        """The router's configuration."""
        return self._config

    def __repr__(self) -> str:
        count = sum(isinstance(entry, Engine) for entry in self.entries)
        closed = ", closed" if self._closed else ""
        return f"Router(url={self.url!r}, policy={self._config.router.policy!r}, engines={count:,}{closed})"

    # The fleet

    def add_engine(self, engine: Engine | str, *, role: str | None = None) -> None:
        """Send requests to an engine from now on, and receive its events.

        Raises:
            ConfigError: The engine is not `[NAME=]URL`, or is invalid.
            ServiceError: The change cannot be written to the state file (code "state_not_written").
        """
        self._keeper.add(_in_role(Engine.of(engine), role))

    def remove_engine(self, name: str) -> None:
        """Send no more requests to an engine, and forget its blocks; open requests finish.

        Raises:
            ServiceError: No engine has this name (code "unknown_engine").
        """
        self._keeper.change("remove", name)

    def drain_engine(self, name: str, *, drained: bool = True) -> None:
        """Send no new requests to an engine; with `drained=False`, send it requests again.

        Raises:
            ServiceError: No engine has this name (code "unknown_engine").
        """
        self._keeper.change("drain" if drained else "undrain", name)

    def state(self) -> Any:
        """The engines with their health and their load, as in `GET /workers`."""
        return json.loads(self._native.state())

    def decisions(self, limit: int = 100) -> Any:
        """The latest decisions, as in `GET /decisions`."""
        return json.loads(self._native.decisions(limit))


def _at_start(discovery: Discovery, config: RouterConfig) -> list[dict[str, Any]]:
    """The engines of the configuration for the native router, without those that were removed over HTTP."""
    found = []
    for engine in config.engines:
        member = discovery.wanted.get((engine.worker, None))
        if member is not None and isinstance(member.entry, Engine):
            about = config.engine_for_native(
                member.entry, config.ranks_by_hand(member.entry), drained=bool(member.drained)
            )
            found.append(about)
    return found


def _in_role(engine: Engine, role: str | None) -> Engine:
    return engine if role is None else dataclasses.replace(engine, role=role)


def _replace(config: RouterConfig, engines: tuple[Engine, ...]) -> RouterConfig:
    return config if config.engines == engines else RouterConfig(**{**vars(config), "engines": engines})
