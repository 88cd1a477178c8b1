"""The command line: `kvatlas COMMAND`. One file a command, read when it is needed: some take a while to import."""

from __future__ import annotations

import difflib
import importlib
from typing import Any

import click

import kvatlas

INTERRUPTED = 130  # 128 + SIGINT, as shells have it

COMMANDS = ("bench", "decode", "engines", "live", "query", "replay", "serve", "workers")


class _Commands(click.Group):
    """The commands, each the function of its name in the module of its name. Names the nearest if there is none."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = getattr(importlib.import_module(f"kvatlas.cli.{cmd_name}"), cmd_name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and args[0] not in COMMANDS:
            near = difflib.get_close_matches(args[0], COMMANDS, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
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
    """An exact index of the KV-cache blocks that a fleet of LLM inference engines holds."""
