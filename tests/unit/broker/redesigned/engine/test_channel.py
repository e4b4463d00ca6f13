"""A channel and its plain consumers: flow, answers, timeouts, delays, the window, moving."""

from __future__ import annotations

from typing import Any

import pytest

from nsqflow.broker.engine.channel import NotInFlight
from nsqflow.broker.redesigned.engine import channel as channel_module
from nsqflow.broker.redesigned.engine.subscriber import PartitionSubscriber
from tests.unit.broker.redesigned.engine.parts import SECOND, TIMEOUT, Workbench

MINUTE = 60 * SECOND


def numbered(count: int) -> list[bytes]:
    return [b"s%02d" % number for number in range(count)]


def stocked(count: int = 10, **settings: Any) -> Workbench:
    bench = Workbench(**settings)
    bench.publish(*numbered(count))
    return bench


# Flow


def test_a_channel_begins_at_the_end_of_the_log() -> None:
    bench = Workbench()
    bench.publish(b"before")
    bench.channel = bench.new_channel("late")
    bench.subscribe()
    bench.publish(b"after")
    assert bench.bodies() == [b"after"]


def test_exactly_as_many_are_in_flight_as_rdy_says() -> None:
    bench = stocked(10)
    subscriber = bench.subscribe(rdy=7)
    assert bench.bodies() == numbered(7)
    assert bench.bodies() == []
    bench.finish(subscriber, 0, 1)
    assert bench.bodies() == [b"s07", b"s08"]
    assert bench.channel.in_flight_count == 7


def test_rdy_0_and_closing_and_blocked_get_nothing() -> None:
    bench = stocked()
    subscriber = bench.subscribe(rdy=0)
    assert bench.bodies() == []
    subscriber.rdy, subscriber.closing = 5, True
    assert bench.bodies() == []
    subscriber.closing, subscriber.blocked = False, True
    assert bench.bodies() == []
    subscriber.blocked = False
    bench.channel.subscriber_changed()
    assert bench.channel in bench.dirty
    assert len(bench.bodies()) == 5


def test_consumers_share_what_there_is() -> None:
    bench = stocked(10)
    first, second = bench.subscribe(rdy=100), bench.subscribe(rdy=100)
    bench.messages()
    assert (first.in_flight_count, second.in_flight_count) == (5, 5)
    assert (first.message_count, second.message_count) == (5, 5)


def test_one_delivery_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_module, "_MAX_BYTES", 70)
    bench = stocked(10)
    bench.subscribe(rdy=100)
    [(_, data)] = bench.channel.deliver(bench.now)
    assert len(data) < 3 * 40
    assert bench.channel in bench.dirty  # for the rest
    assert bench.bodies() == numbered(10)[3:]


def test_a_delivery_of_requeued_messages_is_bounded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = stocked(10)
    bench.subscribe(rdy=100)
    bench.messages()
    monkeypatch.setattr(channel_module, "_MAX_BYTES", 70)
    bench.channel.remove(next(iter(bench.channel.subscribers)))
    bench.subscribe(rdy=100)
    [(_, data)] = bench.channel.deliver(bench.now)
    assert len(data) < 3 * 40
    assert len(bench.bodies()) == 8


def test_a_paused_channel_delivers_nothing() -> None:
    bench = stocked()
    bench.subscribe(rdy=3)
    bench.channel.pause(True)
    assert bench.bodies() == []
    bench.channel.pause(False)
    assert len(bench.bodies()) == 3


def test_a_channel_has_a_name() -> None:
    bench = Workbench()
    assert repr(bench.channel) == "PartitionChannel('c')"
    assert not bench.channel.ephemeral
    assert bench.new_channel("c#ephemeral").ephemeral


def test_an_advanced_consumer_gets_positions() -> None:
    bench = stocked(2)
    bench.subscribe(rdy=2, positioned=True)
    assert [(m.offset, m.size) for _, m in bench.messages()] == [(0, 33), (33, 33)]


# Finishing


def test_depth_counts_from_the_oldest_unfinished_message() -> None:
    bench = stocked(10)
    subscriber = bench.subscribe(rdy=100)
    bench.messages()
    reader = bench.channel.reader
    assert not bench.channel.began
    bench.finish(subscriber, *range(1, 10))
    assert (reader.depth, reader.depth_bytes) == (10, 330)
    bench.finish(subscriber, 0)
    assert (reader.depth, reader.depth_bytes) == (0, 0)
    assert bench.channel.began
    assert subscriber.finish_count == 10


