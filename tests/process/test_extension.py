"""Tests of the choice of the extension `kvatlas._native`, and of errors without the laboratory."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import kvatlas
from kvatlas import _extension, _extras, _native
from kvatlas.errors import MissingExtraError, PolicyError
from kvatlas.routing import policies

ROOT = Path(__file__).parents[2]
OWN = Path(_native.__file__)


def install(directory: Path, version: str) -> None:
    """The files of the package `kvatlas-lab` as pip leaves them."""
    (directory / "kvatlas_lab").mkdir()
    (directory / "kvatlas_lab" / "__init__.py").touch()
    (directory / "kvatlas_lab" / OWN.name).symlink_to(OWN)
    about = directory / f"kvatlas_lab-{version}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: kvatlas-lab\nVersion: {version}\n", encoding="utf-8")


def told(directory: Path, code: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(directory)}
    command = [sys.executable, "-W", "ignore", "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout.strip()


def test_the_extension_of_the_laboratory_takes_the_place_of_the_products(tmp_path: Path) -> None:
    install(tmp_path, kvatlas.__version__)
    code = "import kvatlas.trees, kvatlas.lab.designs, kvatlas._native; print(kvatlas._native.__file__)"
    assert told(tmp_path, code) == str(tmp_path / "kvatlas_lab" / OWN.name)


def test_a_laboratory_of_another_version_is_left_alone(tmp_path: Path) -> None:
    install(tmp_path, "0.0.1")
    code = "from kvatlas import _extension, _native; print(_native.__file__, _extension.other_version())"
    assert told(tmp_path, code) == f"{OWN} 0.0.1"


def test_a_directory_that_only_has_the_name_is_left_alone(tmp_path: Path) -> None:
    install(tmp_path, kvatlas.__version__)
    (tmp_path / "kvatlas_lab" / OWN.name).unlink()
    (tmp_path / "kvatlas_lab" / "wire.py").write_text("raise RuntimeError", encoding="utf-8")
    code = "import kvatlas.wire; from kvatlas import _native; print(_native.__file__)"
    assert told(tmp_path, code) == str(OWN)


def test_without_a_laboratory_there_is_no_other_version() -> None:
    assert _extension.other_version() is None


def test_what_the_laboratory_lacks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_extras, "has_lab", False)
    with pytest.raises(MissingExtraError, match=r"^kvatlas.lab needs kvatlas-lab: pip install 'kvatlas\[lab\]'$"):
        _extras.require("kvatlas.lab", "lab", ())
    _extras.require("kvatlas.sim.server", "sim", ())
    monkeypatch.setattr(_extras, "other_version", lambda: "0.0.1")
    wanted = f"kvatlas.lab needs kvatlas-lab {kvatlas.__version__} (0.0.1 is installed): pip install 'kvatlas[lab]'"
    with pytest.raises(MissingExtraError) as caught:
        _extras.require("kvatlas.lab", "lab", ())
    assert str(caught.value) == wanted


def test_an_unknown_policy_may_be_one_of_the_laboratory(monkeypatch: pytest.MonkeyPatch) -> None:
    more = "; those of other routers need kvatlas-lab: pip install 'kvatlas[lab]'"
    with pytest.raises(PolicyError) as caught:
        policies.check_name("no-such-policy")
    assert more not in str(caught.value)
    monkeypatch.setattr(policies, "has_lab", False)
    with pytest.raises(PolicyError) as caught:
        policies.check_name("no-such-policy")
    assert str(caught.value).endswith(more)


def test_both_packages_ask_for_each_other_in_their_version() -> None:
    version = tomllib.loads((ROOT / "Cargo.toml").read_text(encoding="utf-8"))["workspace"]["package"]["version"]
    product, laboratory = (
        tomllib.loads((ROOT / place / "pyproject.toml").read_text(encoding="utf-8"))["project"] for place in ("", "lab")
    )
    assert f"kvatlas-lab=={version}" in product["optional-dependencies"]["lab"]
    assert laboratory["dependencies"] == [f"kvatlas=={version}"]
    assert laboratory["requires-python"] == product["requires-python"]
