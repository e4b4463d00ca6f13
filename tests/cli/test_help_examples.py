"""The examples that each verb's help gives, run as they stand, each as a process."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from nsqflow import blocking
from nsqflow.broker import BackgroundBroker
from nsqflow.cli import DAEMONS, VERBS
from nsqflow.spark.spool.local_store import LocalStore
from tests.cli.clusters import NsqCluster
from tests.cli.commands import CommandProcess, InProcess, install_command, run
from tests.fixtures.servers import PATIENCE, Server
from tests.unit.spark.spools import OLD, SpoolBuilder

ELSEWHERE = {"run", "demo"}  # they need Spark, and have tests of their own
ENDLESS = {"broker", *DAEMONS}
ENDING = [verb for verb in VERBS if verb not in ELSEWHERE | ENDLESS]
PARTITIONED = ("browse", "seek", "unblock", "move-leader", "--key", "--from", "--partitions")
"""Words of examples that need a topic of the redesigned NSQ."""


@cache
def examples(verb: str) -> list[str]:
    """The commands that a verb's help shows."""
    done = run(*verb.split(), "--help")
    assert (done.code, done.err) == (0, "")
    _, _, shown = done.out.partition("Example:\n")
    return re.findall(r"^ +\$ (.+)$", shown, re.MULTILINE)


def classic_examples(verb: str) -> list[str]:
    """Those that do something on the classic NSQ."""
    return [example for example in examples(verb) if not needs_partitions(example)]


def needs_partitions(example: str) -> bool:
    """Return whether an example is for the redesigned NSQ."""
    return not {*PARTITIONED}.isdisjoint(example.split())


@pytest.fixture
def shell(empty_folder: Path, tmp_path: Path, cluster: NsqCluster) -> dict[str, str]:
    """Where the examples find the command, a cluster, and what they are about."""
    folder = tmp_path / "bin"
    folder.mkdir()
    install_command(folder)
    (empty_folder / "orders.txt").write_text("order 1\norder 2\n")
    builder = SpoolBuilder(LocalStore(str(empty_folder / "orders" / "spool")))
    builder.generation(OLD)
    builder.lease(1, OLD)
    for topic in ("orders", "returns"):
        for node in (0, 1):
            cluster.create(topic, "billing", node)
    path = f"{folder}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "NSQFLOW_LOOKUPD": cluster.lookupd}


@pytest.fixture
def orders(cluster: NsqCluster, shell: object) -> Iterator[None]:
    """Publish all the time, for verbs that show messages."""
    enough = threading.Event()

    def publish() -> None:
        while not enough.wait(0.05):
            for topic in ("orders", "returns"):
                cluster.publish(topic, b"order")

    thread = threading.Thread(target=publish)
    thread.start()
    yield
    enough.set()
    thread.join()


def test_each_verb_has_examples_in_its_help() -> None:
    assert [verb for verb in VERBS if verb not in ELSEWHERE and not examples(verb)] == []


@pytest.mark.parametrize("verb", [verb for verb in ENDING if verb != "tail"])
def test_an_example_does_what_it_says(verb: str, shell: dict[str, str]) -> None:
    for example in classic_examples(verb):
        done = subprocess.run(
            ["sh", "-c", example],
            env=shell,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, ""), example
        assert done.stdout, example


def test_an_example_of_tail_shows_what_comes(shell: dict[str, str], orders: None) -> None:
    for example in classic_examples("tail"):
        done = subprocess.run(
            ["sh", "-c", example],
            env=shell,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, ""), example
        assert "order" in done.stdout


def test_an_example_for_topics_with_partitions_does_what_it_says(
    empty_folder: Path, nsq_redesigned_broker: BackgroundBroker
) -> None:
    broker = nsq_redesigned_broker
    broker.create_topic("orders", partitions=2, ordered=True)
    lookupd = broker.lookupd_addresses
    with (
        blocking.Producer(lookupd=lookupd) as producer,
        blocking.Consumer("orders", "billing", lookupd=lookupd, start_from="earliest") as consumer,
    ):
        for number in range(2):
            producer.publish("orders", b"order", partition=number)
        messages = iter(consumer)
        held = {message.partition: message for message in (next(messages), next(messages))}
        env = {"NSQFLOW_LOOKUPD": ",".join(lookupd)}
        found = [example for verb in ENDING for example in examples(verb)]
        for example in filter(needs_partitions, found):
            # Its nsqd have other ports here.
            example = example.replace("127.0.0.1:4152", broker.nsqd_addresses[1])
            done = run(*shlex.split(example)[1:], env=env)
            assert done.code == 0, example
            # The topic of that one is ordered, which a warning is about.
            assert bool(done.err) == ("move-leader" in example), example
            assert done.out, example
        for message in held.values():
            message.finish()


def test_an_example_of_broker_runs_until_it_is_stopped(empty_folder: Path) -> None:
    for example in examples("broker"):
        with CommandProcess(shlex.split(example)[1:]) as command:
            command.await_text("nsqd.*127.0.0.1:")
            assert command.end(signal.SIGTERM) == 0


@pytest.mark.parametrize("verb", DAEMONS)
def test_an_example_of_a_daemon_runs_until_it_is_stopped(verb: str, empty_folder: Path) -> None:
    [example] = examples(verb)
    words = shlex.split(example)[1:]
    # The last word counts: on free ports, whatever else runs here.
    free = ["--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0"]
    with Server([sys.executable, "-m", "nsqflow", *words, *free], []) as server:
        assert server.ask("/ping") == (200, b"OK")


def test_help_of_a_verb_is_plain_text(nsqflow: InProcess) -> None:
    for word in ("--help", "-h"):
        done = nsqflow("pub", word)
        assert done.code == 0
        assert done.out.startswith("Usage: nsqflow pub ")
        assert "    $ nsqflow pub orders 'order 1' 'order 2'\n" in done.out
        assert "\x1b" not in done.out
        assert "\b" not in done.out
