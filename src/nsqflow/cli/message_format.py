"""How ``tail`` and ``browse`` show messages: as lines of JSON, readable, or their bodies alone."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from functools import partial
from typing import Any, Protocol

from nsqflow.cli.terminal import console, escape, escape_lines, to_json


class AnyMessage(Protocol):
    """What messages have in common, wherever they come from."""

    @property
    def topic(self) -> str:
        """Its topic."""

    @property
    def channel(self) -> str | None:
        """The channel it was delivered through; None if it was browsed."""

    @property
    def nsqd(self) -> str | None:
        """The nsqd that sent it; None if it was browsed."""

    @property
    def id(self) -> bytes:
        """Its id, 16 bytes."""

    @property
    def timestamp(self) -> int:
        """When nsqd received it, in nanoseconds since 1970."""

    @property
    def attempts(self) -> int | None:
        """The number of deliveries; None if it was browsed."""

    @property
    def body(self) -> bytes:
        """Its body."""


class PartitionedMessage(AnyMessage, Protocol):
    """A message that may be one of the redesigned NSQ; otherwise all of these are None."""

    @property
    def partition(self) -> int | None:
        """Its partition."""

    @property
    def offset(self) -> int | None:
        """Its position in the partition."""

    @property
    def size(self) -> int | None:
        """Its size there."""

    @property
    def internal_id(self) -> int | None:
        """The number that nsqd gives it."""

    @property
    def trace_id(self) -> int | None:
        """The id that it is traced by; 0 if it is not traced."""

    @property
    def headers(self) -> Mapping[str, Any] | None:
        """Its headers."""

    @property
    def tag(self) -> str | None:
        """Its tag."""


Formatter = Callable[[Iterable[PartitionedMessage]], None]
"""Writes a batch of messages to stdout."""

_RESERVED = "##"  # how the names of nsqd's own headers begin


def make_formatter(*, as_json: bool, pretty: bool | None, several: bool = False) -> Formatter:
    """Choose how messages are shown; with ``several`` topics each line names its topic."""
    if as_json:
        return _print_objects
    if sys.stdout.isatty():  # a dumb terminal needs escaping, too
        return partial(_print_readable, console(), pretty=pretty is not False)
    return partial(_print_bodies, pretty=bool(pretty), several=several)


def describe_message(message: AnyMessage) -> dict[str, Any]:
    """Return a message as an object of JSON, with its body as text if it is UTF-8."""
    described: dict[str, Any] = {
        "topic": message.topic,
        "channel": message.channel,
        "nsqd": message.nsqd,
        "id": message.id.decode("ascii", "backslashreplace"),
        "timestamp": message.timestamp,
        "attempts": message.attempts,
    }
    try:
        described["body"] = message.body.decode()
    except UnicodeDecodeError:
        described["body_base64"] = base64.b64encode(message.body).decode()
    return described


def describe_partitioned(message: PartitionedMessage) -> dict[str, Any]:
    """Return the same, with what a message of the redesigned NSQ has beside.

    Its ids are text: many readers of JSON lose digits of large numbers.
    """
    described = describe_message(message)
    if message.partition is None:
        return described
    return described | {
        "id": message.id.hex(),
        "partition": message.partition,
        "offset": message.offset,
        "size": message.size,
        "internal_id": str(message.internal_id),
        "trace_id": str(message.trace_id) if message.trace_id else None,
        "headers": message.headers,
        "tag": message.tag,
    }


def describe_origin(message: PartitionedMessage) -> str:
    """Return where a message comes from, in one line for people."""
    at = datetime.fromtimestamp(message.timestamp / 1e9)
    day = "" if at.date() == datetime.now().date() else f"{at:%Y-%m-%d} "
    words = [f"{day}{at:%H:%M:%S.%f}"[:-3], message.topic, message.nsqd]
    if message.partition is not None:
        words.append(f"partition {message.partition}")
    if message.offset is not None:
        words.append(f"offset {message.offset}")
    if message.attempts is not None and message.attempts > 1:
        words.append(f"attempt {message.attempts}")
    if message.tag is not None:
        words.append(f"tag {message.tag}")
    if message.trace_id:
        words.append(f"trace {message.trace_id}")
    named = (message.headers or {}).items()
    if headers := {name: value for name, value in named if not name.startswith(_RESERVED)}:
        words.append(to_json(headers))
    return escape(" ".join(filter(None, words)))


def _print_objects(messages: Iterable[PartitionedMessage]) -> None:
    _write(f"{to_json(describe_partitioned(message))}\n".encode() for message in messages)


def _print_bodies(messages: Iterable[PartitionedMessage], *, pretty: bool, several: bool) -> None:
    def line(message: PartitionedMessage) -> bytes:
        topic = f"{message.topic}\t".encode() if several else b""
        indented = _indented(message.body) if pretty else None
        return topic + (message.body if indented is None else indented.encode()) + b"\n"

    _write(map(line, messages))


def _print_readable(screen: Any, messages: Iterable[PartitionedMessage], *, pretty: bool) -> None:
    from rich.highlighter import JSONHighlighter
    from rich.text import Text

    for message in messages:
        screen.print(Text(describe_origin(message), style="dim"))
        indented = _indented(message.body) if pretty else None
        if indented is None:
            screen.print(Text(_readable(message.body)))
        else:
            screen.print(JSONHighlighter()(Text(indented)))


def _indented(body: bytes) -> str | None:
    """Indent a body that is JSON; return None for any other body."""
    try:
        return to_json(json.loads(body), indent=2)
    except (ValueError, RecursionError):
        return None


def _readable(body: bytes) -> str:
    """Decode any bytes; escape control characters except line breaks."""
    return escape_lines(body.decode("utf-8", "backslashreplace"))


def _write(pieces: Iterable[bytes]) -> None:
    sys.stdout.buffer.write(b"".join(pieces))
    sys.stdout.buffer.flush()
