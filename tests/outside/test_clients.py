"""Clients of other projects with both kinds of broker."""

import sys
from collections.abc import Sequence

import pytest

from tests.fixtures.certificates import Certificates
from tests.fixtures.servers import find_server
from tests.outside.brokers import (
    NOTHING_LEFT,
    Broker,
    await_channel,
    channel_stats,
    create,
    publish,
    topic_stats,
)
from tests.outside.programs import Program, run

# With bytes that are no text, and one that needs many reads; in ascending order.
BODIES = [b"%04d \x00\xff" % number for number in range(300)] + [b"large" * 50_000]
CLIENTS = ["go-nsq", "pynsq", "ansq"]


def command_of(client: str, action: str, *flags: str) -> list[str]:
    if client == "go-nsq":
        return [str(find_server("go_nsq")), *flags, action]
    module = f"tests.outside.clients.{client}_client"
    return [sys.executable, "-m", module, *flags, action]


def publish_with(client: str, broker: Broker, topic: str, options: Sequence[str] = ()) -> None:
    """Publish each body and check that nsqd has it."""
    flags = [f"--nsqd={broker.nsqd.tcp_address}", f"--topic={topic}", *options]
    run(command_of(client, "publish", *flags), b"".join(body + b"\n" for body in BODIES))
    stats = topic_stats(broker.nsqd, topic)
    assert stats["message_count"] == len(BODIES)
    assert stats["message_bytes"] == sum(map(len, BODIES))


@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_consumes_what_it_publishes_singly_and_in_a_batch(
    client: str, broker: Broker, topic: str
) -> None:
    create(broker.nsqd, topic, "ch")
    publish_with(client, broker, topic)
    flags = [f"--nsqd={broker.nsqd.tcp_address}", f"--topic={topic}", "--channel=ch"]
    with Program(command_of(client, "consume", *flags)) as program:
        assert sorted(program.await_lines(len(BODIES))) == BODIES
        figures = {"message_count": len(BODIES), "requeue_count": 0, **NOTHING_LEFT}
        await_channel(broker.nsqd, topic, "ch", client_count=1, **figures)
    await_channel(broker.nsqd, topic, "ch", client_count=0, **figures)
    assert len(program.lines) == len(BODIES)


@pytest.mark.parametrize("client", CLIENTS)
def test_deferred_messages_of_a_client_are_held_back(
    client: str, broker: Broker, topic: str
) -> None:
    create(broker.nsqd, topic, "ch")
    publish_with(client, broker, topic, ["--defer=600000ms"])
    await_channel(broker.nsqd, topic, "ch", deferred_count=len(BODIES), depth=0)


def test_deferred_messages_of_clients_are_delivered_when_due(broker: Broker, topic: str) -> None:
    # All clients first: nsqd may check a new channel's deferred messages only after five seconds.
    for client in CLIENTS:
        create(broker.nsqd, f"{topic}-{client}", "ch")
        publish_with(client, broker, f"{topic}-{client}", ["--defer=200ms"])
    for client in CLIENTS:
        flags = [f"--nsqd={broker.nsqd.tcp_address}", f"--topic={topic}-{client}", "--channel=ch"]
        with Program(command_of(client, "consume", *flags)) as program:
            assert sorted(program.await_lines(len(BODIES))) == BODIES
            await_channel(broker.nsqd, f"{topic}-{client}", "ch", requeue_count=0, **NOTHING_LEFT)


@pytest.mark.parametrize("client", CLIENTS)
def test_requeued_messages_of_a_client_are_delivered_again(
    client: str, broker: Broker, topic: str
) -> None:
    create(broker.nsqd, topic, "ch")
    publish(broker.nsqd, topic, BODIES)
    flags = [f"--nsqd={broker.nsqd.tcp_address}", f"--topic={topic}", "--channel=ch", "--requeue"]
    with Program(command_of(client, "consume", *flags)) as program:
        assert sorted(program.await_lines(len(BODIES))) == BODIES
        await_channel(broker.nsqd, topic, "ch", requeue_count=len(BODIES), **NOTHING_LEFT)


@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_finds_each_nsqd_through_nsqlookupd(
    client: str, broker: Broker, topic: str
) -> None:
    broker.create_everywhere(topic, "ch")
    publish(broker.nsqd, topic, BODIES[:200])
    publish(broker.other, topic, BODIES[200:])
    flags = [f"--lookupd={broker.lookupd.http_address}", f"--topic={topic}", "--channel=ch"]
    with Program(command_of(client, "consume", *flags)) as program:
        assert sorted(program.await_lines(len(BODIES))) == BODIES
        await_channel(broker.nsqd, topic, "ch", client_count=1, **NOTHING_LEFT)
        await_channel(broker.other, topic, "ch", client_count=1, **NOTHING_LEFT)


@pytest.mark.parametrize(
    ("client", "layers"),
    [
        ("go-nsq", ["snappy"]),
        ("go-nsq", ["deflate"]),
        ("go-nsq", ["tls"]),
        ("go-nsq", ["tls", "snappy"]),
        ("go-nsq", ["tls", "deflate"]),
        ("pynsq", ["tls"]),  # its compression is unreliable, with the real nsqd too
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
def test_a_client_can_compress_and_encrypt(
    client: str, layers: Sequence[str], broker: Broker, topic: str, certificates: Certificates
) -> None:
    options = [f"--option={layer},true" for layer in layers if layer != "tls"]
    if "tls" in layers:
        options += ["--option=tls_v1,true", f"--option=tls_root_ca_file,{certificates.ca}"]
    create(broker.nsqd, topic, "ch")
    publish_with(client, broker, topic, options)
    flags = [f"--nsqd={broker.nsqd.tcp_address}", f"--topic={topic}", "--channel=ch", *options]
    with Program(command_of(client, "consume", *flags)) as program:
        assert sorted(program.await_lines(len(BODIES))) == BODIES
        [connection] = channel_stats(broker.nsqd, topic, "ch")["clients"]
        assert [layer for layer in ("tls", "snappy", "deflate") if connection[layer]] == layers
        await_channel(broker.nsqd, topic, "ch", message_count=len(BODIES), **NOTHING_LEFT)
