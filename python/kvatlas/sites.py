"""Several sites under one sparse index: bounds on how much of a prompt each site holds, and the sites to query.

A site is a fleet with an exact index of its own. `SitePublisher` makes digests of a site's index, `Sites` collects the
digests of all sites and answers queries with bounds, and `SiteChoice` decides which sites' exact indexes to query for
one request.

    choice = SiteChoice(sites.find(tokens=tokens), load=lambda site: waiting[site])
    while (question := choice.next()) is not None:
        choice.answered(question.site, depth_at(question.site))
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kvatlas._native import SitePublisher, Sites, SitesMatch

__all__ = ["Question", "SiteChoice", "SitePublisher", "Sites", "SitesMatch"]


@dataclass(frozen=True, slots=True)
class Question:
    """Site to query, with the bounds, in blocks, with which its answer can be compared (`Sites.compare`)."""

    site: str
    at_least: int
    at_most: int


def _no_load(_site: str) -> float:
    return 0.0


class SiteChoice:
    """Choice of the sites to query for one request, one after another.

    The first is the least loaded of the sites with the highest lower bound. Another site is queried only if it may hold
    more than `more` blocks beyond the best answer so far. Of sites with equal bounds not all are queried, as they
    differ by less than a grain (the resolution of the bounds). A site whose digest is doubted and due for a check
    (`SitesMatch.probe`) is queried last.

    Args:
        match: The result of `Sites.find`.
        load: Function that returns the load of a site, in any unit, from its name.
        more: Number of blocks by which another site must be able to exceed the best answer. Use at least a grain; with
            less, all sites with equal bounds are queried until one reaches its upper bound. Default: the width of the
            bounds.
        most: Maximum number of sites to query, not counting a check of a doubted site.
        usable: Function that returns, from a site's name, True if the site may be queried; default: all sites.
    """

    def __init__(
        self,
        match: SitesMatch,
        *,
        load: Callable[[str], float] = _no_load,
        more: int | None = None,
        most: int = 4,
        usable: Callable[[str], bool] | None = None,
    ) -> None:
        self._levels = [
            (least, at_most, sorted(filter(usable, sites), key=load)) for least, at_most, sites in match.levels
        ]
        self._more = match.rest_at_most if more is None else more
        self._most = most
        self._probe = match.probe
        self._length = match.length
        self._asked: set[str] = set()
        self._best: int | None = None

    @property
    def best(self) -> int:
        """Best answer so far, in blocks; 0 before the first answer."""
        return self._best or 0

    @property
    def asked(self) -> int:
        """Number of sites that were queried."""
        return len(self._asked)

    def next(self) -> Question | None:
        """Site to query next; None if no other site can be much better than the best answer."""
        question = self._another()
        if question is None and self._probe is not None:
            site, at_least = self._probe
            self._probe = None
            question = Question(site, at_least, self._length)
        if question is not None:
            self._asked.add(question.site)
        return question

    def _another(self) -> Question | None:
        if len(self._asked) >= self._most:
            return None
        for at_least, at_most, sites in self._levels:
            if self._best is not None and at_most <= self._best + self._more:
                return None
            for site in sites:
                if site not in self._asked:
                    return Question(site, at_least, at_most)
        return None

    def answered(self, site: str, depth: int) -> None:
        """Record the answer of a site's exact index: the site's deepest worker holds `depth` blocks of the prompt."""
        self._asked.add(site)
        self._best = max(self.best, depth)
