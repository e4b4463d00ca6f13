"""PUB, MPUB and DPUB: what is taken, what is refused, and both sides of every limit."""

from __future__ import annotations

import pytest

from tests.conformance.broker.dialogue import (
    CLOSED,
    MAGIC,
    OK,
    Client,
    Delivery,
    Dialogue,
    error,
    hold,
    several,
    size,
    sized,
    table,
)
from tests.conformance.driver import stats_of
from tests.fixtures.servers import Nsqd

# The limits of small_nsqd.
LARGEST = b"x" * 100
TOO_LARGE = b"x" * 101


def refused(command: bytes, text: str) -> Dialogue:
    return (MAGIC + command, error(text), CLOSED)


PUB = {
    "a message": (MAGIC + b"PUB {topic}\n" + sized(b"hello"), OK),
    "a message of one byte": (MAGIC + b"PUB {topic}\n" + sized(b"\n"), OK),
    "the largest message": (MAGIC + b"PUB {topic}\n" + sized(LARGEST), OK),
    "a message one byte too large": refused(
        b"PUB {topic}\n" + size(101), "E_BAD_MESSAGE PUB message too big 101 > 100"
    ),
    "a message one byte too large that is sent anyway": refused(
        b"PUB {topic}\n" + sized(TOO_LARGE), "E_BAD_MESSAGE PUB message too big 101 > 100"
    ),
    "the largest size": refused(
        b"PUB {topic}\n" + size(2**31 - 1), "E_BAD_MESSAGE PUB message too big 2147483647 > 100"
    ),
    "an empty message": refused(
        b"PUB {topic}\n" + sized(b""), "E_BAD_MESSAGE PUB invalid message body size 0"
    ),
    "a negative size": refused(
        b"PUB {topic}\n" + size(-1), "E_BAD_MESSAGE PUB invalid message body size -1"
    ),
    "the lowest size": refused(
        b"PUB {topic}\n" + size(-(2**31)),
        "E_BAD_MESSAGE PUB invalid message body size -2147483648",
    ),
    "a message in pieces": (
        MAGIC + b"PUB {topic}\n",
        sized(b"hello")[:2],
        sized(b"hello")[2:6],
        sized(b"hello")[6:],
        OK,
    ),
    "several, one after the other": (
        MAGIC + (b"PUB {topic}\n" + sized(b"a")) * 3,
        OK,
        OK,
        OK,
        b"SUB {topic} ch\n",
        OK,
    ),
    "a line that ends in CR LF": (MAGIC + b"PUB {topic}\r\n" + sized(b"hello"), OK),
    "a partition is ignored": (MAGIC + b"PUB {topic} 0\n" + sized(b"hello"), OK),
    "an ephemeral topic": (MAGIC + b"PUB {topic}#ephemeral\n" + sized(b"hello"), OK),
    "no topic": refused(b"PUB\n", "E_INVALID PUB insufficient number of parameters"),
    "an empty topic": refused(b"PUB \n", 'E_BAD_TOPIC PUB topic name "" is not valid'),
    "a bad topic": refused(b"PUB a$b\n", 'E_BAD_TOPIC PUB topic name "a$b" is not valid'),
    "a topic of 64 letters": (MAGIC + b"PUB " + b"t" * 64 + b"\n" + sized(b"hello"), OK),
    "a topic of 65 letters": refused(
        b"PUB " + b"t" * 65 + b"\n", f'E_BAD_TOPIC PUB topic name "{"t" * 65}" is not valid'
    ),
    "what follows a bad message is lost": refused(
        b"PUB {topic}\n" + sized(b"") + b"PUB {topic}\n" + sized(b"hello"),
        "E_BAD_MESSAGE PUB invalid message body size 0",
    ),
}


@table(PUB)
def test_pub(small_nsqd: Nsqd, topic: str, dialogue: Dialogue) -> None:
    hold(small_nsqd, topic, dialogue)


