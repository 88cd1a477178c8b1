"""Description of the machine and software of a measurement."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from pathlib import Path

import numpy as np

import kvatlas


def machine() -> dict[str, str | int]:
    """Facts about this machine: processor, CPUs, system, versions."""
    return {
        "processor": _processor(),
        "cpus": os.cpu_count() or 0,
        "usable_cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 0,
        "system": f"{platform.system()} {platform.release()}",
        "architecture": platform.machine(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "kvatlas": kvatlas.__version__,
    }


def machine_id(facts: dict[str, str | int]) -> str:
    """Short name of a machine and its versions; only measurements with equal names can be compared."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:12]


def about_machine(facts: dict[str, str | int]) -> str:
    """Description of a machine in one line."""
    return (
        f"{facts['processor']}, {facts['usable_cpus']} CPUs, {facts['system']} on {facts['architecture']}, "
        f"Python {facts['python']}, kvatlas {facts['kvatlas']}"
    )


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
