"""`kvatlas decode`: print the events that an engine has published, for people or for tools."""

from __future__ import annotations

import base64
import binascii
import gzip
import json
import struct
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kvatlas.cli import INTERRUPTED
from kvatlas.cli.console import Interrupt, on_interrupt
from kvatlas.cli.relayed import MAGIC, decode_message
from kvatlas.errors import DecodeError
from kvatlas.wire import Batch, Cleared, Event, Removed, Stored, decode_batch

if TYPE_CHECKING:
    import zmq

_SCHEMES = ("tcp://", "ipc://")
_GZIP = b"\x1f\x8b"
_END = b"\xff" * 8  # the sequence number that ends a replay
_SHOWN = 4  # names of blocks shown to people
_POLL_MS = 100
_REPLAY_SECONDS = 3.0
_QUIET_SECONDS = 5.0  # seconds before a hint that no events come


def _failed(message: str) -> click.ClickException:
    error = click.ClickException(message)
    vars(error)["exit_code"] = 2  # this one's own
    return error


@dataclass(frozen=True, slots=True)
class _Message:
    payload: bytes
    seq: int = -1  # there is none
    topic: str = ""


@click.command(short_help="Print the KV events that an engine publishes.")
@click.argument("source", default="-", metavar="[FILE|-|ENDPOINT]")
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON per batch.")
@click.option("--tokens", is_flag=True, help="Print token ids instead of their number.")
@click.option("--salts", is_flag=True, help="Print cache salts instead of just marking salted blocks.")
@click.option("--count", type=click.IntRange(1), metavar="N", help="Stop after N batches.")
@click.option(
    "--topic", default="", metavar="PREFIX", help="With an endpoint: print only topics that start with PREFIX."
)
@click.option(
    "--replay-endpoint",
    metavar="ENDPOINT",
    help="Replay socket. First print the batches that the engine still has buffered.",
)
def decode(
    source: str, as_json: bool, tokens: bool, salts: bool, count: int | None, topic: str, replay_endpoint: str | None
) -> None:
    """Print the KV events that an engine publishes, or a message of a relay.

    The source is a file, standard input (-), or a live ENDPOINT such as tcp://host:5557. A file or standard input holds
    either one payload (raw, hexadecimal or base64) or a recording: JSON lines, optionally gzipped, whose objects of
    type "frames" have three base64 frames each.

    Exit status: 0; 1 if a message was not a valid batch; 2 if there was nothing to read or an argument is invalid; 130
    after Ctrl-C.
    """
    live = source.startswith(_SCHEMES)
    if not live and "://" in source:
        raise click.UsageError(f"{source!r} is not an endpoint: use tcp://HOST:PORT or ipc://PATH.")
    if not live and (replay_endpoint or topic):
        raise click.UsageError("--replay-endpoint and --topic require an endpoint, such as tcp://host:5557.")
    if replay_endpoint and not replay_endpoint.startswith(_SCHEMES):
        raise click.BadParameter(
            f"{replay_endpoint!r} is not of the form tcp://host:port.", param_hint="--replay-endpoint"
        )
    show = _json_line if as_json else _lines
    done = wrong = 0
    with on_interrupt() as interrupt:
        messages = _subscribe(source, topic, replay_endpoint, interrupt) if live else _read(source, interrupt)
        for message in messages:
            try:
                if message.payload[:1] == bytes([MAGIC]):
                    shown = _relayed(decode_message(message.payload), as_json)
                else:
                    shown = show(message, decode_batch(message.payload), tokens, salts)
            except DecodeError as error:
                wrong += 1
                where = "" if message.seq < 0 else f"batch {message.seq}: "
                click.echo(f"{where}{error}", err=True)
            else:
                click.echo(shown)
            done += 1
            if done == count or interrupt.pressed:
                break
        if interrupt.pressed:
            sys.exit(INTERRUPTED)
    if not done:
        raise _failed(f"{source}: it contains no batches")
    if wrong:
        sys.exit(1)


