"""First test of an engine: that it answers, its models, and the addresses of its events."""

from __future__ import annotations

from kvatlas.errors import ClientError, DiscoveryError, KvatlasError
from kvatlas.router.check.ask import Engine
from kvatlas.router.check.findings import CheckedEngine
from kvatlas.router.check.sleep import source_of_sleep
from kvatlas.router.config import RouterConfig
from kvatlas.service.discovery.connectors import ask_connectors
from kvatlas.service.discovery.http import Asker
from kvatlas.service.discovery.probe import EngineDescription, Prober


async def look(config: RouterConfig, looked: CheckedEngine) -> None:
    """Test that an engine answers, and find its models and its events."""
    report, engine = looked.report, looked.http
    try:
        status, seconds = await engine.get(config.health.path)
    except ClientError as error:
        report.add("reachable", "problem", str(error), "start the engine, or correct its address", code="unreachable")
        return
    if status == 200:
        report.add("reachable", "ok", f"GET {config.health.path} answered in {seconds * 1e3:.0f} ms")
    else:
        report.add(
            "reachable",
            "problem",
            f"GET {config.health.path} returned status {status}: the router leaves such an engine out",
            "wait until the engine is up; if it has another health route, set --health-path",
            code="unhealthy",
        )
    await _models(engine, looked)
    if looked.models:
        key = looked.entry.key_of(config.discovery.bearer())
        async with Asker(config.discovery.request_timeout, key) as asker:
            await _sleep(looked, asker)
            engine.waits_for = "a question about its events"
            await _events(config, looked, asker)
            engine.waits_for = "a question about its tiers"
            kind = looked.found.engine if looked.found is not None else "vllm"
            looked.connectors = await ask_connectors(asker, looked.entry.url, kind)
            engine.waits_for = ""


async def _models(engine: Engine, looked: CheckedEngine) -> None:
    report = looked.report
    try:
        said = await engine.json("GET", "/v1/models")
    except ClientError as error:
        change = "set --engine-key-file or KVATLAS_ENGINE_KEY" if error.status in (401, 403) else ""
        report.add("models", "problem", str(error), change, code="models_not_told")
        return
    cards = said.get("data") if isinstance(said, dict) else None
    named = [card for card in cards if isinstance(card, dict) and card.get("id")] if isinstance(cards, list) else []
    # An adapter has its model as its parent, and may be listed before it.
    models = [str(card["id"]) for card in named if not card.get("parent")]
    adapters = [str(card["id"]) for card in named if card.get("parent")]
    names = [*models, *adapters]
    if not names:
        report.add(
            "models",
            "problem",
            "GET /v1/models lists no models",
            "give the address of a vLLM or SGLang server",
            code="no_models",
        )
        return
    wanted = looked.entry.model
    if wanted is not None and wanted not in names:
        report.add(
            "models",
            "problem",
            f"it serves {', '.join(names)}, but its model is configured as {wanted}",
            f"set its model to {names[0]}, or start the engine with --served-model-name {wanted}",
            code="wrong_model",
        )
    else:
        also = f"; adapters: {_some(adapters)}" if models and adapters else ""
        report.add("models", "ok", f"serves {_some(models or adapters)}{also}")
    report.models, report.adapters = (models, adapters) if models else (adapters, [])
    if wanted in names:
        report.models = [str(wanted), *(name for name in report.models if name != wanted)]


def _some(names: list[str]) -> str:
    """The first six names as text, and the number of the others."""
    return f"{', '.join(names[:6])}{' …' if len(names) > 6 else ''}"


async def _sleep(looked: CheckedEngine, asker: Asker) -> None:
    source = await source_of_sleep(looked.http, asker, looked.entry.url)
    if source is not None:
        looked.is_asleep = True
        looked.report.add(
            "asleep",
            "warning",
            f"it sleeps ({source}): the router sends it nothing, and prompts were not tested",
            "wake it with POST /wake_up at the engine, and check again",
            code="asleep",
        )


async def _events(config: RouterConfig, looked: CheckedEngine, asker: Asker) -> None:
    report = looked.report
    if config.router.no_events:
        report.add(
            "events",
            "note",
            "not followed (--no-events): what it holds is predicted from what was sent to it",
            code="events_not_wanted",
        )
        return
    if config.router.index is not None:
        report.add("events", "note", f"followed by the service at {config.router.index}", code="events_at_service")
        return
    if config.router.global_url is not None:
        return  # `sites` says what is known of it

    def allowed(_endpoint: str, _host: str) -> None:
        return None

    try:
        found = await Prober(asker, looked.entry, config, allowed, names_ranks=True).whole()
    except DiscoveryError as error:
        if looked.report.role == "decode":
            words = f"{error}; a decode engine is chosen by load then"
            report.add("events", "note", words, code="no_events")
        else:
            change = "fix that, or use --no-events; until then, this engine is chosen by load only"
            report.add("events", "problem", str(error), change, code="no_events")
        return
    except KvatlasError as error:
        report.add("events", "problem", str(error), code="no_events")
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
            code="no_replay",
        )


def _ranks(looked: CheckedEngine, found: EngineDescription) -> None:
    """Report how requests must number the ranks of an engine that has only some of its deployment's ranks."""
    numbers = ", ".join(map(str, found.ranks))
    if found.rank_header is None:
        looked.report.add(
            "ranks",
            "warning",
            f"its ranks are {numbers}, and it refuses requests that name them so, as well as requests that count them "
            "from 0: it is not known what X-data-parallel-rank has to be, and they are counted from 0",
            "let POST /v1/completions work with one of both",
            code="ranks_refused",
        )
        return
    how = "by these numbers" if found.rank_header == "global" else f"as 0 to {len(found.ranks) - 1}"
    looked.report.add("ranks", "ok", f"{numbers}; requests name them {how} (X-data-parallel-rank)")
