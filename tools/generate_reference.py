"""Generates the reference pages in docs/reference, so that they can be read in the repository.

    python -m tools.generate_reference           write the pages
    python -m tools.generate_reference --check   exit with status 1 if one is not up to date

Text is generated from the code, between the markers that `tools/docs/places.py` describes. The site generates it anew.
tests/repository/test_generated.py checks it.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tools.docs.places import fill

ROOT = Path(__file__).parents[1]


def main() -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(description="Generates the reference pages in docs/reference.")
    parser.add_argument("--check", action="store_true", help="only say whether they are up to date")
    is_check, status = parser.parse_args().check, 0
    for page in sorted((ROOT / "docs" / "reference").glob("*.md")):
        old = page.read_text(encoding="utf-8")
        new = fill(old, markers=True)
        if old == new:
            continue
        if is_check:
            name = page.relative_to(ROOT)
            print(f"{name} is not up to date: run python -m tools.generate_reference", file=sys.stderr)
            status = 1
        else:
            page.write_text(new, encoding="utf-8")
    return status


if __name__ == "__main__":
    sys.exit(main())
