"""The command line: `kvatlas COMMAND`. One file per command, imported on demand, because some take a while."""

from __future__ import annotations

import importlib
from typing import Any

import click

import kvatlas
from kvatlas._text import closest
from kvatlas.errors import MissingExtraError

INTERRUPTED = 130  # 128 + SIGINT, as shells have it

# What each command does, in a line, so that help neither imports them all nor needs their extras.
GROUPS: dict[str, dict[str, str]] = {
    "Run": {
        "router": "Route requests by what engines have cached and how busy they are.",
        "epp": "Pick engines for gateways, as the Endpoint Picker of an InferencePool.",
        "serve": "Follow engines and answer how much of a prompt each holds.",
        "relay": "Follow engines and publish what each holds.",
    },
    "Ask": {
        "top": "Watch a running router: its engines, their work, the last decisions.",
        "check": "Test each engine of a running router, and say what is wrong.",
        "query": "Ask a running service how much of a prompt each worker holds.",
        "workers": "Show the workers of a running service and their streams.",
        "compare": "Show which workers differ between two services, or two snapshots.",
        "engines": "Add, remove and drain engines of a running router and its peers.",
        "decode": "Print the KV events that an engine publishes.",
    },
    "Simulate": {
        "simulate": "Run simulated engines that serve and publish like real ones.",
        "replay": "Replay a trace over simulated engines with each routing policy.",
        "plan": "Say what limits a fleet, and what more cache, engines or speed would be worth.",
        "trace": "Describe a trace, or make one of other records of traffic.",
        "demo": "Compare routing policies live on simulated engines.",
    },
    "Measure": {"bench": "Measure designs of the index under the load of a fleet."},
}
COMMANDS = tuple(name for group in GROUPS.values() for name in group)


class _Commands(click.Group):
    """A group of commands, each in a module of the command's name.

    For an unknown name, suggests the most similar one.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, COMMANDS))
        for group, commands in GROUPS.items():
            with formatter.section(group):
                formatter.write_dl([(name.ljust(width), text) for name, text in commands.items()])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        try:
            module = importlib.import_module(f"kvatlas.cli.{cmd_name}")
        except MissingExtraError as error:
            click.echo(f"Error: `kvatlas {cmd_name}`: {error}", err=True)
            ctx.exit(2)
        command: click.Command = getattr(module, cmd_name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and args[0] not in COMMANDS:
            near = closest(args[0], COMMANDS)
            hint = f" Did you mean {near!r}?" if near else ""
            raise click.UsageError(f"No such command {args[0]!r}.{hint}", ctx)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            # Wherever a command does not see to Ctrl-C itself: while it starts, while it waits for an answer.
            ctx.exit(INTERRUPTED)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(kvatlas.__version__, prog_name="kvatlas")
def main() -> None:
    """Route LLM requests by what each inference engine has cached: a router, and the exact index behind it."""
