"""Test of the service above many sites, with engines as sites: it must answer, and names and block sizes must agree."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterable, Sequence

from kvatlas.client import AsyncClient, SiteStatus
from kvatlas.errors import ClientError
from kvatlas.router.check.findings import GLOBAL, EngineReport
from kvatlas.router.config import DEFAULT_BLOCK_SIZE, RouterConfig

_KEY = "give its admin key: --global-key-file, or KVATLAS_GLOBAL_KEY"


async def look_above(config: RouterConfig, names: Sequence[str], models: Iterable[Sequence[str]]) -> EngineReport:
    """Send the router's requests to the service above sites, and compare its sites with the engines.

    Args:
        config: The router's configuration.
        names: The engines' names.
        models: The models that each engine serves.
    """
    url = config.router.global_url or ""
    report = EngineReport("service above the sites", url, role=GLOBAL)
    ca = config.upstream.ca
    async with AsyncClient(
        url,
        key=config.router.global_bearer(),
        timeout=config.discovery.request_timeout,
        ssl_context=None if ca is None else ssl.create_default_context(cafile=ca),
    ) as client:
        try:
            sites = await client.site_statuses()
        except ClientError as error:
            report.add("reachable", "problem", str(error), _to_change(error), code="sites_unreachable")
            return report
        report.add("reachable", "ok", f"GET /sites/status lists {len({site.site for site in sites})} sites")
        group = config.routing_group
        here = [site for site in sites if site.routing_group == group]
        served = {model for one in models for model in one}
        _names(report, here, names)
        _models(report, here, served, group)
        _block_sizes(report, [site for site in here if site.model in served], config.block_size or DEFAULT_BLOCK_SIZE)
        await _may_report(report, client, here, group)
        await _in_time(report, client, here, config)
    return report


def _to_change(error: ClientError) -> str:
    if error.status in (401, 403):
        return _KEY
    if error.code == "not_global":
        return "give the URL of a service with --role global; for one that follows engines, use --index"
    return "start it with `kvatlas serve --role global`, or correct --global"


def _names(report: EngineReport, sites: Sequence[SiteStatus], names: Sequence[str]) -> None:
    known = {site.site for site in sites}
    more, less = sorted(known - set(names)), sorted(set(names) - known)
    if more:
        report.add(
            "names",
            "problem",
            f"no engine has the name of {', '.join(more)}: these sites get no requests",
            "give each site as --engine NAME=URL, with its --site as NAME",
            code="site_without_engine",
        )
    if less:
        report.add(
            "names",
            "problem",
            f"no site has the name of {', '.join(less)}: nothing is known of what they hold",
            "start the site's service with --site NAME and --global, or correct the name of the engine",
            code="engine_without_site",
        )
    if not more and not less:
        report.add("names", "ok", "each engine is a site, and each site an engine")
    for site in sites:
        if site.state != "known":
            words = {"unknown": "no digest has come lately", "doubted": "it claimed more than it had"}.get(
                site.state, ""
            )
            report.add(
                "digests", "warning", f"{site.site} is {site.state} for {site.model}: {words}", code="site_not_known"
            )


def _models(report: EngineReport, sites: Sequence[SiteStatus], served: set[str], group: str) -> None:
    missing = sorted(served - {site.model for site in sites})
    if missing:
        report.add(
            "models",
            "problem",
            f"no site has sent a digest of {', '.join(missing)} in the routing group {group}",
            "use the sites' model names and --routing-group",
            code="site_model_missing",
        )
    elif served:
        report.add("models", "ok", f"digests of {', '.join(sorted(served))}")


def _block_sizes(report: EngineReport, sites: Sequence[SiteStatus], ours: int) -> None:
    if others := sorted({site.block_size for site in sites} - {ours}):
        report.add(
            "block size",
            "problem",
            f"the sites have blocks of {others[0]} tokens, this router {ours}: nothing would ever be found",
            f"set --block-size {others[0]}",
            code="site_block_size",
        )


async def _may_report(report: EngineReport, client: AsyncClient, sites: Sequence[SiteStatus], group: str) -> None:
    """Check that the key permits reports of engines' cached tokens, by an empty report that changes nothing."""
    if not sites:
        return
    site = sites[0]
    try:
        await client.compare_site(site.site, at_least=0, at_most=0, was=0, model=site.model, routing_group=group)
    except ClientError as error:
        words = (
            f"it does not take reports of what engines had cached, so sites that claim too much get requests: {error}"
        )
        report.add("reports", "problem", words, _KEY, code="reports_refused")
    else:
        report.add("reports", "ok", "it takes what engines had cached")


async def _in_time(
    report: EngineReport, client: AsyncClient, sites: Sequence[SiteStatus], config: RouterConfig
) -> None:
    if not sites:
        return
    clock = asyncio.get_running_loop().time
    start = clock()
    try:
        await client.sites(content_hashes=[1], model=sites[0].model, routing_group=config.routing_group)
    except ClientError as error:
        report.add("answers", "problem", str(error), code="sites_no_answer")
        return
    took, limit = clock() - start, config.router.global_timeout
    if took > limit:
        words = f"it took {took * 1e3:.0f} ms to answer, longer than requests wait for it ({limit * 1e3:.0f} ms)"
        report.add(
            "answers",
            "warning",
            words,
            f"set --global-timeout {2 * took:.1f}s, if requests may wait that long",
            code="sites_slow",
        )
    else:
        report.add("answers", "ok", f"in {took * 1e3:.0f} ms")
