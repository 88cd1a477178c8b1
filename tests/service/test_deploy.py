"""The files in `deploy/`: what they name is there."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from kvatlas.service.config.read import CONFIG_ENV, LISTS, SECRETS
from kvatlas.service.config.schema import all_keys

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
FLAGS = {key.flag for key in all_keys()} | {flag for flag, _, _ in LISTS.values()} | {"--config"}
VARIABLES = (
    {key.env for key in all_keys()}
    | {variable for _, variable, _ in LISTS.values()}
    | {variable for variable, _ in SECRETS.values()}
    | {CONFIG_ENV}
)


@pytest.mark.parametrize("name", ["kvatlas.service", "Containerfile"])
def test_settings_are_those_that_there_are(name: str) -> None:
    text = (DEPLOY / name).read_text()
    served = re.findall(r"kvatlas serve (.*)", text)
    assert served
    for flag in re.findall(r"--[a-z-]+", " ".join(served)):
        assert flag in FLAGS, flag
    for variable in re.findall(r"KVATLAS_[A-Z_]+", text):
        assert variable in VARIABLES, variable


def test_the_image_is_made_of_what_is_here() -> None:
    text = (DEPLOY / "Containerfile").read_text()
    copied = [path for line in re.findall(r"^COPY (?!--from)(.*) \S+$", text, re.MULTILINE) for path in line.split()]
    assert {"Cargo.lock", "crates", "python"} <= set(copied)
    for path in copied:
        assert (ROOT / path).exists(), path


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze")
def test_systemd_understands_the_unit(tmp_path: Path) -> None:
    # Only what is wrong with the file itself: the program is not installed here.
    unit = (DEPLOY / "kvatlas.service").read_text().replace("/opt/kvatlas/bin/kvatlas", "/bin/true")
    path = tmp_path / "kvatlas.service"
    path.write_text(unit)
    done = subprocess.run(["systemd-analyze", "verify", str(path)], capture_output=True, text=True, check=False)
    assert "kvatlas.service" not in done.stderr, done.stderr
