"""What nsqd makes of a line: magic, names, states and every command but those that publish."""

from __future__ import annotations

from tests.conformance.broker.dialogue import (
    CLOSED,
    HANG_UP,
    MAGIC,
    OK,
    Client,
    Delivery,
    Dialogue,
    Frame,
    error,
    hold,
    identify,
    response,
    several,
    sized,
    table,
)
from tests.fixtures.servers import Nsqd

UNKNOWN_ID = b"0123456789abcdef"

SUBSCRIBED = (MAGIC + b"SUB {topic} ch\n", OK)
# RDY comes after the OK: whether a message or the answer to its PUB goes first is not determined.
IN_FLIGHT = (
    *SUBSCRIBED,
    b"PUB {topic}\n" + sized(b"hello"),
    OK,
    b"RDY 1\n",
    Delivery(b"hello"),
)
CLOSING = (*IN_FLIGHT, b"CLS\n", response("CLOSE_WAIT"))

LINES = {
    "the magic alone": (MAGIC,),
    "the magic in pieces": (MAGIC[:1], MAGIC[1:3], MAGIC[3:], b"NOP\n"),
    "the magic of nsqlookupd": (b"  V1", error("E_BAD_PROTOCOL"), CLOSED),
    "another magic": (b"HTTP", error("E_BAD_PROTOCOL"), CLOSED),
    "no magic": (b"IDENTIFY\n", error("E_BAD_PROTOCOL"), CLOSED),
    "half a magic": (b"  V", HANG_UP, CLOSED),
    "nothing at all": (HANG_UP, CLOSED),
    "an end between two commands": (MAGIC + b"NOP\n", HANG_UP, CLOSED),
    "an end within a line": (MAGIC + b"NO", HANG_UP, CLOSED),
    "NOP has no answer": (MAGIC + b"NOP\nNOP\n",),
    "NOP with parameters": (MAGIC + b"NOP 1 2 3\n",),
    "a line in pieces": (MAGIC + b"S", b"UB {topic}", b" ch", b"\n", OK),
    "a line that ends in CR LF": (MAGIC + b"SUB {topic} ch\r\n", OK),
    "two CR before LF": (
        MAGIC + b"SUB {topic} ch\r\r\n",
        error(r'E_BAD_CHANNEL SUB channel name "ch\r" is not valid'),
        CLOSED,
    ),
    "CR LF alone": (MAGIC + b"\r\n", error("E_INVALID invalid command "), CLOSED),
    "an empty line": (MAGIC + b"\n", error("E_INVALID invalid command "), CLOSED),
    "a space before the command": (MAGIC + b" NOP\n", error("E_INVALID invalid command "), CLOSED),
    "an unknown command": (
        MAGIC + b"HELLO you\n",
        error("E_INVALID invalid command HELLO"),
        CLOSED,
    ),
    "a command in lower case": (MAGIC + b"nop\n", error("E_INVALID invalid command nop"), CLOSED),
    "a command that goes on": (MAGIC + b"NOPE\n", error("E_INVALID invalid command NOPE"), CLOSED),
    "a command of bytes that are no text": (
        MAGIC + b"\x00\xff\n",
        Frame(1, b"E_INVALID invalid command \x00\xff"),
        CLOSED,
    ),
    "a command of the redesigned NSQ": (
        MAGIC + b"SUB_ORDERED {topic} ch 0\n",
        error("E_INVALID invalid command SUB_ORDERED"),
        CLOSED,
    ),
    "what follows a fatal error is not heard": (
        MAGIC + b"HELLO\nSUB {topic} ch\nPUB {topic}\n" + sized(b"x"),
        error("E_INVALID invalid command HELLO"),
        CLOSED,
    ),
    "the longest line": (
        MAGIC + b"X" * 16383 + b"\n",
        error("E_INVALID invalid command " + "X" * 16383),
        CLOSED,
    ),
    "a line that is too long": (MAGIC + b"X" * 16384 + b"\n", CLOSED),
    "a line that never ends": (MAGIC + b"X" * 16384, CLOSED),
}