MPUB = {
    "one message": (MAGIC + b"MPUB {topic}\n" + several(b"a"), OK),
    "several messages": (
        MAGIC + b"MPUB {topic}\n" + several(b"a", b"b", b"c"),
        OK,
        b"SUB {topic} ch\n",
        OK,
        b"RDY 3\n",
        Delivery(b"a"),
        Delivery(b"b"),
        Delivery(b"c"),
    ),
    "the largest message": (MAGIC + b"MPUB {topic}\n" + several(b"a", LARGEST), OK),
    "a message one byte too large": refused(
        b"MPUB {topic}\n" + several(b"a", TOO_LARGE),
        "E_BAD_MESSAGE MPUB message too big 101 > 100",
    ),
    "an empty message": refused(
        b"MPUB {topic}\n" + several(b"a", b""),
        "E_BAD_MESSAGE MPUB invalid message(1) body size 0",
    ),
    "a message of negative size": refused(
        b"MPUB {topic}\n" + sized(size(1) + size(-1)),
        "E_BAD_MESSAGE MPUB invalid message(0) body size -1",
    ),
    "the largest body": (
        # The count has 4 bytes, nine messages 100 each with their sizes, and the last one 96.
        MAGIC + b"MPUB {topic}\n" + several(*[b"x" * 96] * 9, b"x" * 92),
        OK,
    ),
    "a body one byte too large": refused(
        b"MPUB {topic}\n" + several(*[b"x" * 96] * 9, b"x" * 93),
        "E_BAD_BODY MPUB body too big 1001 > 1000",
    ),
    "a body that is too large is not waited for": refused(
        b"MPUB {topic}\n" + size(1001), "E_BAD_BODY MPUB body too big 1001 > 1000"
    ),
    "an empty body": refused(b"MPUB {topic}\n" + size(0), "E_BAD_BODY MPUB invalid body size 0"),
    "a body of negative size": refused(
        b"MPUB {topic}\n" + size(-1), "E_BAD_BODY MPUB invalid body size -1"
    ),
    "no messages": refused(
        b"MPUB {topic}\n" + several(), "E_BAD_BODY MPUB invalid message count 0"
    ),
    "a negative count": refused(
        b"MPUB {topic}\n" + sized(size(-1)), "E_BAD_BODY MPUB invalid message count -1"
    ),
    "as many messages as there can be": (MAGIC + b"MPUB {topic}\n" + several(*[b"x"] * 199), OK),
    "one message more than there can be": refused(
        b"MPUB {topic}\n" + sized(size(200)), "E_BAD_BODY MPUB invalid message count 200"
    ),
    "a body in pieces": (
        MAGIC + b"MPUB {topic}\n",
        several(b"hello", b"you")[:3],
        several(b"hello", b"you")[3:10],
        several(b"hello", b"you")[10:20],
        several(b"hello", b"you")[20:],
        OK,
    ),
    "a body larger than its messages": (
        MAGIC + b"MPUB {topic}\n" + size(999) + several(b"a", b"b")[4:],
        OK,
        b"MPUB {topic}\n" + size(999) + several(b"a", b"b")[4:],
        OK,
    ),
    "the sum of the bodies for the size of the whole, as some clients send it": (
        MAGIC + b"MPUB {topic}\n" + size(8) + several(b"hello", b"you")[4:],
        OK,
        b"MPUB {topic}\n" + size(1) + several(b"a")[4:] + b"PUB {topic}\n" + sized(b"b"),
        OK,
        OK,
        b"SUB {topic} ch\n",
        OK,
        b"RDY 4\n",
        Delivery(b"hello"),
        Delivery(b"you"),
        Delivery(b"a"),
        Delivery(b"b"),
    ),
    "the largest sum of the bodies for the size of the whole": (
        MAGIC + b"MPUB {topic}\n" + size(1000) + several(*[LARGEST] * 10)[4:],
        OK,
    ),
    "bytes after the messages are the next command": (
        MAGIC + b"MPUB {topic}\n" + size(16) + several(b"a")[4:] + b"HELLO\n",
        OK,
        error("E_INVALID invalid command HELLO"),
        CLOSED,
    ),
    "bodies that are larger than the largest body, with a smaller size before them": (
        MAGIC + b"MPUB {topic}\n" + size(1000) + several(*[LARGEST] * 11)[4:],
        OK,
    ),
    "a small size does not excuse a bad count": refused(
        b"MPUB {topic}\n" + size(1) + size(0), "E_BAD_BODY MPUB invalid message count 0"
    ),
    "a partition is ignored": (MAGIC + b"MPUB {topic} 0\n" + several(b"a"), OK),
    "no topic": refused(b"MPUB\n", "E_INVALID MPUB insufficient number of parameters"),
    "a bad topic": refused(
        b"MPUB a$b\n", 'E_BAD_TOPIC E_BAD_TOPIC MPUB topic name "a$b" is not valid'
    ),
    "a topic of 65 letters": refused(
        b"MPUB " + b"t" * 65 + b"\n",
        f'E_BAD_TOPIC E_BAD_TOPIC MPUB topic name "{"t" * 65}" is not valid',
    ),
}


@table(MPUB)
def test_mpub(small_nsqd: Nsqd, topic: str, dialogue: Dialogue) -> None:
    hold(small_nsqd, topic, dialogue)


