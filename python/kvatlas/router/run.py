"""`kvatlas router`: run a router until it is stopped."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from kvatlas._native import __version__
from kvatlas._text import counted
from kvatlas.router.config import RouterConfig
from kvatlas.router.router import Router
from kvatlas.service import logs
from kvatlas.service.reread import SettingsReader
from kvatlas.service.serve import run_until_stopped

logger = logging.getLogger("kvatlas.router")


def run(
    config: RouterConfig | None = None,
    reader: SettingsReader[RouterConfig] | None = None,
    remarks: Sequence[str] = (),
) -> int:
    """Run a router until SIGTERM or SIGINT, then drain it. Must be called in the main thread.

    SIGHUP makes the router read its keys and certificates again, and its settings with the reader.

    Args:
        config: The configuration; None for the defaults.
        reader: Reads the settings again on SIGHUP; None to read only keys and certificates.
        remarks: Warnings to log first, about options without effect.

    Returns:
        The exit status: 130 after SIGINT; else 0 if all requests were finished, 1 if some were cut off.

    Raises:
        ConfigError: A setting is invalid.
        PolicyError: The policy or one of its options is unknown.
        ServiceError: The router cannot be started.
        TokenizerError: A tokenizer cannot be read.
    """
    chosen = config or RouterConfig()

    def start() -> Router:
        for remark in remarks:
            logger.warning("%s", remark)
        return Router(config=chosen, log=True)

    return run_until_stopped(chosen.log, start, _greet, _ready, reader)


def _greet(router: Router) -> None:
    config = router.config
    if config.log.format == "json":
        logger.info("listening on %s, %s", router.address, counted(len(router.entries), "engine"))
    else:
        entries = [*(entry.show() for entry in router.entries), *config.discovery.sources]
        more = f" and {len(entries) - 8} more" if len(entries) > 8 else ""
        from_whom = ", ".join(entries[:8]) + more or "none yet: POST /engines, or start with --engine URL"
        lines = [
            f"kvatlas {__version__} routes at {router.url}/v1",
            f"watch it at {router.url}/ui, or with `kvatlas top --url {router.url}`",
        ]
        if router.admin_address:
            lines.append(f"health, readiness and metrics also at http://{router.admin_address}")
        if config.router.gateway_bind is not None:
            how = "with TLS" if config.router.gateway_tls else "without TLS"
            lines.append(f"picks engines for gateways at {config.router.gateway_bind} {how}")
        logs.write_lines(*lines, f"engines: {from_whom}", f"policy: {config.router.policy}; {_knows(config)}")
    if not config.http.is_loopback() and config.http.bearer() is None:
        logger.warning(
            "listening on %s without a key: anyone who can connect can use the engines and change what is registered; "
            "set KVATLAS_KEY or --key-file",
            router.address,
        )


def _knows(config: RouterConfig) -> str:
    """Description, for the log, of the router's way to know the contents of engines' caches."""
    own = config.router
    if own.no_events:
        return "what engines hold is predicted from what was sent to them (--no-events)"
    tokens = {"engine": "engines tokenize prompts", "none": "prompts are not tokenized"}.get(
        own.tokenizer, f"tokenizer {own.tokenizer}"
    )
    if own.global_url:
        return f"engines are sites, known to {own.global_url}; {tokens}"
    return f"index at {own.index}; {tokens}" if own.index else f"engines' events are followed; {tokens}"


def _ready(router: Router) -> None:
    if not router.config.follows_events:
        logger.info("ready")
        return
    workers = router.workers()
    streams = sum(len(worker.streams) for worker in workers)
    left = [f"{engine.worker} ({engine.state})" for engine in router.engines() if not engine.is_registered]
    more = f" and {len(left) - 8} more" if len(left) > 8 else ""
    without = f"; without events, so chosen by load only: {', '.join(left[:8])}{more}" if left else ""
    logger.info("ready: %s, %s%s", counted(len(workers), "worker"), counted(streams, "stream"), without)
