"""SUB, SUB_ADVANCED and SUB_ORDERED: the layouts of messages, and where a channel begins."""

from __future__ import annotations

import pytest

from tests.conformance.redesigned.wire import (
    HEARTBEAT,
    OK,
    Connect,
    Wire,
    batch,
    code_of,
    data_of,
    error,
    fin,
    hexed,
    masked,
    pub,
    pub_ext,
    pub_trace,
)

HEADERS = b'{"##client_dispatch_tag":"tag","a":"bc"}'  # as long as those that were recorded
SIZE = 33  # on disk, of a message with a body of 3 bytes
COUNT = 20
SEQUENCE = [b"s%02d" % number for number in range(COUNT)]


# Layouts


def test_a_plain_message_has_neither_headers_nor_position(connect: Connect) -> None:
    consumer, producer = connect(), connect()
    consumer.subscribe("SUB t_part ch 1")
    assert data_of(producer.ask(pub_trace("t_part", 7, b"p-0", 1)))[:2] == b"OK"
    pattern = """00 00 00 21 00 00 00 02 | ?? ?? ?? ?? ?? ?? ?? ?? | 00 01 | 00 04 00 00 00 00 00 02
                 | 00 00 00 00 00 00 00 07 | 70 2d 30"""
    assert masked(consumer.frame(), pattern) == hexed(pattern)


@pytest.mark.parametrize(
    "line", ["SUB_ORDERED t_order ch 0", "SUB_ADVANCED t_part ch 0", "SUB_ORDERED t_part ch 0"]
)
def test_ordered_and_advanced_messages_have_their_offset_and_size(
    connect: Connect, line: str
) -> None:
    consumer, producer = connect(), connect()
    topic = line.split()[1]
    # The recorded message was the second one.
    assert producer.ask(pub(topic, b"xyz")) == OK
    consumer.subscribe(line)
    assert data_of(producer.ask(pub_trace(topic, 7, b"o-0")))[:2] == b"OK"
    pattern = """00 00 00 2d 00 00 00 02 | ?? ?? ?? ?? ?? ?? ?? ?? | 00 01 | 00 00 00 00 00 00 00 03
                 | 00 00 00 00 00 00 00 07 | 00 00 00 00 00 00 00 21 | 00 00 00 21 | 6f 2d 30"""
    assert masked(consumer.frame(), pattern) == hexed(pattern)


def test_messages_of_an_extended_topic_have_headers_or_a_zero_byte(connect: Connect) -> None:
    consumer, producer = connect(), connect()
    consumer.identify(extend_support=True)
    consumer.subscribe("SUB t_ext ch 0", rdy=2)
    assert producer.ask(pub_ext("t_ext", HEADERS, b"extbody")) == OK
    assert producer.ask(pub("t_ext", b"again")) == OK
    with_headers = f"""00 00 00 50 00 00 00 02 ?? ?? ?? ?? ?? ?? ?? ?? 00 01
        00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 00 04 00 28 {HEADERS.hex(" ")}
        65 78 74 62 6f 64 79"""
    without = """00 00 00 24 00 00 00 02 ?? ?? ?? ?? ?? ?? ?? ?? 00 01
        00 00 00 00 00 00 00 03 00 00 00 00 00 00 00 00 00 61 67 61 69 6e"""
    assert masked(consumer.frame(), with_headers) == hexed(with_headers)
    assert masked(consumer.frame(), without) == hexed(without)


@pytest.mark.parametrize("command", ["SUB_ADVANCED", "SUB_ORDERED"])
def test_headers_come_before_the_position(connect: Connect, command: str) -> None:
    consumer, producer = connect(), connect()
    consumer.identify(extend_support=True)
    consumer.subscribe(f"{command} t_ext ch 0")
    assert producer.ask(pub_ext("t_ext", HEADERS, b"extbody")) == OK
    pattern = f"""00 00 00 5c 00 00 00 02 ?? ?? ?? ?? ?? ?? ?? ?? 00 01
        00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 00 04 00 28 {HEADERS.hex(" ")}
        00 00 00 00 00 00 00 00 00 00 00 50 65 78 74 62 6f 64 79"""
    assert masked(consumer.frame(), pattern) == hexed(pattern)


def test_messages_of_one_publish_follow_each_other_on_disk(connect: Connect) -> None:
    consumer, producer = connect(), connect()
    consumer.subscribe("SUB_ADVANCED t_part ch 0", rdy=3)
    assert producer.ask(batch("MPUB t_part 0", b"a", b"bcd", b"e")) == OK
    messages = [consumer.message(positioned=True) for _ in range(3)]
    assert [(each.offset, each.size) for each in messages] == [(0, 31), (31, 33), (64, 31)]


