"""Help of a command with many options: the most used first, then the others by topic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

MOST_USED = "Most used"
OTHERS = "Other options"


class GroupedCommand(click.Command):
    """A command whose help shows its options in sections.

    An option belongs to the section with which its name begins, before "__", like the names of settings. `most_used`
    has names of options for the first section, in order; `titles` the headings of sections by name, in order. Options
    without section come last.
    """

    def __init__(
        self, *args: Any, most_used: Sequence[str] = (), titles: Mapping[str, str] | None = None, **how: Any
    ) -> None:
        """Create a command from the arguments of `click.Command`, the most used options and the sections' titles."""
        super().__init__(*args, **how)
        self.most_used = tuple(most_used)
        self.titles = dict(titles or {})

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options into the help in sections, each under its heading."""
        for title, parameters in self.sections(ctx):
            rows = [row for parameter in parameters if (row := parameter.get_help_record(ctx)) is not None]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)

    def sections(self, ctx: click.Context) -> list[tuple[str, list[click.Parameter]]]:
        """The sections of the help: headings with their options, each option once."""
        by_name = {parameter.name: parameter for parameter in self.get_params(ctx)}
        first = [by_name[name] for name in self.most_used]
        rest = [parameter for parameter in by_name.values() if parameter not in first]
        titled = [(title, [one for one in rest if _section(one) == name]) for name, title in self.titles.items()]
        others = [one for one in rest if _section(one) not in self.titles]
        return [(MOST_USED, first), *titled, (OTHERS, others)]


def _section(parameter: click.Parameter) -> str:
    return (parameter.name or "").rpartition("__")[0]
