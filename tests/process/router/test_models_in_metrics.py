"""The label `model` of the router's metrics: which request counts as which model, and how many models there can be."""

from __future__ import annotations

import http.client
import re
from collections.abc import Iterator

import pytest
from tests.support.engine import Engine, die, reply

from .conftest import QUICK
from .running import MESSAGES, Answer, Router, wait_until

REQUESTS = "kvatlas_router_requests_total"
REFUSED = "kvatlas_router_refused_requests_total"
LISTS = {
    "alpha": {"object": "list", "data": [{"id": "alpha"}, {"id": "alpha-sql", "parent": "alpha"}]},
    "beta": {"object": "list", "data": [{"id": "beta"}]},
}


@pytest.fixture
def two() -> Iterator[Router]:
    """A router in front of an engine for each of two models; the first has an adapter."""
    with Engine(model="alpha") as alpha, Engine(model="beta") as beta:
        alpha.answers["/v1/models"], beta.answers["/v1/models"] = LISTS["alpha"], LISTS["beta"]
        with Router(alpha, beta, flags=QUICK) as router:
            wait_until(
                lambda: b"alpha-sql" in router.get("/v1/models")[1] and b"beta" in router.get("/v1/models")[1], "models"
            )
            yield router


def ask(router: Router, model: str | None, **more: object) -> Answer:
    body = {"messages": MESSAGES, **more} | ({} if model is None else {"model": model})
    answer = router.ask(body)
    wait_until(lambda: router.in_flight() == 0, "it has ended")
    return answer


def models(router: Router, name: str) -> set[str]:
    """The values of the label `model` of a metric."""
    text = router.get("/metrics")[1].decode()
    lines = [line for line in text.splitlines() if line.startswith((f"{name}{{", f"{name} "))]
    return {found for line in lines for found in re.findall(r'[{,]model="([^"]*)"', line)}


def test_each_model_has_its_own_counts(two: Router) -> None:
    assert models(two, REQUESTS) == {"none", "other", "alpha", "beta"}, "before the first request"
    for model, stream in (("alpha", True), ("alpha", False), ("beta", True)):
        assert ask(two, model, stream=stream).status == 200
    for model, engine, requests, streams in (("alpha", "e0", 2, 1), ("beta", "e1", 1, 1)):
        assert two.metric(REQUESTS, model=model, status="2xx") == requests
        assert two.metric("kvatlas_router_decisions_total", model=model) == requests
        where = {"model": model, "engine": engine}
        assert two.metric("kvatlas_router_engine_answers_total", **where, status="2xx") == requests
        assert two.metric("kvatlas_router_first_token_seconds_count", **where) == streams
        assert two.metric("kvatlas_router_request_duration_seconds_count", **where) == requests
    assert two.metric("kvatlas_router_first_token_seconds_count") == 2
    assert models(two, "kvatlas_router_engine_output_tokens_total") == {"alpha", "beta"}


def test_an_adapter_counts_as_the_model_that_it_adapts(two: Router) -> None:
    two.engines["e0"].behaviour = reply(
        "200 OK", {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 1}}
    )
    assert ask(two, "alpha-sql").status == 200
    assert two.metric(REQUESTS, model="alpha", status="2xx") == 1
    assert "alpha-sql" not in models(two, REQUESTS)


def test_what_clients_make_up_is_one_model(two: Router) -> None:
    series = len(two.get("/metrics")[1].splitlines())
    for number in range(40):
        assert ask(two, f"made-up-{number}").status == 404
    assert two.metric(REQUESTS, model="other", status="4xx") == 40
    assert two.metric(REFUSED, model="other", reason="model_not_found") == 40
    assert models(two, REQUESTS) == {"none", "other", "alpha", "beta"}
    assert len(two.get("/metrics")[1].splitlines()) <= series + 2, "the reason is new"


def test_a_request_without_a_model_counts_as_none(two: Router) -> None:
    assert two.ask(b"{").status == 400
    assert two.metric(REQUESTS, model="none", status="4xx") == 1
    assert two.ask({}, path="/nowhere").status == 404
    assert two.metric(REFUSED, model="none", reason="unknown_path") == 1


def test_errors_name_the_model_and_the_engine(two: Router) -> None:
    two.engines["e1"].behaviour = reply("503 Service Unavailable", {"error": {"message": "no"}})
    assert ask(two, "beta").status == 503
    assert two.metric(REQUESTS, model="beta", status="5xx") == 1
    assert two.metric("kvatlas_router_engine_answers_total", model="beta", engine="e1", status="5xx") >= 1
    two.engines["e1"].behaviour = die
    assert ask(two, "beta").status == 502
    assert two.metric("kvatlas_router_engine_faults_total", model="beta", engine="e1") >= 1
    assert two.metric(REFUSED, model="beta", status="5xx") >= 1
    for metric in (REQUESTS, "kvatlas_router_engine_faults_total", "kvatlas_router_retries_total"):
        assert two.metric(metric, model="alpha") == 0


def test_refusals_for_want_of_engines_are_counted_by_model(two: Router) -> None:
    for name in ("e0", "e1"):
        connection = http.client.HTTPConnection("127.0.0.1", two.port, timeout=60)
        connection.request("POST", f"/engines/{name}/drain")
        assert connection.getresponse().status == 200
        connection.close()
    assert ask(two, "beta").status == 503
    assert two.metric(REFUSED, model="beta", status="5xx") == 1
    assert two.metric(REFUSED, model="alpha") == two.metric(REFUSED, model="none") == 0
