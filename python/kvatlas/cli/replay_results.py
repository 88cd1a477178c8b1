"""Files with the results of a replay: plots, JSON, and a generated trace."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kvatlas.cli.console import check_output, write_output
from kvatlas.lab.figures import check_plot


def check_results(trace: Path | None, options: dict[str, Any]) -> None:
    """Check that every result file can be written and none of them is `trace`, the input file."""
    for plot in options["plots"]:
        check_plot(plot)
    more = (_json_file(options), options.get("save_trace"))
    for file in (*options["plots"], *(file for file in more if file is not None)):
        check_output(file, [trace] if trace is not None else [])


def write_results(
    options: dict[str, Any], data: dict[str, Any], draw: Callable[[Path], None]
) -> tuple[str, list[Path]]:
    """Write the plots and the JSON file that the options name. Returns the text of the JSON, and the written files.

    `draw(path)` writes a plot.
    """
    text = json.dumps(data, indent=2)
    written = [write_output(plot, functools.partial(draw, plot)) for plot in options["plots"]]
    if (file := _json_file(options)) is not None:
        written.append(write_output(file, functools.partial(file.write_text, text + "\n", encoding="utf-8")))
    return text, written


def _json_file(options: dict[str, Any]) -> Path | None:
    """The file for JSON; None if there is none, or if JSON is written to standard output."""
    return None if options["json_to"] in (None, "-") else Path(options["json_to"])