@table(LINES)
def test_lines_are_understood_as_nsqd_does(nsqd: Nsqd, topic: str, dialogue: Dialogue) -> None:
    hold(nsqd, topic, dialogue)


def bad_topic(name: bytes, quoted: str) -> Dialogue:
    text = f"E_BAD_TOPIC SUB topic name {quoted} is not valid"
    return (MAGIC + b"SUB %s ch\n" % name, error(text), CLOSED)


def bad_channel(name: bytes, quoted: str) -> Dialogue:
    text = f"E_BAD_CHANNEL SUB channel name {quoted} is not valid"
    return (MAGIC + b"SUB {topic} %s\n" % name, error(text), CLOSED)


SUB = {
    "a topic of one letter": (MAGIC + b"SUB t ch\n", OK),
    "a topic of 64 letters": (MAGIC + b"SUB " + b"t" * 64 + b" ch\n", OK),
    "a topic of 65 letters": bad_topic(b"t" * 65, '"' + "t" * 65 + '"'),
    "a topic of no letters": bad_topic(b"", '""'),
    "all letters that a topic may have": (MAGIC + b"SUB .aZ09_- ch\n", OK),
    "an ephemeral topic": (MAGIC + b"SUB {topic}#ephemeral ch\n", OK),
    "an ephemeral topic of 64 letters": (MAGIC + b"SUB " + b"t" * 54 + b"#ephemeral ch\n", OK),
    "an ephemeral topic of 65 letters": bad_topic(
        b"t" * 55 + b"#ephemeral", '"' + "t" * 55 + '#ephemeral"'
    ),
    "a topic that is nothing but ephemeral": bad_topic(b"#ephemeral", '"#ephemeral"'),
    "a topic with another suffix": bad_topic(b"t#durable", '"t#durable"'),
    "a topic with a slash": bad_topic(b"a/b", '"a/b"'),
    "a topic with quotation marks": bad_topic(b'a"b\\', r'"a\"b\\"'),
    "a topic with control characters": bad_topic(b"a\tb\x00\x7f", r'"a\tb\x00\x7f"'),
    "a topic in UTF-8": bad_topic("Käse".encode(), '"Käse"'),
    "a topic that is not UTF-8": bad_topic(b"a\xff", r'"a\xff"'),
    "a channel of one letter": (MAGIC + b"SUB {topic} c\n", OK),
    "a channel of 64 letters": (MAGIC + b"SUB {topic} " + b"c" * 64 + b"\n", OK),
    "a channel of 65 letters": bad_channel(b"c" * 65, '"' + "c" * 65 + '"'),
    "a channel of no letters": bad_channel(b"", '""'),
    "an ephemeral channel": (MAGIC + b"SUB {topic} ch#ephemeral\n", OK),
    "a channel with a star": bad_channel(b"*", '"*"'),
    "no channel": (
        MAGIC + b"SUB {topic}\n",
        error("E_INVALID SUB insufficient number of parameters"),
        CLOSED,
    ),
    "nothing to subscribe to": (
        MAGIC + b"SUB\n",
        error("E_INVALID SUB insufficient number of parameters"),
        CLOSED,
    ),
    "a partition is ignored": (MAGIC + b"SUB {topic} ch 0\n", OK),
    "twice": (
        *SUBSCRIBED,
        b"SUB {topic} other\n",
        error("E_INVALID cannot SUB in current state"),
        CLOSED,
    ),
    "after CLS": (
        *CLOSING,
        b"SUB {topic} ch\n",
        error("E_INVALID cannot SUB in current state"),
        CLOSED,
    ),
    "without heartbeats": (
        identify(heartbeat_interval=-1),
        OK,
        b"SUB {topic} ch\n",
        error("E_INVALID cannot SUB with heartbeats disabled"),
        CLOSED,
    ),
    "publishing on the same connection": IN_FLIGHT,
}


