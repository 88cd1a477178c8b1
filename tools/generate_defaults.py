"""Generates the defaults that programs and tests in Rust begin with, from the settings that Python declares.

    python tools/generate_defaults.py           write the file
    python tools/generate_defaults.py --check   exit with status 1 if it is not up to date

The generated file is committed, because Rust is compiled before Python is there.
tests/repository/test_generated.py checks it.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from kvatlas.router import RouterConfig

FILE = Path(__file__).parents[1] / "crates" / "router" / "defaults.json"


def defaults() -> str:
    """The settings of a router with no engine, no tokenizer and no events, as its native part reads them."""
    settings = RouterConfig().router_for_native(None, {}, log=True) | {"service": None}
    return json.dumps(settings, indent=2, sort_keys=True) + "\n"


def main() -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(description="Generates crates/router/defaults.json from the settings of Python.")
    parser.add_argument("--check", action="store_true", help="only say whether it is up to date")
    if not parser.parse_args().check:
        FILE.write_text(defaults(), encoding="utf-8")
        return 0
    if FILE.read_text(encoding="utf-8") == defaults():
        return 0
    print(f"{FILE.name} is not up to date: run python tools/generate_defaults.py", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
