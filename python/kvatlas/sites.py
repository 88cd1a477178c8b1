"""Many sites under one sparse index: bounds on how much of a prompt each site holds, and which sites to ask.

A site is a fleet with an exact index of its own. `SitePublisher` makes digests of that index, `Sites` takes in those of
all sites and answers with bounds, and `SiteChoice` says which sites' exact indexes to ask for one request.

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
    """Site to ask, with the bounds in blocks that its answer can be compared with (`Sites.compare`)."""

    site: str
    at_least: int
    at_most: int


def _no_load(_site: str) -> float:
    return 0.0


class SiteChoice:
    """Choice of the sites to ask for one request, one after the other.

    The first is the least loaded of those with the highest lower bound. Another site is asked only if it may hold more
    than `more` blocks beyond the best answer so far. Of sites with equal bounds not all are asked: they differ by less
    than a grain. A doubted site whose turn it is (`SitesMatch.probe`) is asked last.

    Args:
        match: The result of `Sites.find`.
        load: Function from a site's name to its load, in any unit.
        more: Number of blocks by which another site must be able to exceed the best answer. At least a grain, else all
            sites of a level are asked until one reaches its upper bound; the width of the bounds if not given.
        most: Maximum number of sites to ask, without a probe.
        usable: Function from a site's name to whether it may be asked; all may if not given.
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
        """The best answer so far, in blocks; 0 before the first."""
        return self._best or 0

    @property
    def asked(self) -> int:
        """The number of sites that were asked."""
        return len(self._asked)

    def next(self) -> Question | None:
        """The site to ask next; None if no other site can be much better than the best answer."""
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
        """Record the answer of a site's exact index: its deepest worker holds `depth` blocks of the prompt."""
        self._asked.add(site)
        self._best = max(self.best, depth)
