#!/usr/bin/env python3
"""Measures from Python: kvatlas against Dynamo's wheel, on the stream of workload W1.

Makes a virtual environment in benchmarks/peers/.venv with numpy, the released wheel `ai-dynamo-runtime` (without its
dependencies: the native module needs none of them) and kvatlas, then runs `measure.py` in it.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import venv
from pathlib import Path

PEERS = Path(__file__).resolve().parent.parent
REPOSITORY = PEERS.parent.parent
VENV = PEERS / ".venv"
DYNAMO = "ai-dynamo-runtime==1.6.1"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kvatlas = parser.add_mutually_exclusive_group()
    kvatlas.add_argument(
        "--kvatlas", default=str(REPOSITORY), help="what to install: a wheel, or the repository (default)"
    )
    kvatlas.add_argument(
        "--in-place", action="store_true", help="use the extension that `make build` left in the sources"
    )
    parser.add_argument("--installed", action="store_true", help="install nothing: the environment is ready")
    parser.add_argument("--rounds", type=int, default=3, help="medians are over these (3)")
    parser.add_argument("--trace", help="a Mooncake JSONL trace; the default is that of the Rust benchmark")
    parser.add_argument("--json", help="write everything to this file")
    arguments = parser.parse_args()

    python = VENV / "bin" / "python"
    if not arguments.installed:
        if not python.exists():
            venv.create(VENV, with_pip=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "numpy"], check=True)
        subprocess.run([*pip, "--no-deps", DYNAMO], check=True)
        if not arguments.in_place:
            subprocess.run([*pip, "--no-deps", "--force-reinstall", arguments.kvatlas], check=True)

    stream = PEERS / "target" / "w1.jsonl"
    trace = ["--trace", str(Path(arguments.trace).resolve())] if arguments.trace else []
    cargo = ["cargo", "run", "--quiet", "--release", "--", "--dump", "W1", str(stream), *trace]
    subprocess.run(cargo, check=True, cwd=PEERS)

    measure = [str(python), str(Path(__file__).with_name("measure.py")), str(stream), "--rounds", str(arguments.rounds)]
    if arguments.json:
        measure += ["--json", str(Path(arguments.json).resolve())]
    environment = dict(os.environ)
    if arguments.in_place:
        environment["PYTHONPATH"] = str(REPOSITORY / "python")
    return subprocess.run(measure, check=False, env=environment).returncode


if __name__ == "__main__":
    try:
        sys.exit(main())
    except subprocess.CalledProcessError as error:
        sys.exit(f"run.py: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
