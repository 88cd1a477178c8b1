"""Findings of `kvatlas router --check` about tiers, pools and pulls: missing flags, and what cannot be seen."""

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.support.engine import Engine as FakeEngine
from tests.support.engine import closed_port

from kvatlas.router import RouterConfig, RouterSection
from kvatlas.router.check import EngineReport, check
from kvatlas.router.check.tiers import can_pull
from kvatlas.service import DiscoveryConfig, Engine
from kvatlas.service.config.pools import Pool
from kvatlas.sim.server import Fleet, ServerConfig
from kvatlas.sim.tiers import TierConfig

from .conftest import FAST

pytest.importorskip("tokenizers")

HOST = TierConfig(host_tokens=4_000 * FAST.block_size)
PULLS = replace(HOST, pulls=True)


@contextmanager
def engines(*each: dict[str, Any]) -> Iterator[list[Any]]:
    """Engines with different settings, each in a process of its own."""
    with ExitStack() as stack:
        made = [Fleet(1, replace(ServerConfig(engine=FAST), **changes)) for changes in each]
        yield [stack.enter_context(fleet)[0] for fleet in made]


def checked(entries: list[Engine], tokenizer: Path | None = None, *pools: Pool, **router: Any) -> list[EngineReport]:
    config = RouterConfig(
        engines=tuple(entries),
        router=RouterSection(tokenizer=str(tokenizer) if tokenizer is not None else "none", **router),
        discovery=DiscoveryConfig(request_timeout=60),
        pools=pools,
    )
    return check(config)


def codes(report: EngineReport) -> dict[str, str]:
    """The findings about tiers, pools and pulls by their codes, with their levels."""
    about = ("tiers", "pool", "pulls")
    return {finding.code: finding.level for finding in report.findings if finding.what in about}


def change(report: EngineReport, code: str) -> str:
    (found,) = {finding.change for finding in report.findings if finding.code == code}
    return found


def one(tokenizer: Path, *pools: Pool, **changes: Any) -> EngineReport:
    with engines(changes) as (engine,):
        [report] = checked([Engine(engine.url, name="a")], tokenizer, *pools)
    return report


def test_an_engine_without_tiers_gets_no_line_about_them(fleet: Fleet, tokenizer: Path) -> None:
    for report in checked([Engine(url) for url in fleet.urls], tokenizer):
        assert codes(report) == {}


def test_host_memory_that_is_announced_as_it_should_be(tokenizer: Path) -> None:
    report = one(tokenizer, tiers=replace(HOST, chunk=8))
    assert codes(report) == {"ok": "ok", "tiers_not_told": "note"}
    assert "blocks in host memory, 8 in a chunk" in next(it.words for it in report.findings if it.what == "tiers")
    assert "--resets" in next(it.words for it in report.findings if it.code == "tiers_not_told")
    assert codes(one(tokenizer, tiers=HOST, dev_mode=True)) == {"ok": "ok"}
    assert codes(one(tokenizer, tiers=HOST, dialect="sglang")) == {"ok": "ok"}


def test_block_hashes_without_tokens_name_the_flag(tokenizer: Path) -> None:
    report = one(tokenizer, tiers=HOST, describes=False)
    assert codes(report) == {"tier_names_only": "warning", "tiers_not_told": "note"}
    assert '"self_describing_kv_events": true' in change(report, "tier_names_only")


def test_a_store_that_is_announced_as_it_should_be(tokenizer: Path, tmp_path: Path) -> None:
    pool = Pool("folder", members=("a",), chunk=2)
    report = one(tokenizer, pool, tiers=replace(HOST, chunk=2), pool_folder=str(tmp_path))
    assert codes(report) == {"ok": "ok", "tiers_not_told": "note"}
    assert report.problems == []


