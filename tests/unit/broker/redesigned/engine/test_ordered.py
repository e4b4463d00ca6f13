"""Ordered channels, and consumers that do not take every message."""

import pytest

from nsqflow.broker.redesigned.engine import channel as channel_module
from nsqflow.broker.redesigned.engine.headers import make_filter
from tests.unit.broker.redesigned.engine.parts import SECOND, Workbench


def ordered(count: int = 5) -> Workbench:
    bench = Workbench()
    bench.publish(*[b"o-%d" % number for number in range(count)])
    bench.channel.order(True)
    return bench


def test_one_message_is_in_flight_over_all_consumers() -> None:
    bench = ordered()
    first, second = bench.subscribe(rdy=10), bench.subscribe(rdy=10)
    holders = []
    for index in range(4):
        [(holder, message)] = bench.messages()
        assert message.body == b"o-%d" % index
        bench.finish(holder, index)
        holders.append(holder)
    assert holders == [first, second, first, second]


def test_nothing_comes_without_rdy() -> None:
    bench = ordered()
    subscriber = bench.subscribe(rdy=0)
    assert bench.bodies() == []
    subscriber.rdy = 1
    assert bench.bodies() == [b"o-0"]


def test_a_requeue_is_served_at_once_and_a_delay_is_dropped() -> None:
    bench = ordered()
    subscriber = bench.subscribe(rdy=1, msg_timeout=2 * SECOND)
    bench.messages()
    bench.requeue(subscriber, 0, SECOND)
    bench.wait(SECOND)
    assert bench.attempts() == []
    bench.requeue(subscriber, 0)
    assert bench.attempts() == [(b"o-0", 2)]
    bench.wait(2 * SECOND)
    assert bench.attempts() == [(b"o-0", 3)]


def test_a_delay_for_an_unknown_message_is_dropped_too() -> None:
    bench = ordered()
    subscriber = bench.subscribe()
    bench.requeue(subscriber, 99, SECOND)
    assert subscriber.errors == 0


def test_another_consumer_gets_what_one_leaves_behind() -> None:
    bench = ordered()
    first, second = bench.subscribe(rdy=1), bench.subscribe(rdy=1)
    [(holder, _)] = bench.messages()
    bench.channel.remove(holder)
    [(other, message)] = bench.messages()
    assert {holder, other} == {first, second}
    assert (message.body, message.attempts) == (b"o-0", 1)


def test_a_channel_that_becomes_ordered_begins_at_its_cursor() -> None:
    bench = Workbench()
    bench.publish(*[b"o-%d" % number for number in range(5)])
    subscriber = bench.subscribe(rdy=4)
    bench.messages()
    bench.finish(subscriber, 0, 2)
    assert bench.channel.order(True) == []
    assert bench.channel.order(True) == []
    assert bench.attempts() == [(b"o-1", 1)]
    assert subscriber.in_flight_count == 1
    bench.finish(subscriber, 1)
    assert bench.attempts() == [(b"o-2", 1)]


def test_a_channel_that_becomes_ordered_may_repeat_its_first_message() -> None:
    bench = Workbench()
    bench.publish(b"o-0", b"o-1")
    subscriber = bench.subscribe(rdy=1)
    bench.channel.order(True, repeats=1)
    assert bench.attempts() == [(b"o-0", 1), (b"o-0", 1)]
    bench.finish(subscriber, 0)
    assert bench.attempts() == [(b"o-1", 1)]


def test_a_channel_that_is_ordered_no_more_closes_its_consumers() -> None:
    bench = ordered()
    subscriber = bench.subscribe(rdy=5)
    assert bench.channel.order(False) == [subscriber]
    assert len(bench.bodies()) == 5


def test_moving_an_ordered_channel_reads_nothing_ahead_of_the_message_in_flight() -> None:
    bench = ordered()
    subscriber = bench.subscribe(rdy=1)
    bench.messages()
    bench.channel.move(3)
    assert bench.bodies() == [b"o-3"]
    subscriber.rdy = 0
    bench.finish(subscriber, 3)
    bench.channel.move(0)
    subscriber.rdy = 1
    assert bench.bodies() == [b"o-4"]


