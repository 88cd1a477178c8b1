"""Settings and fixtures that the tests of the replay share."""

import pytest

from kvatlas.lab.replay import ReplayConfig, ReplayResult, replay
from kvatlas.sim import EngineConfig, FleetConfig, Trace, WorkloadConfig, generate

POLICIES = ("random", "round-robin", "least-loaded", "prefix-hash", "kvatlas")
SMALL = ReplayConfig(
    fleet=FleetConfig(engines=4, engine=EngineConfig(block_size=64, blocks=1_536, chunk=512)),
    policies=POLICIES,
    check=0.15,
    check_seconds=60.0,  # more than it takes on a busy machine
)


@pytest.fixture(scope="session")
def trace() -> Trace:
    """A small generated trace that four small engines can just bear."""
    return generate(WorkloadConfig(requests=240, request_rate=1.5))


@pytest.fixture(scope="session")
def config() -> ReplayConfig:
    return SMALL


@pytest.fixture(scope="session")
def result(trace: Trace) -> ReplayResult:
    """Five policies over the small trace."""
    return replay(trace, SMALL)
