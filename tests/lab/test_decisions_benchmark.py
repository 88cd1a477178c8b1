"""The cells of the comparison of routing policies."""

from __future__ import annotations

from dataclasses import asdict

import pytest
from benchmarks.decisions import plan
from benchmarks.decisions.__main__ import matrix
from benchmarks.decisions.cells import Cell, run, workload_name
from benchmarks.decisions.report import tables

from kvatlas.errors import ConfigError


def test_the_overload_is_code_generation_with_more_clients() -> None:
    plain, overload = matrix(("code-generation", "code-generation-100"), (plan.OURS,), None, 7)
    assert (plain.workload, plain.clients, overload.workload, overload.clients) == (
        "code-generation",
        None,
        "code-generation",
        100,
    )
    assert plain.key != overload.key
    assert overload.key.startswith("code-generation-100.kvatlas.")


def test_the_number_of_clients_applies_to_workloads_that_have_clients() -> None:
    cells = matrix(("code-generation", "code-generation-100", "chat"), (plan.OURS,), None, 7, clients=5)
    assert [(cell.workload, cell.clients) for cell in cells] == [("code-generation", 5), ("chat", None)]


def test_each_number_of_clients_has_a_table_of_its_own() -> None:
    found = [run(Cell("code-generation", "random", requests=12, engines=2, clients=n)) for n in (2, 3)]
    text = tables(found, {})
    assert "`code-generation-2`" in text
    assert "`code-generation-3`" in text
    assert found[0]["rate"] < found[1]["rate"]


def test_a_workload_without_clients_refuses_a_number_of_them() -> None:
    with pytest.raises(ConfigError, match="has no clients"):
        run(Cell("chat", "random", clients=3))


def test_cells_of_earlier_runs_keep_their_name() -> None:
    assert workload_name({"workload": "chat"}) == "chat"


def test_workloads_on_few_engines_have_small_blocks_and_a_name_of_their_own() -> None:
    (cell,) = matrix(("rollouts, 4 engines",), (plan.OURS,), None, 7, routers=5)
    assert (cell.workload, cell.engines, cell.block, cell.routers) == ("rollouts", 4, 64, 5)
    assert workload_name(asdict(cell)) == "rollouts, 4 engines, 5 routers"
    assert cell.key.startswith("rollouts-4-engines-5-routers.kvatlas.")
