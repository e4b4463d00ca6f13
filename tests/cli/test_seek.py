"""The verb seek."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Event, Thread

import pytest

from nsqflow import blocking
from nsqflow.admin import RedesignedCluster
from nsqflow.broker import BackgroundBroker
from tests.cli.clusters import NsqCluster, ask, unique
from tests.cli.commands import InProcess, OnTerminal, run
from tests.cli.partitioned import browsed, depths, lookupd_of, publish


def finish(broker: BackgroundBroker, topic: str, channel: str, count: int) -> list[bytes]:
    """Consume some messages."""
    bodies = []
    with blocking.Consumer(topic, channel, lookupd=broker.lookupd_addresses) as consumer:
        for message in consumer:
            message.finish()
            bodies.append(message.body)
            if len(bodies) == count:
                return bodies
    raise AssertionError("the consumer ended")


@pytest.fixture
def broker(nsq_redesigned_broker: BackgroundBroker) -> BackgroundBroker:
    """A cluster with six messages in two partitions, all finished by the channel billing."""
    nsq_redesigned_broker.create_topic("orders", partitions=2)
    nsq_redesigned_broker.create_channel("orders", "billing")
    for number in range(2):
        publish(nsq_redesigned_broker, "orders", b"1", b"2", b"3", partition=number)
    finish(nsq_redesigned_broker, "orders", "billing", 6)
    return nsq_redesigned_broker


def test_a_channel_goes_back_in_all_partitions(
    nsqflow: InProcess, broker: BackgroundBroker
) -> None:
    assert depths(broker, "orders", "billing") == [0, 0]
    ends = [browsed(broker, "orders", number)[2].offset for number in range(2)]
    done = nsqflow("seek", "orders", "billing", "earliest", "--yes", *lookupd_of(broker))
    assert (done.code, done.err) == (0, "")
    for number, line in enumerate(done.out.splitlines()):
        before, after = line.split(" from offset ")
        assert before == f"partition {number}: moved back"
        assert int(after.split()[0]) > ends[number]
        assert after.endswith(
            " to 0; its consumers get those messages again; 3 messages from there on"
        )
    assert depths(broker, "orders", "billing") == [3, 3]
    assert sorted(finish(broker, "orders", "billing", 6)) == sorted([b"1", b"2", b"3"] * 2)


def test_one_partition_is_moved_back_and_forward(
    nsqflow: InProcess, broker: BackgroundBroker
) -> None:
    words = ["--partition", "1", "--yes", "--json", *lookupd_of(broker)]
    second = browsed(broker, "orders", 1)[1].offset
    done = nsqflow("seek", "orders", "billing", "count:2", *words)
    assert (done.code, done.err) == (0, "")
    result = json.loads(done.out)
    assert result == {
        "topic": "orders",
        "channel": "billing",
        "partition": 1,
        "from": result["from"],
        "to": second,
        "depth": 2,
    }
    assert result["from"] > second
    assert depths(broker, "orders", "billing") == [0, 2]
    text = [word for word in words if word != "--json"]
    done = nsqflow("seek", "orders", "billing", f"offset:{second}", *text)
    assert done.out == f"partition 1: stays at offset {second}; 2 messages from there on\n"
    done = nsqflow("seek", "orders", "billing", "latest", *text)
    assert done.out == (
        f"partition 1: moved forward from offset {second} to {result['from']}; its consumers skip "
        "those messages; 0 messages from there on\n"
    )
    assert depths(broker, "orders", "billing") == [0, 0]


def test_a_time_is_a_position(nsqflow: InProcess, broker: BackgroundBroker) -> None:
    at = datetime.fromtimestamp(browsed(broker, "orders")[0].timestamp // 10**9, UTC)
    for position in (f"timestamp:{at.timestamp():.0f}", at.isoformat()):
        nsqflow("seek", "orders", "billing", "latest", "--yes", *lookupd_of(broker))
        assert depths(broker, "orders", "billing") == [0, 0]
        done = nsqflow("seek", "orders", "billing", position, "--yes", *lookupd_of(broker))
        assert (done.code, done.err) == (0, "")
        assert depths(broker, "orders", "billing") == [3, 3]


@pytest.mark.parametrize(("answer", "code"), [("n", 1), ("y", 0)])
def test_a_terminal_is_asked(
    empty_folder: object, broker: BackgroundBroker, answer: str, code: int
) -> None:
    with OnTerminal(["seek", "orders", "billing", "earliest", *lookupd_of(broker)]) as command:
        command.await_text(r"\[y/N\]")
        assert (
            "Move channel billing of orders to earliest in partitions 0, 1? Its consumers then get "
            "messages again, or skip some. [y/N]"
        ) in command.shown
        command.type(f"{answer}\n")
        assert command.end() == code
    assert ("nothing was moved" in command.shown) is (answer == "n")
    assert depths(broker, "orders", "billing") == ([3, 3] if answer == "y" else [0, 0])


def test_without_a_terminal_it_must_be_confirmed(
    nsqflow: InProcess, broker: BackgroundBroker
) -> None:
    done = nsqflow("seek", "orders", "billing", "earliest", *lookupd_of(broker))
    assert (done.code, done.out) == (2, "")
    assert done.err.endswith("stdin is not a terminal; pass --yes\n")
    assert depths(broker, "orders", "billing") == [0, 0]


@pytest.mark.parametrize(
    ("words", "code", "problem"),
    [
        (["order", "billing", "earliest"], 1, "there is no topic 'order'; did you mean 'orders'?"),
        (["orders", "biling", "latest"], 1, "no channel 'biling'; did you mean 'billing'?"),
        (["orders", "billing", "noon"], 2, "POSITION='noon' is invalid: must be 'earliest', "),
        (["orders", "billing", "0"], 2, "'timestamp:SECONDS' or an ISO time with its zone"),
        (["orders", "billing", "timestamp:99999999999"], 2, "must be between 1970 and now"),
        (["orders", "billing", "latest", "--partition", "2"], 2, "--partition 2 is invalid"),
        (
            ["orders", "billing", "offset:5"],
            2,
            "offset:5 is a place in one partition, and 'orders' has partitions 0 to 1; name it by ",
        ),
        (
            ["orders", "billing", "count:2", "--partition", "0", "--partition", "1"],
            2,
            "count:2 is a place in one partition, and 'orders' has partitions 0 to 1; name it by ",
        ),
        (
            ["orders", "billing", "offset:999999", "--partition", "1"],
            2,
            "offset 999999 is beyond the end of partition 1, which is ",
        ),
    ],
)
def test_what_can_not_be_moved_is_refused(
    nsqflow: InProcess, broker: BackgroundBroker, words: list[str], code: int, problem: str
) -> None:
    done = nsqflow("seek", *words, "--yes", *lookupd_of(broker))
    assert (done.code, done.out) == (code, "")
    [line] = done.err.splitlines()
    assert problem in line
    assert depths(broker, "orders", "billing") == [0, 0]


def test_a_channel_that_some_partitions_lack_is_moved_where_it_is(
    nsqflow: InProcess, broker: BackgroundBroker
) -> None:
    addresses = broker.lookupd_addresses
    with blocking.Consumer(
        "orders", "audit", lookupd=addresses, partitions=[1], start_from="earliest"
    ) as consumer:
        next(iter(consumer)).finish()
    done = nsqflow("seek", "orders", "audit", "earliest", "--yes", *lookupd_of(broker))
    assert (done.code, done.out) == (1, "")
    assert "topic 'orders' has no channel 'audit' in partition 0;" in done.err
    words = ["--partition", "1", "--yes", *lookupd_of(broker)]
    assert nsqflow("seek", "orders", "audit", "earliest", *words).code == 0
    assert depths(broker, "orders", "audit") == [None, 3]


def test_a_partition_that_fails_does_not_keep_the_channel_from_moving_in_others(
    empty_folder: object, broker: BackgroundBroker
) -> None:
    cluster = RedesignedCluster(lookupd=broker.lookupd_addresses)
    leader = asyncio.run(cluster.topic("orders")).leaders[1].address
    with OnTerminal(
        ["seek", "orders", "billing", "earliest", *lookupd_of(broker)], columns=200
    ) as command:
        command.await_text(r"\[y/N\]")
        broker.kill_node(broker.nsqd_addresses.index(leader))
        command.type("y\n")
        assert command.end() == 1
    assert "partition 0: moved back from offset" in command.shown
    assert "nsqflow: partition 1: " in command.shown
    assert depths(broker, "orders", "billing") == [3]
    done = run("seek", "orders", "billing", "earliest", "--yes", *lookupd_of(broker))
    assert (done.code, done.out) == (1, "")
    assert "partition 1 of 'orders' has no leader now; its nsqd may have stopped" in done.err


def test_one_partition_is_moved_while_the_nsqd_of_another_is_not_reachable(
    nsqflow: InProcess, broker: BackgroundBroker
) -> None:
    servers = [*lookupd_of(broker), "--config", config_of(broker, 1, "127.0.0.1:1")]
    done = nsqflow("seek", "orders", "billing", "earliest", "--yes", *servers)
    assert (done.code, done.out) == (1, "")
    words = ["seek", "orders", "billing", "earliest", "--partition", "0", "--yes"]
    done = nsqflow(*words, *servers)
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("partition 0: moved back from offset ")


@pytest.mark.parametrize("as_json", [False, True])
def test_a_move_whose_result_can_not_be_read_is_a_move(
    nsqflow: InProcess, broker: BackgroundBroker, as_json: bool
) -> None:
    with silent_after_a_change(http_leader(broker, 1)) as address:
        words = ["--partition", "1", "--yes", *["--json"] * as_json, *lookupd_of(broker)]
        config = config_of(broker, 1, address)
        done = nsqflow("seek", "orders", "billing", "earliest", *words, "--config", config)
    assert (done.code, done.err) == (0, "")
    if as_json:
        result = json.loads(done.out)
        assert result["from"] > 0
        assert (result["to"], result["depth"]) == (None, None)
    else:
        assert done.out == "partition 1: moved; its new position is unknown\n"
    assert depths(broker, "orders", "billing") == [0, 3]


def http_leader(broker: BackgroundBroker, partition: int) -> str:
    """The HTTP address of the nsqd that leads a partition."""
    cluster = RedesignedCluster(lookupd=broker.lookupd_addresses)
    return asyncio.run(cluster.topic("orders")).leaders[partition].http_address


def config_of(broker: BackgroundBroker, partition: int, address: str) -> str:
    """A config file with another address for the HTTP API of a partition's leader."""
    path = Path("config.toml")
    path.write_text(f'[address_map]\n"{http_leader(broker, partition)}" = "{address}"\n')
    return str(path)


@contextmanager
def silent_after_a_change(upstream: str) -> Iterator[str]:
    """An HTTP proxy that refuses every GET after the first POST."""
    changed = Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.forward(b"")

        def do_POST(self) -> None:
            self.forward(self.rfile.read(int(self.headers["Content-Length"])))
            changed.set()

        def forward(self, body: bytes) -> None:
            status, answer = 500, b"{}"
            if not changed.is_set():
                status, answer = ask(upstream, self.path, self.command, body)
            self.send_response(status)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def test_a_classic_channel_can_not_be_moved(nsqflow: InProcess, cluster: NsqCluster) -> None:
    topic = unique()
    cluster.create(topic, "billing")
    done = nsqflow("seek", topic, "billing", "earliest", "--yes", *cluster.through_lookupd)
    assert done == (
        2,
        "",
        f"nsqflow: seek is for topics of the redesigned NSQ: {topic!r} is a classic topic; "
        "classic NSQ keeps no finished messages; 'nsqflow empty' drops those that a channel has\n",
    )
    done = nsqflow("seek", topic, "billing", "earliest", "--yes", *cluster.directly)
    assert (done.code, done.out) == (2, "")
    assert "seek is for topics of the redesigned NSQ; name its nsqlookupd" in done.err