@table(SUB)
def test_sub(nsqd: Nsqd, topic: str, dialogue: Dialogue) -> None:
    hold(nsqd, topic, dialogue)


def test_one_consumer_more_than_a_channel_may_have_is_refused(small_nsqd: Nsqd, topic: str) -> None:
    refusal = f"E_SUB_FAILED SUB failed consumers for {topic}:ch exceeds limit of 1"
    with Client(small_nsqd, MAGIC) as first:
        first.subscribe(topic)
        hold(small_nsqd, topic, (MAGIC + b"SUB {topic} ch\n", error(refusal), CLOSED))
        hold(small_nsqd, topic, (MAGIC + b"SUB {topic} other\n", OK))


def bad_rdy(count: bytes, text: str) -> Dialogue:
    return (*SUBSCRIBED, b"RDY %s\n" % count, error(f"E_INVALID RDY {text}"), CLOSED)


RDY = {
    "none": (*SUBSCRIBED, b"RDY 0\n"),
    "one": (*SUBSCRIBED, b"RDY 1\n"),
    "as many as allowed": (*SUBSCRIBED, b"RDY 7\n"),
    "one more than allowed": bad_rdy(b"8", "count 8 out of range 0-7"),
    "without a number it is 1": (
        *SUBSCRIBED,
        b"MPUB {topic}\n" + several(b"a", b"b"),
        OK,
        b"RDY\n",
        Delivery(b"a"),
    ),
    "an empty number is 0": (
        *SUBSCRIBED,
        b"PUB {topic}\n" + sized(b"a"),
        OK,
        b"RDY \n",
    ),
    "leading zeros": (*SUBSCRIBED, b"RDY 0007\n"),
    "a negative number": bad_rdy(b"-1", "could not parse count -1"),
    "a plus sign": bad_rdy(b"+1", "could not parse count +1"),
    "a fraction": bad_rdy(b"1.5", "could not parse count 1.5"),
    "a word": bad_rdy(b"many", "could not parse count many"),
    "digits of another script": bad_rdy("٣".encode(), "could not parse count ٣"),
    "the largest number of 63 bits": bad_rdy(
        b"9223372036854775807", "count 9223372036854775807 out of range 0-7"
    ),
    "a number of 64 bits is taken for a negative one": bad_rdy(
        b"9223372036854775808", "count -9223372036854775808 out of range 0-7"
    ),
    "more parameters are ignored": (*SUBSCRIBED, b"RDY 1 2 3\n"),
    "before SUB": (MAGIC + b"RDY 1\n", error("E_INVALID cannot RDY in current state"), CLOSED),
    "after CLS it is ignored, whatever it says": (*CLOSING, b"RDY 1\nRDY 8\nRDY many\n"),
    "it is a limit and not used up": (
        *SUBSCRIBED,
        b"MPUB {topic}\n" + several(b"a", b"b"),
        OK,
        b"RDY 1\n",
        Delivery(b"a"),
        b"FIN {id}\n",
        Delivery(b"b"),
        b"FIN {id}\n",
    ),
}


@table(RDY)
def test_rdy(small_nsqd: Nsqd, topic: str, dialogue: Dialogue) -> None:
    hold(small_nsqd, topic, dialogue)


