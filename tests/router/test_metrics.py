"""What `/metrics` says is what docs/reference/router-metrics.md says of it."""

import re
from pathlib import Path

from .engines import Engine
from .running import PLAIN, Router

PAGE = Path(__file__).resolve().parents[2] / "docs/reference/router-metrics.md"


def test_each_metric_is_on_its_page_and_the_other_way_round(engine: Engine, tmp_path: Path) -> None:
    # With a record of decisions, an index and a router elsewhere that need not be there: all that has its own metrics.
    record = ("--record", str(tmp_path / "decisions"))
    with Router(engine, flags=(*PLAIN, *record)) as recording, Router(engine, flags=REMOTE) as asking:
        assert recording.ask().status == 200
        assert asking.ask().status == 200
        served = described(recording) | described(asking)
    page = PAGE.read_text(encoding="utf-8")
    told = {
        name: {label.strip() for label in labels.split(",") if label.strip()}
        for name, labels in re.findall(r"^\| `(kvatlas_router_[a-z_]+)` \|([^|]*)\|", page, re.MULTILINE)
    }
    assert told == served


# Nobody listens at port 9: such a router decides without knowledge.
REMOTE = ("--index", "http://127.0.0.1:9", "--peer", "http://127.0.0.1:9", "--tokenizer", "none")


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
