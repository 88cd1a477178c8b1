"""The wheel in a clean environment: the core serves and answers, the extra `lab` replays. `make test` builds it."""

import os
import re
import subprocess
import sys
import venv
from pathlib import Path

import pytest

WHEELS = Path(__file__).parents[1] / "target" / "wheel-test"
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
        done = self.run("python", "-m", "pip", "install", "--quiet", f"{wheel}{extra}")
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


@pytest.fixture(scope="module")
def wheel() -> Path:
    wheels = sorted(WHEELS.glob("kvatlas-*.whl"), key=lambda path: path.stat().st_mtime)
    if not wheels:
        pytest.skip("no wheel to test: make target/wheel-test/built")
    return wheels[-1]


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


def test_the_laboratory_replays(environment: Environment, wheel: Path) -> None:
    environment.install(wheel, "[lab]")
    done = environment.run("kvatlas", "replay", "--requests", "100", "--engines", "2", "--block-size", "128")
    assert done.returncode == 0, done.stderr
    assert "100 requests" in done.stdout


def test_the_wheel_is_for_every_python_from_3_11_on(wheel: Path) -> None:
    assert re.search(r"-cp311-abi3-(linux|manylinux|macosx)", wheel.name)
    assert sys.version_info >= (3, 11)