ANSWERS = {
    "FIN": (*IN_FLIGHT, b"FIN {id}\n"),
    "FIN twice": (
        *IN_FLIGHT,
        b"FIN {id}\nFIN {id}\n",
        error("E_FIN_FAILED FIN {id} failed ID not in flight"),
    ),
    "FIN with more parameters": (*IN_FLIGHT, b"FIN {id} 1\n"),
    "FIN of an unknown message is not fatal": (
        *SUBSCRIBED,
        b"FIN %s\n" % UNKNOWN_ID,
        error("E_FIN_FAILED FIN 0123456789abcdef failed ID not in flight"),
        b"FIN %s\n" % UNKNOWN_ID,
        error("E_FIN_FAILED FIN 0123456789abcdef failed ID not in flight"),
    ),
    "FIN of an id that is no text": (
        *SUBSCRIBED,
        b"FIN " + b"\xff" * 16 + b"\n",
        Frame(1, b"E_FIN_FAILED FIN " + b"\xff" * 16 + b" failed ID not in flight"),
    ),
    "FIN with an id of 15 bytes": (
        *SUBSCRIBED,
        b"FIN 0123456789abcde\n",
        error("E_INVALID invalid message ID"),
        CLOSED,
    ),
    "FIN with an id of 17 bytes": (
        *SUBSCRIBED,
        b"FIN 0123456789abcdef0\n",
        error("E_INVALID invalid message ID"),
        CLOSED,
    ),
    "FIN with an empty id": (*SUBSCRIBED, b"FIN \n", error("E_INVALID invalid message ID"), CLOSED),
    "FIN without an id": (
        *SUBSCRIBED,
        b"FIN\n",
        error("E_INVALID FIN insufficient number of params"),
        CLOSED,
    ),
    "FIN before SUB": (
        MAGIC + b"FIN %s\n" % UNKNOWN_ID,
        error("E_INVALID cannot FIN in current state"),
        CLOSED,
    ),
    "FIN after CLS": (*CLOSING, b"FIN {id}\n"),
    "REQ": (*IN_FLIGHT, b"REQ {id} 0\n", Delivery(b"hello", attempts=2)),
    "REQ again and again": (
        *IN_FLIGHT,
        b"REQ {id} 0\n",
        Delivery(b"hello", attempts=2),
        b"REQ {id} 0\n",
        Delivery(b"hello", attempts=3),
    ),
    "REQ with an empty delay is REQ 0": (
        *IN_FLIGHT,
        b"REQ {id} \n",
        Delivery(b"hello", attempts=2),
    ),
    "REQ with the longest delay": (*IN_FLIGHT, b"REQ {id} 3600000\n"),
    "REQ with a longer delay is cut": (*IN_FLIGHT, b"REQ {id} 3600001\n"),
    "REQ with a delay beyond 64 bits of nanoseconds": (*IN_FLIGHT, b"REQ {id} 9223372036854\n"),
    "REQ with a negative delay": (
        *IN_FLIGHT,
        b"REQ {id} -1\n",
        error("E_INVALID REQ could not parse timeout -1"),
        CLOSED,
    ),
    "REQ with a word for a delay": (
        *IN_FLIGHT,
        b"REQ {id} soon\n",
        error("E_INVALID REQ could not parse timeout soon"),
        CLOSED,
    ),
    "REQ without a delay": (
        *IN_FLIGHT,
        b"REQ {id}\n",
        error("E_INVALID REQ insufficient number of params"),
        CLOSED,
    ),
    "REQ without an id": (
        *SUBSCRIBED,
        b"REQ\n",
        error("E_INVALID REQ insufficient number of params"),
        CLOSED,
    ),
    "REQ with an id of 15 bytes": (
        *SUBSCRIBED,
        b"REQ 0123456789abcde 0\n",
        error("E_INVALID invalid message ID"),
        CLOSED,
    ),
    "REQ with a bad id and a bad delay": (
        *SUBSCRIBED,
        b"REQ 0123456789abcde soon\n",
        error("E_INVALID invalid message ID"),
        CLOSED,
    ),
    "REQ of an unknown message is not fatal": (
        *SUBSCRIBED,
        b"REQ %s 0\n" % UNKNOWN_ID,
        error("E_REQ_FAILED REQ 0123456789abcdef failed ID not in flight"),
    ),
    "REQ after FIN": (
        *IN_FLIGHT,
        b"FIN {id}\nREQ {id} 0\n",
        error("E_REQ_FAILED REQ {id} failed ID not in flight"),
    ),
    "REQ before SUB": (
        MAGIC + b"REQ %s 0\n" % UNKNOWN_ID,
        error("E_INVALID cannot REQ in current state"),
        CLOSED,
    ),
    "REQ after CLS does not bring it back": (*CLOSING, b"REQ {id} 0\n"),
    "TOUCH": (*IN_FLIGHT, b"TOUCH {id}\nTOUCH {id}\nFIN {id}\n"),
    "TOUCH with more parameters": (*IN_FLIGHT, b"TOUCH {id} 1000\n"),
    "TOUCH after FIN is not fatal": (
        *IN_FLIGHT,
        b"FIN {id}\nTOUCH {id}\n",
        error("E_TOUCH_FAILED TOUCH {id} failed ID not in flight"),
    ),
    "TOUCH of an unknown message": (
        *SUBSCRIBED,
        b"TOUCH %s\n" % UNKNOWN_ID,
        error("E_TOUCH_FAILED TOUCH 0123456789abcdef failed ID not in flight"),
    ),
    "TOUCH with an id of 17 bytes": (
        *SUBSCRIBED,
        b"TOUCH 0123456789abcdef0\n",
        error("E_INVALID invalid message ID"),
        CLOSED,
    ),
    "TOUCH without an id": (
        *SUBSCRIBED,
        b"TOUCH\n",
        error("E_INVALID TOUCH insufficient number of params"),
        CLOSED,
    ),
    "TOUCH before SUB": (
        MAGIC + b"TOUCH %s\n" % UNKNOWN_ID,
        error("E_INVALID cannot TOUCH in current state"),
        CLOSED,
    ),
    "TOUCH after CLS": (*CLOSING, b"TOUCH {id}\nFIN {id}\n"),
}


