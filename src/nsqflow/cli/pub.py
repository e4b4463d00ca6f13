"""The verb pub: publishes what it is given, and tells what became of it."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import sys
from collections.abc import AsyncGenerator, Awaitable, Iterator
from contextlib import aclosing, contextmanager
from pathlib import Path
from typing import Annotated, BinaryIO

import typer

from nsqflow.cli.account import PUBLISHED, REFUSED, UNCERTAIN, Account
from nsqflow.cli.completion import TopicArgument
from nsqflow.cli.contact import reach
from nsqflow.cli.errors import FAILED, MISUSED, OK, Failure, hint_for, line, words
from nsqflow.cli.lines import read_lines, read_whole
from nsqflow.cli.screen import Progress, note
from nsqflow.cli.servers import ConfigOption, LookupdOption, NsqdHttpOption, NsqdOption, Servers
from nsqflow.cli.signals import run, ticking
from nsqflow.client.producer import Producer
from nsqflow.errors import (
    BadBodyError,
    BadMessageError,
    ConfigError,
    NsqError,
    PublishUncertain,
    ServerError,
    TlsNotGrantedError,
)
from nsqflow.protocol.names import check_topic

# How large a message may be is nsqd's to say; this bounds what is read into memory.
_MAX_MESSAGE = 32 * 1024 * 1024
_AT_ONCE = 500  # deferred messages: there is no command that takes many
_MAX_DELAY = 1e9  # seconds; what nsqd takes of that is its -max-req-timeout

Batch = list[tuple[int, bytes]]
"""Messages, each with its number in what they were read from."""


def pub(
    topic: TopicArgument,
    body: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[BODY]...",
            help="Messages. Without any, each line of --file, or of stdin, is one.",
            show_default=False,
        ),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option("--file", "-f", metavar="FILE", help="Publish the lines of a file."),
    ] = None,
    whole: Annotated[
        bool, typer.Option("--whole", help="Publish the file, or stdin, as one message.")
    ] = False,
    delay: Annotated[
        float | None,
        typer.Option("--delay", metavar="SECONDS", min=0, help="Have them delivered later."),
    ] = None,
    timeout: Annotated[
        float,
        typer.Option(
            "--timeout", metavar="SECONDS", min=0.1, max=3600, help="How long nsqd may take."
        ),
    ] = 30.0,
    json: Annotated[bool, typer.Option("--json", help="Tell the counts as a JSON object.")] = False,
    lookupd: LookupdOption = None,
    nsqd: NsqdOption = None,
    nsqd_http: NsqdHttpOption = None,
    config: ConfigOption = None,
) -> int:
    """Publish messages to a topic; tells how many nsqd has stored.

    Empty lines are left out. What nsqd refuses is named, and so is what was sent and never
    answered: that may be stored or not.

    Example:
      $ nsqflow pub orders 'order 1' 'order 2'
      $ nsqflow pub orders --file orders.txt
      $ echo '{"id": 3}' | nsqflow pub orders --delay 0.5
    """
    check_topic(topic)
    _check_seconds(delay, timeout)
    servers = Servers.of(lookupd, nsqd, nsqd_http, config)
    account = Account(topic, "argument" if body else "line")
    with _batches(body or [], file, whole, account) as batches:
        try:
            run(_publish(servers, topic, batches, delay, timeout, account))
        finally:
            if account.begun:
                account.tell(json=json)
    return FAILED if account.failed else OK


def _check_seconds(delay: float | None, timeout: float) -> None:
    # Typer's own bounds let pass what is not a number.
    if not 0 <= (delay or 0) < _MAX_DELAY:
        raise ConfigError(f"--delay {delay!r}; allowed are 0 to below {_MAX_DELAY:.0f} seconds")
    if math.isnan(timeout):
        raise ConfigError(f"--timeout {timeout!r}; allowed are 0.1 to 3600 seconds")


@contextmanager
def _batches(
    bodies: list[str], file: Path | None, whole: bool, account: Account
) -> Iterator[AsyncGenerator[Batch, None]]:
    """Give what is to be published; a file is open only so long."""
    if bodies and (file or whole):
        raise Failure("messages as arguments, and a file too; give one of them", code=MISUSED)
    if bodies:
        yield _one_batch(_arguments(bodies))
    elif file is None or str(file) == "-":
        if sys.stdin.isatty():
            note("each line is a message; Ctrl-D ends")
        yield _of_file(sys.stdin.fileno(), whole, account)
    else:
        with _opened(file) as opened:
            yield _of_file(opened.fileno(), whole, account)


def _opened(file: Path) -> BinaryIO:
    try:
        return file.open("rb")
    except OSError as error:
        raise Failure(f"{file}: {error.strerror}", code=MISUSED) from None


def _arguments(bodies: list[str]) -> Batch:
    for number, body in enumerate(bodies, 1):
        if not body:
            raise Failure(f"message {number} is empty; nsqd takes none of that kind", code=MISUSED)
    return [(number, os.fsencode(body)) for number, body in enumerate(bodies, 1)]


async def _one_batch(batch: Batch) -> AsyncGenerator[Batch, None]:
    yield batch


async def _of_file(descriptor: int, whole: bool, account: Account) -> AsyncGenerator[Batch, None]:
    if whole:
        body = await read_whole(descriptor, _MAX_MESSAGE)
        yield [(1, body)] if body else []
        return
    number = 0
    async for lines in read_lines(descriptor, _MAX_MESSAGE):
        batch = [(number, line) for number, line in enumerate(lines, number + 1) if line]
        number += len(lines)
        account.empty += len(lines) - len(batch)
        yield batch


async def _publish(
    servers: Servers,
    topic: str,
    batches: AsyncGenerator[Batch, None],
    delay: float | None,
    timeout: float,
    account: Account,
) -> None:
    async with aclosing(batches):
        await reach(servers)
        account.begun = True
        with _told_once():
            async with _producer(servers, timeout) as producer:
                with ticking(Progress(account.line)):
                    async for batch in batches:
                        if not await _send(producer, topic, batch, delay, account):
                            return


def _producer(servers: Servers, timeout: float) -> Producer:
    return Producer(
        servers.nsqd,
        lookupd=servers.lookupd,
        publish_timeout=timeout,
        max_msg_size=_MAX_MESSAGE,
        max_body_size=2 * _MAX_MESSAGE,
        **servers.client_options(),
    )


@contextmanager
def _told_once() -> Iterator[None]:
    """Keep the client from warning of what the account says of the messages themselves."""

    def is_news(record: logging.LogRecord) -> bool:
        causes = record.args if isinstance(record.args, tuple) else ()
        return not any(isinstance(cause, ServerError | TlsNotGrantedError) for cause in causes)

    logger = logging.getLogger("nsqflow.client.endpoint")
    if not logger.isEnabledFor(logging.DEBUG):
        logger.addFilter(is_news)
    try:
        yield
    finally:
        logger.removeFilter(is_news)


async def _send(
    producer: Producer, topic: str, batch: Batch, delay: float | None, account: Account
) -> bool:
    """Publish a batch and account for it; tells whether there is sense in going on."""
    for some in _turns(batch, delay, account):
        numbers, bodies = [number for number, _ in some], [body for _, body in some]
        try:
            fates, error = await _outcomes(producer, topic, bodies, delay)
        except asyncio.CancelledError:
            account.add(numbers, [UNCERTAIN] * len(some), "interrupted")
            raise
        account.add(numbers, fates, words(error) if error else "")
        # One message that is too large says nothing of those behind it.
        if error is not None and not isinstance(error, BadMessageError | BadBodyError):
            text = f"stopped: nothing after {account.unit} {numbers[-1]} was sent"
            note(line(Failure(text, hint_for(error))))
            return False
    return True


def _turns(batch: Batch, delay: float | None, account: Account) -> Iterator[Batch]:
    """Give what is published at a time: all of it, if there is a command that takes so many."""
    if delay is None:
        yield batch
        return
    start = 0
    while start < len(batch):
        # A delay that nsqd does not take would cost a connection for every message.
        size = _AT_ONCE if account.published else 1
        yield batch[start : start + size]
        start += size


async def _outcomes(
    producer: Producer, topic: str, bodies: list[bytes], delay: float | None
) -> tuple[list[str], NsqError | None]:
    """Publish; gives the fate of each message, and what went wrong if something did."""
    if delay is None:
        try:
            await producer.publish_many(topic, bodies)
        except NsqError as error:
            return _fates_in(error, len(bodies)), error
        return [PUBLISHED] * len(bodies), None
    publishing = (producer.publish(topic, body, delay=delay) for body in bodies)
    errors = await asyncio.gather(*map(_error_of, publishing))
    return [_fate(error) for error in errors], next(filter(None, errors), None)


def _fates_in(error: NsqError, size: int) -> list[str]:
    """Read what became of each of a ``publish_many`` that failed."""
    if error.ranges is None:
        return [_fate(error)] * size
    fates = [REFUSED] * size
    for ranges, fate in ((error.ranges.accepted, PUBLISHED), (error.ranges.uncertain, UNCERTAIN)):
        for some in ranges:
            fates[some.start : some.stop] = [fate] * len(some)
    return fates


async def _error_of(publishing: Awaitable[object]) -> NsqError | None:
    try:
        await publishing
    except NsqError as error:
        return error
    return None


def _fate(error: NsqError | None) -> str:
    if error is None:
        return PUBLISHED
    return UNCERTAIN if isinstance(error, PublishUncertain) else REFUSED