@pytest.mark.parametrize(
    ("changes", "pools", "code", "level", "flag"),
    [
        ({"announces_pool": False}, [Pool("folder")], "pool_silent", "warning", '"enable_kv_events": true'),
        ({"announces_pool": False}, [], "pool_silent", "warning", '"enable_kv_events": true'),
        ({"pool_locality": False}, [Pool("folder")], "pool_own", "warning", '"locality": "REMOTE"'),
        ({"pool_locality": False}, [], "pool_own", "note", '"locality": "REMOTE"'),
        ({}, [], "pool_unset", "warning", "chunk = 2"),
        ({}, [Pool("folder", members=("another",), chunk=2)], "pool_unset", "warning", "[[pool]]"),
        ({}, [Pool("folder", chunk=1)], "pool_chunk", "problem", "chunk = 2"),
    ],
)
def test_a_store_whose_flag_is_missing(
    tokenizer: Path, tmp_path: Path, changes: dict[str, Any], pools: list[Pool], code: str, level: str, flag: str
) -> None:
    report = one(tokenizer, *pools, tiers=replace(HOST, chunk=2), pool_folder=str(tmp_path), **changes)
    assert codes(report).get(code) == level, codes(report)
    assert flag in change(report, code)


def pair(
    tokenizer: Path | None, first: dict[str, Any], second: dict[str, Any], **changes: Any
) -> tuple[EngineReport, EngineReport]:
    """The reports about two engines that are set to pull from each other."""
    with engines(first, second) as both:
        entries = [Engine(it.url, name=name, pull=it.pull_endpoint()) for name, it in zip("ab", both, strict=True)]
        a, b = checked([replace(entries[0], **changes), entries[1]], tokenizer)
    return a, b


def test_engines_that_can_pull_from_each_other(tokenizer: Path) -> None:
    told = {"tiers": PULLS, "dev_mode": True}
    for report in pair(tokenizer, told, told):
        assert codes(report) == {"ok": "ok", "pull_timeout": "note"}
        assert report.problems == []
        assert "VLLM_P2P_HANDSHAKE_TIMEOUT_S" in change(report, "pull_timeout")
        assert any("the same block hashes as" in finding.words for finding in report.findings)


def test_another_seed_or_hash_function_is_seen_in_events(tokenizer: Path) -> None:
    for changes in ({"hash_seed": "7"}, {"hash_algorithm": "sha256"}):
        for report in pair(tokenizer, {"tiers": PULLS}, {"tiers": PULLS, **changes}):
            assert codes(report)["pull_names_differ"] == "problem"
            assert "PYTHONHASHSEED" in change(report, "pull_names_differ")


def test_members_of_a_pool_that_do_not_find_each_others_blocks(tokenizer: Path, tmp_path: Path) -> None:
    shared = {"tiers": HOST, "pool_folder": str(tmp_path)}
    with engines(shared, {**shared, "hash_seed": "7"}, shared) as each:
        entries = [Engine(it.url, name=name) for name, it in zip("abc", each, strict=True)]
        reports = checked(entries, tokenizer, Pool("folder"))
    assert [codes(report).get("pool_names_differ") for report in reports] == ["problem"] * 3
    assert "than b for" in next(it.words for it in reports[0].findings if it.code == "pool_names_differ")
    assert "PYTHONHASHSEED" in change(reports[1], "pool_names_differ")


def test_without_tokens_it_is_said_that_hashes_were_not_compared() -> None:
    for report in pair(None, {"tiers": PULLS}, {"tiers": PULLS}):
        assert codes(report)["pull_names_unseen"] == "note"


def test_other_chunks_no_host_memory_and_no_tier(tokenizer: Path) -> None:
    a, b = pair(tokenizer, {"tiers": PULLS}, {"tiers": replace(PULLS, chunk=4)})
    assert codes(a)["chunks_differ"] == codes(b)["chunks_differ"] == "problem"
    with engines({"tiers": PULLS}, {}) as (well, bare):
        entries = [Engine(well.url, name="a", pull=well.pull_endpoint())]
        entries.append(Engine(bare.url, name="b", pull=well.pull_endpoint()))
        a, b = checked(entries, tokenizer)
    assert not a.problems
    assert codes(b) | {"pull_no_tier": "problem", "pull_no_host": "problem"} == codes(b)
    assert '{"type": "p2p"' in change(b, "pull_no_tier")