def test_only_the_first_half_of_an_id_counts() -> None:
    bench = stocked(1)
    subscriber = bench.subscribe()
    bench.messages()
    assert bench.channel.finish(subscriber, [bench.id(0)[:8] + b"whatever"]) == []


def test_a_finish_that_fails_says_why() -> None:
    bench = stocked(3)
    first = bench.subscribe(rdy=1, client_id=5)
    bench.messages()
    second = bench.subscribe(rdy=1, client_id=6)
    bench.messages()
    assert bench.finish(second, 0, 1, 2) == [
        "ErrType:7 ErrCode:0 : client does not own message : 5 vs 6",
        "ErrType:7 ErrCode:0 : Message ID not in flight",
    ]
    bench.requeue(first, 0, SECOND)
    assert bench.finish(first, 0) == ["ErrType:7 ErrCode:0 : client does not own message : 0 vs 5"]
    assert (first.errors, second.errors) == (1, 0)


def test_what_any_client_has_in_flight_can_be_finished_by_its_id() -> None:
    bench = stocked(3)
    subscriber = bench.subscribe(rdy=2)
    bench.messages()
    bench.requeue(subscriber, 1, SECOND)
    bench.channel.finish_by_id(2)
    bench.channel.finish_by_id(3)
    assert bench.channel.reader.depth == 1
    assert subscriber.requeue_count == 2
    with pytest.raises(NotInFlight, match="ErrType:7 ErrCode:0 : Message ID not in flight"):
        bench.channel.finish_by_id(99)


# Requeueing, timeouts


def test_a_requeued_message_is_delivered_again_with_one_more_attempt() -> None:
    bench = stocked(3)
    subscriber = bench.subscribe(rdy=1)
    assert bench.attempts() == [(b"s00", 1)]
    bench.requeue(subscriber, 0)
    assert bench.attempts() == [(b"s00", 2)]
    assert (bench.channel.requeue_count, subscriber.requeue_count) == (1, 1)


def test_a_deferred_message_counts_as_in_flight_until_it_is_due() -> None:
    bench = stocked(1)
    subscriber = bench.subscribe(rdy=1)
    bench.messages()
    bench.requeue(subscriber, 0, 2 * SECOND)
    assert (bench.channel.in_flight_count, len(bench.channel.reader.deferred)) == (1, 1)
    assert subscriber.in_flight_count == 0
    bench.wait(2 * SECOND - 1)
    assert bench.attempts() == []
    bench.wait(1)
    assert bench.attempts() == [(b"s00", 2)]


def test_a_deferral_ends_once_though_the_message_was_finished_or_deferred_again() -> None:
    bench = stocked(2)
    subscriber = bench.subscribe(rdy=2)
    bench.messages()
    bench.requeue(subscriber, 0, SECOND)
    bench.requeue(subscriber, 1, SECOND)
    bench.channel.finish_by_id(2)
    bench.wait(SECOND)
    assert bench.attempts() == [(b"s01", 2)]
    bench.requeue(subscriber, 1, 5 * SECOND)
    bench.channel.reader.deferred[1] = bench.channel.reader.deferred[1]._replace(
        due=bench.now + 9 * SECOND
    )
    bench.wait(5 * SECOND)
    assert bench.attempts() == []


def test_requeue_and_touch_of_what_is_not_in_flight_say_why() -> None:
    bench = stocked(1)
    subscriber = bench.subscribe()
    for act in (bench.requeue, bench.touch):
        with pytest.raises(NotInFlight, match=r"^Message ID not in flight$"):
            act(subscriber, 0)
    assert subscriber.errors == 1  # that of the REQ


def test_a_message_times_out_and_is_delivered_again() -> None:
    bench = stocked(2)
    subscriber = bench.subscribe(rdy=1, msg_timeout=2 * SECOND)
    bench.messages()
    bench.wait(2 * SECOND - 1)
    assert bench.attempts() == []
    bench.wait(1)
    assert bench.attempts() == [(b"s00", 2)]
    assert (bench.channel.timeout_count, subscriber.timeout_count, subscriber.errors) == (1, 1, 1)


def test_timeouts_are_those_of_each_delivery() -> None:
    bench = stocked(2)
    subscriber = bench.subscribe(rdy=1, msg_timeout=10 * SECOND)
    bench.messages()
    bench.wait(5 * SECOND)
    subscriber.rdy = 2
    bench.messages()
    bench.wait(5 * SECOND)
    assert bench.attempts() == [(b"s00", 2)]
    bench.finish(subscriber, 0)
    bench.wait(5 * SECOND)
    assert bench.attempts() == [(b"s01", 2)]


