"""`kvatlas simulate`: a fleet of simulated engines that serve over HTTP and publish over ZMQ."""

from __future__ import annotations

import json
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kvatlas._tables import make_table
from kvatlas.cli.console import console, exit_status
from kvatlas.cli.engine_options import (
    POSITIVE,
    cache_option,
    engine_config,
    engines_option,
    request_rate_option,
    seed_option,
    speed_options,
)
from kvatlas.sim.engine import EngineConfig

if TYPE_CHECKING:
    from kvatlas.sim.server import Fleet

_CONFIG = EngineConfig()
_CHANCE = click.FloatRange(0, 1)
_SECONDS = click.FloatRange(0, 3600)
_PORT = click.IntRange(0, 65_535)
_SHOWN = 20  # engines in the table

# What goes wrong: flag, what it means.
_CHANCES = {
    "drop": "Chance that a batch is not sent live.",
    "duplicate": "Chance that a batch is sent twice.",
    "reorder": "Chance that a batch is sent after the one that follows it.",
    "delay": "Chance that a batch waits before it is sent, and those behind it too.",
    "poison-event": "Chance that a batch has an event that cannot be decoded.",
    "poison-type": "Chance that a batch has an event of an unknown type.",
    "poison-payload": "Chance that a message that is no batch follows a batch.",
    "restart": "Chance, at each batch, that the engine begins again.",
    "pause": "Chance, at each batch, that the engine hangs for a while.",
}


def _faults(command: Callable[..., None]) -> Callable[..., None]:
    """The options for what goes wrong."""
    command = click.option(
        "--replay-socket-fault",
        type=click.Choice(["closed", "silent"]),
        help="The replay socket is closed, or does not answer.",
    )(command)
    for name, default, text in (("pause", 1.0, "How long a pause is."), ("delay", 0.2, "How long a delay is at most.")):
        command = click.option(f"--{name}-seconds", type=_SECONDS, default=default, show_default=True, help=text)(
            command
        )
    for name, text in reversed(_CHANCES.items()):
        command = click.option(f"--{name}", type=_CHANCE, default=0.0, metavar="CHANCE", help=text)(command)
    return command


@click.command(short_help="Run simulated engines that serve and publish as real ones do.")
@engines_option(2, 10_000)
@click.option("--processes", type=click.IntRange(1), help="Processes that they share.  [default: one each, up to 16]")
@click.option(
    "--dialect",
    type=click.Choice(["vllm", "sglang"]),
    default="vllm",
    show_default=True,
    help="Whose words they speak.",
)
@click.option("--arrays", is_flag=True, help="Events as positional arrays, as engines had them before mid-2026.")
@click.option("--hash-bytes", is_flag=True, help="Block hashes as whole digests instead of integers (vllm only).")
@click.option("--hash-seed", metavar="TEXT", help="Name blocks as engines with this PYTHONHASHSEED do.")
@click.option("--own-names", is_flag=True, help="Every engine names blocks in its own way.")
@click.option("--model", default="sim-model", show_default=True, metavar="NAME", help="The model they say they serve.")
@click.option("--lora", "loras", multiple=True, metavar="NAME", help="An adapter they serve too. Repeat for several.")
@click.option(
    "--ranks", type=click.IntRange(1, 1024), default=1, show_default=True, help="Data-parallel ranks of each."
)
@cache_option
@click.option(
    "--block-size", type=click.IntRange(1), default=_CONFIG.block_size, show_default=True, help="Tokens in a block."
)
@speed_options
@click.option(
    "--speed", type=POSITIVE, default=1.0, show_default=True, help="Run the engines' clocks so many times as fast."
)
@click.option("--host", default="127.0.0.1", show_default=True, metavar="ADDRESS", help="The address to bind.")
@click.option(
    "--http-port", type=_PORT, default=0, help="Of the first engine; the others follow.  [default: free ones]"
)
@click.option(
    "--events-port", type=_PORT, default=0, help="Of the first stream; the others follow.  [default: free ones]"
)
@click.option("--topic", default="", metavar="TEXT", help="Topic of the live streams.  [default: none]")
@click.option(
    "--buffer-steps", type=click.IntRange(1), default=10_000, show_default=True, help="Batches kept for replays."
)
@click.option(
    "--replay-socket",
    type=click.Choice(["current", "old", "none"]),
    default="current",
    show_default=True,
    help="old: its replies have no topic frame, as before mid-2026; none: there is none, and engines say so.",
)
@click.option("--trace", type=click.Path(path_type=Path), metavar="FILE", help="Send themselves this trace, in turns.")
@click.option("--skip-bad", is_flag=True, help="Leave out malformed lines of the trace.")
@request_rate_option("Send themselves generated requests: so many a second, all engines together.")
@click.option("--idle", is_flag=True, help="Send themselves nothing.  [default]")
@_faults
@seed_option
@click.option("--json", "as_json", is_flag=True, help="Print where they are as one line of JSON instead of a table.")
@click.option(
    "--engines-file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write their URLs for `kvatlas serve --engines-file`.",
)
@exit_status
def simulate(**options: Any) -> None:
    """Run a fleet of simulated engines, until Ctrl-C.

    Each serves OpenAI's completions and chat, the engine's own discovery and metrics, and publishes the events of its
    KV cache over ZMQ with replays, in the words of vLLM or SGLang. The cache works exactly as vLLM manages it; time is
    a plain model (see `kvatlas replay --help`); answers are made-up letters.

    What goes wrong is told by chances here, or while they run by POST /sim/faults to an engine's URL.

    Exit status: 0 after Ctrl-C or SIGTERM; 1 if an engine ended by itself; 2 if something given cannot be used.
    """
    fleet = _fleet(options)
    with _stop_signals() as stop, fleet:
        if (path := options["engines_file"]) is not None:
            fleet.write_engines_file(path)
        _show(fleet, as_json=options["as_json"])
        while not stop.wait(0.5):
            if fleet.dead:
                names = ", ".join(engine.name for engine in fleet.dead[:5])
                click.echo(f"Error: {names} ended; all others are stopped.", err=True)
                sys.exit(1)


