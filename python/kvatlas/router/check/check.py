"""The check: requests to each engine, then one prompt through all of them."""

from __future__ import annotations

import asyncio

from kvatlas.errors import ClientError, DiscoveryError, KvatlasError
from kvatlas.router.check.agents import compare_agents, look_at_rendering
from kvatlas.router.check.ask import Engine
from kvatlas.router.check.findings import CheckedEngine, EngineReport
from kvatlas.router.check.handover import hand_over
from kvatlas.router.check.round_trip import RoundTrip
from kvatlas.router.check.sites import look_above
from kvatlas.router.check.tokens import compare
from kvatlas.router.config import RouterConfig
from kvatlas.router.tokenizers import ENGINE, NONE, resolve
from kvatlas.service.config import Engine as EngineEntry
from kvatlas.service.discovery.http import Asker
from kvatlas.service.discovery.probe import EngineDescription, Prober
from kvatlas.service.discovery.watch import Discovery
from kvatlas.tokenize import LocalTokenizer


def check(config: RouterConfig) -> list[EngineReport]:
    """Test each engine of a configuration and of its engines file.

    Each engine gets two requests for one token. Clients are not served meanwhile; events are followed for these few
    seconds as by the router. With `router.global_url`, the last report is about the service there.

    Raises:
        ConfigError: Something in the configuration cannot be used.
        TokenizerError: The tokenizer cannot be read.
    """
    found = asyncio.run(Discovery(config).look())
    entries = [entry for entry in found if isinstance(entry, EngineEntry)]
    tokenizer = None
    if config.router.tokenizer not in (ENGINE, NONE):
        tokenizer = LocalTokenizer(resolve(config.router.tokenizer) or "")
    return asyncio.run(_check(config, entries, tokenizer))


async def _check(
    config: RouterConfig, entries: list[EngineEntry], tokenizer: LocalTokenizer | None
) -> list[EngineReport]:
    looked = await asyncio.gather(*(_look(config, entry) for entry in entries))
    _compare_models(looked)
    _compare_block_sizes(looked)
    up = [one for one in looked if one.models]
    for one in up:
        if config.router.tokenizer == NONE:
            one.report.add(
                "tokens",
                "warning",
                "prompts are not tokenized (--tokenizer none): requests are placed by load",
                "give --tokenizer PATH, or `engine`",
            )
        else:
            async with _engine(config, one.entry) as engine:
                await compare(engine, one.report, one.model, tokenizer)
                if tokenizer is not None:
                    await compare_agents(engine, one.report, one.model, resolve(config.router.tokenizer) or "")
                else:
                    await look_at_rendering(engine, one.report, one.model)
    if up:
        await RoundTrip(config, tokenizer).run(up)
        await hand_over(config, up)
    reports = [one.report for one in looked]
    if config.router.global_url is not None:
        reports.append(await look_above(config, [one.entry.worker for one in looked], [one.models for one in looked]))
    return reports


def _engine(config: RouterConfig, entry: EngineEntry) -> Engine:
    return Engine(entry.url, config.discovery.bearer(), config.discovery.request_timeout)


async def _look(config: RouterConfig, entry: EngineEntry) -> CheckedEngine:
    """Test that an engine answers, and find its models and its events."""
    report = EngineReport(entry.worker, entry.shown_url, entry.role or "both")
    looked = CheckedEngine(entry, report, [])
    async with _engine(config, entry) as engine:
        try:
            status, seconds = await engine.get(config.health.path)
        except ClientError as error:
            report.add("reachable", "problem", str(error), "start the engine, or correct its address")
            return looked
        if status == 200:
            report.add("reachable", "ok", f"GET {config.health.path} answered in {seconds * 1e3:.0f} ms")
        else:
            report.add(
                "reachable",
                "problem",
                f"GET {config.health.path} returned status {status}: the router leaves such an engine out",
                "wait until the engine is up; if it has another health route, set --health-path",
            )
        await _models(engine, looked)
    if looked.models:
        await _events(config, looked)
    return looked


async def _models(engine: Engine, looked: CheckedEngine) -> None:
    report = looked.report
    try:
        said = await engine.json("GET", "/v1/models")
    except ClientError as error:
        change = "set --engine-key-file or KVATLAS_ENGINE_KEY" if error.status in (401, 403) else ""
        report.add("models", "problem", str(error), change)
        return
    cards = said.get("data") if isinstance(said, dict) else None
    names = [
        str(card["id"])
        for card in (cards if isinstance(cards, list) else [])
        if isinstance(card, dict) and card.get("id")
    ]
    if not names:
        report.add("models", "problem", "GET /v1/models lists no models", "give the address of a vLLM or SGLang server")
        return
    wanted = looked.entry.model
    if wanted is not None and wanted not in names:
        report.add(
            "models",
            "problem",
            f"it serves {', '.join(names)}, but its model is configured as {wanted}",
            f"set its model to {names[0]}, or start the engine with --served-model-name {wanted}",
        )
    else:
        report.add("models", "ok", f"serves {', '.join(names[:6])}{' …' if len(names) > 6 else ''}")
    looked.models = [wanted, *names] if wanted in names else names