def test_a_finished_message_does_not_time_out() -> None:
    bench = stocked(1)
    subscriber = bench.subscribe()
    bench.messages()
    bench.finish(subscriber, 0)
    bench.wait(TIMEOUT)
    assert bench.channel.timeout_count == 0
    bench.publish(b"next")
    assert bench.bodies() == [b"next"]
    bench.wait(TIMEOUT)
    assert bench.attempts() == [(b"next", 2)]


def test_a_touched_message_has_its_time_again() -> None:
    bench = stocked(1)
    subscriber = bench.subscribe(msg_timeout=10 * SECOND)
    bench.messages()
    bench.wait(8 * SECOND)
    bench.touch(subscriber, 0)
    bench.wait(8 * SECOND)
    assert bench.attempts() == []
    bench.wait(2 * SECOND)
    assert bench.attempts() == [(b"s00", 2)]


def test_touching_has_an_end() -> None:
    bench = stocked(2, max_msg_timeout=15 * SECOND)
    subscriber = bench.subscribe(rdy=2, msg_timeout=10 * SECOND)
    bench.messages()
    bench.wait(9 * SECOND)
    bench.touch(subscriber, 0)
    bench.touch(subscriber, 0)  # changes nothing
    bench.touch(subscriber, 1)
    bench.finish(subscriber, 1)
    bench.wait(6 * SECOND)
    assert bench.attempts() == [(b"s00", 2)]


def test_touching_has_an_end_though_others_have_more_time() -> None:
    bench = stocked(2, max_msg_timeout=15 * SECOND)
    subscriber = bench.subscribe(rdy=1, msg_timeout=10 * SECOND)
    bench.messages()
    bench.wait(8 * SECOND)
    subscriber.rdy = 2
    bench.messages()
    bench.wait(SECOND)
    bench.touch(subscriber, 0)
    bench.wait(6 * SECOND)
    assert bench.attempts() == [(b"s00", 2)]


def test_a_consumer_that_leaves_gives_its_messages_back_as_if_not_delivered() -> None:
    bench = stocked(3)
    first, second = bench.subscribe(rdy=3), bench.subscribe(rdy=0)
    bench.messages()
    bench.requeue(first, 0)
    bench.messages()
    second.rdy = 3
    bench.channel.remove(first)
    bench.channel.remove(first)  # once is enough
    assert sorted(bench.attempts()) == [(b"s00", 2), (b"s01", 1), (b"s02", 1)]
    assert bench.channel.requeue_count == 1 + 3


def test_what_a_consumer_leaves_behind_comes_in_any_order() -> None:
    bench = Workbench(shuffle=lambda messages: messages.reverse())
    bench.publish(*numbered(3))
    first = bench.subscribe(rdy=3)
    bench.messages()
    bench.channel.remove(first)
    bench.subscribe(rdy=3)
    assert bench.bodies() == [b"s02", b"s01", b"s00"]


# Long delays


def test_a_long_delay_takes_a_message_out_of_depth_and_flight() -> None:
    bench = stocked(2)
    subscriber = bench.subscribe(rdy=1)
    bench.messages()
    bench.requeue(subscriber, 0, 16 * MINUTE)
    reader = bench.channel.reader
    assert (reader.depth, bench.channel.in_flight_count, len(reader.delayed)) == (1, 0, 1)
    assert bench.attempts() == [(b"s01", 1)]
    bench.finish(subscriber, 1)
    bench.wait(16 * MINUTE)
    assert bench.attempts() == [(b"s00", 2)]
    assert len(reader.delayed) == 1  # until it is finished
    assert bench.finish(subscriber, 0) == []
    assert (reader.depth, len(reader.delayed)) == (0, 0)


def test_a_delayed_message_can_be_delayed_again_and_deferred() -> None:
    bench = stocked(1)
    subscriber = bench.subscribe(rdy=1)
    bench.messages()
    bench.requeue(subscriber, 0, 16 * MINUTE)
    bench.wait(16 * MINUTE)
    bench.messages()
    bench.requeue(subscriber, 0, 16 * MINUTE)
    bench.wait(16 * MINUTE)
    assert bench.attempts() == [(b"s00", 3)]
    bench.requeue(subscriber, 0, SECOND)
    bench.wait(SECOND)
    assert bench.attempts() == [(b"s00", 4)]


