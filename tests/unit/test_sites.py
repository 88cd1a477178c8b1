"""Digests and the sparse index of sites, from Python."""

from __future__ import annotations

import random

import pytest

from kvatlas import BlockIndex
from kvatlas.errors import InvalidArgumentError, InvalidTypeError
from kvatlas.sites import Question, SiteChoice, SitePublisher, Sites

GRAIN = 4


def fill(index: BlockIndex, chain: int, blocks: int, worker: str = "w") -> None:
    names = [chain * 1000 + at for at in range(blocks)]
    index.store(worker, block_hashes=names, content_hashes=[name + 7 for name in names])


def prompt(chain: int, blocks: int = 20) -> list[int]:
    return [chain * 1000 + at + 7 for at in range(blocks)]


def test_bounds_are_those_of_the_exact_indexes() -> None:
    rng = random.Random(3)
    fleet = {f"s{at}": BlockIndex() for at in range(12)}
    publishers = {name: SitePublisher(name, grain=GRAIN) for name in fleet}
    sites = Sites(grain=GRAIN)
    for round_ in range(15):
        for name, index in fleet.items():
            fill(index, rng.randrange(5), rng.randrange(1, 21), rng.choice("ab"))
            index.remove(rng.choice("ab"), block_hashes=[rng.randrange(5) * 1000 + rng.randrange(20)])
            ranks, copied = publishers[name].look(index)
            assert copied <= ranks
            digest = publishers[name].whole() if round_ == 0 else publishers[name].delta()
            assert sites.apply(digest, now=0)
        for chain in range(5):
            found = sites.find(content_hashes=prompt(chain), now=0)
            assert found.unknown == []
            bounds = dict.fromkeys(fleet, (0, found.rest_at_most))
            bounds |= {name: (least, most) for least, most, names in found.levels for name in names}
            for name, (least, most) in bounds.items():
                assert least <= fleet[name].find(content_hashes=prompt(chain)).depth <= most
    assert sites.stats()["sites"] == 12
    assert sum(publisher.marks for publisher in publishers.values()) >= sites.stats()["marks"] > 0
    assert all(publisher.nbytes > 0 for publisher in publishers.values())
    assert sites.forget("s1")
    assert not sites.forget("s1")


def two_sites(deep: int, shallow: int) -> Sites:
    sites = Sites(grain=GRAIN, stale_after=10)
    for name, blocks in (("deep", deep), ("shallow", shallow)):
        index = BlockIndex()
        fill(index, 1, blocks)
        publisher = SitePublisher(name, grain=GRAIN)
        publisher.look(index)
        sites.apply(publisher.whole(), now=0)
    return sites


def test_the_site_with_the_most_is_asked_and_the_next_one_if_it_disappoints() -> None:
    match = two_sites(13, 9).find(content_hashes=prompt(1), now=0)
    assert match.levels == [(12, 15, ["deep"]), (8, 11, ["shallow"])]
    asking = SiteChoice(match)
    assert asking.next() == Question("deep", 12, 15)
    asking.answered("deep", 13)
    assert asking.next() is None
    assert (asking.best, asking.asked) == (13, 1)

    asking = SiteChoice(match)
    assert asking.next() is not None
    asking.answered("deep", 2)
    assert asking.next() == Question("shallow", 8, 11)
    asking.answered("shallow", 9)
    assert asking.next() is None

    asking = SiteChoice(match, usable=lambda site: site != "deep")
    assert asking.next() == Question("shallow", 8, 11)
    asking = SiteChoice(match, most=1)
    assert asking.next() is not None
    asking.answered("deep", 0)
    assert asking.next() is None


def test_of_equal_sites_the_least_loaded_one_is_asked() -> None:
    match = two_sites(13, 14).find(content_hashes=prompt(1), now=0)
    load = {"deep": 2.0, "shallow": 1.0}
    asking = SiteChoice(match, load=load.__getitem__)
    assert asking.next() == Question("shallow", 12, 15)
    asking.answered("shallow", 14)
    assert asking.next() is None
    # To find the very best, all are asked.
    asking = SiteChoice(match, load=load.__getitem__, more=0)
    assert asking.next() == Question("shallow", 12, 15)
    asking.answered("shallow", 14)
    assert asking.next() == Question("deep", 12, 15)


def test_a_liar_is_asked_as_a_probe_only() -> None:
    sites = two_sites(20, 8)
    while sites.sites(now=0)[0]["state"] == "known":
        sites.compare("deep", at_least=20, at_most=20, was=0)
    assert sites.stats()["doubted"] == 1
    probes = 0
    for _ in range(64):
        asking = SiteChoice(sites.find(content_hashes=prompt(1), now=0))
        assert asking.next() == Question("shallow", 8, 11)
        asking.answered("shallow", 8)
        probe = asking.next()
        if probe is not None:
            probes += 1
            assert probe == Question("deep", 20, 20)
            asking.answered("deep", 20)
            sites.compare("deep", at_least=20, at_most=20, was=0)
    assert probes == 2


def test_what_cannot_be_used_is_refused() -> None:
    sites = Sites(grain=GRAIN)
    publisher = SitePublisher("s", grain=GRAIN)
    for code, digest in {
        "invalid_digest": b"",
        "whole_wanted": publisher.delta(),
        "other_grain": SitePublisher("s", grain=5).whole(),
    }.items():
        with pytest.raises(InvalidArgumentError) as refused:
            sites.apply(digest)
        assert refused.value.code == code
    wrong = {"": 1, "s" * 257: 1, "s": 0}
    for (name, grain), code in zip(
        wrong.items(), ("invalid_site_name", "invalid_site_name", "invalid_grain"), strict=True
    ):
        with pytest.raises(InvalidArgumentError) as refused:
            SitePublisher(name, grain=grain)
        assert refused.value.code == code
    with pytest.raises(InvalidArgumentError):
        sites.find(content_hashes=[1], now=-1)
    with pytest.raises(InvalidTypeError):
        sites.apply("digest")  # type: ignore[arg-type]
