"""The service under test: ours in this process, or the released one of the dialect from its wheel."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pytest
from tests.support.engine import BLOCK_SIZE, Publisher
from tests.support.waiting import until

from kvatlas.sim.server.ports import free_block

from .tools import MODEL, Answer, ask, running

PEER = "KVATLAS_DYNAMO_PYTHON"


@dataclass
class Subject:
    """A running service, and engines that it may follow."""

    name: str
    address: str
    stack: ExitStack

    def ask(self, method: str, path: str, body: object = None, **more: Any) -> Answer:
        return ask(self.address, method, path, body, **more)

    def post(self, path: str, **body: Any) -> Answer:
        return self.ask("POST", path, {"model_name": MODEL} | body)

    def publisher(self) -> Publisher:
        return self.stack.enter_context(Publisher())

    def engine(self, instance: int, **more: Any) -> Publisher:
        """A registered engine, to whose events the service has subscribed."""
        publisher = self.publisher()
        body = {"instance_id": instance, "endpoint": publisher.endpoint, "block_size": BLOCK_SIZE} | more
        answer = self.post("/register", **body)
        assert answer.status == 201, answer
        publisher.wait_for_reader()
        return publisher

    def scores(self, path: str = "/query", **query: Any) -> dict[str, dict[str, int]]:
        answer = self.post(path, **query)
        assert answer.status == 200, answer
        scores: dict[str, dict[str, int]] = answer.json["scores"]
        return scores

    def until_scores(self, scores: dict[str, dict[str, int]], **query: Any) -> None:
        until(lambda: self.scores(**query) == scores)


@pytest.fixture(scope="session")
def peer(own_variables: dict[str, str]) -> Iterator[str]:
    """The address of `python -m dynamo.indexer`."""
    python = own_variables.get(PEER)
    if not python:
        pytest.skip(f"the dialect's released service is not here: set {PEER} to a Python that has ai-dynamo 1.6.1")
    port = free_block("127.0.0.1")
    process = subprocess.Popen(
        [python, "-m", "dynamo.indexer", "--port", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    address = f"127.0.0.1:{port}"

    def is_up() -> bool:
        assert process.poll() is None, "it ended at once"
        try:
            return ask(address, "GET", "/health").status == 200
        except OSError:
            return False

    try:
        until(is_up)
        yield address
    finally:
        process.terminate()
        process.wait()


@pytest.fixture(params=["kvatlas", "dynamo"])
def subject(request: pytest.FixtureRequest) -> Iterator[Subject]:
    with ExitStack() as stack:
        if request.param == "kvatlas":
            yield Subject(request.param, stack.enter_context(running()).address, stack)
            return
        subject = Subject(request.param, request.getfixturevalue("peer"), stack)
        yield subject
        # One process serves all tests: the next finds it as this one did.
        for worker in subject.ask("GET", "/workers").json:
            body = {key: worker[key] for key in ("instance_id", "model_name", "routing_group")}
            subject.ask("POST", "/unregister", body)
