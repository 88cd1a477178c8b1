"""The wheels in a clean environment: the product serves and answers, and with the laboratory it replays.

`make test` builds both.
"""

import os
import re
import subprocess
import sys
import threading
import venv
import zipfile
from pathlib import Path

import pytest

from kvatlas.routing import policy_names

WHEELS = Path(__file__).parents[2] / "target" / "wheel-test"
NO_NETWORK = re.compile(r"Connection|timed out|resolve host|No matching distribution|Network is unreachable")
REGISTER = """
import sys, kvatlas.client
with kvatlas.client.Client(sys.argv[1]) as client:
    client.register("engine-0", "tcp://127.0.0.1:9", model="m", block_size=16)
"""

pytestmark = pytest.mark.slow


class Environment:
    """A virtual environment with nothing but what the wheel brings."""

    def __init__(self, path: Path) -> None:
        venv.create(path, with_pip=True)
        self.path = path
        # Nothing of the checkout, whatever the tests run with.
        self.variables = {
            name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "KVATLAS"))
        }

    def install(self, wheel: Path, extra: str = "") -> None:
        done = self.run("python", "-m", "pip", "install", "--quiet", "--find-links", str(WHEELS), f"{wheel}{extra}")
        if done.returncode != 0 and NO_NETWORK.search(done.stderr):
            pytest.skip(f"the wheel's dependencies cannot be fetched: {done.stderr.strip().splitlines()[-1]}")
        assert done.returncode == 0, done.stderr

    def run(self, program: str, *args: str) -> subprocess.CompletedProcess[str]:
        command = [str(self.path / "bin" / program), *args]
        return subprocess.run(
            command, capture_output=True, text=True, check=False, env=self.variables, cwd=self.path, timeout=300
        )

    def start(self, program: str, *args: str) -> subprocess.Popen[str]:
        command = [str(self.path / "bin" / program), *args]
        return subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=self.variables, cwd=self.path
        )


def newest(name: str) -> Path:
    wheels = sorted(WHEELS.glob(f"{name}-*.whl"), key=lambda path: path.stat().st_mtime)
    if not wheels:
        pytest.skip("no wheel to test: make target/wheel-test/built")
    return wheels[-1]


@pytest.fixture(scope="module")
def wheel() -> Path:
    return newest("kvatlas")


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Environment:
    environment = Environment(tmp_path_factory.mktemp("wheel") / "venv")
    environment.install(wheel)
    return environment


def test_the_core_serves_and_answers(environment: Environment) -> None:
    packages = environment.run("python", "-m", "pip", "list", "--format", "freeze").stdout.lower()
    assert "kvatlas==" in packages
    for absent in ("aiohttp", "pyzmq", "msgspec", "matplotlib", "tokenizers", "jinja2"):
        assert f"{absent}==" not in packages
    with environment.start("kvatlas", "serve", "--bind", "127.0.0.1:0") as service:
        try:
            assert service.stdout is not None
            url = next(match[1] for line in service.stdout if (match := re.search(r"listening at (http://\S+)", line)))
            registered = environment.run("python", "-c", REGISTER, url)
            assert registered.returncode == 0, registered.stderr
            tokens = ",".join(map(str, range(32)))
            done = environment.run("kvatlas", "query", "--url", url, "--tokens", tokens)
            assert done.returncode == 0, done.stderr
            assert "32 tokens for m, in blocks of 16" in done.stdout
        finally:
            service.terminate()
        assert service.wait(60) == 0


def extension(wheel: Path) -> bytes:
    with zipfile.ZipFile(wheel) as files:
        name = next(name for name in files.namelist() if name.endswith("/_native.abi3.so"))
        return files.read(name)


def test_the_product_has_nothing_of_the_laboratory(wheel: Path, environment: Environment) -> None:
    own = environment.run(
        "python", "-W", "ignore", "-c", "import kvatlas.routing as r; print(*r.policy_names())"
    ).stdout.split()
    assert own[0] == "kvatlas"
    others = set(policy_names()) - set(own)
    assert {"dynamo-kv", "smg-cache-aware", "llm-d-scorers"} <= others
    # Where the code of a crate may panic, the name of its file is told.
    traces = [*others, "PositionalIndexer", "run_plan", "peer_policies/src", "designs/src", "bench/src"]
    product, laboratory = extension(wheel), extension(newest("kvatlas_lab"))
    assert [trace for trace in traces if trace.encode() in product] == []
    assert [trace for trace in traces if trace.encode() not in laboratory] == []


@pytest.mark.parametrize("command", ["replay", "plan", "trace", "demo", "bench"])
def test_a_command_of_the_laboratory_says_what_to_install(environment: Environment, command: str) -> None:
    done = environment.run("kvatlas", command)
    assert (done.returncode, done.stdout) == (2, "")
    assert re.search(
        r"^Error: .* kvatlas\.lab needs .*, kvatlas-lab: pip install 'kvatlas\[lab\]'$", done.stderr, re.MULTILINE
    )


def test_a_router_without_the_laboratory_says_what_to_install(environment: Environment) -> None:
    done = environment.run("kvatlas", "router", "--policy", "dynamo-kv", "--engine", "http://127.0.0.1:9")
    assert done.returncode == 2, done.stderr
    assert "those of other routers need kvatlas-lab: pip install 'kvatlas[lab]'" in done.stderr


def test_the_laboratory_replays(environment: Environment, wheel: Path) -> None:
    newest("kvatlas_lab")
    environment.install(wheel, "[lab]")
    trace = ("--requests", "100", "--engines", "2", "--block-size", "128")
    done = environment.run("kvatlas", "replay", *trace, "--policy", "kvatlas", "--policy", "dynamo-kv")
    assert done.returncode == 0, done.stderr
    assert "100 requests" in done.stdout
    designs = "from kvatlas.lab.designs import open_rung; print(open_rung('radix').find(content_hashes=[1]).scores())"
    assert environment.run("python", "-W", "ignore", "-c", designs).stdout == "{}\n"


def test_a_router_takes_the_policies_of_the_laboratory(environment: Environment, wheel: Path) -> None:
    newest("kvatlas_lab")
    environment.install(wheel, "[lab]")
    options = ("--policy", "dynamo-kv", "--engine", "http://127.0.0.1:9", "--bind", "127.0.0.1:0", "--no-events")
    with environment.start("kvatlas", "router", *options) as router:
        late = threading.Timer(120, router.kill)
        late.start()
        try:
            assert router.stdout is not None
            assert any(line.startswith("policy: dynamo-kv") for line in router.stdout)
        finally:
            late.cancel()
            router.terminate()


def test_the_wheel_is_for_every_python_from_3_11_on(wheel: Path) -> None:
    assert re.search(r"-cp311-abi3-(linux|manylinux|macosx)", wheel.name)
    assert sys.version_info >= (3, 11)