def _read(source: str, interrupt: Interrupt) -> Iterator[_Message]:
    name = "standard input" if source == "-" else source
    try:
        with interrupt.at_once():  # a person who types the input sees no output until its end
            data = sys.stdin.buffer.read() if source == "-" else Path(source).read_bytes()
        if data.startswith(_GZIP):
            data = gzip.decompress(data)
    except (OSError, EOFError, zlib.error) as error:
        raise _failed(f"cannot read {name}: {getattr(error, 'strerror', None) or error}") from error
    if not data.strip():
        raise _failed(f"{name} is empty")
    if data.lstrip().startswith(b"{"):
        yield from _recording(name, data)
    else:
        yield _Message(_payload(name, data))


def _payload(name: str, data: bytes) -> bytes:
    """The bytes of a payload given as bytes, hexadecimal or base64.

    Raw MessagePack begins with a byte outside ASCII, so text is hexadecimal or base64.
    """
    if data[0] >= 0x80:
        return data
    text = b"".join(data.split())
    try:
        return bytes.fromhex(text.decode("ascii").removeprefix("0x"))
    except ValueError:
        pass
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise _failed(f"{name} is neither a payload (raw, hexadecimal or base64) nor a recording") from None


def _recording(name: str, data: bytes) -> Iterator[_Message]:
    for number, line in enumerate(data.splitlines(), 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            if record["type"] not in {"frames", "reply"}:
                continue
            # A reply has an empty frame before the three.
            topic, seq, payload = (base64.b64decode(frame, validate=True) for frame in record["frames"][-3:])
            if seq == _END:
                continue
            message = _Message(payload, _number(seq), topic.decode("utf-8", "replace"))
        except (ValueError, KeyError, TypeError, struct.error) as error:
            raise _failed(f"{name}, line {number}: not a record of frames: {error}") from error
        yield message


def _number(seq: bytes) -> int:
    (number,) = struct.unpack(">Q", seq)
    return int(number)


def _subscribe(endpoint: str, topic: str, replay_endpoint: str | None, interrupt: Interrupt) -> Iterator[_Message]:
    try:
        import zmq  # noqa: PLC0415 - only this needs it
    except ModuleNotFoundError as error:
        raise _failed("reading from an endpoint needs pyzmq: pip install 'kvatlas[sim]'") from error
    with zmq.Context() as context, context.socket(zmq.SUB) as live:
        live.linger = 0
        live.rcvhwm = 0  # what is printed slowly waits here instead of being dropped
        live.subscribe(topic.encode())
        try:
            live.connect(endpoint)
        except zmq.ZMQError as error:
            raise _failed(f"cannot connect to {endpoint}: {error}") from error
        kept = -1  # the last batch that the replay had; until a later one comes, live ones may be repetitions
        if replay_endpoint:
            for message in _replay(context, replay_endpoint, interrupt):
                kept = message.seq
                if message.topic.startswith(topic):
                    yield message
        last = None if kept < 0 else kept
        quiet: float | None = time.monotonic() + _QUIET_SECONDS
        while not interrupt():
            if not live.poll(_POLL_MS):
                if quiet is not None and time.monotonic() > quiet:
                    click.echo(f"nothing received from {_named(endpoint, topic)} yet; still waiting", err=True)
                    quiet = None
                continue
            quiet = None
            frames = live.recv_multipart()
            if len(frames) != 3 or len(frames[1]) != 8:
                click.echo(
                    f"skipped a message of {len(frames)} frames: expected topic, sequence number and payload", err=True
                )
                continue
            message = _Message(frames[2], _number(frames[1]), frames[0].decode("utf-8", "replace"))
            if message.seq <= kept:
                continue
            kept = -1
            if last is not None and message.seq > last + 1:
                click.echo(f"batches {last + 1} to {message.seq - 1} are missing", err=True)
            elif last is not None and message.seq <= last:
                click.echo(f"batch {message.seq} after {last}: the engine has restarted", err=True)
            last = message.seq
            yield message


def _named(endpoint: str, topic: str) -> str:
    return f"{endpoint} under topics that begin with {topic!r}" if topic else endpoint


def _replay(context: zmq.Context[Any], endpoint: str, interrupt: Interrupt) -> Iterator[_Message]:
    """Request the messages that the engine has kept for replay, oldest first."""
    import zmq  # noqa: PLC0415 - only this needs it

    with context.socket(zmq.DEALER) as dealer:
        dealer.linger = 0
        dealer.rcvhwm = 0
        try:
            dealer.connect(endpoint)
        except zmq.ZMQError as error:
            raise _failed(f"cannot connect to {endpoint}: {error}") from error
        dealer.send_multipart([b"", struct.pack(">Q", 0)])
        deadline = time.monotonic() + _REPLAY_SECONDS
        while not interrupt():
            if dealer.poll(_POLL_MS):
                deadline = time.monotonic() + _REPLAY_SECONDS
                frames = dealer.recv_multipart()
                # Older engines leave the topic out.
                seq, payload = frames[-2:] if len(frames) >= 3 else (b"", b"")
                if seq == _END:
                    return
                if len(seq) == 8:
                    topic = frames[-3] if len(frames) > 3 else b""
                    yield _Message(payload, _number(seq), topic.decode("utf-8", "replace"))
            elif time.monotonic() > deadline:
                click.echo(f"{endpoint} did not answer completely; continuing with live events", err=True)
                return


def _relayed(message: dict[str, Any], as_json: bool) -> str:
    """A relay's message as text for people or, with `as_json`, for tools."""
    if as_json:
        return json.dumps(message)
    life, number = message["life"], message["id"]
    lines = [f"relay {life:x}  message {number}  blocks of {message['block_size']} tokens"]
    for frame in message["frames"]:
        told = "  ".join(f"{name} {value}" for name, value in frame.items() if name not in ("type", "changes"))
        lines.append(f"  {frame['type']}  {told}".rstrip())
        for change in frame.get("changes", ()):
            blocks = change.get("blocks", ())
            shown = ", ".join(map(str, blocks[:_SHOWN])) + (", ..." if len(blocks) > _SHOWN else "")
            lines.append(f"    {change['type']}  {change.get('tier', '')}  {len(blocks)} blocks: {shown}")
    return "\n".join(lines)


Show = Callable[[_Message, Batch, bool, bool], str]


def _lines(message: _Message, batch: Batch, tokens: bool, salts: bool) -> str:
    """A batch of events as text for people: a line for the batch and one for each event."""
    head = [] if message.seq < 0 else [f"batch {message.seq}"]
    head += [f"time {batch.timestamp:.6f}", f"rank {'-' if batch.rank is None else batch.rank}"]
    if message.topic:
        head.append(f"topic {_printable(message.topic)}")
    lines = ["  ".join(head)]
    lines += [f"  {_event_line(event, tokens, salts)}" for event in batch.events]
    for refused in batch.refused:
        which = f"event {refused.at}" + (f" and {refused.events - 1} more" if refused.events > 1 else "")
        lines.append(f"  refused   {which}: {refused.reason}: {_printable(refused.detail)}")
    return "\n".join(lines)


def _event_line(event: Event, tokens: bool, salts: bool) -> str:
    match event:
        case Stored():
            parts = [
                "stored   ",
                f"{_blocks(event)} of {event.block_size} tokens in {event.tier}",
                f"after {'the beginning' if event.parent is None else _name(event.parent)}:",
                _names(event.block_hashes),
            ]
            size = len(event.block_hashes) * event.block_size
            if len(event.tokens) != size:
                parts.append(f"({len(event.tokens)} tokens do not fill them)")
            if event.lora is not None or event.lora_id is not None:
                parts.append(f"lora={_printable(str(event.lora if event.lora is not None else event.lora_id))}")
            if event.salt is not None:
                parts.append(f"salt={_printable(event.salt)}" if salts else "salted")
            keyed = sum(keys is not None for keys in event.extra_keys or ())
            if keyed:
                parts.append(f"{keyed} with extra keys")
            parts += _group(event.group_idx, event.kind)
            if event.session_id is not None:
                parts.append(f"session={_printable(event.session_id)}")
            if tokens:
                parts.append(f"tokens={json.dumps(event.tokens, separators=(',', ':'))}")
            return " ".join(parts)
        case Removed():
            parts = ["removed  ", f"{_blocks(event)} from {event.tier}:", _names(event.block_hashes)]
            return " ".join(parts + _group(event.group_idx, None))
        case Cleared():
            return "cleared   all blocks of the rank"


def _blocks(event: Stored | Removed) -> str:
    count = len(event.block_hashes)
    return f"{count} block" if count == 1 else f"{count} blocks"


def _group(group: int | None, kind: str | None) -> list[str]:
    return (
        []
        if group is None and kind is None
        else [f"group_idx={'-' if group is None else group}"] + ([] if kind is None else [_printable(kind)])
    )


def _names(names: tuple[int | bytes, ...]) -> str:
    more = [f"and {len(names) - _SHOWN} more"] if len(names) > _SHOWN else []
    return ", ".join([_name(name) for name in names[:_SHOWN]] + more) or "none"


def _name(name: int | bytes) -> str:
    if isinstance(name, int):
        return str(name)
    return name.hex() if len(name) <= 8 else f"{name[:8].hex()}…"


def _printable(text: str) -> str:
    """Text without control characters, which could move a terminal's cursor."""
    return text if text.isprintable() else ascii(text)[1:-1]


def _json_line(message: _Message, batch: Batch, tokens: bool, salts: bool) -> str:
    """A batch of events as a line of JSON for tools.

    Block hashes that are bytes are in hexadecimal digits, all others are numbers.
    """
    refused = [{"at": it.at, "events": it.events, "reason": it.reason, "detail": it.detail} for it in batch.refused]
    return json.dumps(
        {
            "seq": None if message.seq < 0 else message.seq,
            "topic": message.topic,
            "timestamp": batch.timestamp,
            "rank": batch.rank,
            "events": [_json_event(event, tokens, salts) for event in batch.events],
            "refused": refused,
        },
        separators=(",", ":"),
    )


def _json_event(event: Event, tokens: bool, salts: bool) -> dict[str, Any]:
    if isinstance(event, Cleared):
        return {"type": "cleared"}
    names = [_json_name(name) for name in event.block_hashes]
    if isinstance(event, Removed):
        made: dict[str, Any] = {"type": "removed", "block_hashes": names, "tier": event.tier, "medium": event.medium}
        return made | _given(event, ("group_idx", "locality", "ownership"))
    made = {
        "type": "stored",
        "block_hashes": names,
        "parent": None if event.parent is None else _json_name(event.parent),
        "block_size": event.block_size,
        "tokens": len(event.tokens),
        "tier": event.tier,
        "medium": event.medium,
        "salted": event.salt is not None,
    }
    if tokens:
        made["token_ids"] = event.tokens
    if salts:
        made["salt"] = event.salt
    if event.extra_keys is not None:
        made["extra_keys"] = [None if keys is None else [_json_key(key) for key in keys] for keys in event.extra_keys]
    optional = ("lora", "lora_id", "group_idx", "kind", "window", "session_id", "locality", "ownership")
    return made | _given(event, optional)


def _given(event: Event, names: tuple[str, ...]) -> dict[str, Any]:
    values = {name: getattr(event, name) for name in names}
    return {name: value for name, value in values.items() if value is not None}


def _json_name(name: int | bytes) -> int | str:
    return name if isinstance(name, int) else name.hex()


def _json_key(key: object) -> object:
    if isinstance(key, bytes):
        return {"embeds": key.hex()}
    if isinstance(key, tuple):
        return {"msgpack": key[0].hex()} if len(key) == 1 else {"item": key[0], "offset": key[1]}
    return {"text": key}