@table(ANSWERS)
def test_answers(nsqd: Nsqd, topic: str, dialogue: Dialogue) -> None:
    hold(nsqd, topic, dialogue)


def test_a_message_can_be_answered_only_by_the_client_it_was_sent_to(
    nsqd: Nsqd, topic: str
) -> None:
    with Client(nsqd, MAGIC) as owner, Client(nsqd, MAGIC) as other:
        other.publish(topic, b"mine")
        owner.subscribe(topic)
        id = owner.message().id
        other.subscribe(topic, ready=0)
        for command, delay in ((b"FIN", b""), (b"REQ", b" 0"), (b"TOUCH", b"")):
            other.say(b"%s %s%s\n" % (command, id, delay))
            failure = b"E_%s_FAILED %s %s failed client does not own message"
            other.expect(Frame(1, failure % (command, command, id)))
        owner.say(b"FIN %s\n" % id)
        owner.expect_nothing()


CLS = {
    "with nothing in flight": (*SUBSCRIBED, b"CLS\n", response("CLOSE_WAIT")),
    "with more parameters": (*SUBSCRIBED, b"CLS now\n", response("CLOSE_WAIT")),
    "with a message in flight": CLOSING,
    "with messages that wait": (
        *SUBSCRIBED,
        b"MPUB {topic}\n" + several(b"a", b"b"),
        OK,
        b"RDY 1\n",
        Delivery(b"a"),
        b"CLS\n",
        response("CLOSE_WAIT"),
        b"FIN {id}\n",
    ),
    "before SUB": (MAGIC + b"CLS\n", error("E_INVALID cannot CLS in current state"), CLOSED),
    "twice": (*CLOSING, b"CLS\n", error("E_INVALID cannot CLS in current state"), CLOSED),
    "publishing goes on after it": (*CLOSING, b"PUB {topic}\n" + sized(b"more"), OK),
}


@table(CLS)
def test_cls(nsqd: Nsqd, topic: str, dialogue: Dialogue) -> None:
    hold(nsqd, topic, dialogue)
