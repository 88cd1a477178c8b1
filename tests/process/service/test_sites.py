"""A service above many sites, over sockets: bounds, a site that is cut off, one that restarts, one that lies."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from click.testing import CliRunner
from tests.support.engine import Publisher, removed, stored
from tests.support.waiting import until

from kvatlas import BlockIndex, content_hashes
from kvatlas.cli import main
from kvatlas.client import Client
from kvatlas.errors import ClientError, ConfigError
from kvatlas.service import Config, HttpConfig, Service, SitesConfig
from kvatlas.sites import SitePublisher

BLOCK = 4
GRAIN = 2
MODEL = "m"
TOKENS = list(range(1, 42))  # ten blocks and a bit
DEADLINE = 60.0


def above(unknown_after: float = 3600.0, **more: Any) -> Service:
    sites = SitesConfig(role="global", grain=GRAIN, unknown_after=unknown_after, **more)
    return Service(config=Config(http=HttpConfig(bind="127.0.0.1:0"), sites=sites))


def site_of(name: str, top: Service) -> Service:
    sites = SitesConfig(url=top.url, site=name, every=0.05, grain=GRAIN)
    return Service(config=Config(http=HttpConfig(bind="127.0.0.1:0"), sites=sites))


@pytest.fixture
def top() -> Iterator[Service]:
    with above() as service:
        yield service


@pytest.fixture
def client(top: Service) -> Client:
    return top.client()


def holds(blocks: int) -> BlockIndex:
    index = BlockIndex(block_size=BLOCK)
    index.store("w", block_hashes=list(range(1, blocks + 1)), tokens=TOKENS[: BLOCK * blocks])
    return index


def send(top: Service, digest: bytes, block_size: int = BLOCK) -> httpx.Response:
    about: dict[str, str | int] = {"model_name": MODEL, "block_size": block_size}
    kind = {"Content-Type": "application/octet-stream"}
    return httpx.post(f"{top.url}/digest", params=about, content=digest, headers=kind, timeout=DEADLINE)


def bounds(client: Client) -> dict[str, tuple[int, int]]:
    """The bounds, in blocks, of the sites that have something."""
    if not client.site_statuses():
        return {}
    answer = client.sites(tokens=TOKENS, model=MODEL)
    return {site: (level.at_least, level.at_most) for level in answer.levels for site in level.sites}


def states(client: Client) -> dict[str, str]:
    return {status.site: status.state for status in client.site_statuses()}


def test_sites_push_what_their_engines_hold(top: Service, client: Client, publishers: Callable[[], Publisher]) -> None:
    with site_of("north", top) as north, site_of("south", top) as south:
        engines = {}
        for name, site, blocks in (("north", north, 7), ("south", south, 4)):
            engine = engines[name] = publishers()
            site.register("w", engine.endpoint, model=MODEL, block_size=BLOCK)
            engine.wait_for_reader()
            engine.publish(stored(list(range(1, blocks + 1)), TOKENS[: BLOCK * blocks], block_size=BLOCK))
        until(lambda: bounds(client) == {"north": (24, 28), "south": (16, 20)})
        by_hash = client.sites(content_hashes=content_hashes(TOKENS, BLOCK), model=MODEL)
        assert by_hash == client.sites(tokens=TOKENS, model=MODEL)
        assert (by_hash.rest_at_most, by_hash.length, by_hash.block_size, by_hash.unknown) == (4, 40, BLOCK, ())
        engines["north"].publish(removed([3]))
        until(lambda: bounds(client) == {"north": (8, 12), "south": (16, 20)})
        # South is cut off and comes again, with nothing.
        south.close()
        with site_of("south", top) as again:
            again.register("w", publishers().endpoint, model=MODEL, block_size=BLOCK)
            known = {"north": "known", "south": "known"}
            until(lambda: bounds(client) == {"north": (8, 12)} and states(client) == known)
    metrics = client.metrics()
    assert 'kvatlas_sites{model="m",routing_group="default",state="known"} 2' in metrics


def test_a_site_that_is_cut_off_may_have_anything() -> None:
    with above(unknown_after=1.0) as top:
        client = top.client()
        publisher = SitePublisher("far", grain=GRAIN)
        publisher.look(holds(6))
        assert send(top, publisher.whole()).json() == {"status": "ok", "new": True}
        until(lambda: states(client) == {"far": "unknown"})
        answer = client.sites(tokens=TOKENS, model=MODEL)
        assert (answer.levels, answer.unknown) == ((), ("far",))
        # An empty digest says that it is there, and what was known is known.
        until(lambda: send(top, publisher.delta()).is_success and bounds(client) == {"far": (24, 28)})


def test_a_site_that_is_not_heard_for_long_is_forgotten() -> None:
    with above(unknown_after=0.01, forget_after=0.5) as top:
        client = top.client()
        for name in ("gone", "here"):
            publisher = SitePublisher(name, grain=GRAIN)
            assert send(top, publisher.whole()).is_success
        # Whole digests, as this one may be forgotten too, if half a second is over between two.
        until(lambda: send(top, publisher.whole()).is_success and states(client).keys() == {"here"})


def test_a_missing_digest_is_noticed(top: Service, client: Client) -> None:
    publisher = SitePublisher("s", grain=GRAIN, life=1)
    assert send(top, publisher.delta()).json()["code"] == "whole_wanted"
    publisher.look(holds(6))
    assert send(top, publisher.whole()).is_success
    publisher.delta()  # is lost
    lost = send(top, publisher.delta())
    assert (lost.status_code, lost.json()["code"]) == (409, "whole_wanted")
    assert client.sites(tokens=TOKENS, model=MODEL).unknown == ("s",)
    assert send(top, publisher.whole()).is_success
    assert bounds(client) == {"s": (24, 28)}
    # Another life, with less.
    publisher = SitePublisher("s", grain=GRAIN, life=2)
    publisher.look(holds(2))
    assert send(top, publisher.delta()).json()["code"] == "whole_wanted"
    assert send(top, publisher.whole()).is_success
    assert bounds(client) == {"s": (8, 12)}
    assert send(top, publisher.whole()).json() == {"status": "ok", "new": True}


def test_a_site_that_lies_is_not_asked_for_long(top: Service, client: Client) -> None:
    for name, blocks in (("liar", 10), ("good", 6)):
        publisher = SitePublisher(name, grain=GRAIN)
        publisher.look(holds(blocks))
        assert send(top, publisher.whole()).is_success
    asked = dict.fromkeys(("liar", "good"), 0)
    probes = 0
    for _ in range(200):
        answer = client.sites(tokens=TOKENS, model=MODEL)
        best = answer.levels[0]
        name = best.sites[0]
        asked[name] += 1
        was = 0 if name == "liar" else 24
        claim: dict[str, Any] = {"at_least": best.at_least, "at_most": best.at_most, "was": was}
        assert client.compare_site(name, model=MODEL, **claim)
        if answer.probe is not None:
            probes += 1
            claim = {"at_least": answer.probe_at_least, "at_most": answer.length, "was": 0}
            client.compare_site(answer.probe, model=MODEL, **claim)
    assert asked["liar"] <= 5
    assert 5 <= probes <= 6
    assert states(client) == {"liar": "doubted", "good": "known"}
    assert client.sites(tokens=TOKENS, model=MODEL).unknown == ("liar",)
    assert not client.compare_site("nobody", at_least=8, at_most=12, was=0, model=MODEL)
    assert 'kvatlas_sites_claims_total{model="m",routing_group="default",outcome="short"}' in client.metrics()


def test_what_cannot_be_used_is_refused(top: Service, client: Client) -> None:
    publisher = SitePublisher("s", grain=GRAIN)
    assert send(top, publisher.whole()).is_success
    refused = {
        "invalid_digest": send(top, b"nothing"),
        "other_grain": send(top, SitePublisher("s", grain=3).whole()),
        "block_size_mismatch": send(top, publisher.delta(), block_size=8),
        "malformed_parameters": httpx.post(
            f"{top.url}/digest", content=b"", headers={"Content-Type": "application/octet-stream"}, timeout=DEADLINE
        ),
        "wrong_content_type": httpx.post(f"{top.url}/digest?model_name=m&block_size=4", json={}, timeout=DEADLINE),
    }
    assert {code: answer.json()["code"] for code, answer in refused.items()} == {code: code for code in refused}
    for body in ({"model_name": MODEL}, {"model_name": MODEL, "content_hashes": [1], "cache_salt": "s"}):
        assert httpx.post(f"{top.url}/sites", json=body, timeout=DEADLINE).json()["code"] == "wrong_type"
    with pytest.raises(ClientError) as unknown:
        client.sites(tokens=TOKENS, model="other")
    assert unknown.value.code == "unknown_keyspace"
    with Service(config=Config(http=HttpConfig(bind="127.0.0.1:0"))) as site:
        with pytest.raises(ClientError) as refusal:
            site.client().site_statuses()
        assert refusal.value.code == "not_global"
        assert send(site, publisher.whole()).json()["code"] == "not_global"


def test_settings_that_do_not_go_together() -> None:
    for settings in (
        {"site": "s"},
        {"url": "http://127.0.0.1:1"},
        {"url": "http://127.0.0.1:1", "site": "s", "role": "global"},
        {"url": "nowhere", "site": "s"},
    ):
        with pytest.raises(ConfigError):
            SitesConfig(**settings)  # type: ignore[arg-type]


def test_the_command_shows_sites(top: Service) -> None:
    publisher = SitePublisher("far", grain=GRAIN)
    publisher.look(holds(6))
    assert send(top, publisher.whole()).is_success
    asks = ["query", "--url", top.url, "--sites", "--tokens", ",".join(map(str, TOKENS))]
    shown = CliRunner().invoke(main, asks)
    assert shown.exit_code == 0, shown.output
    assert "far" in shown.output
    said = json.loads(CliRunner().invoke(main, [*asks, "--json"]).output)
    assert said["levels"] == [{"at_least": 24, "at_most": 28, "sites": ["far"]}]
