"""`kvatlas plan`."""

import json
from pathlib import Path

import pytest
from tests.support.command import Run

SMALL = ("--requests", 60, "--engines", 2, "--block-size", 128)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    rows = [
        {"timestamp": 3_000 * n, "input_length": 1_500, "output_length": 4, "hash_ids": [1, n % 5 + 10, n % 5 + 20]}
        for n in range(40)
    ]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path / "t.jsonl"


def test_a_plan_of_a_trace(run: Run, trace: Path, tmp_path: Path) -> None:
    done = run("plan", trace, *SMALL, "--plot", "p.png", "--json", "p.json", "--host-tokens", 100_000)
    assert done.returncode == 0, done.stderr
    for word in ("as it is", "twice the cache", "3 engines", "limits this fleet", "A host tier of 100 k tokens"):
        assert word in " ".join(done.stdout.split())
    assert done.stderr == "Wrote p.png.\nWrote p.json.\n"
    data = json.loads((tmp_path / "p.json").read_text())
    assert data["variants"][0]["name"] == "as it is"


def test_quick_simulates_nothing(run: Run, trace: Path) -> None:
    done = run("plan", trace, *SMALL, "--quick", "--json", "-")
    assert json.loads(done.stdout)["variants"] == []
    assert "one cache finds" in done.stderr


def test_a_routers_record(run: Run, tmp_path: Path) -> None:
    rows = [
        {"t": n, "id": n, "model": "m", "tokens": 64, "block_size": 16, "hashes": ["a", "b", "c", f"{n:x}"]}
        | {"worker": f"w{n % 2}", "cached": None, "output": 3, "first_token": 0.1}
        for n in range(30)
    ]
    (tmp_path / "r.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = run("plan", "--decisions", "r.jsonl", "--json", "-")
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)
    assert (data["trace"], data["requests"], data["engines"]) == ("r.jsonl", 30, 2)
    assert data["hit_rate_without_limit"] == pytest.approx(29 * 48 / (30 * 64))


def test_a_workload_and_policies_to_compare(run: Run) -> None:
    done = run("plan", "--workload", "chat", *SMALL, "--policy", "kvatlas", "--policy", "least-loaded")
    assert done.returncode == 0, done.stderr
    assert "policy least-loaded" in done.stdout


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ((), "Give a TRACE, --workload NAME, --decisions FILE or --router URL."),
        (("t.jsonl", "--workload", "chat"), "mutually exclusive"),
        (("t.jsonl", "--policy", "best"), "best"),
        (("t.jsonl", "--plot", "p.gif"), "must end in .png, .svg or .html"),
        (("t.jsonl", "--plot", "no/p.png"), "there is no directory"),
        (("t.jsonl", "--json", "t.jsonl"), "would be overwritten"),
        (("t.jsonl", "--host-tokens", "-1"), "'--host-tokens'"),
        (("none.jsonl",), "cannot read none.jsonl"),
        (("t.jsonl", "--target", "p99>2s"), "p99 is a time that should be low"),
        (("t.jsonl", "--price", "3"), "--price needs --target"),
        (("t.jsonl", "--target", "p99<2s", "--plot", "p.png"), "--plot does not apply to --target"),
        (("t.jsonl", "--loop", "closed"), "only the open loop can replay it"),
    ],
)
def test_wrong_flags_are_refused(run: Run, trace: Path, flags: tuple[str, ...], message: str) -> None:
    done = run("plan", *flags)
    assert done.returncode == 2
    assert message in " ".join(done.stderr.split())


def test_a_target_and_a_price(run: Run, trace: Path, tmp_path: Path) -> None:
    flags = ("--policy", "kvatlas", "--policy", "round-robin", "--target", "p99<5s", "--price", 3, "--json", "p.json")
    done = run("plan", trace, *SMALL, *flags)
    assert done.returncode == 0, done.stderr
    assert "kvatlas needs 1 engine for p99 < 5.00 s." in " ".join(done.stdout.split())
    data = json.loads((tmp_path / "p.json").read_text())
    assert [one["engines"] for one in data["policies"]] == [1, 1]
    assert data["policies"][0]["price_per_hour"] == 3.0


def test_a_range_of_a_policys_option(run: Run, trace: Path) -> None:
    for command, flags in (("plan", ("--target", "p99<5s")), ("replay", ())):
        done = run(
            command, trace, *SMALL, "--policy", "kvatlas", "--policy-option", "hold=0..1:1", *flags, "--json", "-"
        )
        assert done.returncode == 0, done.stderr
        rows = json.loads(done.stdout)["policies"]
        assert [row["policy"] for row in rows] == ["kvatlas hold=0", "kvatlas hold=1"]


@pytest.mark.parametrize("command", ["plan", "replay", "demo"])
def test_an_unknown_option_of_a_policy_is_refused(run: Run, command: str) -> None:
    done = run(command, *(("--workload", "chat") if command != "demo" else ()), "--policy-option", "nope=1")
    assert done.returncode == 2
    assert 'has no option "nope"' in " ".join(done.stderr.split())
