"""Requests a second and latency under load, by wrk."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

SCRIPT = """
wrk.method = "POST"
wrk.headers["Content-Type"] = "{kind}"
local file = io.open("{body}", "rb")
wrk.body = file:read("*a")
file:close()
"""
UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0}


@dataclass(frozen=True, slots=True)
class Load:
    """The result of a load. Times in seconds."""

    rate: float  # requests a second
    p50: float
    p99: float


def check() -> None:
    """Raises RuntimeError if wrk is not there."""
    if shutil.which("wrk") is None:
        raise RuntimeError("this benchmark needs wrk (https://github.com/wg/wrk; most systems package it as wrk)")


def run(url: str, body: bytes, *, connections: int, seconds: float, kind: str = "application/json") -> Load:
    """Send one request over and over, on `connections` connections. Any answer but 2xx is an error.

    Args:
        url: The address of the request, with its query string.
        body: The body of the request.
        connections: Number of connections at once.
        seconds: Time for which requests are sent.
        kind: The body's content type.
    """
    with tempfile.TemporaryDirectory() as folder:
        request = Path(folder, "body")
        request.write_bytes(body)
        script = Path(folder, "post.lua")
        script.write_text(SCRIPT.format(body=request, kind=kind), encoding="utf-8")
        command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds:g}s", "--latency", "-s", str(script), url]
        out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    if "Non-2xx" in out or "Socket errors" in out:
        raise RuntimeError(f"wrk met errors at {url}:\n{out}")
    rate = re.search(r"Requests/sec:\s+([\d.]+)", out)
    if rate is None:
        raise RuntimeError(f"wrk said something unexpected:\n{out}")
    return Load(float(rate[1]), _percentile(out, "50%"), _percentile(out, "99%"))


def _percentile(out: str, name: str) -> float:
    found = re.search(rf"{name}\s+([\d.]+)(us|ms|s|m)\b", out)
    if found is None:
        raise RuntimeError(f"wrk gave no {name}:\n{out}")
    return float(found[1]) * UNITS[found[2]]
