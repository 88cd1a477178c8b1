"""`kvatlas simulate`: a fleet of simulated engines that serve HTTP and publish events over ZMQ."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kvatlas._signals import stop_signals
from kvatlas._tables import make_table
from kvatlas.cli import INTERRUPTED
from kvatlas.cli.console import console, exit_status
from kvatlas.cli.engine_options import (
    POSITIVE,
    cache_option,
    engine_config,
    engines_option,
    host_tier_options,
    request_rate_option,
    seed_option,
    speed_options,
    tier_config,
    time_unit_option,
)
from kvatlas.cli.standard_input import as_file
from kvatlas.sim.loop import LOOPS
from kvatlas.sim.scheduler import EngineConfig

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
    "reorder": "Chance that a batch is sent after its successor.",
    "delay": "Chance that a batch is delayed, along with those behind it.",
    "truncate": "Chance that only the beginning of a batch is sent live.",
    "stray": "Chance that a batch is followed by one from another publisher.",
    "corrupt": "Chance that only the beginning of a batch is published, in replays too.",
    "poison-event": "Chance that a batch contains an event that cannot be decoded.",
    "poison-type": "Chance that a batch contains an event of an unknown type.",
    "poison-payload": "Chance that a batch is followed by a message that is not a batch.",
    "restart": "Chance, at each batch, that the engine restarts.",
    "pause": "Chance, at each batch, that the engine hangs for a while.",
    "http-refuse": "Chance that a request is answered 503 with Retry-After.",
    "http-hang": "Chance that a request is never answered.",
    "http-die-before": "Chance that the connection is cut before the answer.",
    "http-die-after": "Chance that the connection is cut in the middle of the answer.",
    "http-garbage": "Chance that the answer is not HTTP.",
    "http-slow": "Chance that the answer comes in small pieces, 50 ms apart.",
}


def _faults(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that inject faults to a command."""
    command = click.option(
        "--replay-socket-fault",
        type=click.Choice(["closed", "silent", "slow"]),
        help="Break the replay socket: closed, open but silent, or one batch every 0.1 s.",
    )(command)
    for name, default, text in (("pause", 1.0, "Length of a pause."), ("delay", 0.2, "Longest delay.")):
        command = click.option(f"--{name}-seconds", type=_SECONDS, default=default, show_default=True, help=text)(
            command
        )
    for name, text in reversed(_CHANCES.items()):
        command = click.option(f"--{name}", type=_CHANCE, default=0.0, metavar="CHANCE", help=text)(command)
    return command


@click.command(short_help="Run simulated engines that serve and publish like real ones.")
@engines_option(2, 10_000)
@click.option(
    "--processes", type=click.IntRange(1), help="Processes to spread the engines over.  [default: one each, up to 16]"
)
@click.option(
    "--dialect",
    type=click.Choice(["vllm", "sglang"]),
    default="vllm",
    show_default=True,
    help="Engine to imitate.",
)
@click.option("--arrays", is_flag=True, help="Encode events as positional arrays, as engines did before mid-2026.")
@click.option("--hash-bytes", is_flag=True, help="Send block hashes as whole digests instead of integers (vllm only).")
@click.option(
    "--hash-algorithm",
    type=click.Choice(["sha256", "sha256_cbor"]),
    default="sha256_cbor",
    show_default=True,
    help="Compute block hashes by this algorithm of vLLM's (vllm only).",
)
@click.option("--hash-seed", metavar="TEXT", help="Compute block hashes like engines with this PYTHONHASHSEED.")
@click.option("--own-names", is_flag=True, help="Give each engine its own block hashes, as with random hash seeds.")
@click.option(
    "--model", default="sim-model", show_default=True, metavar="NAME", help="Model name that the engines report."
)
@click.option(
    "--lora", "loras", multiple=True, metavar="NAME", help="LoRA adapter that the engines also serve. Repeatable."
)
@cache_option
@click.option(
    "--ranks", type=click.IntRange(1, 1024), default=1, show_default=True, help="Data-parallel ranks per engine."
)
@click.option(
    "--block-size", type=click.IntRange(1), default=_CONFIG.block_size, show_default=True, help="Tokens per block."
)
@speed_options
@host_tier_options
@click.option(
    "--pool-folder",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Share a pool between the engines: a folder, a file for each chunk (vllm only).",
)
@click.option(
    "--placeholders",
    is_flag=True,
    help="Announce offloaded blocks by name only, as vLLM does without self_describing_kv_events.",
)
@click.option(
    "--role",
    type=click.Choice(["both", "prefill", "decode"]),
    default="both",
    show_default=True,
    help="prefill: only compute prompts for other engines. decode: only answer prompts computed elsewhere.",
)
@click.option("--speed", type=POSITIVE, default=1.0, show_default=True, help="Speed factor of the engines' clocks.")
@click.option("--host", default="127.0.0.1", show_default=True, metavar="ADDRESS", help="Address to bind.")
@click.option(
    "--http-port",
    type=_PORT,
    default=0,
    help="HTTP port of the first engine; the others follow.  [default: free ports]",
)
@click.option(
    "--events-port",
    type=_PORT,
    default=0,
    help="Events port of the first stream; the others follow.  [default: free ports]",
)
@click.option("--topic", default="", metavar="TEXT", help="Topic of the event streams.  [default: none]")
@click.option(
    "--buffer-steps",
    type=click.IntRange(1),
    default=10_000,
    show_default=True,
    help="Number of batches kept for replays.",
)
@click.option(
    "--replay-socket",
    type=click.Choice(["current", "old", "none"]),
    default="current",
    show_default=True,
    help="Replay sockets: `old` ones answer without a topic frame, as before mid-2026; `none` runs without any.",
)
@click.option(
    "--trace",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Send the requests of this trace to the engines in turn; - for standard input.",
)
@click.option(
    "--loop",
    type=click.Choice(LOOPS),
    help="When requests of the trace are sent: at its times (open), or when those they wait for have ended, plus their "
    "pause (closed).  [default: closed if the trace says which requests wait for which]",
)
@time_unit_option
@click.option("--skip-bad", is_flag=True, help="Skip malformed lines of the trace.")
@request_rate_option("Send generated requests to the fleet: this many per second in total.")
@click.option("--idle", is_flag=True, help="Send no requests.  [default]")
@_faults
@seed_option
@click.option("--json", "as_json", is_flag=True, help="Print the addresses as one line of JSON instead of a table.")
@click.option(
    "--engines-file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write the engines' URLs to FILE, for `kvatlas serve --engines-file` and `kvatlas router --engines-file`.",
)
@click.option(
    "--tokenizer-dir",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Write the engines' tokenizer and chat template to DIR, for `kvatlas router --tokenizer`.",
)
@exit_status
def simulate(**options: Any) -> None:
    """Run a fleet of simulated engines until Ctrl-C.

    Each engine serves OpenAI completions and chat, and the discovery and metrics endpoints of vLLM or SGLang. It
    publishes its KV events over ZMQ, with replays, in the same wire format. The cache behaves exactly like vLLM's. The
    time to first token is the wait in the queue, plus the uncached tokens divided by --prefill-rate. The generated text
    is a placeholder.

    Inject faults with the CHANCE options, or at run time by POST /sim/faults to an engine's URL.

    Exit status: 0 after SIGTERM; 1 if an engine exited by itself; 2 if an argument is invalid; 130 after Ctrl-C.
    """
    _check(options)
    if options["trace"] is None:
        _run(options)
        return
    with as_file(options["trace"]) as trace:
        _run(options | {"trace": trace})