def test_the_spelling_of_the_published_guide_is_refused(wire: Wire) -> None:
    answer = wire.ask(b"SUB_ORDER t_order ch 0\n")
    begin = error("E_INVALID invalid command [[83 85 66 95 79 82 68 69 82] ")
    assert answer.startswith(begin[4:], 4)
    wire.expect_closed()


# Where a channel begins


def test_a_new_channel_begins_at_the_end(connect: Connect) -> None:
    consumer, producer = connect(), connect()
    assert producer.ask(pub("t_part", b"before")) == OK
    consumer.subscribe("SUB t_part ch 0")
    consumer.expect_open()
    assert producer.ask(pub("t_part", b"after")) == OK
    assert consumer.bodies(1) == [b"after"]


def test_a_channel_belongs_to_one_partition(connect: Connect) -> None:
    first, second, producer = connect(), connect(), connect()
    first.subscribe("SUB t_part ch 0")
    assert producer.ask(pub("t_part", b"lost", 1)) == OK
    second.subscribe("SUB t_part ch 1")
    second.expect_open()
    assert producer.ask(pub("t_part", b"found", 1)) == OK
    assert second.bodies(1) == [b"found"]
    first.expect_open()


@pytest.fixture
def written(connect: Connect) -> Connect:
    """Twenty messages of 33 bytes, at 0 to 627, in a partition without channels."""
    assert connect().ask(batch("MPUB t_part 0", *SEQUENCE)) == OK
    return connect


STARTS = {
    "virtual_queue:330": 10,
    "virtual_queue:335": 11,
    "virtual_queue:0": 0,
    "virtual_queue:-1": 0,
    "virtual_queue:660": None,
    "virtual_queue:100000": None,
    "msgcount:5": 4,
    "msgcount:1": 0,
    "msgcount:0": 0,
    "msgcount:-1": 0,
    "msgcount:21": None,
    "msgcount:1000": None,
    "timestamp:0": 0,
    "timestamp:1": 0,
    "timestamp:99999999999": None,
    "timestamp:1763449200000": None,  # milliseconds by mistake
    "special:-1": None,
}


@pytest.mark.parametrize(("start", "first"), STARTS.items(), ids=STARTS)
def test_sub_advanced_begins_where_it_is_asked_to(
    written: Connect, start: str, first: int | None
) -> None:
    consumer = written()
    consumer.subscribe(f"SUB_ADVANCED t_part ch 0 {start}", rdy=2 * COUNT)
    assert written().ask(pub("t_part", b"end")) == OK
    expected = [] if first is None else SEQUENCE[first:]
    messages = [consumer.message(positioned=True) for _ in range(len(expected) + 1)]
    assert [each.body for each in messages] == [*expected, b"end"]
    if first is not None:
        assert messages[0].offset == first * SIZE
    consumer.expect_open()


@pytest.mark.parametrize(
    ("start", "text"),
    [
        ("timestamp:-1", "E_INVALID Invalid timestamp -1"),
        ("special:0", "not supported offset type"),
        ("special:-2", "not supported offset type"),
        ("count:0", None),
        ("msgcount", None),
        ("msgcount:x", None),
        ("timestamp:1.5", None),
    ],
)
def test_a_start_that_there_is_not_closes(written: Connect, start: str, text: str | None) -> None:
    consumer = written()
    answer = consumer.ask(f"SUB_ADVANCED t_part ch 0 {start}\n".encode())
    assert code_of(answer) == "E_INVALID"
    if text is not None:
        assert text in data_of(answer, 1).decode()
    consumer.expect_closed()


def test_a_start_moves_a_channel_back_and_finished_messages_come_again(written: Connect) -> None:
    first, consumer = written(), written()
    first.subscribe("SUB_ADVANCED t_part ch 0 msgcount:1")
    for body in SEQUENCE[:5]:
        message = first.message(positioned=True)
        assert message.body == body
        first.send(fin(message.id))
    assert first.message(positioned=True).body == b"s05"
    first.leave()
    consumer.subscribe("SUB_ADVANCED t_part ch 0 msgcount:1", rdy=2 * COUNT)
    found = [consumer.message(positioned=True) for _ in SEQUENCE]
    assert {each.attempts for each in found} == {1}
    bodies = [each.body for each in found]
    # What was in flight may come first.
    assert bodies in (SEQUENCE, [b"s05", *[each for each in SEQUENCE if each != b"s05"]])


