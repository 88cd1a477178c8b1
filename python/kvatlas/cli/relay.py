"""`kvatlas relay`: follow engines and publish their blocks to NATS."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import click

from kvatlas.cli.serve import follow_options, run_service
from kvatlas.errors import ConfigError
from kvatlas.service.config import Config


@click.command(short_help="Follow engines and publish what each holds.")
@follow_options
def relay(config: Path | None, print_config: bool, **options: Any) -> None:
    """Follow the KV events of vLLM and SGLang engines, and publish to NATS JetStream what each worker holds.

    Services that read it there (kvatlas serve --from nats://HOST:4222) hold the same without following the engines.
    What is published has content hashes instead of token ids. A relay is a service: it has the same settings, and
    answers /workers, /metrics and queries, at --bind.

    Exit status: 0; 1 if requests were cut off or the relay could not start; 2 if an argument or setting is invalid; 130
    after Ctrl-C.
    """
    run_service(config, print_config, options, _dedicated)


def _dedicated(config: Config) -> Config:
    if config.relay.publish is None:
        raise ConfigError("a relay needs a server to publish to: --publish nats://HOST:4222 (relay.publish)")
    return dataclasses.replace(config, relay=dataclasses.replace(config.relay, dedicated=True))
