"""The sizes of a relay's messages and of what engines publish: `python -m benchmarks.relay.size RECORDING...`.

Recordings are JSON lines, gzipped, as `kvatlas decode` reads them. Builds the example `relay_size` of `crates/wire`.
"""

from __future__ import annotations

import base64
import gzip
import json
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def batches(recording: Path) -> bytes:
    """The payloads, each after its length."""
    out = bytearray()
    with gzip.open(recording, "rt") as lines:
        for line in lines:
            record = json.loads(line)
            if record["type"] == "frames":
                payload = base64.b64decode(record["frames"][-1])
                out += struct.pack("<I", len(payload)) + payload
    return bytes(out)


def measure(payloads: bytes, block_size: int = 16) -> dict[str, Any]:
    """The sizes that the example reports of batches."""
    command = ["cargo", "run", "-q", "--locked", "-p", "kvatlas-wire", "--example", "relay_size", "--", str(block_size)]
    done = subprocess.run(command, input=payloads, capture_output=True, check=True, cwd=ROOT)
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def main() -> None:
    """Prints a line for each recording."""
    for recording in map(Path, sys.argv[1:]):
        told = measure(batches(recording))
        if not told["batches"]:
            continue
        of_changes, of_messages = told["engine"] / told["changes"], told["engine"] / told["messages"]
        print(
            f"{recording.name}: {told['stored']:,} blocks stored, {told['removed']:,} removed; {told['engine']:,} "
            f"bytes are {told['messages']:,} in a message a batch ({of_messages:.1f} times less), {told['changes']:,} "
            f"without heads ({of_changes:.1f} times less)"
        )


if __name__ == "__main__":
    main()
