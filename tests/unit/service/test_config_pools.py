"""Pools in the configuration: as flags, variables and tables of a file, and what of them is refused."""

from pathlib import Path
from typing import Any

import pytest

from kvatlas.errors import ConfigError
from kvatlas.router.config import read_router_config, show_router_config
from kvatlas.service.config import Config, Pool, read_config, show_config

TEXT = (
    "folder,members=a|b,chunk=4,tier=disk,announces_removals=true,lifetime=90,budget=1000,chunk_bytes=300,"
    "directory=/kv,look_every=5"
)
POOL = Pool("folder", ("a", "b"), 4, "disk", True, 90.0, 1000, 300, Path("/kv"), 5.0)
TABLE = """
[[pool]]
name = "folder"
members = ["a", "b"]
chunk = 4
tier = "disk"
announces_removals = true
lifetime = 90
budget = 1000
chunk_bytes = 300
directory = "/kv"
look_every = 5
"""


def test_each_source_makes_the_same_pool(tmp_path: Path) -> None:
    file = tmp_path / "k.toml"
    file.write_text(TABLE)
    assert read_config({"pool": [TEXT]}, {}).config.pools == (POOL,)
    assert read_config({}, {"KVATLAS_POOLS": TEXT}).config.pools == (POOL,)
    assert read_config({}, {"KVATLAS_CONFIG": str(file)}).config.pools == (POOL,)


def test_what_is_printed_makes_the_same_pools(tmp_path: Path) -> None:
    resolved = read_config({"pool": [TEXT, "other"]}, {})
    file = tmp_path / "k.toml"
    file.write_text(show_config(resolved))
    assert read_config({}, {"KVATLAS_CONFIG": str(file)}).config.pools == resolved.config.pools


def test_a_router_that_follows_events_has_pools_too(tmp_path: Path) -> None:
    file = tmp_path / "k.toml"
    file.write_text(TABLE)
    engine = {"engine": ["a=http://a:8000"]}
    for resolved in (
        read_router_config(engine | {"pool": [TEXT]}, {}),
        read_router_config(engine, {"KVATLAS_POOLS": TEXT}),
        read_router_config(engine, {"KVATLAS_CONFIG": str(file)}),
    ):
        assert resolved.config.pools == (POOL,)
        assert "[[pool]]" in show_router_config(resolved)
        told = resolved.config.router_for_native(None, {})["service"]["streams"]["pools"]
        assert [pool["name"] for pool in told] == ["folder"]


def test_a_router_that_asks_a_service_leaves_its_pools_to_it() -> None:
    with pytest.raises(ConfigError, match=r"\[\[pool\]\] is for a router that follows events itself"):
        read_router_config({"engine": ["a=http://a:8000"], "pool": [TEXT], "router.index": "http://index:9000"}, {})


def test_what_the_native_service_is_told() -> None:
    told = Config(pools=(POOL, Pool("other", tier="cpu", members=("c",)))).for_native()["streams"]["pools"]
    assert told[0] == {
        "name": "folder",
        "members": ["a", "b"],
        "chunk": 4,
        "tier": "disk",
        "announces_removals": True,
        "lifetime": 90.0,
        "room": 12,  # three chunks of four blocks
        "directory": "/kv",
        "look_every": 5.0,
        "evicts_used": False,
        "mooncake": None,
        "events": None,
        "key_prefix": None,
        "objects": None,
        "lmcache": None,
    }
    assert [told[1][name] for name in ("lifetime", "room", "directory", "look_every")] == [None, None, None, 30.0]


def test_a_store_that_is_asked() -> None:
    text = "store,mooncake=http://m:9003/,events=tcp://m:5560,key_prefix=p@m,objects=2,evicts=used,lifetime=9"
    told = read_config({"pool": [text]}, {}).config.for_native()["streams"]["pools"][0]
    assert told["tier"] == "cpu", "as vLLM's connector calls it"
    names = ("mooncake", "events", "key_prefix", "objects", "evicts_used")
    assert [told[name] for name in names] == ["http://m:9003", "tcp://m:5560", "p@m", 2, True]
    assert Pool("store", mooncake="http://m:9003", tier="external").tier == "external"
    assert Pool("folder").tier == "external"


def test_what_the_native_service_is_told_of_lmcache() -> None:
    text = "cache,members=a,lmcache=http://host:9300/,lmcache_ranks=4,lmcache_model=org/m,lmcache_instance=one"
    (pool,) = read_config({"pool": [text]}, {}).config.pools
    told = pool.for_native()
    assert told["look_every"] == 5.0
    assert told["lmcache"] == {
        "model": "org/m",
        "instance": "one",
        "ranks": 4,
        "chunk_tokens": 256,
        "hash": "blake3",
        "seed": None,
    }
    assert pool.lmcache == "http://host:9300"


@pytest.mark.parametrize(
    ("pools", "message"),
    [
        (["=a"], "a pool is NAME"),
        (["folder,4"], '"4" is not KEY=VALUE'),
        (["folder,chunks=4"], 'unknown key "chunks": did you mean'),
        (["folder,chunk=4,chunk=4"], "chunk is given twice"),
        (["folder,chunk=0"], "chunk must be"),
        (["folder,tier=gpu"], "tier must be"),
        (["folder,lifetime=0"], "lifetime must be"),
        (["folder,budget=1000"], "budget and chunk_bytes belong together"),
        (["folder,chunk_bytes=1000"], "budget and chunk_bytes belong together"),
        (["folder,budget=999,chunk_bytes=1000"], "budget is less than a chunk, 1,000 bytes"),
        (["folder,look_every=0"], "look_every must be"),
        (["folder,evicts=lru,lifetime=9"], "evicts must be"),
        (["folder,evicts=used"], "evicts says what budget or lifetime keeps"),
        (["folder,events=tcp://m:5560"], "events is for a pool that is a store: set mooncake"),
        (["folder,objects=2"], "objects is for a pool that is a store"),
        (["store,mooncake=m:9003"], "mooncake is http://HOST:PORT"),
        (["store,mooncake=http://m:9003,directory=/kv"], "set directory or mooncake"),
        (["store,mooncake=http://m:9003,events=m:5560"], "events must be tcp://HOST:PORT"),
        (["store,mooncake=http://m:9003,objects=0"], "objects must be"),
        (
            ["cache,lmcache=host:9300"],
            "lmcache must be http://HOST:PORT, got host:9300: .* did you mean http://host:9300",
        ),
        (["cache,lmcache_ranks=2"], "lmcache_ranks is for pools that LMCache fills: set lmcache, too"),
        (["cache,lmcache=http://host,chunk=16"], "chunk is for pools without lmcache; set lmcache_chunk"),
        (["cache,lmcache=http://host,lifetime=9"], "lifetime is for pools without lmcache; set nothing"),
        (["cache,lmcache=http://host,lmcache_seed=0"], "lmcache_seed is for vLLM's algorithms"),
        (["cache,lmcache=http://host,lmcache_hash=md5"], "lmcache_hash must be"),
        (["folder", "folder,tier=cpu"], 'two pools are named "folder"'),
        (["folder", "store,members=a"], "are both the tier external of some workers"),
    ],
)
def test_what_is_refused(pools: list[Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_config({"pool": pools}, {})