async def _events(config: RouterConfig, looked: CheckedEngine) -> None:
    report = looked.report
    if config.router.no_events:
        report.add("events", "note", "not followed (--no-events): what it holds is predicted from what was sent to it")
        return
    if config.router.index is not None:
        report.add("events", "note", f"followed by the service at {config.router.index}")
        return
    if config.router.global_url is not None:
        return  # `sites` says what is known of it

    def allowed(_endpoint: str, _host: str) -> None:
        return None

    async with Asker(config.discovery.request_timeout, config.discovery.bearer()) as asker:
        try:
            found = await Prober(asker, looked.entry, config, allowed, names_ranks=True).whole()
        except DiscoveryError as error:
            if looked.report.role == "decode":
                words = f"{error}; a decode engine is chosen by load then"
                report.add("events", "note", words)
            else:
                change = "fix that, or use --no-events; until then, this engine is chosen by load only"
                report.add("events", "problem", str(error), change)
            return
        except KvatlasError as error:
            report.add("events", "problem", str(error))
            return
    looked.found = found
    count = len(found.sources)
    ranks = "" if count == 1 else f", {count} ranks"
    where = ", ".join(source.endpoint for source in found.sources[:4])
    report.add("events", "ok", f"published at {where}{ranks}; blocks of {found.block_size} tokens ({found.engine})")
    if found.has_choice_of_numbers:
        _ranks(looked, found)
    without = [source.rank for source in found.sources if source.replay_endpoint is None]
    if without:
        report.add(
            "replay",
            "warning",
            "there is no replay socket: blocks cached before the router starts are learnt only gradually, and a lost "
            "batch clears what is known of the engine",
            'add "replay_endpoint": "tcp://*:5757" to its --kv-events-config (and --replay-port 5757 for vLLM before '
            "0.31)",
        )


def _ranks(looked: CheckedEngine, found: EngineDescription) -> None:
    """Report how requests number the ranks of an engine that shares its deployment's ranks with others."""
    numbers = ", ".join(map(str, found.ranks))
    if found.rank_header is None:
        looked.report.add(
            "ranks",
            "warning",
            f"its ranks are {numbers}, and it refuses requests that name them so, as well as requests that count them "
            "from 0: it is not known what X-data-parallel-rank has to be, and they are counted from 0",
            "let POST /v1/completions work with one of both",
        )
        return
    how = "by these numbers" if found.rank_header == "global" else f"as 0 to {len(found.ranks) - 1}"
    looked.report.add("ranks", "ok", f"{numbers}; requests name them {how} (X-data-parallel-rank)")


def _compare_models(looked: list[CheckedEngine]) -> None:
    """Report engines that serve different models and so cannot replace each other."""
    named = [one for one in looked if one.models]
    common = set.intersection(*(set(one.models) for one in named)) if named else set()
    if len(named) < 2 or common:
        return
    for one in named:
        others = sorted({name for other in named if other is not one for name in other.models} - set(one.models))
        if others and not any(set(one.models) & set(other.models) for other in named if other is not one):
            one.report.add(
                "models",
                "note",
                f"no other engine serves {one.model}; others serve {', '.join(others[:4])}: requests for one model "
                "never reach the engines of another",
            )


def _compare_block_sizes(looked: list[CheckedEngine]) -> None:
    """Report engines of one model with different block sizes, whose depths cannot be compared."""
    by_model: dict[str, dict[int, list[str]]] = {}
    for one in looked:
        if one.found is not None:
            by_model.setdefault(one.found.model, {}).setdefault(one.found.block_size, []).append(one.report.worker)
    for one in looked:
        sizes = by_model.get(one.found.model, {}) if one.found is not None else {}
        if one.found is not None and len(sizes) > 1:
            others = "; ".join(
                f"{size} at {', '.join(names[:3])}" for size, names in sizes.items() if size != one.found.block_size
            )
            one.report.add(
                "block size",
                "problem",
                f"its blocks have {one.found.block_size} tokens, but {others}, for the same model",
                "start all engines of a model with the same --block-size (SGLang: --page-size), or give some of them "
                "another --routing-group",
            )
