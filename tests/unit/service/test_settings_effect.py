"""Every setting of an engine changes something, or is refused: of `kvatlas serve` as of `kvatlas router`."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path
from typing import Any

import pytest

from kvatlas.errors import ConfigError
from kvatlas.router.config import RouterConfig, RouterSection
from kvatlas.service import Config, Engine
from kvatlas.service.config.engines import ROUTING_FIELDS
from kvatlas.service.config.following import StreamConfig
from kvatlas.service.config.schema import SECTIONS
from kvatlas.service.discovery.sources.files import read_engines

VALUES: dict[str, Any] = {
    "url": "http://other:1",
    "name": "n",
    "model": "m",
    "block_size": 64,
    "routing_group": "g",
    "events_port": 5557,
    "replay_port": 5657,
    "ranks": 4,
    "count_copies": False,
    "host_chunk": 4,
    "aliases": ("x",),
    "adapters": ("y",),
    "role": "decode",
    "weight": 2.0,
    "drain": True,
    "models": ("m", "n"),
    "capacity_blocks": 1000,
    "handover": "sglang",
    "version": "0.33",
    "bootstrap_port": 8998,
    "pull": "10.0.0.1:5710",
    "pull_group": "g",
    "rank_header": "global",
    "key": "k",
    "use_key": False,
}
TO_BOTH = {"url", "name", "model", "block_size", "ranks", "aliases", "adapters", "key", "use_key"}
TO_ROUTER = {*TO_BOTH, *ROUTING_FIELDS}
"""The settings that the native router gets."""
TO_DISCOVERY = {"events_port", "replay_port", "count_copies", "host_chunk", "routing_group"}
"""The settings by which an engine's streams are registered."""
WITHOUT = {"no_events": RouterSection(no_events=True), "index": RouterSection(index="http://h:1")}


def engine(name: str) -> Engine:
    return Engine(**{"url": "http://h:1", name: VALUES[name]})


def test_each_setting_is_known_here() -> None:
    fields = {each.name for each in dataclasses.fields(Engine)}
    assert fields == set(VALUES) == TO_ROUTER | TO_DISCOVERY, "a new setting of engines: say here who uses it"


@pytest.mark.parametrize("name", sorted(VALUES))
def test_the_router_uses_each_setting_or_refuses_it(name: str) -> None:
    both = (Engine("http://d:1", role="prefill"),) if name == "role" else ()
    if name in TO_ROUTER:
        plain = RouterConfig().engine_for_native(Engine("http://h:1"))
        config = RouterConfig(engines=(engine(name), *both))
        assert config.engine_for_native(config.engines[0]) != plain
    if name == "routing_group":
        with pytest.raises(ConfigError, match='routing_group must be that of the router, "default"'):
            RouterConfig(engines=(engine(name),))
        assert RouterConfig(engines=(engine(name),), routing_group="g").engines
    for section in WITHOUT.values():
        if name in TO_DISCOVERY - {"routing_group"}:
            with pytest.raises(ConfigError, match=f"{name} is for a router that follows events itself"):
                RouterConfig(engines=(engine(name),), router=section)
            assert RouterConfig(engines=(engine(name),)).engines
        elif name != "routing_group":
            assert RouterConfig(engines=(engine(name), *both), router=section).engines


@pytest.mark.parametrize("name", sorted(VALUES))
def test_the_service_uses_each_setting_or_refuses_it(name: str) -> None:
    if name in ROUTING_FIELDS:
        with pytest.raises(ConfigError, match=f"{name} is for kvatlas router, which sends requests: leave it out"):
            Config(engines=(engine(name),))
    else:
        assert Config(engines=(engine(name),)).engines


def test_a_file_of_engines_may_be_shared_and_what_it_does_not_change_is_said(caplog: pytest.LogCaptureFixture) -> None:
    content = b'[[engine]]\nurl = "http://h:1"\nweight = 2.0\nrole = "decode"\nevents_port = 5557\n'
    for config, unused in (
        (Config(), ("role", "weight")),
        (RouterConfig(router=WITHOUT["index"]), ("events_port",)),
        (RouterConfig(), ()),
    ):
        caplog.clear()
        with caplog.at_level(logging.WARNING, "kvatlas.discovery"):
            assert len(read_engines(content, Path("e.toml"), config)) == 1
        assert [message.split(": ")[2].split()[0] for message in caplog.messages] == list(unused)


@pytest.mark.parametrize("section", WITHOUT.values(), ids=WITHOUT)
@pytest.mark.parametrize("name", ["streams", "limits", "adopt", "relay"])
def test_settings_of_events_are_refused_where_none_are_followed(name: str, section: RouterSection) -> None:
    """Each setting of these sections, with another value than by default."""
    kind = SECTIONS[name]
    tried = 0
    for each in dataclasses.fields(kind):  # type: ignore[arg-type]
        default = getattr(kind(), each.name)
        values: list[Any] = ["on", "off"]
        if isinstance(default, bool):
            values = [not default]
        elif isinstance(default, int | float):
            values = [default + 1, default / 2]
        for value in values:
            try:
                given = dataclasses.replace(kind(), **{each.name: value})  # type: ignore[type-var]
            except ConfigError:
                continue  # it takes others, or cannot be set alone
            if given != kind():
                with pytest.raises(ConfigError, match=f"{name}.{each.name} is for a router that follows events itself"):
                    RouterConfig(router=section, **{name: given})  # type: ignore[arg-type]
                tried += 1
    assert tried


def test_settings_as_they_are_by_default_are_no_mistake() -> None:
    assert RouterConfig(router=WITHOUT["index"], streams=StreamConfig()).streams == StreamConfig()
