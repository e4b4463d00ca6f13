"""How messages are shown: to a person, to a program, or as they are."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Callable, Iterable
from datetime import datetime
from functools import partial
from typing import Any

from nsqflow.cli.screen import clean, console, on_terminal
from nsqflow.client.message import Message

Rendering = Callable[[Iterable[Message]], None]
"""Writes some messages to stdout, at once."""


def make_rendering(*, as_json: bool, pretty: bool | None, several: bool) -> Rendering:
    """Choose how messages are shown; ``several`` topics are told apart."""
    if as_json:
        return _objects
    if on_terminal():
        return partial(_for_people, console(), pretty=pretty is not False)
    return partial(_bodies, pretty=bool(pretty), several=several)


def _objects(messages: Iterable[Message]) -> None:
    lines = (json.dumps(_object(message), ensure_ascii=False) for message in messages)
    _write(f"{line}\n".encode() for line in lines)


def _object(message: Message) -> dict[str, Any]:
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


def _bodies(messages: Iterable[Message], *, pretty: bool, several: bool) -> None:
    def line(message: Message) -> bytes:
        topic = f"{message.topic}\t".encode() if several else b""
        indented = _indented(message.body) if pretty else None
        return topic + (message.body if indented is None else indented.encode()) + b"\n"

    _write(map(line, messages))


def _for_people(screen: Any, messages: Iterable[Message], *, pretty: bool) -> None:
    from rich.highlighter import JSONHighlighter
    from rich.text import Text

    for message in messages:
        at = datetime.fromtimestamp(message.timestamp / 1e9).strftime("%H:%M:%S.%f")[:-3]
        again = f" attempt {message.attempts}" if message.attempts > 1 else ""
        screen.print(Text(clean(f"{at} {message.topic} {message.nsqd}{again}"), style="dim"))
        indented = _indented(message.body) if pretty else None
        if indented is None:
            screen.print(Text(_readable(message.body)))
        else:
            screen.print(JSONHighlighter()(Text(_readable(indented.encode()))))


def _indented(body: bytes) -> str | None:
    """Write a body that is JSON over several lines; None if it is something else."""
    try:
        return json.dumps(json.loads(body), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return None


def _readable(body: bytes) -> str:
    """Make text of any bytes; what would talk to the terminal is escaped, but lines stay lines."""
    return "\n".join(clean(line) for line in body.decode("utf-8", "backslashreplace").split("\n"))


def _write(pieces: Iterable[bytes]) -> None:
    sys.stdout.buffer.write(b"".join(pieces))
    sys.stdout.buffer.flush()
