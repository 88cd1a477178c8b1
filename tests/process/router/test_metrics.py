"""Tests that `/metrics` is as the documentation says."""

import http.client
import re
from pathlib import Path

from tests.support.engine import Engine
from tools.docs import metrics, router_metrics

from .running import PLAIN, Router, wait_until


def test_each_metric_is_on_its_page_and_the_other_way_round(engine: Engine, tmp_path: Path) -> None:
    # With a record of decisions, and others elsewhere that need not be there: all that has its own metrics.
    record = ("--record", str(tmp_path / "decisions"))
    served: dict[str, set[str]] = {}
    for flags in ((*PLAIN, *record), REMOTE, GLOBAL, GATEWAY):
        with Router(engine, flags=flags) as router:
            assert router.ask().status == 200
            wait_until(lambda router=router: router.in_flight() == 0, "all of it is counted")  # type: ignore[misc]
            served |= described(router)
    told = {name: set(labels) for name, (labels, _) in router_metrics.served().items()}
    assert told == served


def test_a_router_that_follows_events_has_the_metrics_of_a_service(engine: Engine) -> None:
    with Router(engine, flags=("--tokenizer", "none"), ready=False) as router:
        status, text = router.get("/metrics")
    assert status == 200
    kinds = dict(line.split()[2:4] for line in text.decode().splitlines() if line.startswith("# TYPE "))
    names = {name + ("_total" if kind == "counter" else "") for name, kind in kinds.items()}
    told = set(metrics.served())
    requests = {name for name in told if name.startswith(("kvatlas_http_", "kvatlas_queries"))}
    assert {name for name in names if not name.startswith("kvatlas_router_")} == told - requests
    assert text.endswith(b"\n# EOF\n")
    assert text.count(b"# EOF") == 1


# No server listens at port 9, so the router decides without knowledge.
REMOTE = ("--index", "http://127.0.0.1:9", "--peer", "http://127.0.0.1:9", "--tokenizer", "none")
GATEWAY = (*PLAIN, "--gateway-bind", "127.0.0.1:0")
GLOBAL = ("--global", "http://127.0.0.1:9", "--tokenizer", "none")

# Metrics without a value before an engine has loaded or pulled something: test_pulls.py reads them.
LEARNT = {f"kvatlas_router_transfer_{name}" for name in ("floor_seconds", "seconds_per_token", "out_seconds")}


def described(router: Router) -> dict[str, set[str]]:
    """The names of a router's metrics, as Prometheus has them, with their labels."""
    status, text = router.get("/metrics")
    assert status == 200
    lines = text.decode().splitlines()
    kinds = dict(line.split()[2:4] for line in lines if line.startswith("# TYPE "))
    assert {line.split()[2] for line in lines if line.startswith("# HELP ")} == set(kinds)
    found = {}
    for name, kind in kinds.items():
        if name.startswith("process_"):
            continue
        whole = name + ("_total" if kind == "counter" else "")
        series = [line for line in lines if re.match(rf"{name}(_total|_bucket|_sum|_count)?[{{ ]", line)]
        assert series or name in LEARNT, name
        found[whole] = {label for line in series for label in re.findall(r'[{,](\w+)="', line)} - {"le"}
    return found


def test_the_format_is_the_one_that_was_asked_for(engine: Engine) -> None:
    with Router(engine, flags=PLAIN) as router:

        def scraped(accept: str | None) -> tuple[str, str]:
            connection = http.client.HTTPConnection("127.0.0.1", router.port, timeout=60)
            try:
                connection.request("GET", "/metrics", headers={} if accept is None else {"accept": accept})
                answer = connection.getresponse()
                return answer.headers["content-type"].partition(";")[0], answer.read().decode()
            finally:
                connection.close()

        for accept in (None, "*/*", "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"):
            kind, text = scraped(accept)
            assert kind == "application/openmetrics-text"
            assert "# TYPE kvatlas_router_requests counter\n" in text
            assert text.endswith("# EOF\n")
        kind, text = scraped("text/plain;version=0.0.4;q=0.5,*/*;q=0.1")
        assert kind == "text/plain"
        assert "# EOF" not in text
        kinds = dict(line.split()[2:4] for line in text.splitlines() if line.startswith("# TYPE "))
        samples = {re.split("[{ ]", line)[0] for line in text.splitlines() if not line.startswith("#")}
        assert {re.sub("_(bucket|sum|count)$", "", name) for name in samples} == set(kinds) - LEARNT
