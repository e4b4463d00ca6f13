"""The verb unblock."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nsqflow import Message, blocking
from nsqflow.admin import RedesignedCluster
from nsqflow.broker import BackgroundBroker
from tests.cli.clusters import NsqCluster, unique
from tests.cli.commands import InProcess, OnTerminal
from tests.cli.partitioned import browsed, depths, lookupd_of, publish


@contextmanager
def holding(
    broker: BackgroundBroker, partitions: list[int]
) -> Iterator[tuple[Iterator[Message], list[Message]]]:
    """Have a consumer hold the first message of these partitions; its further ones follow."""
    with blocking.Consumer(
        "orders", "billing", lookupd=broker.lookupd_addresses, partitions=partitions
    ) as consumer:
        messages = iter(consumer)
        held = [next(messages) for _ in partitions]
        yield messages, held
        for message in held:
            if not message.answered:
                message.finish()


@pytest.fixture
def broker(nsq_redesigned_broker: BackgroundBroker) -> BackgroundBroker:
    """A cluster with an ordered topic of two partitions, each with two messages for billing."""
    nsq_redesigned_broker.create_topic("orders", partitions=2, ordered=True)
    nsq_redesigned_broker.create_channel("orders", "billing")
    for number in range(2):
        publish(nsq_redesigned_broker, "orders", b"bad", b"good", partition=number)
    return nsq_redesigned_broker


@pytest.mark.parametrize("options", [[], ["--partition", "1"]])
def test_the_message_that_is_in_flight_is_skipped(
    nsqflow: InProcess, broker: BackgroundBroker, options: list[str]
) -> None:
    with holding(broker, [1]) as (messages, [bad]):
        assert (bad.body, bad.partition) == (b"bad", 1)
        done = nsqflow("unblock", "orders", "billing", *options, "--yes", *lookupd_of(broker))
        assert done == (
            0,
            "skipped a message of channel billing of orders: partition 1, offset 0, internal id "
            f"{bad.internal_id}\n",
            "",
        )
        assert depths(broker, "orders", "billing") == [2, 1]
        bad.finish()  # nsqd has let go of it
        with next(messages) as good:
            assert good.body == b"good"
    assert [message.body for message in browsed(broker, "orders", 1)] == ["bad", "good"]


def test_the_result_is_an_object_for_a_program(
    nsqflow: InProcess, broker: BackgroundBroker
) -> None:
    with holding(broker, [0]) as (_, [bad]):
        done = nsqflow("unblock", "orders", "billing", "--yes", "--json", *lookupd_of(broker))
    assert (done.code, done.err) == (0, "")
    assert json.loads(done.out) == {
        "topic": "orders",
        "channel": "billing",
        "partition": 0,
        "offset": 0,
        "internal_id": str(bad.internal_id),
        "result": "skipped",
    }


def test_a_partition_must_be_named_if_several_have_a_message_in_flight(
    nsqflow: InProcess, broker: BackgroundBroker
) -> None:
    with holding(broker, [0, 1]):
        done = nsqflow("unblock", "orders", "billing", "--yes", *lookupd_of(broker))
        assert done == (
            2,
            "",
            "nsqflow: messages of channel 'billing' are in flight in partitions 0, 1; name one by "
            "--partition\n",
        )
        assert depths(broker, "orders", "billing") == [2, 2]


@pytest.mark.parametrize(("answer", "code"), [("n", 1), ("y", 0)])
def test_a_terminal_shows_the_message_and_asks(
    empty_folder: object, broker: BackgroundBroker, answer: str, code: int
) -> None:
    with holding(broker, [0]) as (_, [bad]):
        with OnTerminal(["unblock", "orders", "billing", *lookupd_of(broker)]) as command:
            command.await_text(r"\[y/N\]")
            command.type(f"{answer}\n")
            assert command.end() == code
        assert depths(broker, "orders", "billing") == ([1, 2] if answer == "y" else [2, 2])
    text = f"Skip the message at offset 0 of partition 0 (internal id {bad.internal_id}, published"
    assert text in command.shown
    assert "'bad') in channel billing of orders? [y/N]" in command.shown
    assert ("nothing was skipped" in command.shown) is (answer == "n")


def test_a_message_that_was_finished_meanwhile_is_not_skipped(
    empty_folder: object, broker: BackgroundBroker
) -> None:
    with holding(broker, [0]) as (messages, [bad]):
        with OnTerminal(["unblock", "orders", "billing", *lookupd_of(broker)]) as command:
            command.await_text(r"\[y/N\]")
            bad.finish()
            good = next(messages)
            command.type("y\n")
            assert command.end() == 1
        assert "nothing was skipped: the message at offset 0 of partition 0 is" in command.shown
        assert depths(broker, "orders", "billing") == [1, 2]
        good.finish()


def test_another_error_is_reported_as_it_is(empty_folder: object, broker: BackgroundBroker) -> None:
    with (
        holding(broker, [0]) as (_, [bad]),
        OnTerminal(["unblock", "orders", "billing", *lookupd_of(broker)], columns=200) as command,
    ):
        command.await_text(r"\[y/N\]")
        bad.finish()
        cluster = RedesignedCluster(lookupd=broker.lookupd_addresses)
        asyncio.run(cluster.change_channel("delete", "orders", "billing"))
        command.type("y\n")
        assert command.end() == 1
    assert "nsqflow: 127.0.0.1:" in command.shown
    assert "in flight any more" not in command.shown


def test_a_partition_is_unblocked_while_the_nsqd_of_another_is_not_reachable(
    nsqflow: InProcess, broker: BackgroundBroker
) -> None:
    cluster = RedesignedCluster(lookupd=broker.lookupd_addresses)
    other = asyncio.run(cluster.topic("orders")).leaders[1].http_address
    Path("config.toml").write_text(f'[address_map]\n"{other}" = "127.0.0.1:1"\n')
    words = ["--partition", "0", "--yes", "--config", "config.toml", *lookupd_of(broker)]
    with holding(broker, [0]):
        done = nsqflow("unblock", "orders", "billing", *words)
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("skipped a message of channel billing of orders: partition 0, ")


def test_without_a_message_in_flight_nothing_is_skipped(
    nsqflow: InProcess, broker: BackgroundBroker
) -> None:
    done = nsqflow("unblock", "orders", "billing", "--yes", *lookupd_of(broker))
    assert done == (
        1,
        "",
        "nsqflow: no message of channel 'billing' is in flight in partitions 0, 1; a message can "
        "be skipped while a consumer has it\n",
    )


@pytest.mark.parametrize(
    ("words", "code", "problem"),
    [
        (["order", "billing"], 1, "there is no topic 'order'; did you mean 'orders'?"),
        (["orders", "biling"], 1, "no channel 'biling'; did you mean 'billing'?"),
        (["orders", "billing", "--partition", "2"], 2, "--partition 2 is invalid"),
        (["plain", "billing"], 2, "unblock is for ordered topics: 'plain' is not ordered"),
    ],
)
def test_what_can_not_be_unblocked_is_refused(
    nsqflow: InProcess, broker: BackgroundBroker, words: list[str], code: int, problem: str
) -> None:
    broker.create_topic("plain")
    done = nsqflow("unblock", *words, "--yes", *lookupd_of(broker))
    assert (done.code, done.out) == (code, "")
    [line] = done.err.splitlines()
    assert problem in line


def test_a_classic_channel_is_not_blocked(nsqflow: InProcess, cluster: NsqCluster) -> None:
    topic = unique()
    cluster.create(topic, "billing")
    done = nsqflow("unblock", topic, "billing", "--yes", *cluster.through_lookupd)
    assert done == (
        2,
        "",
        f"nsqflow: unblock is for topics of the redesigned NSQ: {topic!r} is a classic topic; on "
        "classic NSQ no message holds up others; 'nsqflow empty' drops those of a channel\n",
    )
    done = nsqflow("unblock", topic, "billing", "--yes", *cluster.directly)
    assert (done.code, done.out) == (2, "")
    assert "unblock is for topics of the redesigned NSQ; name its nsqlookupd" in done.err
