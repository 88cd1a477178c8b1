"""Builder of a real kube-apiserver and etcd, for tests, from the Go modules that Kubernetes publishes.

python -m tools.apiserver [DIRECTORY]: binaries in DIRECTORY/bin (target/k8s by default), which are kept. From nothing
it takes about 7 minutes of processor time, 1 GB of modules and 3 GB of Go's build cache. Exit status: 0; 3 if it cannot
be built here, with the reason on stderr.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

VERSION = "1.37.2"
PROGRAMS = {"etcd": "go.etcd.io/etcd/server/v3", "kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver"}
_CANNOT = 3


def is_built(directory: Path) -> bool:
    """True if the binaries of this version are there."""
    version = directory / "version"
    there = all((directory / "bin" / name).exists() for name in PROGRAMS)
    return there and version.exists() and version.read_text().strip() == VERSION


def build(directory: Path) -> str | None:
    """Build both programs. Returns the reason why that is not possible; None if they are there."""
    if is_built(directory):
        return None
    if shutil.which("go") is None:
        return "there is no Go: install it (https://go.dev)"
    (directory / "bin").mkdir(parents=True, exist_ok=True)
    try:
        (directory / "go.mod").write_text(_module())
        _go("mod", "tidy", where=directory)
        minor = VERSION.split(".")[1]
        about = {"gitVersion": f"v{VERSION}", "gitMajor": "1", "gitMinor": minor}
        flags = " ".join(["-s", "-w", *(f"-X k8s.io/component-base/version.{n}={v}" for n, v in about.items())])
        for name, path in PROGRAMS.items():
            print(f"{name} is being built", file=sys.stderr)
            # One package at a time: some need a gigabyte.
            _go("build", "-p", "1", "-trimpath", "-ldflags", flags, "-o", f"bin/{name}", path, where=directory)
    except subprocess.CalledProcessError as error:
        return f"{' '.join(error.cmd[:3])} failed: {error.stderr.strip()[-500:]}"
    (directory / "version").write_text(VERSION)
    return None


def _module() -> str:
    """The go.mod of a module with both programs as its tools.

    Kubernetes replaces its parts by folders of its own repository: here they are the modules that it publishes of them.
    """
    where = json.loads(_go("mod", "download", "-json", f"k8s.io/kubernetes@v{VERSION}"))
    module = json.loads(_go("mod", "edit", "-json", where["GoMod"]))
    parts = [each["Old"]["Path"] for each in module["Replace"] if each["New"]["Path"].startswith("./staging")]
    version = "v0." + VERSION.split(".", 1)[1]
    lines = [
        "module kvatlas.test/apiserver",
        f"go {module['Go']}",
        f"require k8s.io/kubernetes v{VERSION}",
        "replace (",
    ]
    lines += [f"\t{part} => {part} {version}" for part in parts]
    return "\n".join([*lines, ")", *(f"tool {path}" for path in PROGRAMS.values()), ""])


def _go(*arguments: str, where: Path | None = None) -> str:
    env = os.environ | {"GOFLAGS": "-mod=mod", "GOWORK": "off"}
    command = ["nice", "-n", "19", "go", *arguments]
    return subprocess.run(command, cwd=where, env=env, check=True, capture_output=True, text=True).stdout


def main() -> int:
    """Build them."""
    directory = Path(sys.argv[1] if len(sys.argv) > 1 else "target/k8s")
    why = build(directory)
    if why is not None:
        print(f"no API server of Kubernetes: {why}", file=sys.stderr)
        return _CANNOT
    return 0


if __name__ == "__main__":
    sys.exit(main())
