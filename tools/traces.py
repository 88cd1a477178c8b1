"""Recorded traces that figures of the documentation are measured on: where each comes from, and whether a file is it.

    python -m tools.traces list                     sources, as docs/lab/traces.md has them
    python -m tools.traces check FOLDER_OR_FILE…    exit status 1 if one is not what it is called, or is unknown
    python -m tools.traces agents OUT [--sessions FOLDER]
                                                    make the sample of Claude Code sessions; without `--sessions` the
                                                    recordings are fetched with git from where they are published

Files are compared by the SHA-256 of their content: unpacked, if their name ends in .gz.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tools import claude_code_sample


@dataclass(frozen=True)
class Source:
    """A recorded trace.

    Attributes:
        file: Its path below the folder that `KVATLAS_TRACES` names.
        sha256: The SHA-256 of its content, unpacked.
        repository: The Git repository that publishes it, or the recordings that it is made of.
        revision: A commit there that has it.
        path: The path of the file, or of the folder of recordings, at that commit.
        licence: The licence that the repository names.
        made: How the file is made of what is there.
    """

    file: str
    sha256: str
    repository: str
    revision: str
    path: str
    licence: str
    made: str

    def row(self) -> str:
        """The row of the table in the documentation."""
        where = f"[{self.repository.removeprefix('https://github.com/')}]({self.repository}), `{self.revision}`"
        return f"| `{self.file}` | {where}, `{self.path}` | {self.licence} | {self.made} | `{self.sha256}` |"


AGENTS = Source(
    "agents/claude-code-a.jsonl.gz",
    "af9521b3c12767ba02d43bfa17683ef6c0914c790e676b07ad3450eebe2a29eb",
    "https://github.com/callanjfox/kv-cache-tester",
    "94f6046",
    "traces/",
    "Apache-2.0",
    "a hundred sessions: `python -m tools.traces agents`",
)
SOURCES = (
    Source(
        "conversation_trace.jsonl",
        "b8cbb061a85206d729d91cdc2981f43c9e0d99209dce588d3af5f7934408b9df",
        "https://github.com/kvcache-ai/Mooncake",
        "a2a4b18ac537fd798d50e6e9f57031ce86419a37",
        "FAST25-release/traces/conversation_trace.jsonl",
        "Apache-2.0",
        "as it is",
    ),
    AGENTS,
    Source(
        "agents/agentcgroup-local-1.jsonl.gz",
        "2e8d4d70f0813f4ca1587860c1e6344061a5176d5981c50c60dfc0ad893268c3",
        "https://github.com/eunomia-bpf/agentcgroup",
        "5af9e7b",
        "all_images_local",
        "GPL-2.0",
        "56 sessions; lengths, times and hashes only. The program that made it is not published",
    ),
    Source(
        "agents/agentcgroup-haiku-1.jsonl.gz",
        "5d536fbaf4edfc3d1ca0d6bd68a286737d3b949ffa64c0f0890d791c83c819aa",
        "https://github.com/eunomia-bpf/agentcgroup",
        "5af9e7b",
        "all_images_haiku",
        "GPL-2.0",
        "45 sessions twice; lengths, times and hashes only. The program that made it is not published",
    ),
)


def table() -> str:
    """The table of sources in docs/lab/traces.md."""
    head = "| file | source | licence | made | SHA-256, unpacked |\n|---|---|---|---|---|\n"
    return head + "".join(source.row() + "\n" for source in SOURCES)


def content(path: Path) -> bytes:
    """The content of a file, unpacked if it is called .gz."""
    return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()


def files(given: Path) -> Iterator[Path]:
    """The file itself, or the traces in a folder."""
    if given.is_dir():
        yield from (path for path in sorted(given.rglob("*.jsonl*")) if path.is_file())
    else:
        yield given


def check(given: list[Path]) -> int:
    """Say of each file whether it is a known trace. Returns the exit status."""
    status = 0
    by_hash = {source.sha256: source for source in SOURCES}
    by_name = {Path(source.file).name.removesuffix(".gz"): source for source in SOURCES}
    paths = [path for each in given for path in files(each)]
    if not paths:
        print(f"no .jsonl file in {', '.join(map(str, given))}", file=sys.stderr)
        return 1
    for path in paths:
        try:
            found = hashlib.sha256(content(path)).hexdigest()
        except (OSError, EOFError) as error:
            print(f"{path}: cannot be read: {error}", file=sys.stderr)
            status = 1
            continue
        named = by_name.get(path.name.removesuffix(".gz"))
        if found in by_hash:
            print(f"{path}: {by_hash[found].file}, as it should be")
        elif named is None:
            print(f"{path}: not a trace of the list, SHA-256 {found}", file=sys.stderr)
            status = 1
        else:
            print(f"{path}: not the file of that name: SHA-256 {found}, not {named.sha256}", file=sys.stderr)
            status = 1
    return status


def fetch(into: Path) -> Path:
    """Fetch the recordings of Claude Code sessions. Returns the folder that has them."""
    subprocess.run(["git", "clone", "--quiet", AGENTS.repository, str(into)], check=True)
    subprocess.run(["git", "-C", str(into), "checkout", "--quiet", AGENTS.revision], check=True)
    return into / AGENTS.path


def make_agents(out: Path, sessions: Path | None, *, expected: str = AGENTS.sha256) -> int:
    """Make the sample of Claude Code sessions. Returns the exit status: 1 if it is not the one of the figures."""
    try:
        with tempfile.TemporaryDirectory() as folder:
            recordings = claude_code_sample.read(sessions or fetch(Path(folder) / "source"))
    except (OSError, subprocess.CalledProcessError, ValueError) as error:
        print(f"the recordings cannot be read: {error}", file=sys.stderr)
        return 1
    made = claude_code_sample.make(recordings).encode()
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_bytes(gzip.compress(made, mtime=0) if out.suffix == ".gz" else made)
    found = hashlib.sha256(made).hexdigest()
    if found != expected:
        print(
            f"{out}: of {len(recordings)} recordings, and not the trace of the figures: SHA-256 {found}, "
            f"not {expected}. It is made of {claude_code_sample.USABLE} recordings at {AGENTS.revision}",
            file=sys.stderr,
        )
        return 1
    print(f"{out}: the trace of the figures")
    return 0


def main(arguments: list[str] | None = None) -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(description="Sources of the recorded traces, and what a file is.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="print the table of sources")
    checked = commands.add_parser("check", help="say whether files are what they are called")
    checked.add_argument("files", nargs="+", type=Path, metavar="FOLDER_OR_FILE")
    agents = commands.add_parser("agents", help="make the sample of Claude Code sessions")
    agents.add_argument("out", type=Path, metavar="OUT")
    agents.add_argument("--sessions", type=Path, metavar="FOLDER", help="the folder of recordings, if it is here")
    given = parser.parse_args(arguments)
    if given.command == "list":
        print(table(), end="")
        return 0
    if given.command == "check":
        return check(given.files)
    return make_agents(given.out, given.sessions)


if __name__ == "__main__":
    sys.exit(main())