def test_a_repeated_message_is_in_flight_once() -> None:
    bench = ordered()
    subscriber = bench.subscribe(rdy=1)
    bench.channel.repeats = 1
    assert bench.attempts() == [(b"o-0", 1), (b"o-0", 1)]
    assert bench.finish(subscriber, 0, 0) == ["ErrType:7 ErrCode:0 : Message ID not in flight"]
    assert bench.attempts() == [(b"o-1", 1)]


# Tags, filters, samples


def tagged(tag: str) -> bytes:
    return b'{"##client_dispatch_tag":"%s"}' % tag.encode() if tag else b""


def test_a_tagged_message_is_for_clients_that_ask_for_its_tag() -> None:
    bench = Workbench(extended=True)
    tags = ["", "A", "B", "A"]
    bench.publish(*[b"%d" % n for n in range(4)], headers=[tagged(each) for each in tags])
    a, rest = bench.subscribe(rdy=9, tag="A"), bench.subscribe(rdy=9)
    got = bench.messages()
    assert [message.body for holder, message in got if holder is a] == [b"1", b"3"]
    assert [message.body for holder, message in got if holder is rest] == [b"0", b"2"]


def test_a_message_that_no_consumer_can_take_holds_up_the_rest() -> None:
    bench = Workbench(extended=True)
    bench.publish(b"0", b"1", headers=[b"", tagged("A")])
    bench.subscribe(rdy=9, tag="A")
    assert bench.bodies() == []
    bench.subscribe(rdy=1)
    assert bench.bodies() == [b"0", b"1"]


def test_without_a_consumer_for_a_tag_its_messages_are_for_the_others() -> None:
    bench = Workbench(extended=True)
    bench.publish(b"0", b"1", headers=[b"", tagged("A")])
    a, _ = bench.subscribe(rdy=0, tag="A"), bench.subscribe(rdy=9)
    assert bench.bodies() == [b"0"]
    bench.channel.remove(a)
    assert bench.bodies() == [b"1"]


def test_what_a_filter_does_not_match_is_finished_for_the_channel() -> None:
    bench = Workbench(extended=True)
    bench.publish(b"0", b"1", b"2", headers=[b'{"k":"a"}', b'{"k":"b"}', b""])
    wanted = make_filter({"type": 1, "filter_ext_key": "k", "filter_data": "b"})
    subscriber = bench.subscribe(rdy=9, filter=wanted)
    assert bench.bodies() == [b"1"]
    bench.finish(subscriber, 1)
    assert bench.channel.reader.depth == 0


def test_a_filter_is_ignored_where_messages_have_no_headers() -> None:
    bench = Workbench()
    bench.publish(b"0")
    bench.subscribe(rdy=9, filter=lambda headers: False)
    assert bench.bodies() == [b"0"]


def test_a_filter_holds_in_an_ordered_channel_too() -> None:
    bench = Workbench(extended=True)
    bench.channel.order(True)
    bench.publish(b"0", b"1", headers=[b'{"k":"a"}', b'{"k":"b"}'])
    bench.subscribe(rdy=9, filter=lambda headers: b"b" in headers)
    assert bench.bodies() == [b"1"]


def test_a_sample_is_delivered_and_the_rest_is_finished() -> None:
    numbers = iter([5, 50, 10, 11])
    bench = Workbench(random_percent=lambda: next(numbers))
    bench.publish(b"0", b"1", b"2", b"3")
    subscriber = bench.subscribe(rdy=9, sample_rate=10)
    assert bench.bodies() == [b"0", b"2"]
    bench.finish(subscriber, 0, 2)
    assert bench.channel.reader.depth == 0


def test_one_delivery_looks_at_a_bounded_number_of_messages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(channel_module, "_MAX_PICKED", 3)
    bench = Workbench(random_percent=lambda: 0)
    bench.publish(*[b"x"] * 10)
    bench.subscribe(rdy=99, sample_rate=10)
    assert len(bench.channel.deliver(bench.now)) == 3
    assert bench.channel in bench.dirty
    assert len(bench.bodies()) == 7


def test_a_delayed_message_is_always_in_the_sample() -> None:
    percent = [0]
    bench = Workbench(random_percent=lambda: percent[0])
    bench.publish(b"0")
    subscriber = bench.subscribe(rdy=9, sample_rate=10)
    bench.messages()
    bench.requeue(subscriber, 0, 1000 * SECOND)
    percent[0] = 99
    bench.wait(1000 * SECOND)
    assert bench.attempts() == [(b"0", 2)]
