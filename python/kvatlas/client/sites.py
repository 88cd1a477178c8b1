"""Answers of a service above many sites: bounds on how much of a prompt each site holds, and each site's status."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class SitesLevel:
    """Sites with equal bounds for a prompt.

    Attributes:
        at_least: Lower bound of the tokens of the prompt that each site holds.
        at_most: Upper bound of these tokens.
        sites: The names of the sites.
    """

    at_least: int
    at_most: int
    sites: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SitesAnswer:
    """Bounds on how much of a prompt each site holds, as of its last digest.

    Attributes:
        levels: Sites that certainly held some of the prompt, the deepest first.
        rest_at_most: Upper bound, in tokens, for each site that is neither in `levels` nor in `unknown`.
        unknown: Sites without bounds: without a digest for too long, or with low trust.
        probe: A site with low trust to ask, to test whether its digests are right again; None if there is none.
        probe_at_least: Lower bound from the digests of the site `probe`, in tokens.
        length: Length of the prompt's full blocks, in tokens.
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
    """Status of a site that sends digests (sparse summaries of its index).

    Attributes:
        site: The site's name.
        model: The model of the digests.
        routing_group: The routing group.
        block_size: Tokens in a block.
        state: "known"; "unknown" if it sent no digest for too long, or one is missing; "doubted" if its digests too
            often claimed more than it held.
        age: Seconds since the last digest.
        seq: The number of the last digest.
        marks: Number of prefix hashes (marks) in the digests.
        bytes: Size of all digests so far, in bytes.
        trust: Share of the site's bounds that were right, from 0 to 1.
        compared: Number of bounds compared with the site's true holdings.
        short: Number of compared bounds that exceeded the true holdings.
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
    """Parse the answer of `POST /sites`."""
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
    """Parse the answer of `GET /sites/status`."""
    return [SiteStatus(model=it.pop("model_name"), **it) for it in map(dict, data)]


def known(data: dict[str, Any]) -> bool:
    """Parse the answer of `POST /sites/compare`: True if the site is known."""
    return bool(data["known"])