def test_a_start_moves_a_channel_forward_for_good(written: Connect) -> None:
    first, second, consumer = written(), written(), written()
    first.subscribe("SUB_ADVANCED t_part ch 0 msgcount:1", rdy=0)
    first.leave()
    second.subscribe("SUB_ADVANCED t_part ch 0 special:-1", rdy=0)
    second.leave()
    consumer.subscribe("SUB t_part ch 0", rdy=COUNT)
    # The one message that the server had read ahead may come first.
    assert written().ask(pub("t_part", b"end")) == OK
    bodies = consumer.bodies(1)
    assert bodies in ([b"s00"], [b"end"])
    if bodies == [b"s00"]:
        assert consumer.bodies(1) == [b"end"]
    consumer.expect_open()


def test_the_start_of_a_second_client_is_ignored(written: Connect) -> None:
    first, second = written(), written()
    first.subscribe("SUB_ADVANCED t_part ch 0 special:-1", rdy=0)
    second.subscribe("SUB_ADVANCED t_part ch 0 msgcount:1", rdy=COUNT)
    second.expect_open()


def test_with_a_start_the_partition_is_ignored(written: Connect) -> None:
    consumer = written()
    consumer.subscribe("SUB_ADVANCED t_part ch 1 msgcount:1")
    assert consumer.message(positioned=True).body == b"s00"


def test_with_a_start_even_a_partition_that_the_node_has_not_is_taken(written: Connect) -> None:
    written().subscribe("SUB_ADVANCED t_part ch 9 msgcount:1")


@pytest.mark.parametrize("line", ["SUB t_part ch 1 extra", "SUB t_part ch 1 ", "SUB t_part ch"])
def test_without_a_partition_or_with_a_word_too_many_the_default_one_is_read(
    connect: Connect, line: str
) -> None:
    consumer, producer = connect(), connect()
    consumer.subscribe(line, rdy=2)
    assert producer.ask(pub("t_part", b"one", 1)) == OK
    assert producer.ask(pub("t_part", b"zero", 0)) == OK
    assert consumer.bodies(1) == [b"zero"]
    consumer.expect_open()


@pytest.mark.nsq_redesigned_broker(client_timeout=2.2)
def test_a_start_in_time_is_the_first_message_at_or_after_it(connect: Connect) -> None:
    live, producer = connect(), connect()
    live.subscribe("SUB t_part live 0", rdy=2)
    assert producer.ask(pub("t_part", b"a")) == OK
    first = live.message()
    assert live.frame() == HEARTBEAT  # more than a second later
    live.send(b"NOP\n")
    assert connect().ask(pub("t_part", b"b")) == OK
    second = live.message()
    for message in (first, second):
        consumer = connect()
        seconds = message.timestamp // 10**9
        consumer.subscribe(f"SUB_ADVANCED t_part from-{seconds} 0 timestamp:{seconds}")
        assert consumer.message(positioned=True).body == message.body


# Tags and channels


def test_a_tagged_message_goes_to_the_client_that_asks_for_its_tag(connect: Connect) -> None:
    tagged, other, producer = connect(), connect(), connect()
    tagged.identify(extend_support=True, desired_tag="tagA")
    other.identify(extend_support=True)
    for consumer in (tagged, other):
        consumer.subscribe("SUB t_ext ch 0", rdy=10)
    # Several in a row: whose turn it is must not count.
    for tag in (b"tagA", b"tagA", b"tagA", b"tagB", b"tagB", b"tagA"):
        headers = b'{"##client_dispatch_tag":"%s"}' % tag
        assert producer.ask(pub_ext("t_ext", headers, tag)) == OK
    assert producer.ask(pub("t_ext", b"none")) == OK
    assert [tagged.message(extended=True).body for _ in range(4)] == [b"tagA"] * 4
    assert [other.message(extended=True).body for _ in range(3)] == [b"tagB", b"tagB", b"none"]
    tagged.expect_open()
    other.expect_open()


def test_with_a_tag_that_no_client_asks_for_a_message_goes_to_the_others(connect: Connect) -> None:
    consumer, producer = connect(), connect()
    consumer.identify(extend_support=True)
    consumer.subscribe("SUB t_ext ch 0")
    assert producer.ask(pub_ext("t_ext", b'{"##client_dispatch_tag":"tagA"}', b"x")) == OK
    assert consumer.message(extended=True).body == b"x"


def test_an_ephemeral_channel_ends_with_its_last_client(connect: Connect) -> None:
    first, second, producer = connect(), connect(), connect()
    first.subscribe("SUB t_part c#ephemeral 0")
    assert producer.ask(pub("t_part", b"x")) == OK
    assert first.bodies(1) == [b"x"]
    first.leave()
    second.subscribe("SUB t_part c#ephemeral 0")
    second.expect_open()
