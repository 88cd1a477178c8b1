"""A cluster for the tests that need a real API server: `make k8s-tests` builds one and runs them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tools.apiserver import is_built

from .cluster import BIN, Cluster

WANTED = "KVATLAS_K8S_MINUTES"
"""The variable that asks for these tests, with the minutes for which hundreds of pods change."""


@pytest.fixture(scope="session")
def minutes(pytestconfig: pytest.Config) -> float:
    from tests.conftest import VARIABLES  # noqa: PLC0415 - loaded by pytest before

    given = pytestconfig.stash[VARIABLES].get(WANTED) or os.environ.get(WANTED)
    if given is None:
        pytest.skip("runs against a real API server: make k8s-tests")
    return float(given)


@pytest.fixture
def cluster(minutes: float, tmp_path: Path) -> Iterator[Cluster]:
    if not is_built(BIN.parent):
        pytest.skip("no API server of Kubernetes here: `python -m tools.apiserver` says why")
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    home = tmp_path / "cluster"
    home.mkdir()
    with Cluster(home) as cluster:
        yield cluster