def test_a_delay_that_was_replaced_does_not_end_twice() -> None:
    bench = stocked(1)
    subscriber = bench.subscribe(rdy=1)
    bench.messages()
    bench.requeue(subscriber, 0, 16 * MINUTE)
    reader = bench.channel.reader
    reader.delayed[0] = reader.delayed[0]._replace(due=bench.now + 20 * MINUTE)
    bench.wait(16 * MINUTE)
    assert bench.attempts() == []
    reader.drop_delayed()
    bench.wait(MINUTE)
    assert bench.attempts() == []


def test_delays_are_cut_at_their_maximum() -> None:
    bench = stocked(1, max_req_timeout=20 * MINUTE)
    subscriber = bench.subscribe(rdy=1)
    bench.messages()
    bench.requeue(subscriber, 0, 99 * MINUTE)
    bench.wait(20 * MINUTE)
    assert bench.attempts() == [(b"s00", 2)]


def test_an_ephemeral_channel_keeps_long_delays_in_memory() -> None:
    bench = Workbench()
    bench.channel = bench.new_channel("c#ephemeral")
    bench.publish(b"x")
    subscriber = bench.subscribe()
    bench.messages()
    bench.requeue(subscriber, 0, 16 * MINUTE)
    assert len(bench.channel.reader.deferred) == 1


# Limits of requeueing


def redelivered(bench: Workbench, subscriber: PartitionSubscriber, attempts: int) -> None:
    """Have message 0 in flight with this number of attempts."""
    bench.messages()
    bench.requeue(subscriber, 0)
    bench.channel.reader.requeued[0] = (0, attempts - 1)
    assert bench.attempts() == [(b"s00", attempts)]