DPUB = {
    "no delay": (
        MAGIC + b"DPUB {topic} 0\n" + sized(b"hello"),
        OK,
        b"SUB {topic} ch\n",
        OK,
        b"RDY 1\n",
        Delivery(b"hello"),
    ),
    "an empty delay is none": (
        MAGIC + b"DPUB {topic} \n" + sized(b"hello"),
        OK,
        b"SUB {topic} ch\n",
        OK,
        b"RDY 1\n",
        Delivery(b"hello"),
    ),
    "a delay": (
        MAGIC + b"DPUB {topic} 4000\n" + sized(b"hello"),
        OK,
        b"SUB {topic} ch\n",
        OK,
        b"RDY 1\n",
    ),
    "the longest delay": (MAGIC + b"DPUB {topic} 5000\n" + sized(b"hello"), OK),
    "a delay that is too long": refused(
        b"DPUB {topic} 5001\n" + sized(b"hello"), "E_INVALID DPUB timeout 5001 out of range 0-5000"
    ),
    "a negative delay": refused(
        b"DPUB {topic} -1\n" + sized(b"hello"), "E_INVALID DPUB could not parse timeout -1"
    ),
    "a word for a delay": refused(
        b"DPUB {topic} later\n" + sized(b"hello"), "E_INVALID DPUB could not parse timeout later"
    ),
    "no delay given": refused(
        b"DPUB {topic}\n" + sized(b"hello"), "E_INVALID DPUB insufficient number of parameters"
    ),
    "no topic": refused(b"DPUB\n", "E_INVALID DPUB insufficient number of parameters"),
    "a bad topic": refused(b"DPUB a$b 0\n", 'E_BAD_TOPIC DPUB topic name "a$b" is not valid'),
    "a topic of 65 letters": refused(
        b"DPUB " + b"t" * 65 + b" 0\n", f'E_BAD_TOPIC DPUB topic name "{"t" * 65}" is not valid'
    ),
    "more parameters are ignored": (MAGIC + b"DPUB {topic} 0 0\n" + sized(b"hello"), OK),
    "the largest message": (MAGIC + b"DPUB {topic} 0\n" + sized(LARGEST), OK),
    "a message one byte too large": refused(
        b"DPUB {topic} 0\n" + size(101), "E_BAD_MESSAGE DPUB message too big 101 > 100"
    ),
    "an empty message": refused(
        b"DPUB {topic} 0\n" + size(0), "E_BAD_MESSAGE DPUB invalid message body size 0"
    ),
    "a negative size": refused(
        b"DPUB {topic} 0\n" + size(-1), "E_BAD_MESSAGE DPUB invalid message body size -1"
    ),
}


@table(DPUB)
def test_dpub(small_nsqd: Nsqd, topic: str, dialogue: Dialogue) -> None:
    hold(small_nsqd, topic, dialogue)


@pytest.mark.parametrize(
    "bad",
    [
        pytest.param(several(b"a", b"b", b""), id="its last message is empty"),
        pytest.param(several(b"a", b"b", TOO_LARGE), id="its last message is too large"),
    ],
)
def test_nothing_of_a_bad_mpub_is_stored(small_nsqd: Nsqd, topic: str, bad: bytes) -> None:
    with Client(small_nsqd, MAGIC) as client:
        client.publish(topic, b"before")
        client.say(b"MPUB %s\n" % topic.encode() + bad + b"PUB %s\n" % topic.encode() + sized(b"z"))
        assert client.hear().type == 1
        client.expect_end()
    assert stats_of(small_nsqd, topic)["message_count"] == 1


def test_an_mpub_that_is_refused_for_its_body_creates_its_topic_anyway(
    small_nsqd: Nsqd, topic: str
) -> None:
    hold(
        small_nsqd,
        topic,
        refused(b"MPUB {topic}\n" + size(-1), "E_BAD_BODY MPUB invalid body size -1"),
    )
    assert stats_of(small_nsqd, topic)["message_count"] == 0


def test_by_default_a_message_may_have_a_megabyte_and_an_mpub_five(nsqd: Nsqd, topic: str) -> None:
    megabyte = b"x" * 2**20
    hold(nsqd, topic, (MAGIC + b"PUB {topic}\n" + sized(megabyte), OK))
    too_big = "E_BAD_MESSAGE PUB message too big 1048577 > 1048576"
    hold(nsqd, topic, refused(b"PUB {topic}\n" + size(2**20 + 1), too_big))
    fits = several(*[megabyte] * 4, megabyte[:-24])
    assert len(fits) == 4 + 5 * 2**20
    hold(nsqd, topic, (MAGIC + b"MPUB {topic}\n" + fits, OK))
    too_big = "E_BAD_BODY MPUB body too big 5242881 > 5242880"
    hold(nsqd, topic, refused(b"MPUB {topic}\n" + size(5 * 2**20 + 1), too_big))
