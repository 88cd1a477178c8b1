"""Generates the blocking clients from those for asyncio, with unasync.

    python tools/generate_sync.py           write the files
    python tools/generate_sync.py --check   exit with status 1 if they are not up to date

The generated files are committed; tests/repository/test_generated.py checks them.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import unasync  # type: ignore[import-untyped]

PACKAGE = Path(__file__).parents[1] / "python" / "kvatlas"
# What is written by hand, and what is generated from it.
FILES = {
    "client/aio.py": "client/sync.py",
    "tokenize/engine_aio.py": "tokenize/engine_sync.py",
}
# Names, besides those that unasync knows: `await`, `async`, `__aenter__` and so on.
NAMES = {
    "AnyTokenizer": "Tokenizer",
    "AsyncClient": "Client",
    "AsyncEngineTokenizer": "EngineTokenizer",
    "aclose": "close",
    "aiter_raw": "iter_raw",
    "asyncio": "time",
    "prepare_async": "prepare",
}
# Words of docstrings.
WORDS = {
    "The client for asyncio. `kvatlas.client.sync` is generated from this file by `tools/generate_sync.py`.": (
        "The blocking client. Generated from `aio.py` by `tools/generate_sync.py`: do not edit."
    ),
    "A tokenizer that uses an engine, for asyncio. `kvatlas.tokenize.engine_sync` is generated from this file.": (
        "A tokenizer that uses an engine. Generated from `engine_aio.py` by `tools/generate_sync.py`: do not edit."
    ),
    "Tasks of one event loop may share it.": "Threads may share it.",
}


def generated(source: Path) -> str:
    """The text of the blocking file, from the one for asyncio."""
    with tempfile.TemporaryDirectory() as directory:
        before, after = Path(directory, "before"), Path(directory, "after")
        before.mkdir()
        (before / source.name).write_text(source.read_text(encoding="utf-8"), encoding="utf-8")
        rule = unasync.Rule(f"{before}/", f"{after}/", additional_replacements=NAMES)
        unasync.unasync_files([str(before / source.name)], [rule])
        text = (after / source.name).read_text(encoding="utf-8")
    for words, others in WORDS.items():
        text = text.replace(words, others)
    # Shorter names: imports in another order, lines that fit.
    for command in (["check", "--select", "I", "--fix", "--exit-zero", "--quiet"], ["format", "--quiet"]):
        text = subprocess.run(  # noqa: S603 - a fixed command
            [sys.executable, "-m", "ruff", *command, "--stdin-filename", str(source.with_name("generated.py")), "-"],
            input=text,
            capture_output=True,
            text=True,
            check=True,
            cwd=PACKAGE.parents[1],
        ).stdout
    return text


def main() -> int:
    """Write or check; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="only say what is not up to date")
    check = parser.parse_args().check
    stale = []
    for source, target in FILES.items():
        text, file = generated(PACKAGE / source), PACKAGE / target
        if not file.exists() or file.read_text(encoding="utf-8") != text:
            stale.append(target)
            if not check:
                file.write_text(text, encoding="utf-8")
    for target in stale:
        print(f"{target} {'is not up to date: run python tools/generate_sync.py' if check else 'written'}")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