def _run(options: dict[str, Any]) -> None:
    fleet = _fleet(options)
    if (folder := options["tokenizer_dir"]) is not None:
        _write_tokenizer(folder)
    with stop_signals() as stop, fleet:
        if (path := options["engines_file"]) is not None:
            fleet.write_engines_file(path)
        _show(fleet, as_json=options["as_json"])
        while not stop.wait(0.5):
            if fleet.dead:
                names = ", ".join(engine.name for engine in fleet.dead[:5])
                click.echo(f"Error: {names} exited; stopping all others.", err=True)
                sys.exit(1)
    if stop.number == signal.SIGINT:
        sys.exit(INTERRUPTED)


def _fleet(options: dict[str, Any]) -> Fleet:
    # Here, not above: the rest of the command line works without what these need.
    from kvatlas.sim.server import Faults, Fleet, ServerConfig, TrafficConfig  # noqa: PLC0415

    traffic = None
    if options["trace"] is not None:
        traffic = TrafficConfig(
            trace=str(options["trace"]),
            loop=options["loop"],
            unit=options["time_unit"],
            skip_bad=options["skip_bad"],
            seed=options["seed"],
        )
        traffic.read()  # report an unreadable trace before anything starts
    elif options["request_rate"] is not None:
        traffic = TrafficConfig(request_rate=options["request_rate"], seed=options["seed"])
    config = ServerConfig(
        dialect=options["dialect"],
        arrays=options["arrays"],
        hash_bytes=options["hash_bytes"],
        hash_algorithm=options["hash_algorithm"],
        hash_seed=options["hash_seed"],
        engine=engine_config(options),
        tiers=tier_config(options),
        pool_folder=str(options["pool_folder"].absolute()) if options["pool_folder"] is not None else "",
        describes=not options["placeholders"],
        speed=options["speed"],
        ranks=options["ranks"],
        model=options["model"],
        loras=tuple(dict.fromkeys(options["loras"])),
        host=options["host"],
        topic=options["topic"],
        buffer_steps=options["buffer_steps"],
        replay_socket=options["replay_socket"],
        role=options["role"],
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


def _write_tokenizer(folder: Path) -> None:
    from kvatlas.sim.server import write_tokenizer  # noqa: PLC0415 - see _fleet

    write_tokenizer(folder)


def _check(options: dict[str, Any]) -> None:
    """Refuse contradictory options."""
    feeding = [flag for flag in ("trace", "request_rate", "idle") if options[flag]]
    if len(feeding) > 1:
        first, second = (f"--{flag.replace('_', '-')}" for flag in feeding[:2])
        raise click.UsageError(f"{first} and {second} are mutually exclusive.")
    for flag in ("loop", "time_unit", "skip_bad"):
        if options[flag] and options["trace"] is None:
            raise click.UsageError(f"--{flag.replace('_', '-')} requires --trace.")
    if options["hash_bytes"] and options["dialect"] != "vllm":
        raise click.UsageError("--hash-bytes requires --dialect vllm: SGLang always sends integers.")
    if options["replay_socket"] == "none" and options["replay_socket_fault"]:
        raise click.UsageError("--replay-socket none and --replay-socket-fault are mutually exclusive.")
    if (processes := options["processes"]) is not None and processes > options["engines"]:
        raise click.UsageError(
            f"--processes {processes} is more than --engines {options['engines']}: use at most one process per engine."
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
                "pull_endpoint": engine.pull_endpoint(),
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
        out.print(f"and {len(fleet) - _SHOWN:,} more (--json or --engines-file list all of them).")
    out.print("Serving until Ctrl-C.")
