"""`kvatlas epp`: an Endpoint Picker, which chooses pods for a gateway, with the reference's flags and ports."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from kvatlas.cli.console import show_cause
from kvatlas.cli.epp_flags import REPLACED, UNUSED_SECTION, reference_flags, take_reference_flags
from kvatlas.cli.grouped_help import GroupedCommand
from kvatlas.cli.router import ENGINES_HELP, TITLES
from kvatlas.cli.settings import config_option, given, print_config_option, setting_flags
from kvatlas.errors import KvatlasError
from kvatlas.router.config import ROUTER, read_router_config, show_router_config

_MOST_USED = (
    "pool_name",
    "pool_namespace",
    "endpoint_selector",
    "endpoint_target_ports",
    "engine",
    "grpc_port",
    "grpc_health_port",
    "metrics_port",
    "secure_serving",
    "cert_path",
    "router__tokenizer",
    "router__peers",
    "config",
    "print_config",
)


@click.command(
    cls=GroupedCommand,
    most_used=_MOST_USED,
    titles={**TITLES, UNUSED_SECTION: "Flags of the reference picker that have no effect here"},
    short_help="Pick engines for gateways, as the Endpoint Picker of an InferencePool.",
)
@click.option("--engine", multiple=True, metavar="[NAME=]URL", help=ENGINES_HELP)
@config_option
@print_config_option
@reference_flags
@setting_flags(ROUTER, only=[path for path in ROUTER.keys if path not in REPLACED])
def epp(config: Path | None, print_config: bool, **options: Any) -> None:
    """Pick engines for a gateway that speaks Envoy's external processing: the Endpoint Picker of an InferencePool.

    The router's decisions behind the flags and ports of the reference picker, whose place the image takes. Engines are
    the pods of the pool that --pool-name names, and change with it. Gateways ask at --grpc-port, by TLS unless
    --secure-serving=false; probes ask gRPC's health service at --grpc-health-port; metrics are at --metrics-port.

    All settings of `kvatlas router` are taken, too, as flags, environment variables and in the configuration file;
    where they are not set, the ports and TLS are those of the reference. Several replicas pick at once: let each tell
    the others what it sends with --peer.

    SIGTERM or Ctrl-C lets open requests finish. Exit status: 0; 1 if requests were cut off, or it could not start; 2 if
    an argument or setting is invalid; 130 after a second Ctrl-C.
    """
    flags = take_reference_flags(options)
    try:
        texts = given(ROUTER, options)
        sources = [flags.given.pop("discovery.sources", None), texts.pop("discovery.sources", None)]
        texts |= flags.given
        if any(sources):
            texts["discovery.sources"] = "\n".join(filter(None, sources))
        resolved = read_router_config(texts, file=config, usual=flags.usual)
        if print_config:
            click.echo(show_router_config(resolved), nl=False)
            return
        own = resolved.config
        if not (own.engines or own.discovery.sources or own.engines_file):
            raise click.UsageError(
                "nothing says where the engines are: give --pool-name NAME, --endpoint-selector and "
                "--endpoint-target-ports, or --engine URL."
            )
        from kvatlas.router.run import run  # noqa: PLC0415 - not needed to print

        status = run(own, remarks=flags.remarks)
    except KvatlasError as error:
        show_cause(error)
        click.echo(f"Error: {error}", err=True)
        sys.exit(2 if isinstance(error, ValueError) else 1)
    sys.exit(status)
