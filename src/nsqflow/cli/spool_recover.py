"""``nsqflow spool recover``: rows that a query has read and never committed."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO, NamedTuple

import typer

from nsqflow.cli.coroutines import run_async, run_in_thread, show_progress
from nsqflow.cli.errors import FAILED, OK, USAGE_ERROR, CommandError
from nsqflow.cli.lists import JsonOption
from nsqflow.cli.servers import (
    CliServers,
    ConfigOption,
    LookupdOption,
    NsqdHttpOption,
    NsqdOption,
)
from nsqflow.cli.spool_location import GenerationArgument, LocationArgument, open_spool
from nsqflow.cli.spool_rows import SpoolRecovery, choose
from nsqflow.cli.terminal import (
    ProgressLine,
    count,
    escape,
    print_err,
    print_json,
    show_name,
    show_table,
    to_json,
)
from nsqflow.protocol.names import check_topic

if TYPE_CHECKING:
    from nsqflow.cli.publish_options import MessageOptions
    from nsqflow.spark.spool.recovery import RecoveredSlot

_STDOUT = Path("-")
_PUBLISH_TIMEOUT = 30.0
_MAX_PART = 1_000_000  # bytes of bodies that are published together: nsqd accepts 5 MB by default
_MODE = 0o600  # of the output: in the spool, only its owner can read the rows


def recover(
    location: LocationArgument,
    generation: GenerationArgument = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Write the rows to a new file, as nsqflow tail --json prints messages; - is "
            "stdout.",
        ),
    ] = None,
    publish: Annotated[
        bool, typer.Option("--publish", help="Publish the rows again, to the topics they are of.")
    ] = False,
    topic: Annotated[
        str | None,
        typer.Option("--topic", metavar="TOPIC", help="Publish them to this topic instead."),
    ] = None,
    checkpoint: Annotated[
        Path | None,
        typer.Option(
            "--checkpoint",
            metavar="FOLDER",
            help="The checkpointLocation of the query: it knows exactly what was committed.",
        ),
    ] = None,
    json: JsonOption = False,
    lookupd: LookupdOption = None,
    nsqd: NsqdOption = None,
    nsqd_http: NsqdHttpOption = None,
    config: ConfigOption = None,
) -> int:
    """Count, save or publish rows that were read and never committed.

    A query that is started with its checkpoint reads these rows again itself: this is for queries
    whose checkpoint is gone. nsqd does not deliver the messages again, except those that are
    unfinished. Nothing is removed from the spool.

    Without GENERATION, these are the rows of all streams that do not run. Of a batch read, which
    has to be named, they are all rows. If it is interrupted and run again, --publish publishes
    some twice. Rows of the redesigned NSQ are published to the partitions they are of, with their
    headers, tags and trace ids.

    Example:
      $ nsqflow spool recover orders/spool
      $ nsqflow spool recover orders/spool --output rows.jsonl
    """
    _check_options(output, topic, publish=publish)
    with open_spool(location) as spool:
        recovery = choose(spool, spool.inventory(), generation, checkpoint)
        if publish:
            recovery.check_publishable(named=generation is not None)
            servers = CliServers.of(lookupd, nsqd, nsqd_http, config)
            code = _publish(recovery, servers, topic, as_json=json)
        else:
            code = _list(recovery, output, as_json=json)
        recovery.print_notes()
    return code


def _check_options(output: Path | None, topic: str | None, *, publish: bool) -> None:
    if topic is not None:
        check_topic(topic)
        if not publish:
            raise CommandError("--topic is for --publish", code=USAGE_ERROR)
    if publish and output is not None:
        raise CommandError("give either --output or --publish", code=USAGE_ERROR)
    if output not in (None, _STDOUT) and os.path.lexists(output):
        raise _exists(output)


class RecoveredCount(NamedTuple):
    """The rows of one topic in one batch."""

    rows: int = 0
    unfinished: int = 0

    def plus(self, slot: RecoveredSlot) -> RecoveredCount:
        """Add the rows of a slot."""
        rows = 0 if slot.rows is None else len(slot.rows)
        return RecoveredCount(self.rows + rows, self.unfinished + slot.unfinished)


def _list(recovery: SpoolRecovery, output: Path | None, *, as_json: bool) -> int:
    with _open_output(output) as write:
        counts = run_async(_read(recovery, write))
    if output != _STDOUT:
        _show(counts, as_json=as_json)
    rows = sum(counted.rows for counted in counts.values())
    if output is not None and rows:
        done = f"wrote {count(rows, 'row')} to {output}"
        if as_json or output == _STDOUT:
            print_err(done)
        else:
            print(escape(done))
        recovery.add_gc_note()
    return FAILED if recovery.unreadable else OK


async def _read(
    recovery: SpoolRecovery, write: Callable[[RecoveredSlot], None]
) -> dict[tuple[str, int, str], RecoveredCount]:
    """Read all slots; return the counts by generation, batch and topic."""
    counts: dict[tuple[str, int, str], RecoveredCount] = {}
    rows = 0
    with show_progress(ProgressLine(lambda: f"recovered {count(rows, 'row')} ...")):
        async for slot in _in_thread(recovery.slots()):
            about = (slot.generation, slot.batch, slot.topic)
            counts[about] = counts.get(about, RecoveredCount()).plus(slot)
            rows += len(slot.rows or ())
            write(slot)
    return counts


async def _in_thread(slots: Iterator[RecoveredSlot]) -> AsyncIterator[RecoveredSlot]:
    """Read each slot in a thread, as its store may be slow."""
    while (slot := await run_in_thread(lambda: next(slots, None))) is not None:
        yield slot


def _show(counts: Mapping[tuple[str, int, str], RecoveredCount], *, as_json: bool) -> None:
    heads = ("generation", "batch", "topic", "rows", "unfinished")
    if as_json:
        for about, counted in counts.items():
            print_json(dict(zip(heads, (*about, *counted), strict=True)))
    elif counts:
        rows = [(name, seq, show_name(topic), *n) for (name, seq, topic), n in counts.items()]
        show_table(heads, rows)
    else:
        print("no rows to recover")


@contextmanager
def _open_output(path: Path | None) -> Iterator[Callable[[RecoveredSlot], None]]:
    """Return what writes the rows of a slot; the file exists afterwards only if it is complete."""
    if path is None:
        yield lambda slot: None
    elif path == _STDOUT:
        yield lambda slot: _write(slot, sys.stdout.buffer)
    else:
        with _reported(path):
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _MODE)
        complete = False
        try:
            with open(descriptor, "wb") as file:
                yield lambda slot: _write(slot, file, path)
                with _reported(path):
                    os.fsync(file.fileno())
                complete = file.tell() > 0
        finally:
            if not complete:
                path.unlink()


def _write(slot: RecoveredSlot, file: BinaryIO, path: Path = _STDOUT) -> None:
    # Imported late: it loads the client.
    from nsqflow.cli.message_format import describe_partitioned

    with _reported(path):
        for message in slot.messages():
            file.write(f"{to_json(describe_partitioned(message))}\n".encode())
        file.flush()  # now, where an error is reported


@contextmanager
def _reported(path: Path) -> Iterator[None]:
    """Report an error of the output by its name."""
    try:
        yield
    except FileExistsError:
        raise _exists(path) from None
    except BrokenPipeError:
        raise
    except OSError as error:
        raise CommandError(f"{path}: {error.strerror}") from error


def _exists(path: Path) -> CommandError:
    return CommandError(f"{path} exists already", "name another file, or remove it", USAGE_ERROR)


def _publish(
    recovery: SpoolRecovery, servers: CliServers, topic: str | None, *, as_json: bool
) -> int:
    # Imported late: it loads the client.
    from nsqflow.cli.pub import LinePublisher, PublishReport
    from nsqflow.cli.publish_options import MessageOptions

    failed = False
    topics = recovery.topics()
    for target, source in {topic: None}.items() if topic else zip(topics, topics, strict=True):
        report = PublishReport(target, "row", as_json=as_json)
        publisher = LinePublisher(servers, MessageOptions(), _PUBLISH_TIMEOUT, report)
        try:
            run_async(publisher.run_each(_batches(recovery.slots(source), servers, target)))
        finally:
            if report.started:
                report.print()
        failed = failed or report.failed
    if not topics and not as_json:
        print("no rows to recover")
    elif not failed:
        recovery.add_gc_note()
    return FAILED if failed or recovery.unreadable else OK


async def _batches(
    slots: Iterator[RecoveredSlot], servers: CliServers, topic: str
) -> AsyncGenerator[tuple[MessageOptions, list[tuple[int, bytes]]], None]:
    """Yield the bodies with the numbers of their rows, in parts that an nsqd accepts.

    Those of a part have the same options.
    """
    # Imported late: it loads the client.
    from nsqflow.cli.spool_target import RowTarget

    target = RowTarget(servers, topic)
    options: MessageOptions | None = None
    part, size, number = list[tuple[int, bytes]](), 0, 0
    async for slot in _in_thread(slots):
        for message in slot.messages():
            own = await target.options_for(message)
            if options is not None and (own != options or size + len(message.body) > _MAX_PART):
                yield options, part
                part, size = [], 0
            number += 1
            size += len(message.body)
            options = own
            part.append((number, message.body))
    if options is not None:
        yield options, part
