"""The verbs create, delete, pause, unpause and empty."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

from nsqflow.broker import BackgroundBroker
from tests.cli.commands import Here, OnTerminal, run
from tests.cli.sites import Site, unique


@pytest.fixture(params=["lookupd", "nsqd"])
def servers(request: pytest.FixtureRequest, site: Site) -> list[str]:
    """The options that name the site, either way."""
    return site.through_lookupd if request.param == "lookupd" else site.directly


def test_a_topic_is_created_on_the_nsqd_that_are_named(nsqflow: Here, site: Site) -> None:
    topic = unique()
    done = nsqflow("create", topic, *site.directly)
    assert done == (0, f"created topic {topic} on {', '.join(site.nsqd)}\n", "")
    assert [site.topic(topic, node) is None for node in (0, 1)] == [False, False]


def test_a_channel_is_created_with_its_topic(nsqflow: Here, site: Site) -> None:
    topic = unique()
    done = nsqflow("create", topic, "billing", *site.directly)
    assert done == (0, f"created channel billing of {topic} on {', '.join(site.nsqd)}\n", "")
    assert site.channel(topic, "billing") is not None


def test_nsqlookupd_is_told_of_a_new_topic_and_no_nsqd_has_it_yet(
    nsqflow: Here, site: Site
) -> None:
    topic = unique()
    done = nsqflow("create", topic, "billing", *site.through_lookupd)
    assert done == (0, f"created channel billing of {topic} on {site.lookupd}\n", "")
    assert topic in site.known("/topics")
    assert site.known(f"/channels?topic={topic}") == ["billing"]
    assert site.topic(topic) is None


def test_a_channel_is_created_where_the_topic_is_already(nsqflow: Here, site: Site) -> None:
    topic = unique()
    site.create(topic, node=1)
    done = nsqflow("create", topic, "billing", *site.through_lookupd)
    assert done.out == f"created channel billing of {topic} on {site.lookupd}, {site.nsqd[1]}\n"
    assert site.channel(topic, "billing", node=1) is not None
    assert site.topic(topic, node=0) is None


def test_a_topic_is_deleted_from_every_nsqd_that_has_it(
    nsqflow: Here, site: Site, servers: list[str]
) -> None:
    topic = unique()
    for node in (0, 1):
        site.create(topic, "billing", node)
    done = nsqflow("delete", topic, "--yes", *servers)
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith(f"deleted topic {topic} on ")
    assert all(address in done.out for address in site.nsqd)
    assert [site.topic(topic, node) for node in (0, 1)] == [None, None]
    if servers == site.through_lookupd:
        assert topic not in site.known("/topics")


def test_a_channel_is_deleted_and_its_topic_stays(
    nsqflow: Here, site: Site, servers: list[str]
) -> None:
    topic = unique()
    site.create(topic, "billing")
    site.create(topic, "mail")
    done = nsqflow("delete", topic, "billing", "--yes", *servers)
    assert (done.code, done.err) == (0, "")
    assert site.channel(topic, "billing") is None
    assert site.channel(topic, "mail") is not None
    if servers == site.through_lookupd:
        assert site.known(f"/channels?topic={topic}") == ["mail"]


def test_what_nsqlookupd_alone_knows_can_be_deleted(nsqflow: Here, site: Site) -> None:
    topic = unique()
    nsqflow("create", topic, "billing", *site.through_lookupd)
    done = nsqflow("delete", topic, "billing", "--yes", *site.through_lookupd)
    assert done == (0, f"deleted channel billing of {topic} on {site.lookupd}\n", "")
    done = nsqflow("delete", topic, "--yes", *site.through_lookupd)
    assert done == (0, f"deleted topic {topic} on {site.lookupd}\n", "")
    assert topic not in site.known("/topics")


def test_a_channel_is_paused_and_unpaused_on_every_nsqd_that_has_it(
    nsqflow: Here, site: Site, servers: list[str]
) -> None:
    topic = unique()
    for node in (0, 1):
        site.create(topic, "billing", node)

    def paused() -> list[bool]:
        channels = [site.channel(topic, "billing", node) for node in (0, 1)]
        return [bool(channel and channel["paused"]) for channel in channels]

    done = nsqflow("pause", topic, "billing", *servers)
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith(f"paused channel billing of {topic} on ")
    assert paused() == [True, True]
    done = nsqflow("unpause", topic, "billing", *servers)
    assert done.out.startswith(f"unpaused channel billing of {topic} on ")
    assert paused() == [False, False]


def test_a_topic_is_paused_where_it_is(nsqflow: Here, site: Site, servers: list[str]) -> None:
    topic = unique()
    site.create(topic, node=1)
    done = nsqflow("pause", topic, *servers)
    assert done == (0, f"paused topic {topic} on {site.nsqd[1]}\n", "")
    found = site.topic(topic, node=1)
    assert found is not None
    assert found["paused"]
    assert site.topic(topic, node=0) is None


def test_a_channel_is_emptied(nsqflow: Here, site: Site, servers: list[str]) -> None:
    topic = unique()
    site.create(topic, "billing")
    site.create(topic, "mail")
    site.publish(topic, b"1", b"2")
    done = nsqflow("empty", topic, "billing", "--yes", *servers)
    assert done == (0, f"emptied channel billing of {topic} on {site.nsqd[0]}\n", "")
    emptied, other = site.channel(topic, "billing"), site.channel(topic, "mail")
    assert emptied is not None
    assert other is not None
    assert (emptied["depth"], other["depth"]) == (0, 2)


def test_a_topic_is_emptied(nsqflow: Here, site: Site, servers: list[str]) -> None:
    topic = unique()
    site.publish(topic, b"1", b"2")
    assert nsqflow("empty", topic, "-y", *servers).code == 0
    found = site.topic(topic)
    assert found is not None
    assert found["depth"] == 0


@pytest.mark.parametrize("verb", ["delete", "pause", "unpause", "empty"])
def test_what_is_not_there_is_named_with_a_hint(
    nsqflow: Here, site: Site, servers: list[str], verb: str
) -> None:
    topic = unique()
    site.create(topic, "billing")
    words = ["--yes"] if verb in ("delete", "empty") else []
    done = nsqflow(verb, topic, "biling", *words, *servers)
    assert (done.code, done.out) == (1, "")
    assert done.err == (
        f"nsqflow: topic {topic!r} has no channel 'biling'; did you mean 'billing'?\n"
    )
    done = nsqflow(verb, f"{topic}x", *words, *servers)
    assert done == (
        1, "", f"nsqflow: there is no topic {topic + 'x'!r}; did you mean {topic!r}?\n"
    )  # fmt: skip


def test_what_no_nsqd_has_can_not_be_paused(nsqflow: Here, site: Site) -> None:
    topic = unique()
    nsqflow("create", topic, *site.through_lookupd)
    done = nsqflow("pause", topic, *site.through_lookupd)
    assert done == (
        1, "", f"nsqflow: no nsqd has topic {topic} yet; nsqlookupd alone knows of it\n"
    )  # fmt: skip


def test_an_nsqd_that_does_not_answer_is_told_of_and_the_others_do_it(nsqflow: Here) -> None:
    with BackgroundBroker(nodes=2) as broker:
        http = broker.nsqd_http_addresses
        site = Site(broker.lookupd_addresses[0], broker.nsqd_addresses, http)
        for node in (0, 1):
            site.create("orders", node=node)
        broker.kill_node(0)
        done = nsqflow("delete", "orders", "--yes", *site.directly)
        assert done.out == f"deleted topic orders on {site.nsqd[1]}\n"
        assert (done.code, done.err) == (1, f"nsqflow: {http[0]}: Connection refused\n")


@pytest.mark.parametrize("verb", ["delete", "empty"])
def test_nothing_is_destroyed_where_nobody_can_be_asked(
    nowhere: Path, site: Site, verb: str
) -> None:
    topic = unique()
    site.create(topic, "billing")
    site.publish(topic, b"1")
    done = run(verb, topic, "billing", *site.through_lookupd)
    assert (done.code, done.out) == (2, "")
    assert "1 message" in done.err
    assert done.err.endswith("Nobody can be asked here; say --yes\n")
    channel = site.channel(topic, "billing")
    assert channel is not None
    assert channel["depth"] == 1


@pytest.mark.parametrize(("answer", "left"), [("n\n", 1), ("\n", 1), ("y\n", 0)])
def test_a_person_is_asked_before_something_is_destroyed(
    nowhere: Path, site: Site, answer: str, left: int
) -> None:
    topic = unique()
    site.create(topic, "billing")
    site.publish(topic, b"1")
    with OnTerminal(["empty", topic, "billing", *site.through_lookupd]) as command:
        command.await_text(
            rf"Throw away 1 message of channel billing of {topic}, on {site.nsqd[0]}\? \[y/N\] "
        )
        command.type(answer)
        assert command.end() == left
        assert ("nothing was thrown away" in command.shown) == bool(left)
    channel = site.channel(topic, "billing")
    assert channel is not None
    assert channel["depth"] == left


@pytest.mark.parametrize(("key", "code"), [("\x03", 130), ("\x04", 1)])
def test_a_person_who_does_not_answer_destroys_nothing(
    nowhere: Path, site: Site, key: str, code: int
) -> None:
    topic = unique()
    site.create(topic)
    with OnTerminal(["delete", topic, *site.directly]) as command:
        command.await_text(r"\[y/N\] ")
        command.type(key)
        if key == "\x03":  # it has no terminal that would make a signal of it
            command.process.send_signal(signal.SIGINT)
        assert command.end() == code
    assert re.search(r"\[y/N\] (\^C)?\n", command.shown)  # what comes next has its own line
    assert site.topic(topic) is not None


def test_a_cluster_of_many_nsqd_is_changed_as_a_whole(nsqflow: Here) -> None:
    with BackgroundBroker(nodes=40) as broker:
        broker.create_topic("orders")
        [lookupd] = broker.lookupd_addresses
        done = nsqflow("pause", "orders", "--lookupd", lookupd)
        assert done == (0, "paused topic orders on 40 servers\n", "")
        done = nsqflow("delete", "orders", "--yes", "--lookupd", lookupd)
        assert done == (0, "deleted topic orders on 41 servers\n", "")
        assert nsqflow("topics", "--lookupd", lookupd) == (0, "", "")
