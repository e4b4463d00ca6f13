"""What comes again: options about messages that nsqd delivers more than once."""

from __future__ import annotations

import socket
import threading
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import pytest

from nsqflow.spark import batch_reports
from tests.fixtures.servers import Nsqd, start_nsqd
from tests.fixtures.spark import published
from tests.spark.queries import (
    Query,
    Rival,
    channel_stats,
    new_topic,
    numbers,
    options_of,
    post,
    read_now,
    stream,
    table,
    waiting,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def topic() -> str:
    return new_topic()


class Gate:
    """Stands before an nsqd, and holds what a client sends from its first FIN on."""

    def __init__(self, nsqd: Nsqd) -> None:
        self.reached = threading.Event()
        self.open = threading.Event()
        self._nsqd = nsqd
        self._sockets = [socket.create_server(("127.0.0.1", 0))]
        self._threads: list[threading.Thread] = []
        host, port = self._sockets[0].getsockname()
        self.address = f"{host}:{port}"

    def __enter__(self) -> Self:
        self._start(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        self.open.set()
        for each in self._sockets:
            with suppress(OSError):  # it is not connected any more
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for each in self._sockets:
            each.close()

    def _accept(self) -> None:
        with suppress(OSError):  # shut down
            while True:
                client, server = self._sockets[0].accept()[0], self._nsqd.connect()
                server.settimeout(None)
                self._sockets += [client, server]
                self._start(self._forward, client, server)
                self._start(self._forward, server, client)

    def _forward(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):  # one side has gone
            while data := source.recv(65536):
                if b"FIN " in data and not self.open.is_set():
                    self.reached.set()
                    self.open.wait()
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def _start(self, target: Any, *arguments: Any) -> None:
        thread = threading.Thread(target=target, args=arguments)
        self._threads.append(thread)
        thread.start()


@pytest.mark.parametrize(("dedupe", "again"), [("redelivered", 0), ("off", 5)])
def test_a_message_whose_fin_was_late_is_dropped_when_it_is_delivered_again(
    spark: SparkSession, tmp_path: Path, nsqd: Nsqd, topic: str, dedupe: str, again: int
) -> None:
    waiting(nsqd, topic, 5)
    with Gate(nsqd) as gate:
        options = options_of(tmp_path, topic, nsqd, msgTimeout="1s", dedupe=dedupe)
        frame = stream(spark, options | {"nsqd": gate.address})
        query = Query(frame, tmp_path, availableNow=True)
        query.until(gate.reached.is_set)
        post(nsqd, "/channel/pause", topic)  # or they would go to the same task again
        query.until(lambda: channel_stats(nsqd, topic).timeout_count == 5)
        gate.open.set()
        query.await_end()
        assert query.sizes == [5]
        post(nsqd, "/channel/unpause", topic)
        second = read_now(frame, tmp_path)
    assert [row.attempts for row in second.rows] == [2] * again
    (report,) = batch_reports(second.spark_query.recentProgress[0])
    assert (report.pulled, report.duplicates) == (5, 5 - again)
    assert channel_stats(nsqd, topic).depth == 0


def test_dedupe_always_finds_messages_that_nsqd_delivers_as_new(
    spark: SparkSession, tmp_path: Path, topic: str
) -> None:
    data = tmp_path / "nsqd"
    data.mkdir()
    on_disk = ["-mem-queue-size=0", "-sync-every=1000000", "-sync-timeout=1h"]
    with start_nsqd(data, options=on_disk) as nsqd:
        post(nsqd, "/topic/create", topic)
        for channel in ("always", "redelivered"):
            nsqd.ask(f"/channel/create?topic={topic}&channel={channel}", "POST")
        published(nsqd, topic, 5)
    same = [f"-tcp-address={nsqd.tcp_address}", f"-http-address={nsqd.http_address}"]
    frames = {
        dedupe: stream(
            spark,
            options_of(tmp_path / dedupe, topic, nsqd, channel=dedupe, dedupe=dedupe),
        )
        for dedupe in ("always", "redelivered")
    }
    with start_nsqd(data, options=[*on_disk, *same]) as nsqd:
        for dedupe, frame in frames.items():
            assert read_now(frame, tmp_path / dedupe).numbers() == [*range(5)]
        nsqd.kill()
    with start_nsqd(data, options=[*on_disk, *same]):
        again = {name: read_now(frame, tmp_path / name).rows for name, frame in frames.items()}
    assert again["always"] == []
    assert [row.attempts for row in again["redelivered"]] == [1] * 5


def test_an_exhausted_message_goes_to_the_dead_letter_topic(
    spark: SparkSession, tmp_path: Path, nsqd: Nsqd, topic: str
) -> None:
    published(nsqd, topic, 2)
    with closing(Rival(nsqd, topic)) as rival:
        for _ in range(2):
            rival.requeue(rival.take(2))
    published(nsqd, topic, 3, first=2)
    dead = f"{topic}-dead"
    options = options_of(tmp_path, topic, nsqd, maxAttempts="2", deadLetterTopic=dead)
    assert read_now(stream(spark, options), tmp_path).numbers() == [2, 3, 4]
    dead_letters = table(spark, options_of(tmp_path, dead, nsqd)).collect()
    assert numbers(dead_letters) == [0, 1]
    assert channel_stats(nsqd, topic).depth == 0


def test_a_message_that_was_delivered_just_often_enough_is_a_row(
    spark: SparkSession, tmp_path: Path, nsqd: Nsqd, topic: str
) -> None:
    published(nsqd, topic, 2)
    with closing(Rival(nsqd, topic)) as rival:
        rival.requeue(rival.take(2))
    options = options_of(tmp_path, topic, nsqd, maxAttempts="2", deadLetterTopic=f"{topic}-dead")
    assert numbers(table(spark, options).collect()) == [0, 1]
