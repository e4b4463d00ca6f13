"""The utilities of NSQ with both kinds of broker."""

from pathlib import Path

from nsqflow.blocking import Consumer, Producer
from tests.outside.brokers import (
    NOTHING_LEFT,
    Broker,
    ask,
    await_channel,
    await_equal,
    consume,
    create,
    producers,
    publish,
    topic_stats,
)
from tests.outside.programs import Program, command_of, run

# More than go-nsq has in flight, with bytes that are no text; in ascending order.
BODIES = [b"%04d \x00\xff" % number for number in range(500)]


def test_to_nsq_publishes_every_line(broker: Broker, topic: str) -> None:
    lines = b"".join(body + b"\n" for body in BODIES)
    run(command_of("to_nsq", nsqd_tcp_address=broker.nsqd.tcp_address, topic=topic), lines)
    stats = topic_stats(broker.nsqd, topic)
    assert (stats["depth"], stats["message_count"]) == (len(BODIES), len(BODIES))
    assert stats["message_bytes"] == sum(map(len, BODIES))
    assert sorted(consume(broker.nsqd, topic, "ch", len(BODIES))) == BODIES


def test_nsq_tail_prints_what_is_published_to_each_nsqd(broker: Broker, topic: str) -> None:
    broker.create_everywhere(topic)
    tail = command_of("nsq_tail", lookupd_http_address=broker.lookupd.http_address, topic=topic)
    with Program([*tail, "-channel=tail"]) as program:
        await_channel(broker.nsqd, topic, "tail", client_count=1)
        await_channel(broker.other, topic, "tail", client_count=1)
        publish(broker.nsqd, topic, BODIES[:300])
        publish(broker.other, topic, BODIES[300:])
        assert sorted(program.await_lines(len(BODIES))) == BODIES
        await_channel(broker.nsqd, topic, "tail", message_count=300, **NOTHING_LEFT)
        await_channel(broker.other, topic, "tail", message_count=200, **NOTHING_LEFT)
    await_channel(broker.nsqd, topic, "tail", client_count=0, depth=0)
    assert sorted(program.lines) == BODIES


def test_nsq_tail_without_a_channel_leaves_none(broker: Broker, topic: str) -> None:
    def channels() -> list[str]:
        return [channel["channel_name"] for channel in topic_stats(broker.nsqd, topic)["channels"]]

    def known() -> list[str]:
        return [str(name) for name in ask(broker.lookupd, f"/channels?topic={topic}")["channels"]]

    publish(broker.nsqd, topic, [b"once"])
    tail = command_of("nsq_tail", nsqd_tcp_address=broker.nsqd.tcp_address, topic=topic)
    with Program(tail) as program:
        assert program.await_lines(1) == [b"once"]
        [channel] = channels()
        assert channel.startswith("tail")
        assert channel.endswith("#ephemeral")
        await_equal(known, [channel])
    await_equal(channels, [])
    await_equal(known, [])


def test_nsq_to_file_moves_a_channel_into_a_file(
    broker: Broker, topic: str, tmp_path: Path
) -> None:
    create(broker.nsqd, topic, "archive")
    publish(broker.nsqd, topic, BODIES)
    port = int(broker.nsqd.tcp_address.rpartition(":")[2])
    await_equal(lambda: producers(broker.lookupd, topic), {port})
    archive = command_of(
        "nsq_to_file",
        lookupd_http_address=broker.lookupd.http_address,
        topic=topic,
        channel="archive",
        output_dir=str(tmp_path),
        filename_format="archive",
        sync_interval="50ms",
    )
    with Program(archive):
        await_channel(broker.nsqd, topic, "archive", message_count=500, **NOTHING_LEFT)
    written = (tmp_path / "archive").read_bytes().split(b"\n")
    assert written.pop() == b""
    assert sorted(written) == BODIES


def test_nsq_to_nsq_moves_a_topic_to_another_nsqd(broker: Broker, topic: str) -> None:
    create(broker.nsqd, topic, "move")
    publish(broker.nsqd, topic, BODIES)
    move = command_of(
        "nsq_to_nsq",
        nsqd_tcp_address=broker.nsqd.tcp_address,
        destination_nsqd_tcp_address=broker.other.tcp_address,
        topic=topic,
        destination_topic=f"{topic}-moved",
        channel="move",
    )
    with Program(move):
        await_channel(broker.nsqd, topic, "move", message_count=len(BODIES), **NOTHING_LEFT)
    assert topic_stats(broker.other, f"{topic}-moved")["depth"] == len(BODIES)
    assert sorted(consume(broker.other, f"{topic}-moved", "ch", len(BODIES))) == BODIES


def test_nsq_stat_sums_up_all_nsqd(broker: Broker, topic: str) -> None:
    broker.create_everywhere(topic, "ch")
    publish(broker.nsqd, topic, BODIES[:300])
    publish(broker.other, topic, BODIES[300:])
    with Producer(broker.nsqd.tcp_address) as producer:
        producer.publish(topic, b"much later", delay=600)
    with Consumer(topic, "ch", nsqd=[broker.other.tcp_address], max_in_flight=7) as consumer:
        held = [next(consumer) for _ in range(7)]
        held.pop().requeue(600, backoff=False)
        held.append(next(consumer))
        await_channel(broker.other, topic, "ch", in_flight_count=7, deferred_count=1, depth=192)
        stat = command_of(
            "nsq_stat",
            lookupd_http_address=broker.lookupd.http_address,
            topic=topic,
            channel="ch",
            interval="50ms",
            count=1,
        )
        figures = run(stat).decode().splitlines()[-1]
        for message in held:
            message.finish()
    rates, depths, metadata = (list(map(int, part.split())) for part in figures.split("|"))
    total, memory, disk, in_flight, deferred = depths
    assert rates == [0, 0]
    assert (total, memory + disk, in_flight, deferred) == (492, 492, 7, 2)
    requeued, timed_out, messages, clients = metadata
    assert (requeued, timed_out, messages, clients) == (1, 0, 501, 1)
