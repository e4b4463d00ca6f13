"""A real daemon and one of ours work together."""

from pathlib import Path

import pytest

from tests.fixtures.servers import Kind, start_nsqd, start_nsqlookupd
from tests.outside.brokers import (
    NOTHING_LEFT,
    ask,
    await_channel,
    await_equal,
    create,
    producers,
    publish,
    topic_stats,
)
from tests.outside.programs import Program, command_of

BODIES = [b"%04d" % number for number in range(100)]


@pytest.mark.parametrize(("kind_of_nsqd", "kind_of_lookupd"), [("real", "ours"), ("ours", "real")])
def test_nsqd_registers_with_nsqlookupd_of_the_other_kind(
    kind_of_nsqd: Kind, kind_of_lookupd: Kind, tmp_path: Path, topic: str
) -> None:
    with start_nsqlookupd(kind=kind_of_lookupd) as lookupd:
        with start_nsqd(tmp_path, kind=kind_of_nsqd, lookupd=[lookupd]) as nsqd:
            port = int(nsqd.tcp_address.rpartition(":")[2])
            create(nsqd, topic, "ch")
            publish(nsqd, topic, BODIES)
            await_equal(lambda: producers(lookupd, topic), {port})
            tail = command_of("nsq_tail", lookupd_http_address=lookupd.http_address, topic=topic)
            with Program([*tail, "-channel=ch"]) as program:
                assert sorted(program.await_lines(len(BODIES))) == BODIES
                await_channel(nsqd, topic, "ch", message_count=len(BODIES), **NOTHING_LEFT)
            assert nsqd.ask(f"/topic/delete?topic={topic}", "POST")[0] == 200
            await_equal(lambda: producers(lookupd, topic), set())
        await_equal(lambda: ask(lookupd, "/nodes")["producers"], [])


@pytest.mark.parametrize(("kind_of_nsqd", "kind_of_lookupd"), [("real", "ours"), ("ours", "real")])
def test_a_new_topic_gets_the_channels_known_to_nsqlookupd_of_the_other_kind(
    kind_of_nsqd: Kind, kind_of_lookupd: Kind, tmp_path: Path, topic: str
) -> None:
    with (
        start_nsqlookupd(kind=kind_of_lookupd) as lookupd,
        start_nsqd(tmp_path, kind=kind_of_nsqd, lookupd=[lookupd]) as nsqd,
    ):
        for path in (f"/topic/create?topic={topic}", f"/channel/create?topic={topic}&channel=ch"):
            assert lookupd.ask(path, "POST")[0] == 200
        publish(nsqd, topic, BODIES)
        await_channel(nsqd, topic, "ch", depth=len(BODIES))
        assert topic_stats(nsqd, topic)["depth"] == 0
