"""The command line: `kvatlas COMMAND`. One file a command."""

from __future__ import annotations

import difflib

import click

import kvatlas
from kvatlas.cli.replay import replay


class _Commands(click.Group):
    """A group that names the nearest command when there is none of the name given."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            near = difflib.get_close_matches(args[0], self.list_commands(ctx), n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise click.UsageError(f"No such command {args[0]!r}.{hint}", ctx)
        return super().resolve_command(ctx, args)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(kvatlas.__version__, prog_name="kvatlas")
def main() -> None:
    """An exact index of the KV-cache blocks that a fleet of LLM inference engines holds."""


main.add_command(replay)
