"""The verb broker with --redesigned."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import pytest

from nsqflow import blocking
from tests.cli.clusters import ask
from tests.cli.commands import CommandProcess, InProcess
from tests.cli.test_broker import free_ports

NODES = ["--redesigned", "--nodes", "3"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_takes_messages_once_it_has_printed_its_addresses(
    empty_folder: Path, number: int
) -> None:
    with CommandProcess(["broker", "--port", "0", "--json", *NODES]) as command:
        addresses = json.loads(command.await_text(r"\{.*\}\n")[0])
        assert {key: len(value) for key, value in addresses.items()} == {
            "nsqd": 3,
            "nsqd_http": 3,
            "lookupd": 2,
        }
        lookupd = addresses["lookupd"]
        create = "/topic/create?topic=orders&partition_num=3&replicator=1"
        assert ask(lookupd[0], create, "POST")[0] == 200
        with blocking.Producer(lookupd=lookupd) as producer:
            for partition in range(3):
                producer.publish("orders", b"hello", partition=partition)
        for address in addresses["nsqd_http"]:
            # The address is that of a node, and each has one partition.
            data = json.loads(ask(address, "/stats?format=json")[1])["data"]
            assert [each["message_count"] for each in data["topics"]] == [1]
        assert command.end(number) == 0


def test_its_ports_follow_from_one(empty_folder: Path) -> None:
    port = free_ports(1, 2, 3, 4, 5, 11, 13)
    with CommandProcess(["broker", "--port", str(port), *NODES]) as command:
        command.await_text(r"Ctrl-C")
        lines = command.text.splitlines()
        assert [re.findall(r"127\.0\.0\.1:(\d+)", line) for line in lines[:5]] == [
            [str(port), str(port + 1)],
            [str(port + 2), str(port + 3)],
            [str(port + 4), str(port + 5)],
            [str(port + 11)],
            [str(port + 13)],
        ]
        assert "memory" in lines[5]
        assert command.end(signal.SIGTERM) == 0


def test_a_folder_for_messages_is_refused(nsqflow: InProcess, empty_folder: Path) -> None:
    done = nsqflow("broker", "--port", "0", "--redesigned", "--data-path", "messages")
    assert (done.code, done.out) == (2, "")
    assert "--data-path is not for --redesigned" in done.err
    assert [*empty_folder.iterdir()] == []


def test_several_nodes_are_for_a_cluster_alone(nsqflow: InProcess) -> None:
    done = nsqflow("broker", "--port", "0", "--nodes", "3")
    assert (done.code, done.out) == (2, "")
    assert "--nodes 3 is for --redesigned" in done.err
