"""What `/metrics` says is what docs/reference/router-metrics.md says of it."""

import re
from pathlib import Path

from .engines import Engine
from .running import PLAIN, Router, wait_until

PAGE = Path(__file__).resolve().parents[2] / "docs/reference/router-metrics.md"


def test_each_metric_is_on_its_page_and_the_other_way_round(engine: Engine, tmp_path: Path) -> None:
    # With a record of decisions, and others elsewhere that need not be there: all that has its own metrics.
    record = ("--record", str(tmp_path / "decisions"))
    served: dict[str, set[str]] = {}
    for flags in ((*PLAIN, *record), REMOTE, GLOBAL):
        with Router(engine, flags=flags) as router:
            assert router.ask().status == 200
            wait_until(lambda router=router: router.in_flight() == 0, "all of it is counted")  # type: ignore[misc]
            served |= described(router)
    page = PAGE.read_text(encoding="utf-8")
    told = {
        name: {label.strip() for label in labels.split(",") if label.strip()}
        for name, labels in re.findall(r"^\| `(kvatlas_router_[a-z_]+)` \|([^|]*)\|", page, re.MULTILINE)
    }
    assert told == served


# Nobody listens at port 9: such a router decides without knowledge.
REMOTE = ("--index", "http://127.0.0.1:9", "--peer", "http://127.0.0.1:9", "--tokenizer", "none")
GLOBAL = ("--global", "http://127.0.0.1:9", "--tokenizer", "none")


def described(router: Router) -> dict[str, set[str]]:
    """The names of a router's metrics, as Prometheus has them, with their labels."""
    status, text = router.get("/metrics")
    assert status == 200
    lines = text.decode().splitlines()
    kinds = dict(line.split()[2:4] for line in lines if line.startswith("# TYPE "))
    assert {line.split()[2] for line in lines if line.startswith("# HELP ")} == set(kinds)
    found = {}
    for name, kind in kinds.items():
        whole = name + ("_total" if kind == "counter" else "")
        series = [line for line in lines if re.match(rf"{name}(_total|_bucket|_sum|_count)?[{{ ]", line)]
        assert series, name
        found[whole] = {label for line in series for label in re.findall(r'[{,](\w+)="', line)} - {"le"}
    return found