def test_a_message_with_many_attempts_is_not_requeued_too_soon() -> None:
    bench = stocked(1)
    subscriber = bench.subscribe()
    redelivered(bench, subscriber, 101)
    with pytest.raises(NotInFlight, match="Message too much requeue"):
        bench.requeue(subscriber, 0)
    bench.wait(SECOND // 10)
    bench.requeue(subscriber, 0)
    assert bench.attempts() == [(b"s00", 102)]
    bench.requeue(subscriber, 0, SECOND // 10)  # a second is added
    bench.wait(SECOND)
    assert bench.attempts() == []
    bench.wait(SECOND)
    assert bench.attempts() == [(b"s00", 103)]


def test_attempts_end_at_4000_and_requeues_at_2000() -> None:
    bench = stocked(1)
    subscriber = bench.subscribe()
    redelivered(bench, subscriber, 2000)
    bench.wait(SECOND)
    with pytest.raises(NotInFlight, match="Message too much requeue"):
        bench.requeue(subscriber, 0)
    bench.wait(TIMEOUT)
    bench.channel.reader.requeued[0] = (0, 4000)
    assert bench.attempts() == [(b"s00", 4000)]


# The window


def test_too_many_finished_stretches_stop_reading() -> None:
    bench = stocked(100, max_confirm_win=5)
    subscriber = bench.subscribe(rdy=30)
    bench.messages()
    for index in range(1, 13, 2):  # six of them
        bench.finish(subscriber, index)
    assert bench.channel.reader.window.stretches == 6
    assert bench.bodies() == [b"s30"]  # which was read ahead
    bench.finish(subscriber, 0)  # the stretches behind it are fewer, but not few enough
    bench.finish(subscriber, 2)
    assert bench.bodies() == []
    bench.finish(subscriber, 4, 6)
    assert len(bench.bodies()) > 0


def test_a_channel_that_has_stopped_is_woken_by_a_heartbeat_or_a_requeue() -> None:
    bench = stocked(100, max_confirm_win=5)
    subscriber = bench.subscribe(rdy=30)
    bench.messages()
    for index in range(1, 13, 2):
        bench.finish(subscriber, index)
    assert bench.bodies() == [b"s30"]  # which was read ahead
    bench.finish(subscriber, *range(2, 13, 2))  # one stretch, and the cursor has not moved
    assert bench.channel.reader.window.stretches == 1
    assert bench.bodies() == []
    bench.channel.wake()
    assert len(bench.bodies()) == 11
    for index in range(15, 29, 2):
        bench.finish(subscriber, index)
    assert bench.bodies() == [b"s42"]
    bench.channel.wake()
    assert bench.bodies() == []  # it is still too much
    bench.finish(subscriber, *range(14, 29, 2))
    bench.requeue(subscriber, 13)
    assert len(bench.bodies()) > 1


def test_finishing_last_first_stops_nothing() -> None:
    bench = stocked(100, max_confirm_win=5)
    subscriber = bench.subscribe(rdy=30)
    bench.messages()
    bench.finish(subscriber, *reversed(range(1, 30)))
    assert len(bench.bodies()) == 29


def test_too_many_deferred_messages_stop_reading_and_deferring() -> None:
    bench = stocked(30, max_confirm_win=10)
    subscriber = bench.subscribe(rdy=10, msg_timeout=60 * SECOND)
    bench.messages()
    for index in range(6):
        bench.requeue(subscriber, index, 30 * SECOND)
    assert bench.bodies() == [b"s10"]  # which was read ahead
    with pytest.raises(NotInFlight, match="Too much deferred messages in flight"):
        bench.requeue(subscriber, 6, 90 * SECOND)
    bench.requeue(subscriber, 6, 30 * SECOND)  # before its timeout
    bench.wait(30 * SECOND)
    assert len(bench.bodies()) == 6


def test_an_ordered_or_ephemeral_channel_is_not_woken() -> None:
    bench = stocked(1)
    bench.channel.order(True)
    bench.dirty.clear()
    bench.channel.wake()
    assert not bench.dirty


# Slowing down


def test_failed_answers_make_rdy_count_less() -> None:
    bench = stocked(40)
    subscriber = bench.subscribe(rdy=10)
    bench.finish(subscriber, *[99] * 5)
    assert subscriber.capacity == 10
    bench.finish(subscriber, 99, 99)
    assert subscriber.capacity == 8
    bench.finish(subscriber, *[99] * 99)
    assert subscriber.errors == 30
    assert subscriber.capacity == 1
    assert len(bench.bodies()) == 1


def test_successful_answers_make_up_for_failed_ones() -> None:
    bench = stocked(40)
    subscriber = bench.subscribe(rdy=20)
    bench.messages()
    bench.finish(subscriber, *[99] * 20)
    bench.finish(subscriber, 0)
    assert subscriber.errors == 18
    bench.finish(subscriber, *range(1, 20))
    assert subscriber.errors == 0
    assert subscriber.capacity == 20


def test_errors_above_rdy_fall_by_two() -> None:
    bench = stocked(3)
    subscriber = bench.subscribe(rdy=2)
    bench.messages()
    bench.finish(subscriber, *[99] * 10)
    bench.finish(subscriber, 0)
    assert subscriber.errors == 8
    subscriber.errors = 2
    bench.finish(subscriber, 1)
    assert subscriber.errors == 0


# Moving


def test_after_a_move_what_was_read_ahead_comes_first() -> None:
    bench = stocked(8)
    subscriber = bench.subscribe(rdy=5)
    bench.messages()
    bench.finish(subscriber, *range(5))
    subscriber.rdy = 0
    bench.channel.move(0)
    subscriber.rdy = 3
    assert bench.bodies() == [b"s05", b"s00", b"s01"]
    assert bench.channel.reader.depth == 8


def test_what_was_in_flight_is_forgotten_by_a_move() -> None:
    bench = stocked(8)
    subscriber = bench.subscribe(rdy=2)
    bench.messages()
    bench.channel.move(0)
    assert bench.attempts() == [(b"s02", 1), (b"s00", 1)]
    assert subscriber.requeue_count == 2
    assert bench.finish(subscriber, 1) == ["ErrType:7 ErrCode:0 : Message ID not in flight"]


def test_what_was_read_ahead_is_not_delivered_again_while_in_flight_or_finished() -> None:
    bench = stocked(4)
    subscriber = bench.subscribe(rdy=1)
    bench.messages()  # s00; s01 is read ahead
    bench.channel.move(0)
    assert bench.bodies() == [b"s01"]
    subscriber.rdy = 10
    assert bench.bodies() == [b"s00", b"s02", b"s03"]
    bench.finish(subscriber, 0, 1, 2, 3)
    bench.channel.move(4)
    bench.channel.move(1)
    assert bench.bodies() == [b"s01", b"s02", b"s03"]


def test_a_move_forward_skips_and_a_requeued_message_was_read_ahead() -> None:
    bench = stocked(8)
    subscriber = bench.subscribe(rdy=1)
    bench.messages()
    bench.requeue(subscriber, 0)
    bench.channel.move(6)
    subscriber.rdy = 9
    assert bench.attempts() == [(b"s00", 2), (b"s06", 1), (b"s07", 1)]
    bench.finish(subscriber, 0, 6, 7)
    assert bench.channel.reader.depth == 0


def test_a_move_at_the_end_of_the_log_has_nothing_read_ahead() -> None:
    bench = stocked(2)
    subscriber = bench.subscribe(rdy=2)
    bench.messages()
    bench.finish(subscriber, 0, 1)
    bench.channel.move(1)
    assert bench.bodies() == [b"s01"]


def test_a_channel_that_has_stopped_reading_reads_nothing_more_ahead() -> None:
    bench = stocked(30, max_confirm_win=2)
    subscriber = bench.subscribe(rdy=10)
    bench.messages()
    bench.finish(subscriber, 1, 3, 5)
    assert bench.bodies() == [b"s10"]  # which was read ahead
    bench.channel.move(0)
    assert bench.bodies() == numbered(10)


def test_deferred_messages_are_forgotten_by_a_move_and_delayed_ones_are_not() -> None:
    bench = stocked(4)
    subscriber = bench.subscribe(rdy=4)
    bench.messages()
    bench.requeue(subscriber, 0, 20 * MINUTE)
    bench.requeue(subscriber, 1, SECOND)
    bench.requeue(subscriber, 2, 20 * MINUTE)
    bench.finish(subscriber, 3)
    bench.wait(20 * MINUTE)
    assert len(bench.bodies()) == 3
    bench.requeue(subscriber, 2, 20 * MINUTE)
    bench.channel.move(0)
    assert sorted(bench.bodies()) == [b"s00", b"s01", b"s03"]  # s02 waits


def test_emptying_skips_everything() -> None:
    bench = stocked(4)
    subscriber = bench.subscribe(rdy=2)
    bench.messages()
    bench.requeue(subscriber, 0, 20 * MINUTE)
    bench.channel.empty()
    assert bench.bodies() == []
    assert bench.channel.reader.depth == 0
    bench.wait(20 * MINUTE)
    assert bench.bodies() == []


def test_backlog_and_age_count_the_message_that_is_read_ahead() -> None:
    bench = Workbench()
    reader = bench.channel.reader
    assert (reader.unread, reader.depth_timestamp) == (0, 0)
    for number in range(7):
        bench.publish(b"%d" % number)
        bench.now += SECOND
    start = bench.log.timestamp_of(0)
    assert (reader.unread, reader.depth_timestamp) == (6, start)
    subscriber = bench.subscribe(rdy=2)
    bench.messages()
    assert (reader.unread, reader.depth_timestamp) == (4, start + 2 * SECOND)
    subscriber.rdy = 0
    bench.requeue(subscriber, 0)
    assert (reader.unread, reader.depth_timestamp) == (5, start + SECOND)


def test_the_oldest_message_that_is_needed_may_lie_before_the_cursor() -> None:
    bench = stocked(5)
    assert bench.channel.oldest == 0
    subscriber = bench.subscribe(rdy=3)
    bench.messages()
    bench.finish(subscriber, 0)
    assert bench.channel.oldest == 1
    bench.requeue(subscriber, 1, 20 * MINUTE)
    bench.finish(subscriber, 2)
    assert (bench.channel.reader.window.cursor, bench.channel.oldest) == (3, 1)


def test_finished_messages_that_are_read_again_are_skipped() -> None:
    bench = stocked(5)
    subscriber = bench.subscribe(rdy=5)
    bench.messages()
    bench.finish(subscriber, 1, 2)
    bench.channel.close()
    bench.channel.reader.reset()
    bench.subscribe(rdy=9)
    assert bench.bodies() == [b"s00", b"s03", b"s04"]


def test_where_all_is_finished_that_is_read_again_nothing_comes() -> None:
    bench = stocked(3)
    subscriber = bench.subscribe(rdy=5)
    bench.messages()
    bench.finish(subscriber, 1, 2)
    bench.channel.close()
    bench.channel.reader.reset()
    for _ in range(3):
        bench.subscribe(rdy=9)
    assert bench.bodies() == [b"s00"]


def test_a_window_ignores_what_it_has_already() -> None:
    bench = stocked(5)
    window = bench.channel.reader.window
    assert not window.finish([2])
    assert not window.finish([2])
    assert (2 in window, 1 in window, window.stretches) == (True, False, 1)
    assert window.finish([0, 1])
    assert (window.cursor, window.stretches, 0 in window) == (3, 0, True)
    assert not window.finish([1])