def _fleet(options: dict[str, Any]) -> Fleet:
    # Here, not above: the rest of the command line works without what these need.
    from kvatlas.sim.server import Faults, Fleet, ServerConfig, TrafficConfig  # noqa: PLC0415

    _check(options)
    traffic = None
    if options["trace"] is not None:
        traffic = TrafficConfig(trace=str(options["trace"]), skip_bad=options["skip_bad"], seed=options["seed"])
        traffic.read()  # a trace that cannot be read is better told before anything starts
    elif options["request_rate"] is not None:
        traffic = TrafficConfig(request_rate=options["request_rate"], seed=options["seed"])
    config = ServerConfig(
        dialect=options["dialect"],
        arrays=options["arrays"],
        hash_bytes=options["hash_bytes"],
        hash_seed=options["hash_seed"],
        engine=engine_config(options),
        speed=options["speed"],
        ranks=options["ranks"],
        model=options["model"],
        loras=tuple(dict.fromkeys(options["loras"])),
        host=options["host"],
        topic=options["topic"],
        buffer_steps=options["buffer_steps"],
        replay_socket=options["replay_socket"],
        faults=Faults(
            **{name.replace("-", "_"): options[name.replace("-", "_")] for name in _CHANCES},
            delay_seconds=options["delay_seconds"],
            pause_seconds=options["pause_seconds"],
            replay_socket=options["replay_socket_fault"] or "on",
        ),
        seed=options["seed"],
    )
    return Fleet(
        options["engines"],
        config,
        processes=options["processes"] or min(options["engines"], 16),
        http_port=options["http_port"],
        events_port=options["events_port"],
        own_names=options["own_names"],
        traffic=traffic,
    )


def _check(options: dict[str, Any]) -> None:
    """Refuse what contradicts itself."""
    feeding = [flag for flag in ("trace", "request_rate", "idle") if options[flag]]
    if len(feeding) > 1:
        first, second = (f"--{flag.replace('_', '-')}" for flag in feeding[:2])
        raise click.UsageError(f"{first} and {second} contradict each other: leave one out.")
    if options["skip_bad"] and options["trace"] is None:
        raise click.UsageError("--skip-bad is for traces: name one by --trace.")
    if options["hash_bytes"] and options["dialect"] != "vllm":
        raise click.UsageError("--hash-bytes goes with --dialect vllm only: SGLang always sends integers.")
    if options["replay_socket"] == "none" and options["replay_socket_fault"]:
        raise click.UsageError("--replay-socket none has no socket for --replay-socket-fault: leave one out.")
    if (processes := options["processes"]) is not None and processes > options["engines"]:
        raise click.UsageError(
            f"--processes {processes} is more than --engines {options['engines']}: one an engine is most."
        )
    if (file := options["engines_file"]) is not None:
        if file.is_dir():
            raise click.UsageError(f"Cannot write {file}: it is a directory.")
        if not file.absolute().parent.is_dir():
            raise click.UsageError(f"Cannot write {file}: there is no directory {file.absolute().parent}.")


def _show(fleet: Fleet, *, as_json: bool) -> None:
    if as_json:
        rows = [
            {
                "name": engine.name,
                "url": engine.url,
                "pid": engine.pid,
                "endpoints": [engine.endpoint(rank) for rank in range(engine.config.ranks)],
                "replay_endpoints": [engine.replay_endpoint(rank) for rank in range(engine.config.ranks)],
            }
            for engine in fleet.engines
        ]
        click.echo(json.dumps({"engines": rows}))
        sys.stdout.flush()
        return
    shown = []
    for engine in fleet.engines[:_SHOWN]:
        last = engine.config.ranks - 1
        more = f" to :{engine.config.events_port + last}" if last else ""
        replays = engine.replay_endpoint() or "none"
        if last and engine.replay_endpoint():
            replays += f" to :{engine.config.replay_port + last}"
        shown.append((engine.name, engine.url, engine.endpoint() + more, replays))
    out = console()
    out.print(make_table(("engine", "URL", "events", "replay socket"), shown, out.width, left=range(4), wrap=(2, 3)))
    if len(fleet) > _SHOWN:
        out.print(f"and {len(fleet) - _SHOWN:,} more (--json or --engines-file tell all of them).")
    out.print("Serving until Ctrl-C.")


@contextmanager
def _stop_signals() -> Iterator[threading.Event]:
    """Within, SIGINT and SIGTERM set the event."""
    stop = threading.Event()
    before = {number: signal.signal(number, lambda *_: stop.set()) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
