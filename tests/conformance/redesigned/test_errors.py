"""The table of errors: with which code and text each is answered, and whether it closes.

A code without a text is followed by a space.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from nsqflow.broker import BackgroundBroker
from tests.conformance.redesigned.wire import (
    ERROR,
    OK,
    PROBE_TOPIC,
    Connect,
    Wire,
    batch,
    code_of,
    create_topics,
    data_of,
    error,
    extended,
    fin,
    pub,
    pub_ext,
    pub_trace,
    request,
    sized,
)

TRACED = bytes(8) + b"x"
HEADED = extended(b"{}", b"x")
LONG = "a" * 65

NO_TOPIC = error("E_TOPIC_NOT_EXIST ")
NOT_LEADER = error("E_FAILED_ON_NOT_LEADER ")
NOT_WRITABLE = error("E_FAILED_ON_NOT_WRITABLE ")

PUBLISHES = {
    "PUB": sized(b"x"),
    "PUB_TRACE": sized(TRACED),
    "PUB_EXT": sized(HEADED),
    "MPUB": batch("", b"x")[1:],
    "MPUB_TRACE": batch("", TRACED)[1:],
    "MPUB_EXT": batch("", HEADED)[1:],
}
SUBSCRIPTIONS = ("SUB", "SUB_ADVANCED", "SUB_ORDERED")


def publish(command: str, topic: str, partition: object = 0) -> bytes:
    return f"{command} {topic} {partition}\n".encode() + PUBLISHES[command]


def check(answer: bytes, expected: str | bytes) -> None:
    """Compare a code, or a whole frame."""
    assert (code_of(answer) if isinstance(expected, str) else answer) == expected


# Topics and partitions


@pytest.mark.parametrize("command", PUBLISHES)
@pytest.mark.parametrize(
    ("topic", "partition"),
    [("unknown", 0), ("t_part", 2), ("t_part", -2), ("a$b", 0), (LONG, 0), ("t_order", 7)],
)
def test_a_publish_without_a_topic_or_partition_closes(
    wire: Wire, command: str, topic: str, partition: int
) -> None:
    assert wire.ask(publish(command, topic, partition)) == NO_TOPIC
    wire.expect_closed()


@pytest.mark.parametrize("command", SUBSCRIPTIONS)
@pytest.mark.parametrize(("topic", "partition"), [("unknown", 0), ("t_part", 2), ("t_part", -2)])
def test_a_subscription_without_a_topic_or_partition_closes(
    wire: Wire, command: str, topic: str, partition: int
) -> None:
    assert wire.ask(f"{command} {topic} ch {partition}\n".encode()) == NO_TOPIC
    wire.expect_closed()


def test_an_error_without_text_ends_in_a_space(wire: Wire) -> None:
    answer = wire.ask(pub("unknown", b"x"))
    assert answer.hex(" ").startswith("00 00 00 16 00 00 00 01 45 5f 54 4f ")
    assert answer.hex(" ").endswith(" 53 54 20")


@pytest.mark.parametrize("command", PUBLISHES)
def test_a_partition_that_is_no_number_closes_after_a_publish(wire: Wire, command: str) -> None:
    assert code_of(wire.ask(publish(command, "t_part", "one"))) == "E_BAD_PARTITION"
    wire.expect_closed()


@pytest.mark.parametrize("command", SUBSCRIPTIONS)
def test_a_partition_that_is_no_number_closes_after_a_subscription(
    wire: Wire, command: str
) -> None:
    assert code_of(wire.ask(f"{command} t_part ch one\n".encode())) == "E_BAD_PARTITION"
    wire.expect_closed()


# Whatever else is refused


CLOSING: dict[str, tuple[bytes, str | bytes]] = {
    "SUB with a bad topic": (b"SUB a$b ch 0\n", "E_BAD_TOPIC"),
    "SUB with a topic of 65 letters": (f"SUB {LONG} ch 0\n".encode(), "E_BAD_TOPIC"),
    "SUB with a bad channel": (b"SUB t_part a$b 0\n", "E_BAD_CHANNEL"),
    "SUB of an ordered topic": (b"SUB t_order ch 0\n", "E_SUB_ORDER_IS_MUST"),
    "SUB_ADVANCED of an ordered topic": (b"SUB_ADVANCED t_order ch 0\n", "E_SUB_ORDER_IS_MUST"),
    "SUB of an extended topic": (b"SUB t_ext ch 0\n", "E_SUB_EXTEND_NEED"),
    "SUB_ORDERED of an extended topic": (b"SUB_ORDERED t_ext ch 0\n", "E_SUB_EXTEND_NEED"),
    "PUB of nothing": (pub("t_part", b""), "E_BAD_BODY"),
    "PUB of a negative size": (b"PUB t_part 0\n\xff\xff\xff\xff", "E_BAD_BODY"),
    "PUB that is too big": (b"PUB t_part 0\n\x00\x10\x00\x01", "E_BAD_MESSAGE"),
    "PUB_TRACE that is too big": (b"PUB_TRACE t_part 0\n\x00\x10\x00\x01", "E_BAD_MESSAGE"),
    "PUB_TRACE of a trace id": (pub_trace("t_part", 7, b""), "E_BAD_BODY"),
    "PUB_EXT of headers alone": (pub_ext("t_ext", b"{}", b""), "E_BAD_BODY"),
    "MPUB of no messages": (batch("MPUB t_part 0"), "E_BAD_BODY"),
    "MPUB of an empty message": (batch("MPUB t_part 0", b"x", b""), "E_BAD_MESSAGE"),
    "MPUB of a message that is too big": (
        b"MPUB t_part 0\n\x00\x10\x00\x09\x00\x00\x00\x01\x00\x10\x00\x01",
        "E_BAD_MESSAGE",
    ),
    "MPUB that is too big": (b"MPUB t_part 0\n\x00\x50\x00\x01", "E_BAD_BODY"),
    "MPUB_TRACE of a trace id": (batch("MPUB_TRACE t_part 0", bytes(8)), "E_BAD_MESSAGE"),
    "an unknown command": (b"HELLO\n", error("E_INVALID invalid command [[72 69 76 76 79]]")),
    "a command in lower case": (b"nop\n", error("E_INVALID invalid command [[110 111 112]]")),
    "DPUB": (
        b"DPUB t_part 1000\n" + sized(b"x"),
        error("E_INVALID invalid command [[68 80 85 66] [116 95 112 97 114 116] [49 48 48 48]]"),
    ),
    "RDY before SUB": (b"RDY 1\n", "E_INVALID"),
    "FIN before SUB": (fin(bytes(16)), "E_INVALID"),
    "REQ before SUB": (b"REQ " + bytes(16) + b" 0\n", "E_INVALID"),
    "TOUCH before SUB": (b"TOUCH " + bytes(16) + b"\n", "E_INVALID"),
    "CLS before SUB": (b"CLS\n", "E_INVALID"),
    "AUTH without auth": (b"AUTH\n" + sized(b"secret"), "E_AUTH_DISABLED"),
}


@pytest.mark.parametrize(("sent", "expected"), CLOSING.values(), ids=CLOSING)
def test_an_error_closes(wire: Wire, sent: bytes, expected: str | bytes) -> None:
    check(wire.ask(sent), expected)
    wire.expect_closed()


SUBSCRIBED_CLOSING: dict[str, tuple[bytes, str | bytes]] = {
    "a second SUB": (b"SUB t_part ch 0\n", "E_INVALID"),
    "a second SUB of another kind": (b"SUB_ORDERED t_order ch 0\n", "E_INVALID"),
    "RDY 2501": (b"RDY 2501\n", "E_INVALID"),
    "IDENTIFY": (b"IDENTIFY\n" + sized(b"{}"), "E_INVALID"),
    "AUTH": (b"AUTH\n" + sized(b"secret"), "E_INVALID"),
}


@pytest.mark.parametrize(("sent", "expected"), SUBSCRIBED_CLOSING.values(), ids=SUBSCRIBED_CLOSING)
def test_an_error_after_sub_closes(wire: Wire, sent: bytes, expected: str | bytes) -> None:
    wire.subscribe("SUB t_part ch 0")
    check(wire.ask(sent), expected)
    wire.expect_closed()


@pytest.mark.parametrize("command", SUBSCRIPTIONS)
def test_an_ordinary_topic_forbids_headers(wire: Wire, command: str) -> None:
    wire.identify(extend_support=True)
    answer = wire.ask(f"{command} t_part ch 0\n".encode())
    assert code_of(answer) == "E_SUB_EXTEND_FORBIDDON"  # (sic)
    wire.expect_closed()


SURVIVED: dict[str, tuple[bytes, str]] = {
    "PUB_EXT to an ordinary topic": (pub_ext("t_part", b"{}", b"x"), "E_EXT_NOT_SUPPORT"),
    "PUB_EXT of what is not JSON": (pub_ext("t_ext", b"{", b"x"), "E_INVALID_JSON_HEADER"),
    "PUB_EXT without headers": (pub_ext("t_ext", b"", b"x"), "E_INVALID_JSON_HEADER"),
    "PUB_EXT with a number as trace id": (
        pub_ext("t_ext", b'{"##trace_id":7}', b"x"),
        "INVALID_TRACE_ID",
    ),
}


@pytest.mark.parametrize(("sent", "code"), SURVIVED.values(), ids=SURVIVED)
def test_an_error_of_pub_ext_does_not_close(wire: Wire, sent: bytes, code: str) -> None:
    assert code_of(wire.ask(sent)) == code
    wire.expect_open()


@pytest.mark.nsq_redesigned_broker(max_memory=20_000)
@pytest.mark.parametrize(("command", "code"), [("PUB", "E_PUB_FAILED"), ("MPUB", "E_MPUB_FAILED")])
def test_a_publish_that_could_not_be_stored_does_not_close(
    connect: Connect, command: str, code: str
) -> None:
    connect().subscribe("SUB t_part ch 0", rdy=0)
    wire, body = connect(), bytes(15_000)
    sent = pub("t_part", body) if command == "PUB" else batch("MPUB t_part 0", body)
    assert wire.ask(sent) == OK
    assert code_of(wire.ask(sent)) == code
    wire.expect_open()


# Rows that a broker in memory reaches on demand only.

INJECTED = {
    "PUB waits too long": ("PUB", "E_PUB_TOO_MUCH_WAITING", True),
    "PUB failed": ("PUB", "E_PUB_FAILED", False),
    "MPUB failed": ("MPUB", "E_MPUB_FAILED", False),
    "PUB is not writable": ("PUB", "E_FAILED_ON_NOT_WRITABLE", False),
    "SUB is not writable": ("SUB", "E_FAILED_ON_NOT_WRITABLE", True),
    "SUB is not led": ("SUB", "E_FAILED_ON_NOT_LEADER", True),
    "FIN is not writable": ("FIN", "E_FAILED_ON_NOT_WRITABLE", True),
    "FIN is not led": ("FIN", "E_FAILED_ON_NOT_LEADER", True),
    "FIN failed": ("FIN", "E_FIN_FAILED", False),
}


@pytest.mark.parametrize(("command", "code", "closes"), INJECTED.values(), ids=INJECTED)
def test_an_injected_error_closes_as_a_real_one(
    node: BackgroundBroker, wire: Wire, command: str, code: str, closes: bool
) -> None:
    if command == "FIN":
        wire.subscribe("SUB t_part ch 0")
    node.fail_next(command, code)
    sent = {"FIN": fin(bytes(16)), "SUB": b"SUB t_part ch 0\n"}
    answer = wire.ask(sent.get(command) or publish(command, "t_part"))
    assert code_of(answer) == code
    if closes:
        wire.expect_closed()
    else:
        wire.expect_open()


# Leaders


@pytest.fixture
def lonely() -> Iterator[BackgroundBroker]:
    """A leader and a follower; a follower that is gone is noticed soon, and joins slowly."""
    with BackgroundBroker(
        dialect="redesigned", nodes=2, follower_timeout=1, rejoin_delay=3600
    ) as broker:
        broker.create_topic("t_ha", replicas=2)
        broker.create_topic("t_ext", replicas=2, extended=True)
        broker.create_topic(PROBE_TOPIC, partitions=2)
        yield broker


def connection_to(broker: BackgroundBroker, topic: str, *, leader: bool) -> Wire:
    """Return a connection to the node that leads, or the one that does not."""
    for address in broker.nsqd_addresses:
        wire = Wire(address)
        if (wire.ask(pub(topic, b"x")) == OK) is leader:
            return wire
        wire.close()
    raise AssertionError("there is no such node")


@pytest.mark.parametrize("command", [each for each in PUBLISHES if each != "MPUB_EXT"])
def test_a_follower_refuses_publishes_and_keeps_the_connection(
    lonely: BackgroundBroker, command: str
) -> None:
    topic = "t_ext" if "EXT" in command else "t_ha"
    with connection_to(lonely, topic, leader=False) as wire:
        assert wire.ask(publish(command, topic)) == NOT_LEADER
        wire.expect_open()


@pytest.mark.parametrize("command", SUBSCRIPTIONS)
def test_a_follower_refuses_subscriptions_and_closes(
    lonely: BackgroundBroker, command: str
) -> None:
    with connection_to(lonely, "t_ha", leader=False) as wire:
        assert wire.ask(f"{command} t_ha ch 0\n".encode()) == NOT_LEADER
        wire.expect_closed()


def test_a_node_without_a_copy_knows_no_such_topic(cluster: BackgroundBroker) -> None:
    cluster.create_topic("t_part", partitions=3)
    found = []
    for address in cluster.nsqd_addresses:
        for number in range(3):
            for sent in (pub("t_part", b"x", number), f"SUB t_part ch {number}\n".encode()):
                with Wire(address) as wire:
                    if (answer := wire.ask(sent)) == OK:
                        found.append(number)
                        continue
                    assert answer == NO_TOPIC
                    wire.expect_closed()
    assert sorted(found) == [0, 0, 1, 1, 2, 2]  # PUB and SUB on one node each


@pytest.mark.parametrize("command", ["PUB", "MPUB", "PUB_TRACE"])
def test_a_leader_that_lost_its_follower_or_gets_it_back_refuses_publishes(
    lonely: BackgroundBroker, command: str
) -> None:
    with connection_to(lonely, "t_ha", leader=True) as wire:
        host, port = wire.socket.getpeername()
        leader = lonely.nsqd_addresses.index(f"{host}:{port}")
        lonely.kill_node(1 - leader)
        # This one waits for the follower until it is given up.
        answer = wire.ask(publish(command, "t_ha"))
        if command == "MPUB":
            begin = b"E_MPUB_FAILED pub timeout while pop wait"
            assert data_of(answer, ERROR).startswith(begin)
        else:
            assert answer == NOT_LEADER
        assert wire.ask(publish(command, "t_ha")) == NOT_LEADER
        wire.expect_open()
        lonely.start_node(1 - leader)
        assert wire.ask(publish(command, "t_ha")) == NOT_WRITABLE
        wire.expect_open()


# Channels and secrets


def test_a_channel_that_is_not_registered_closes(cluster: BackgroundBroker) -> None:
    query = "topic=t_reg&partition_num=1&replicator=1&disable_channel_auto_create=true"
    answer = request(cluster.lookupd_addresses[0], "POST", f"/topic/create?{query}")
    assert answer == (200, b"")
    with connection_to(cluster, "t_reg", leader=True) as wire:
        text = "E_SUB_CHANNEL_NOT_REGISTERED channel is not registered under topic."
        assert wire.ask(b"SUB t_reg ch 0\n") == error(text)
        wire.expect_closed()
    cluster.create_channel("t_reg", "ch")
    with connection_to(cluster, "t_reg", leader=True) as wire:
        wire.subscribe("SUB t_reg ch 0")


@pytest.fixture
def guarded() -> Iterator[BackgroundBroker]:
    """A node whose auth server does not answer."""
    with BackgroundBroker(
        dialect="redesigned", nodes=1, auth_http_address=("127.0.0.1:1",)
    ) as broker:
        create_topics(broker)
        yield broker


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (pub("t_part", b"x"), "E_AUTH_FIRST"),
        (b"SUB t_part ch 0\n", "E_AUTH_FIRST"),
        (b"AUTH\n" + sized(b"secret"), "E_AUTH_FAILED"),
    ],
    ids=["PUB", "SUB", "AUTH"],
)
def test_what_needs_a_secret_closes(guarded: BackgroundBroker, sent: bytes, code: str) -> None:
    with Wire(guarded.nsqd_addresses[0]) as wire:
        assert wire.identify()["auth_required"] is True
        assert code_of(wire.ask(sent)) == code
        wire.expect_closed()
