"""Answers of a service above many sites: how much of a prompt each site holds, and the status of each site."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class SitesLevel:
    """Sites with equal bounds for a prompt.

    Attributes:
        at_least: Lower bound of the tokens of the prompt that each site holds.
        at_most: Upper bound of them.
        sites: Their names.
    """

    at_least: int
    at_most: int
    sites: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SitesAnswer:
    """Bounds for every site, as of its last digest.

    Attributes:
        levels: Sites that certainly held some of the prompt, the deepest first.
        rest_at_most: Upper bound, in tokens, for each site that is neither in `levels` nor in `unknown`.
        unknown: Sites without bounds: silent for too long, or doubted.
        probe: A doubted site to ask, to see whether its claims hold again; None if there is none.
        probe_at_least: What that site claims, in tokens.
        length: The prompt's full blocks, in tokens.
        block_size: Tokens in a block.
    """

    levels: tuple[SitesLevel, ...]
    rest_at_most: int
    unknown: tuple[str, ...]
    probe: str | None
    probe_at_least: int
    length: int
    block_size: int


@dataclass(frozen=True, slots=True)
class SiteStatus:
    """Status of a site that sends digests.

    Attributes:
        site: Its name.
        model: The model of the digests.
        routing_group: The routing group.
        block_size: Tokens in a block.
        state: "known"; "unknown" if it was silent for too long, or a digest is missing; "doubted" if it claimed more
            than it held, too often.
        age: Seconds since its last digest.
        seq: The number of its last digest.
        marks: Marks in its digests.
        bytes: Bytes of its digests so far.
        trust: Share of its claims that held, from 0 to 1.
        compared: Claims compared with what the site really held.
        short: Compared claims that exceeded what the site really held.
    """

    site: str
    model: str
    routing_group: str
    block_size: int
    state: str
    age: float
    seq: int
    marks: int
    bytes: int
    trust: float
    compared: int
    short: int


def answer(data: dict[str, Any]) -> SitesAnswer:
    """The answer of `POST /sites`."""
    probe = data["probe"] or {}
    return SitesAnswer(
        tuple(SitesLevel(it["at_least"], it["at_most"], tuple(it["sites"])) for it in data["levels"]),
        data["rest_at_most"],
        tuple(data["unknown"]),
        probe.get("site"),
        probe.get("at_least", 0),
        data["length"],
        data["block_size"],
    )


def statuses(data: list[dict[str, Any]]) -> list[SiteStatus]:
    """The answer of `GET /sites/status`."""
    return [SiteStatus(model=it.pop("model_name"), **it) for it in map(dict, data)]


def known(data: dict[str, Any]) -> bool:
    """The answer of `POST /sites/compare`: True if the site is known."""
    return bool(data["known"])
