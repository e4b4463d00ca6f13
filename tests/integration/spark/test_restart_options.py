"""What of a query may change when it is restarted: each row of the table in the docs.

A driver dies with a batch that is planned and partly read. Another one, with one option changed,
reads the rest: each message once, or not at all where the change is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from nsqflow.errors import ConfigError, DataLossError
from nsqflow.spark.options import OPTIONS, parse_stream
from nsqflow.spark.server_options import STREAM
from nsqflow.spark.source.reader import NsqStreamReader
from tests.fixtures.certificates import Certificates
from tests.fixtures.crashing import until
from tests.fixtures.servers import ROOT, Nsqd, Nsqlookupd, start_nsqd, start_nsqlookupd
from tests.fixtures.spark import published
from tests.spark.queries import waiting

TABLE = re.compile(r"^\| `(\w+)`((?:, `\w+`)*) \| (yes|no) \|", re.M)

TOTAL = 30
BATCH = 10


@dataclass(frozen=True)
class Servers:
    nsqd: Nsqd
    lookupd: Nsqlookupd
    certificates: Certificates


@pytest.fixture(scope="module")
def servers(
    tmp_path_factory: pytest.TempPathFactory, certificates: Certificates
) -> Iterator[Servers]:
    """An nsqd that offers TLS and compression, and fills slots of 5 messages."""
    folder, slots = tmp_path_factory.mktemp("nsqd"), ["-max-rdy-count=5"]
    with (
        start_nsqlookupd() as lookupd,
        start_nsqd(folder, lookupd=[lookupd], tls=certificates, options=slots) as nsqd,
    ):
        yield Servers(nsqd, lookupd, certificates)


@dataclass(frozen=True)
class Change:
    """Options before and after a restart; empty text removes one."""

    before: dict[str, str]
    after: dict[str, str]


def change(option: str, servers: Servers, topic: str, folder: Path) -> Change:
    """Return a change of one option, with what belongs to it."""
    tls = {"tls": "true", "tlsCaFile": str(servers.certificates.ca)}
    key = {
        "tlsCertFile": str(servers.certificates.cert),
        "tlsKeyFile": str(servers.certificates.key),
    }
    direct = {"nsqd": "", "nsqdHttp": ""}
    low = {"minMessagesPerTrigger": "1"}
    dead = {"maxAttempts": "9", "deadLetterTopic": f"{topic}-dead"}
    secret = folder / "secret"
    secret.write_text("hush")
    changes: dict[str, Change] = {
        "topic": Change({}, {"topic": f"{topic},{topic}-2"}),
        "topicPattern": Change({}, {"topic": "", "topicPattern": f"{topic}.*"}),
        "lookupd": Change({}, direct | {"lookupd": servers.lookupd.http_address}),
        "nsqd": Change(
            direct | {"lookupd": servers.lookupd.http_address},
            {
                "lookupd": "",
                "nsqd": servers.nsqd.tcp_address,
                "nsqdHttp": servers.nsqd.http_address,
            },
        ),
        "nsqdHttp": Change({}, {"nsqdHttp": f"http://{servers.nsqd.http_address}"}),
        "channel": Change({}, {"channel": "other"}),
        "spoolLocation": Change({}, {"spoolLocation": str(folder / "other")}),
        "spoolRetentionBatches": Change({}, {"spoolRetentionBatches": "1"}),
        "spoolPermissions": Change({}, {"spoolPermissions": "group"}),
        "leaseTimeout": Change({"leaseTimeout": "10m"}, {"leaseTimeout": "3s"}),
        "allowSharedChannel": Change({}, {"allowSharedChannel": "true"}),
        "partitionsPerNsqd": Change({}, {"partitionsPerNsqd": "3"}),
        "maxMessagesPerPartition": Change({}, {"maxMessagesPerPartition": "2"}),
        "maxMessagesPerTrigger": Change({}, {"maxMessagesPerTrigger": "4"}),
        "maxBytesPerTrigger": Change({}, {"maxBytesPerTrigger": "600"}),
        "minMessagesPerTrigger": Change({}, low),
        "maxTriggerDelay": Change(low, low | {"maxTriggerDelay": "5m"}),
        "idleTimeout": Change({}, {"idleTimeout": "300ms"}),
        "msgTimeout": Change({}, {"msgTimeout": "30s"}),
        "startingPosition": Change({}, {"startingPosition": "latest"}),
        # Order is for redesigned topics: source/test_partitions.py changes it for one.
        "ordered": Change({"ordered": "false"}, {}),
        "failOnDataLoss": Change({}, {"failOnDataLoss": "false"}),
        "dedupe": Change({}, {"dedupe": "always"}),
        "maxAttempts": Change(dead, {"maxAttempts": "8"}),
        "deadLetterTopic": Change({}, dead),
        "includeMetadata": Change({}, {"includeMetadata": "false"}),
        "tls": Change({}, tls),
        "tlsCaFile": Change({"tls": "true", "tlsVerify": "false"}, tls | {"tlsVerify": ""}),
        "tlsCertFile": Change(tls, key),
        "tlsKeyFile": Change(tls, key),
        "tlsVerify": Change(tls, {"tlsVerify": "false"}),
        "authSecret": Change({}, {"authSecret": "hush"}),
        "authSecretFile": Change({}, {"authSecretFile": str(secret)}),
        "authSecretEnv": Change({}, {"authSecretEnv": "HOME"}),
        "snappy": Change({}, {"snappy": "true"}),
        "deflate": Change({}, {"deflate": "true"}),
    }
    return changes[option]


def documented() -> dict[str, bool]:
    """Return the options of the table in the docs, and whether each may change."""
    page = (ROOT / "docs" / "spark-production.md").read_text()
    return {
        option: may == "yes"
        for first, others, may in TABLE.findall(page)
        for option in (first, *re.findall(r"\w+", others))
    }


def test_the_table_has_every_option_of_a_stream() -> None:
    streams = [row.name for row in OPTIONS if row.applies_to(STREAM)]
    assert sorted(documented()) == sorted(set(streams))


class Run:
    """What Spark does with one reader: from the last offset on, as long as it lives."""

    def __init__(self, options: dict[str, str]) -> None:
        given = {name: text for name, text in options.items() if text}
        self.options = parse_stream(given)
        self.reader = NsqStreamReader(self.options)
        self.numbers: list[int] = []

    def plan(self, start: dict[str, Any]) -> dict[str, Any]:
        """Return the end of the next batch, once there is one."""
        end = start

        def is_planned() -> bool:
            nonlocal end
            end = self.reader.latestOffset(start, self.reader.getDefaultReadLimit())
            return bool(end["plan"]) and end != start

        until(is_planned)
        return end

    def read(self, start: dict[str, Any], end: dict[str, Any]) -> None:
        """Read all of a batch, as its tasks do."""
        for partition in self.reader.partitions(start, end):
            for rows in NsqStreamReader(self.options).read(partition):
                self.numbers += [int(body[:10]) for body in rows.column("body").to_pylist()]

    def read_first_slot(self, start: dict[str, Any], end: dict[str, Any]) -> None:
        """Read a slot of a batch and no more, as by a task that dies."""
        first = self.reader.partitions(start, end)[0]
        next(NsqStreamReader(self.options).read(first))


@contextmanager
def running(options: dict[str, str]) -> Iterator[Run]:
    run = Run(options)
    try:
        yield run
    finally:
        run.reader.stop()


@pytest.mark.parametrize("option", sorted(documented()))
def test_an_option_may_change_at_a_restart_as_the_table_says(
    option: str, servers: Servers, tmp_path: Path
) -> None:
    nsqd, topic = servers.nsqd, f"t{uuid4().hex[:16]}"
    waiting(nsqd, topic, TOTAL)
    changed = change(option, servers, topic, tmp_path)
    before = {
        "topic": topic,
        "channel": "spark",
        "nsqd": nsqd.tcp_address,
        "nsqdHttp": nsqd.http_address,
        "spoolLocation": str(tmp_path / "spool"),
        "maxMessagesPerTrigger": str(BATCH),
        "idleTimeout": "200ms",
    } | changed.before
    with running(before) as first:
        start = first.plan(first.reader.initialOffset())
        first.read({}, start)
        first.reader.commit(start)
        end = first.plan(start)
        first.read_first_slot(start, end)
    with running(before | changed.after) as second:
        if not documented()[option]:
            with pytest.raises((ConfigError, DataLossError), match=option):
                restart(second, start, end)
            return
        restart(second, start, end)
    assert sorted(first.numbers + second.numbers) == [*range(TOTAL)]


def restart(run: Run, start: dict[str, Any], end: dict[str, Any]) -> None:
    """Replay the open batch, then read the rest, as Spark does after a crash."""
    run.read(start, end)
    run.reader.commit(end)
    while len(run.numbers) < TOTAL - BATCH:
        following = run.plan(end)
        run.read(end, following)
        run.reader.commit(following)
        end = following


def test_a_topic_that_is_added_is_read_and_one_that_is_removed_is_not(
    servers: Servers, tmp_path: Path
) -> None:
    nsqd, topic = servers.nsqd, f"t{uuid4().hex[:16]}"
    options = {
        "topic": topic,
        "channel": "spark",
        "nsqd": nsqd.tcp_address,
        "nsqdHttp": nsqd.http_address,
        "spoolLocation": str(tmp_path / "spool"),
        "idleTimeout": "200ms",
    }
    waiting(nsqd, topic, 5)
    with running(options) as run:
        end = run.plan(run.reader.initialOffset())
        run.read({}, end)
    published(nsqd, topic, 5, first=5)
    with running(options | {"topic": f"{topic}-2"}) as run:
        assert run.reader.latestOffset(end, run.reader.getDefaultReadLimit()) == end
        waiting(nsqd, f"{topic}-2", 5, first=10)
        following = run.plan(end)
        run.read(end, following)
    assert sorted(run.numbers) == [*range(10, 15)]
