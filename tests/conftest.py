"""What all tests share."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("kvatlas", max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("quick", parent=settings.get_profile("kvatlas"), max_examples=40)
settings.register_profile("long", parent=settings.get_profile("kvatlas"), max_examples=20_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "kvatlas"))


# The tests are to run with every assertion; what they start need not say so.
os.environ["PYTHONWARNINGS"] = "ignore:kvatlas is a debug build:RuntimeWarning"


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of recordings that some tests hold the index against; they are skipped where it is not."""
    beside = Path(__file__).resolve().parents[2] / "shared"
    path = Path(os.environ.get("KVATLAS_SHARED", beside))
    if not path.is_dir():
        pytest.skip(f"no recordings: {path} does not exist (set KVATLAS_SHARED to the folder that has them)")
    return path


@pytest.fixture
def frequent_switches() -> Iterator[None]:
    """The interpreter switches between threads all the time."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)
