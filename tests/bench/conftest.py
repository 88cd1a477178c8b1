"""What the tests of the replay share."""

import pytest

from kvatlas.bench import ReplayResult, ReplaySettings, replay
from kvatlas.sim import Trace, WorkloadConfig, generate

SMALL = ReplaySettings(engines=4, block_size=64, pool_tokens=98_304, check=0.2)


@pytest.fixture(scope="session")
def trace() -> Trace:
    """A small generated trace that four small engines can just bear."""
    return generate(WorkloadConfig(requests=400, rate=1.5))


@pytest.fixture(scope="session")
def settings() -> ReplaySettings:
    return SMALL


@pytest.fixture(scope="session")
def result(trace: Trace) -> ReplayResult:
    """All policies over the small trace."""
    return replay(trace, SMALL)
