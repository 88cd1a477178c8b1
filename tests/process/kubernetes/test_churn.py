"""Hundreds of pods that change all the time, with a real API server that is killed and a token that is revoked."""

from __future__ import annotations

import random
import re
import time
from pathlib import Path

import pytest
from tests.support.waiting import until

from kvatlas.sim import EngineConfig
from kvatlas.sim.server import Fleet, ServerConfig

from .cluster import Cluster
from .load import MODEL, Clients, following

PODS, STABLE, RATE = 200, 20, 10
ENGINE = EngineConfig(block_size=16, blocks=2_000, prefill_rate=1e5, decode_rate=200)


class Churn:
    """Changes pods one after the other. The first ones stay, but for their readiness and labels."""

    def __init__(self, cluster: Cluster, fleet: Fleet) -> None:
        self.cluster, self.fleet = cluster, fleet
        self.random = random.Random(3)
        self.changes = 0
        self.ended: set[str] = set()  # names of pods that were ended at least once
        self._ending: list[tuple[float, int]] = []
        self._back: list[tuple[float, int, str]] = []  # when, which pod, what to undo

    def run(self, seconds: float) -> None:
        """Change pods at the rate wanted for some time."""
        end, due = time.monotonic() + seconds, time.monotonic()
        while time.monotonic() < end:
            self.one()
            due = max(due + 1 / RATE, time.monotonic() - 1)
            time.sleep(max(0.0, due - time.monotonic()))

    def finish(self) -> None:
        """Undo what is pending, so that all pods are there and ready."""
        while self._ending or self._back:
            self._undo(time.monotonic() + 3600)

    def one(self) -> None:
        """Make one change."""
        self.changes += 1
        if self._undo(time.monotonic()):
            return
        busy = {number for _when, number in self._ending} | {number for _when, number, _what in self._back}
        number = self.random.choice([number for number in range(PODS) if number not in busy])
        name, now = self.fleet[number].name, time.monotonic()
        what = self.random.choice(
            ("ready", "label", "restarts") if number < STABLE else ("ready", "label", "end", "end")
        )
        if what == "ready":
            self.cluster.set_ready(name, False)
            self._back.append((now + 1, number, what))
        elif what == "label":
            self.cluster.label(name, None)
            self._back.append((now + 1, number, what))
        elif what == "restarts":
            self.cluster.set_restarts(name, self.changes)
        else:
            self.ended.add(name)
            self.cluster.delete(name)
            self._ending.append((now + 3, number))

    def _undo(self, now: float) -> bool:
        for pending in (self._ending, self._back):
            if pending and pending[0][0] <= now:
                _when, number, *what = pending.pop(0)
                name = self.fleet[number].name
                if not what:
                    # The container ends, and another pod of the same name takes its place.
                    self.cluster.gone(name)
                    self.fleet[number].restart()
                    self.cluster.add_engine(self.fleet[number])
                elif what == ["ready"]:
                    self.cluster.set_ready(name, True)
                else:
                    self.cluster.label(name, "vllm")
                return True
        return False


@pytest.mark.slow
@pytest.mark.parametrize("source", ["pods", "pool"])
def test_hundreds_of_pods_change_and_no_request_fails(
    source: str, cluster: Cluster, minutes: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = ServerConfig(engine=ENGINE, model=MODEL)
    fleet = Fleet(PODS, config, processes=4, name="vllm")
    # By turns, so that every engine is asked all the time. A label that is taken away is back before the linger ends,
    # also if the API server is killed meanwhile.
    flags = ("--policy", "round-robin", "--discover-linger", "60s")
    with following(source, cluster, [fleet], tmp_path, *flags) as router, fleet:
        for engine in fleet.engines:
            cluster.add_engine(engine)
        until(router.is_up, "the router is ready")
        router.same(cluster)
        until(lambda: router.get("/ready")["index_ready"], "all engines are followed")
        churn, same = Churn(cluster, fleet), []
        part = minutes * 60 / 4
        with Clients(router.url, 8, 0.4) as clients:
            for number in range(4):
                churn.run(part)
                back = time.monotonic()
                if number in (0, 1):
                    # Without the API server, the router goes on with the engines that it knows.
                    cluster.kill()
                    until(lambda: router.source()["state"] == "away", "away is said")
                    time.sleep(2)
                    cluster.start()
                    back = time.monotonic()
                    until(lambda: router.source()["state"] == "following", "followed again")
                elif number == 2:
                    cluster.revoke()
                    cluster.kill()  # so that the token is asked for
                    cluster.start()
                    until(lambda: router.source()["code"] == "http_401", "the old token is refused")
                    cluster.renew(router.account)
                    back = time.monotonic()
                    until(lambda: router.source()["state"] == "following", "followed with the new token")
                router.same(cluster)
                same.append(time.monotonic() - back)
            churn.finish()
            same.append(router.same(cluster))
        ended = re.compile(r"(vllm-\d+) is (?:gone|another one now)")
        gone = {match[1] for line in router.log if (match := ended.search(line))}
        with capsys.disabled():
            print(
                f"\n{PODS} pods ({source}), {churn.changes} changes in {minutes:g} min: {len(clients.first)} answers "
                f"from {len(clients.served)} engines, {len(clients.errors)} errors; fleet equal after "
                f"{', '.join(f'{seconds:.2f}' for seconds in same)} s; {len(churn.ended)} pods were ended, "
                f"{len(gone)} forgotten, first-token p99 {clients.p99() * 1000:.0f} ms"
            )
        assert not clients.errors, clients.errors[:5]
        assert gone <= churn.ended, "an engine was forgotten that had not ended"
        streams = {stream["instance_id"]: stream for stream in router.get("/streams")}
        for engine in fleet.engines[:STABLE]:
            assert engine.name in streams
