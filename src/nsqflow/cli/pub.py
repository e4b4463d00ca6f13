"""``nsqflow pub``: publishes messages and reports the result of each."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from collections import Counter
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing, contextmanager
from itertools import groupby
from pathlib import Path
from typing import Annotated, BinaryIO

import typer

from nsqflow.cli.cluster import CliCluster
from nsqflow.cli.completion import TopicArgument
from nsqflow.cli.connect_check import check_reachable
from nsqflow.cli.coroutines import run_async, show_progress
from nsqflow.cli.errors import (
    FAILED,
    OK,
    USAGE_ERROR,
    CommandError,
    error_message,
    hint_for,
    one_line,
)
from nsqflow.cli.line_reader import read_lines, read_whole
from nsqflow.cli.publish_options import (
    HeadersOption,
    KeyOption,
    MessageOptions,
    PartitionOption,
    TagOption,
    TraceOption,
)
from nsqflow.cli.servers import CliServers
from nsqflow.cli.terminal import ProgressLine, count, print_err, print_json
from nsqflow.client.producer.producer import Producer
from nsqflow.config.numbers import Duration
from nsqflow.errors import (
    BadBodyError,
    BadMessageError,
    NsqError,
    PublishUncertain,
    ServerError,
    TlsNotGrantedError,
)
from nsqflow.protocol import Receipt
from nsqflow.protocol.names import check_topic

PUBLISHED, REFUSED, UNCERTAIN = "published", "refused", "uncertain"


class PublishReport:
    """Counts results, prints failures and receipts; ``unit`` is ``line`` or ``argument``."""

    def __init__(self, topic: str, unit: str, *, as_json: bool) -> None:
        self.topic = topic
        self.unit = unit
        self._as_json = as_json
        self.started = False
        """Whether an nsqd is reachable and reading has started."""
        self.empty = 0
        """Lines skipped because nsqd rejects empty messages."""
        self._counts: Counter[str] = Counter()
        self._started_at = time.monotonic()

    @property
    def published(self) -> int:
        """Messages that nsqd has stored."""
        return self._counts[PUBLISHED]

    @property
    def failed(self) -> bool:
        """Whether some messages may not be stored."""
        return self.published < self._counts.total()

    def add(self, numbers: Sequence[int], results: Sequence[str], reason: str = "") -> None:
        """Count the results of some messages; print which ones may be missing."""
        self._counts.update(results)
        for result, group in groupby(zip(results, numbers, strict=True), lambda pair: pair[0]):
            if result != PUBLISHED:
                numbers_of_group = [number for _, number in group]
                print_err(
                    f"{result}: {self._span(numbers_of_group[0], numbers_of_group[-1])}: {reason}"
                )

    def add_receipts(self, numbers: Sequence[int], receipts: Sequence[Receipt | None]) -> None:
        """Print where traced messages are stored."""
        for number, receipt in zip(numbers, receipts, strict=True):
            if receipt is None:
                continue
            names = ("partition", "offset", "size", "internal_id", "trace_id")
            where = {name: getattr(receipt, name) for name in names}
            if self._as_json:
                ids = {name: str(where[name]) for name in names[-2:]}  # readers lose digits
                print_json({"topic": self.topic, self.unit: number} | where | ids)
            else:
                text = ", ".join(f"{name.replace('_', ' ')} {where[name]}" for name in names)
                print(f"stored {self.unit} {number}: {text}")

    def progress(self) -> str:
        """Return the progress as text."""
        rate = self.published / max(time.monotonic() - self._started_at, 0.001)
        return f"published {count(self.published, 'message')}, {rate:,.0f}/s"

    def print(self) -> None:
        """Print the counts."""
        counts = {result: self._counts[result] for result in (PUBLISHED, REFUSED, UNCERTAIN)}
        if self._as_json:
            print_json({"topic": self.topic, **counts, "empty": self.empty})
            return
        parts = [f"published {count(counts[PUBLISHED], 'message')} to {self.topic}"]
        parts += [f"{counts[name]:,} {name}" for name in (REFUSED, UNCERTAIN) if counts[name]]
        parts += [f"{count(self.empty, 'empty line')} skipped"] if self.empty else []
        print("; ".join(parts))

    def _span(self, first: int, last: int) -> str:
        return f"{self.unit} {first}" if first == last else f"{self.unit}s {first} to {last}"


# nsqd limits the size of messages; this limits what is read into memory.
_MAX_MESSAGE = 32 * 1024 * 1024
_MAX_CONCURRENT = 500  # messages in flight that are a command each
_DELAY = Duration(0, 10**9)  # nsqd's own limit is -max-req-timeout
_TIMEOUT = Duration(0.1, 3600)

NumberedBodies = list[tuple[int, bytes]]
"""Message bodies, each with the number of its line or argument."""


def pub(
    servers: CliServers,
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
        str | None,
        typer.Option("--delay", metavar="DURATION", help="Defer delivery, as in 500ms, 90 or 10m."),
    ] = None,
    key: KeyOption = None,
    partition: PartitionOption = None,
    trace: TraceOption = None,
    header: HeadersOption = None,
    tag: TagOption = None,
    timeout: Annotated[
        str, typer.Option("--timeout", metavar="DURATION", help="How long to wait for nsqd.")
    ] = "30s",
    json: Annotated[
        bool,
        typer.Option("--json", help="Print receipts and the counts as JSON objects, one per line."),
    ] = False,
) -> int:
    """Publish messages to a topic and print how many nsqd has stored.

    Empty lines are skipped. Messages that nsqd rejects are listed, and so are those that were
    sent and never answered: they may be stored or not.

    Example:
      $ nsqflow pub orders 'order 1' 'order 2'
      $ nsqflow pub orders --file orders.txt
      $ echo '{"id": 3}' | nsqflow pub orders --delay 500ms
      $ nsqflow pub orders 'order 4' --key user-1 --trace 7
    """
    check_topic(topic)
    options = MessageOptions.of(
        delay=None if delay is None else _DELAY.parse("--delay", delay),
        key=key,
        partition=partition,
        trace=trace,
        headers=header,
        tag=tag,
    )
    timeout_seconds = _TIMEOUT.parse("--timeout", timeout)
    report = PublishReport(topic, "argument" if body else "line", as_json=json)
    with _open_input(body or [], file, whole, report) as batches:
        try:
            publisher = LinePublisher(servers, options, timeout_seconds, report)
            run_async(publisher.run(batches))
        finally:
            if report.started:
                report.print()
    return FAILED if report.failed else OK


@contextmanager
def _open_input(
    bodies: list[str], file: Path | None, whole: bool, report: PublishReport
) -> Iterator[AsyncGenerator[NumberedBodies, None]]:
    """Return the messages to publish; a file stays open for the block."""
    if bodies and (file or whole):
        raise CommandError("give messages either as arguments or in a file", code=USAGE_ERROR)
    if bodies:
        yield _one_batch(_arguments(bodies))
    elif file is None or str(file) == "-":
        if sys.stdin.isatty():
            print_err("each line is a message; press Ctrl-D to end")
        yield _read_file(sys.stdin.fileno(), whole, report)
    else:
        with _open(file) as opened:
            yield _read_file(opened.fileno(), whole, report)


def _open(file: Path) -> BinaryIO:
    try:
        return file.open("rb")
    except OSError as error:
        raise CommandError(f"{file}: {error.strerror}", code=USAGE_ERROR) from None


def _arguments(bodies: list[str]) -> NumberedBodies:
    for number, body in enumerate(bodies, 1):
        if not body:
            raise CommandError(
                f"message {number} is empty: nsqd rejects empty messages", code=USAGE_ERROR
            )
    return [(number, os.fsencode(body)) for number, body in enumerate(bodies, 1)]


async def _one_batch(batch: NumberedBodies) -> AsyncGenerator[NumberedBodies, None]:
    yield batch


async def _read_file(
    descriptor: int, whole: bool, report: PublishReport
) -> AsyncGenerator[NumberedBodies, None]:
    if whole:
        body = await read_whole(descriptor, _MAX_MESSAGE)
        yield [(1, body)] if body else []
        return
    number = 0
    async for lines in read_lines(descriptor, _MAX_MESSAGE):
        batch = [(number, line) for number, line in enumerate(lines, number + 1) if line]
        number += len(lines)
        report.empty += len(lines) - len(batch)
        yield batch


class LinePublisher:
    """Publishes batches of messages and reports what became of them."""

    def __init__(
        self, servers: CliServers, options: MessageOptions, timeout: float, report: PublishReport
    ) -> None:
        self._servers = servers
        self._options = options
        self._report = report
        self._topic = report.topic
        self._producer = Producer(
            servers.nsqd,
            lookupd=servers.lookupd,
            publish_timeout=timeout,
            max_msg_size=_MAX_MESSAGE,
            max_body_size=2 * _MAX_MESSAGE,
            **servers.client_options(),
        )

    async def run(self, batches: AsyncGenerator[NumberedBodies, None]) -> None:
        """Publish until the end, or until an error that would also affect the next batch."""
        await self.run_each(_with_options(batches, self._options))

    async def run_each(
        self, batches: AsyncGenerator[tuple[MessageOptions, NumberedBodies], None]
    ) -> None:
        """Do the same with batches that have options of their own."""
        async with aclosing(batches):
            cluster = CliCluster(self._servers)
            self._options.check_servers(cluster)
            await check_reachable(self._servers)
            await self._options.check_topic(cluster, self._topic)
            self._report.started = True
            with _without_repeated_warnings():
                async with self._producer:
                    with show_progress(ProgressLine(self._report.progress)):
                        async for options, batch in batches:
                            if not await self._send(batch, options):
                                return

    async def _send(self, batch: NumberedBodies, options: MessageOptions) -> bool:
        """Publish a batch and report it; return whether to continue."""
        report = self._report
        for part in self._parts(batch, options):
            numbers, bodies = [number for number, _ in part], [body for _, body in part]
            try:
                results, error = await self._publish(numbers, bodies, options)
            except asyncio.CancelledError:
                report.add(numbers, [UNCERTAIN] * len(part), "interrupted")
                raise
            report.add(numbers, results, error_message(error) if error else "")
            # Messages after one that is too large may succeed.
            if error is not None and not isinstance(error, BadMessageError | BadBodyError):
                text = f"stopped: nothing after {report.unit} {numbers[-1]} was sent"
                print_err(one_line(CommandError(text, hint_for(self._servers.explain(error)))))
                return False
        return True

    def _parts(self, batch: NumberedBodies, options: MessageOptions) -> Iterator[NumberedBodies]:
        """Split a batch into parts that are published together.

        It is one part, unless each message is a command of its own.
        """
        if not options.for_message:
            yield batch
            return
        start = 0
        while start < len(batch):
            # What nsqd rejects for each message, as a delay, would cost a connection each time.
            size = _MAX_CONCURRENT if self._report.published else 1
            yield batch[start : start + size]
            start += size

    async def _publish(
        self, numbers: list[int], bodies: list[bytes], options: MessageOptions
    ) -> tuple[list[str], NsqError | None]:
        """Publish; return the result of each message, and the first error."""
        if not options.for_message:
            try:
                await self._producer.publish_many(self._topic, bodies, **options.for_topic)
            except NsqError as error:
                return _results_of(error, len(bodies)), error
            return [PUBLISHED] * len(bodies), None
        answers = await asyncio.gather(*(self._publish_alone(body, options) for body in bodies))
        receipts = [None if isinstance(answer, NsqError) else answer for answer in answers]
        self._report.add_receipts(numbers, receipts)
        errors = [answer if isinstance(answer, NsqError) else None for answer in answers]
        return [_result(error) for error in errors], next(filter(None, errors), None)

    async def _publish_alone(
        self, body: bytes, options: MessageOptions
    ) -> Receipt | NsqError | None:
        try:
            return await self._producer.publish(
                self._topic, body, **options.for_topic, **options.for_message
            )
        except NsqError as error:
            return error


async def _with_options(
    batches: AsyncGenerator[NumberedBodies, None], options: MessageOptions
) -> AsyncGenerator[tuple[MessageOptions, NumberedBodies], None]:
    async with aclosing(batches):
        async for batch in batches:
            yield options, batch


@contextmanager
def _without_repeated_warnings() -> Iterator[None]:
    """Suppress the client's warnings about errors that the report lists."""

    def is_not_reported(record: logging.LogRecord) -> bool:
        error = getattr(record, "error", None)
        return not isinstance(error, ServerError | TlsNotGrantedError)

    logger = logging.getLogger("nsqflow.client.reconnect")
    if not logger.isEnabledFor(logging.DEBUG):
        logger.addFilter(is_not_reported)
    try:
        yield
    finally:
        logger.removeFilter(is_not_reported)


def _results_of(error: NsqError, size: int) -> list[str]:
    """Return the result of each message of a failed ``publish_many``."""
    if error.ranges is None:
        return [_result(error)] * size
    results = [REFUSED] * size
    for ranges, result in ((error.ranges.accepted, PUBLISHED), (error.ranges.uncertain, UNCERTAIN)):
        for one in ranges:
            results[one.start : one.stop] = [result] * len(one)
    return results


def _result(error: NsqError | None) -> str:
    if error is None:
        return PUBLISHED
    return UNCERTAIN if isinstance(error, PublishUncertain) else REFUSED
