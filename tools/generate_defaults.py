"""Generates the defaults that programs and tests in Rust begin with, from the settings that Python declares.

    python tools/generate_defaults.py           write the files
    python tools/generate_defaults.py --check   exit with status 1 if one is not up to date

The generated files are committed, because Rust is compiled before Python is there.
tests/repository/test_generated.py checks it.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from kvatlas.router import RouterConfig
from kvatlas.service import Config

CRATES = Path(__file__).parents[1] / "crates"


def defaults() -> dict[str, dict[str, Any]]:
    """The defaults by crate, as it reads them: a router with no engine, no tokenizer and no events; a service."""
    service = Config().for_native(log=True)
    return {
        "router": RouterConfig().router_for_native(None, {}, log=True) | {"service": None},
        "service": service.pop("http"),
        "follow": service,
    }


def main() -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(description="Generates crates/*/defaults.json from the settings of Python.")
    parser.add_argument("--check", action="store_true", help="only say whether they are up to date")
    is_check, status = parser.parse_args().check, 0
    for crate, settings in defaults().items():
        file, text = CRATES / crate / "defaults.json", json.dumps(settings, indent=2, sort_keys=True) + "\n"
        if not is_check:
            file.write_text(text, encoding="utf-8")
        elif file.read_text(encoding="utf-8") != text:
            print(f"{file} is not up to date: run python tools/generate_defaults.py", file=sys.stderr)
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