def test_addresses_of_pulls(tokenizer: Path) -> None:
    told = {"tiers": PULLS, "dev_mode": True}
    with closed_port() as port:
        a, b = pair(tokenizer, told, told, pull=f"127.0.0.1:{port}", pull_group="own")
    assert codes(a) | {"pull_unreachable": "warning", "pull_address": "warning", "pull_alone": "note"} == codes(a)
    assert "says that it can be pulled from at 127.0.0.1:" in next(
        finding.words for finding in a.findings if finding.code == "pull_address"
    )
    assert codes(b)["pull_alone"] == "note"
    with engines(told) as (engine,):
        [report] = checked([Engine(engine.url)], tokenizer)
        where = engine.pull_endpoint()
    assert codes(report)["pull_unset"] == "note"
    assert f'pull = "{where}"' in change(report, "pull_unset")


def test_versions_that_cannot_be_told_where_to_pull_from() -> None:
    versions = ("0.27.1", "v0.28.0", "0.33.0", "1.0", "0.28rc1", "main")
    assert [can_pull(version) for version in versions] == [False, True, True, True, True, True]
    with FakeEngine() as fake:
        fake.answers["/version"] = {"version": "0.26.0"}
        [report] = checked([Engine(fake.url, pull="127.0.0.1:1")], no_events=True)
    assert codes(report)["pull_old"] == "problem"


def test_a_report_is_json(tokenizer: Path) -> None:
    report = one(tokenizer, tiers=HOST, describes=False)
    checks = json.loads(json.dumps(report.as_json()))["checks"]
    assert [it["code"] for it in checks if it["check"] == "tiers"] == ["tier_names_only", "tiers_not_told"]


KEY = "m@tp_rank:0@pcp0@dcp0@pp_rank:0@group:0@" + "0" * 64


@pytest.mark.parametrize(
    ("publishes", "keys", "pool", "expected"),
    [
        (False, f"{KEY}\n", {}, {"ok": "ok"}),
        (True, f"{KEY}\n", {"events": "tcp://m:1"}, {"ok": "ok"}),
        (False, f"{KEY}\n", {"events": "tcp://m:1"}, {"store_no_events": "warning", "ok": "ok"}),
        (True, "", {}, {"store_events_unset": "note", "store_empty": "note"}),
        (False, "a\nb\n", {}, {"ok": "ok", "store_keys_unread": "problem"}),
        (False, f"{KEY}\np@{KEY}\n", {"key_prefix": "p@m"}, {"ok": "ok"}),
        (False, f"{KEY}\nn{KEY}\n", {"key_prefix": "p@m"}, {"ok": "ok", "store_keys_unclear": "problem"}),
        (False, f"m_{KEY[-64:]}_0_k\n", {}, {"ok": "ok", "store_tier": "warning"}),
        (False, f"m_{KEY[-64:]}_0_k\n", {"tier": "external"}, {"ok": "ok"}),
        (None, "", {}, {"store_unreachable": "problem"}),
    ],
)
def test_a_store_that_is_a_pool(
    publishes: bool | None, keys: str, pool: dict[str, Any], expected: dict[str, str]
) -> None:
    with FakeEngine({"/get_all_keys": keys}) as master, closed_port() as port:
        master.answers["/kv_events/status"] = 500 if publishes is None else {"enabled": publishes}
        reports = checked([Engine(f"http://127.0.0.1:{port}")], None, Pool("s", mooncake=master.url, **pool))
    (report,) = [report for report in reports if report.role == "store"]
    assert {finding.code: finding.level for finding in report.findings} == expected
    assert not report.is_of_engine
    if publishes is False and "events" in pool:
        assert "released wheels are built without" in change(report, "store_no_events")
