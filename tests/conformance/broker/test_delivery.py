"""Messages between PUB and FIN: which client gets them, when, and how often."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.conformance.broker.dialogue import (
    MAGIC,
    OK,
    Client,
    error,
    identify,
    response,
    sized,
)
from tests.conformance.driver import stats_of, wait_until
from tests.fixtures.servers import Nsqd

HEARTBEAT = response("_heartbeat_")


def channel_of(nsqd: Nsqd, topic: str, name: str = "ch") -> dict[str, Any]:
    """What nsqd counts for a channel."""
    [channel] = [each for each in stats_of(nsqd, topic)["channels"] if each["channel_name"] == name]
    result: dict[str, Any] = channel
    return result


def order(nsqd: Nsqd, path: str) -> None:
    """Ask for something over HTTP that must succeed."""
    assert nsqd.ask(path, "POST") == (200, b"")


def publish(nsqd: Nsqd, topic: str, *bodies: bytes) -> None:
    with Client(nsqd, MAGIC) as client:
        client.publish(topic, *bodies)


# Which client gets what.


def test_messages_come_in_the_order_in_which_they_were_published(nsqd: Nsqd, topic: str) -> None:
    bodies = [b"%d" % number for number in range(100)]
    with Client(nsqd, MAGIC) as client:
        client.publish(topic, *bodies[:50])
        for body in bodies[50:]:
            client.publish(topic, body)
        client.subscribe(topic, ready=100)
        messages = [client.message() for _ in bodies]
    assert [message.body for message in messages] == bodies
    ids = [message.id for message in messages]
    assert len(set(ids)) == 100
    timestamps = [message.timestamp for message in messages]
    assert timestamps == sorted(timestamps)


def test_every_channel_gets_a_copy_and_its_consumers_share_it(nsqd: Nsqd, topic: str) -> None:
    with (
        Client(nsqd, MAGIC) as one,
        Client(nsqd, MAGIC) as two,
        Client(nsqd, MAGIC) as other,
    ):
        one.subscribe(topic)
        two.subscribe(topic)
        other.subscribe(topic, "other", ready=2)
        publish(nsqd, topic, b"a", b"b")
        first, second = one.message(), two.message()
        assert {first.body, second.body} == {b"a", b"b"}
        copies = {other.message(), other.message()}
        assert copies == {first, second}  # the same ids and times


def test_the_first_channel_gets_what_was_published_before_it(nsqd: Nsqd, topic: str) -> None:
    publish(nsqd, topic, b"early")
    assert stats_of(nsqd, topic)["depth"] == 1
    with Client(nsqd, MAGIC) as first, Client(nsqd, MAGIC) as second:
        first.subscribe(topic)
        assert first.message().body == b"early"
        second.subscribe(topic, "late")
        publish(nsqd, topic, b"next")
        assert second.message().body == b"next"


def test_no_message_is_sent_beyond_rdy(nsqd: Nsqd, topic: str) -> None:
    publish(nsqd, topic, b"a", b"b", b"c")
    with Client(nsqd, MAGIC) as client:
        client.subscribe(topic, ready=2)
        client.message()
        client.message()
        stats = channel_of(nsqd, topic)
        assert (stats["depth"], stats["in_flight_count"]) == (1, 2)
        client.expect_nothing()


def test_rdy_0_ends_the_flow(nsqd: Nsqd, topic: str) -> None:
    publish(nsqd, topic, b"a", b"b")
    with Client(nsqd, MAGIC) as client:
        client.subscribe(topic, ready=1)
        message = client.message()
        client.say(b"RDY 0\n")
        client.finish(message)
        wait_until(lambda: channel_of(nsqd, topic)["in_flight_count"] == 0)
        client.expect_nothing()
    assert channel_of(nsqd, topic)["depth"] == 1


# Answers.


def test_a_requeued_message_is_the_same_but_for_its_attempts(nsqd: Nsqd, topic: str) -> None:
    publish(nsqd, topic, b"again")
    with Client(nsqd, MAGIC) as client:
        client.subscribe(topic)
        first = client.message()
        client.say(b"REQ %s 0\n" % first.id)
        second = client.message()
        assert (first.attempts, second.attempts) == (1, 2)
        assert (second.id, second.timestamp, second.body) == (
            first.id,
            first.timestamp,
            first.body,
        )
        client.finish(second)
        wait_until(lambda: channel_of(nsqd, topic)["in_flight_count"] == 0)
        stats = channel_of(nsqd, topic)
        assert (stats["depth"], stats["requeue_count"], stats["message_count"]) == (0, 1, 1)
        [consumer] = stats["clients"]
        assert (consumer["message_count"], consumer["finish_count"], consumer["requeue_count"]) == (
            2,
            1,
            1,
        )


def test_a_requeued_message_waits_for_its_delay(hasty_nsqd: Nsqd, timely_topic: str) -> None:
    publish(hasty_nsqd, timely_topic, b"later")
    with Client(hasty_nsqd, MAGIC) as client:
        client.subscribe(timely_topic)
        message = client.message()
        before = time.monotonic()
        client.say(b"REQ %s 200\n" % message.id)
        assert client.message().attempts == 2
        assert time.monotonic() - before >= 0.2


def test_a_delay_that_is_too_long_is_cut_to_the_longest_one(
    hasty_nsqd: Nsqd, timely_topic: str
) -> None:
    publish(hasty_nsqd, timely_topic, b"later")
    with Client(hasty_nsqd, MAGIC) as client:
        client.subscribe(timely_topic)
        message = client.message()
        before = time.monotonic()
        client.say(b"REQ %s 3600000\n" % message.id)
        assert client.message().attempts == 2
        assert time.monotonic() - before >= 0.3


def test_a_deferred_message_waits_for_its_delay(hasty_nsqd: Nsqd, timely_topic: str) -> None:
    with Client(hasty_nsqd, MAGIC) as client:
        client.subscribe(timely_topic)
        before = time.monotonic()
        client.say(b"DPUB %s 300\n" % timely_topic.encode() + sized(b"later"))
        client.expect(OK)
        message = client.message()
        assert time.monotonic() - before >= 0.3
        assert (message.body, message.attempts) == (b"later", 1)


def test_what_is_deferred_is_counted_apart(nsqd: Nsqd, topic: str) -> None:
    with Client(nsqd, MAGIC) as client:
        client.subscribe(topic)
        client.say(b"DPUB %s 60000\n" % topic.encode() + sized(b"later"))
        client.expect(OK)
        wait_until(lambda: channel_of(nsqd, topic)["deferred_count"] == 1)
        stats = channel_of(nsqd, topic)
        assert (stats["depth"], stats["in_flight_count"], stats["message_count"]) == (0, 0, 1)
        client.expect_nothing()


def test_the_delay_begins_when_there_is_a_channel(nsqd: Nsqd, topic: str) -> None:
    with Client(nsqd, MAGIC) as client:
        client.say(b"DPUB %s 60000\n" % topic.encode() + sized(b"later"))
        client.expect(OK)
        stats = stats_of(nsqd, topic)
        assert (stats["depth"], stats["message_count"]) == (1, 1)
        client.subscribe(topic)
        wait_until(lambda: channel_of(nsqd, topic)["deferred_count"] == 1)
        assert stats_of(nsqd, topic)["depth"] == 0


# Timeouts.


def test_a_message_without_an_answer_is_delivered_again(
    hasty_nsqd: Nsqd, timely_topic: str
) -> None:
    publish(hasty_nsqd, timely_topic, b"lost")
    with Client(hasty_nsqd, MAGIC) as client:
        client.subscribe(timely_topic)
        before = time.monotonic()
        first = client.message()
        second = client.message()
        assert time.monotonic() - before >= 0.5
        assert (first.attempts, second.attempts) == (1, 2)
        assert second.id == first.id
        stats = channel_of(hasty_nsqd, timely_topic)
        assert (stats["timeout_count"], stats["requeue_count"]) == (1, 0)


def test_an_answer_after_the_timeout_is_too_late(hasty_nsqd: Nsqd, timely_topic: str) -> None:
    publish(hasty_nsqd, timely_topic, b"late")
    with Client(hasty_nsqd, MAGIC) as client:
        client.subscribe(timely_topic)
        message = client.message()
        client.say(b"RDY 0\n")
        wait_until(lambda: channel_of(hasty_nsqd, timely_topic)["timeout_count"] == 1)
        client.finish(message)
        text = f"E_FIN_FAILED FIN {message.id.decode()} failed ID not in flight"
        client.expect(error(text))
        client.expect_nothing()


def test_a_client_can_ask_for_a_timeout_of_its_own(hasty_nsqd: Nsqd, timely_topic: str) -> None:
    publish(hasty_nsqd, timely_topic, b"slow")
    with Client(hasty_nsqd, identify(msg_timeout=1000)) as client:
        client.expect(OK)
        client.subscribe(timely_topic)
        before = time.monotonic()
        client.message()
        assert client.message().attempts == 2
        assert time.monotonic() - before >= 1.0


def test_touch_extends_the_timeout_up_to_a_limit(hasty_nsqd: Nsqd, timely_topic: str) -> None:
    publish(hasty_nsqd, timely_topic, b"long")
    with Client(hasty_nsqd, MAGIC) as client:
        client.subscribe(timely_topic, ready=1)
        before = time.monotonic()
        message = client.message()
        touches = 0
        while not client.arrives_within(0.1):
            client.say(b"TOUCH %s\n" % message.id)
            touches += 1
        assert time.monotonic() - before >= 1.2  # max_msg_timeout
        assert touches > 1
        again = client.message()
        assert (again.id, again.attempts) == (message.id, 2)


def test_a_connection_that_breaks_leaves_its_messages_to_their_timeout(
    hasty_nsqd: Nsqd, timely_topic: str
) -> None:
    publish(hasty_nsqd, timely_topic, b"stranded")
    before = time.monotonic()
    with Client(hasty_nsqd, MAGIC) as broken:
        broken.subscribe(timely_topic)
        broken.message()
    with Client(hasty_nsqd, MAGIC) as client:
        client.subscribe(timely_topic)
        message = client.message()
        assert time.monotonic() - before >= 0.5
        assert (message.body, message.attempts) == (b"stranded", 2)


# Sampling, output buffers, heartbeats.


def test_a_sample_is_about_as_large_as_it_should_be(nsqd: Nsqd, topic: str) -> None:
    publish(nsqd, topic, *[b"x"] * 1000)
    with Client(nsqd, identify(sample_rate=30)) as client:
        client.expect(OK)
        client.subscribe(topic, ready=2500)
        wait_until(lambda: channel_of(nsqd, topic)["depth"] == 0)
        # The rest is gone for good. The standard deviation is 15: this is ten of them.
        assert 150 < channel_of(nsqd, topic)["in_flight_count"] < 450


def test_a_client_with_rdy_1_gets_its_message_at_once(nsqd: Nsqd, topic: str) -> None:
    with Client(nsqd, identify(output_buffer_timeout=30000)) as client:
        client.expect(OK)
        client.subscribe(topic, ready=1)
        publish(nsqd, topic, b"alone")
        assert client.message().body == b"alone"


def test_a_message_waits_in_the_output_buffer_for_its_timeout_at_most(
    nsqd: Nsqd, topic: str
) -> None:
    with Client(nsqd, identify(output_buffer_timeout=25)) as client:
        client.expect(OK)
        client.subscribe(topic, ready=10)
        publish(nsqd, topic, b"alone")
        assert client.message().body == b"alone"


def test_without_an_output_buffer_nothing_waits(nsqd: Nsqd, topic: str) -> None:
    with Client(nsqd, identify(output_buffer_size=-1)) as client:
        client.expect(OK)
        client.subscribe(topic, ready=10)
        publish(nsqd, topic, b"alone")
        assert client.message().body == b"alone"


def test_an_answer_takes_along_what_waits_in_the_output_buffer(nsqd: Nsqd, topic: str) -> None:
    with Client(nsqd, identify(output_buffer_timeout=30000)) as client:
        client.expect(OK)
        client.subscribe(topic, ready=10)
        publish(nsqd, topic, b"alone")
        wait_until(lambda: channel_of(nsqd, topic)["in_flight_count"] == 1)
        client.say(b"CLS\n")
        assert client.message().body == b"alone"
        client.expect(response("CLOSE_WAIT"))


def test_a_silent_client_gets_heartbeats_and_then_the_end(nsqd: Nsqd) -> None:
    before = time.monotonic()
    with Client(nsqd, identify(heartbeat_interval=1000)) as client:
        client.expect(OK)
        client.expect(HEARTBEAT)
        assert time.monotonic() - before >= 1.0
        frames = []
        with pytest.raises(EOFError):
            while True:
                frames.append(client.hear())
        assert time.monotonic() - before >= 2.0
        assert frames in ([], [HEARTBEAT])


def test_a_client_that_says_something_stays(nsqd: Nsqd) -> None:
    with Client(nsqd, identify(heartbeat_interval=1000)) as client:
        client.expect(OK)
        for _ in range(3):
            client.expect(HEARTBEAT)
            client.say(b"NOP\n")
        client.expect_nothing()


# Pause, empty, delete, vanish.


def test_a_paused_channel_keeps_its_messages(nsqd: Nsqd, topic: str) -> None:
    with Client(nsqd, MAGIC) as client:
        client.subscribe(topic)
        order(nsqd, f"/channel/pause?topic={topic}&channel=ch")
        publish(nsqd, topic, b"waits")
        wait_until(lambda: channel_of(nsqd, topic)["depth"] == 1)
        stats = channel_of(nsqd, topic)
        assert (stats["paused"], stats["in_flight_count"]) == (True, 0)
        order(nsqd, f"/channel/unpause?topic={topic}&channel=ch")
        assert client.message().body == b"waits"
        assert channel_of(nsqd, topic)["paused"] is False


def test_a_paused_topic_keeps_its_messages_from_its_channels(nsqd: Nsqd, topic: str) -> None:
    with Client(nsqd, MAGIC) as client:
        client.subscribe(topic)
        order(nsqd, f"/topic/pause?topic={topic}")
        publish(nsqd, topic, b"waits")
        stats = stats_of(nsqd, topic)
        assert (stats["paused"], stats["depth"]) == (True, 1)
        assert (stats["channels"][0]["depth"], stats["channels"][0]["in_flight_count"]) == (0, 0)
        order(nsqd, f"/topic/unpause?topic={topic}")
        assert client.message().body == b"waits"
        assert stats_of(nsqd, topic)["paused"] is False


def test_a_channel_that_is_emptied_forgets_what_is_in_flight_too(nsqd: Nsqd, topic: str) -> None:
    publish(nsqd, topic, b"a", b"b")
    with Client(nsqd, MAGIC) as client:
        client.subscribe(topic)
        message = client.message()
        order(nsqd, f"/channel/empty?topic={topic}&channel=ch")
        client.finish(message)
        client.expect(error(f"E_FIN_FAILED FIN {message.id.decode()} failed ID not in flight"))
        stats = channel_of(nsqd, topic)
        assert (stats["depth"], stats["in_flight_count"], stats["message_count"]) == (0, 0, 2)
        publish(nsqd, topic, b"c")
        assert client.message().body == b"c"


def test_a_topic_that_is_emptied_leaves_its_channels_alone(nsqd: Nsqd, topic: str) -> None:
    with Client(nsqd, MAGIC) as client:
        client.subscribe(topic, ready=0)
        client.publish(topic, b"in the channel")
        wait_until(lambda: channel_of(nsqd, topic)["depth"] == 1)
        order(nsqd, f"/topic/pause?topic={topic}")
        client.publish(topic, b"in the topic")
        order(nsqd, f"/topic/empty?topic={topic}")
        order(nsqd, f"/topic/unpause?topic={topic}")
        stats = stats_of(nsqd, topic)
        assert (stats["depth"], stats["channels"][0]["depth"]) == (0, 1)


@pytest.mark.parametrize("what", ["topic", "channel"])
def test_deleting_closes_the_connections_of_the_subscribers(
    nsqd: Nsqd, topic: str, what: str
) -> None:
    with Client(nsqd, MAGIC) as client, Client(nsqd, MAGIC) as producer:
        client.subscribe(topic)
        producer.publish(topic, b"x")
        client.message()
        order(nsqd, f"/{what}/delete?topic={topic}&channel=ch")
        client.expect_end()
        producer.publish(topic, b"y")  # its connection is still there; the topic is, or is again
        assert stats_of(nsqd, topic)["channels"] == []


def test_an_ephemeral_channel_goes_with_its_last_client(nsqd: Nsqd, topic: str) -> None:
    with Client(nsqd, MAGIC) as one:
        one.subscribe(topic, "ch#ephemeral")
        with Client(nsqd, MAGIC) as two:
            two.subscribe(topic, "ch#ephemeral")
        wait_until(lambda: channel_of(nsqd, topic, "ch#ephemeral")["client_count"] == 1)
    wait_until(lambda: stats_of(nsqd, topic)["channels"] == [])


def test_an_ephemeral_topic_goes_with_its_last_channel(nsqd: Nsqd, topic: str) -> None:
    name = f"{topic}%23ephemeral"
    with Client(nsqd, MAGIC) as client:
        client.subscribe(f"{topic}#ephemeral", "ch#ephemeral")
        assert stats_of(nsqd, name)["topic_name"] == f"{topic}#ephemeral"
    wait_until(lambda: b'"topics":null' in nsqd.ask(f"/stats?format=json&topic={name}")[1])


def test_an_ephemeral_topic_stays_while_nothing_was_ever_subscribed(nsqd: Nsqd, topic: str) -> None:
    publish(nsqd, f"{topic}#ephemeral", b"x")
    assert stats_of(nsqd, f"{topic}%23ephemeral")["depth"] == 1


def test_the_clients_of_a_channel_are_listed_with_their_state(nsqd: Nsqd, topic: str) -> None:
    identity = identify(client_id="me", hostname="here", user_agent="test/1", sample_rate=99)
    with Client(nsqd, identity) as client:
        client.expect(OK)
        client.subscribe(topic, ready=5)
        wait_until(lambda: channel_of(nsqd, topic)["clients"][0]["ready_count"] == 5)
        stats = channel_of(nsqd, topic)
        [entry] = stats["clients"]
        assert (entry["client_id"], entry["hostname"], entry["user_agent"]) == (
            "me",
            "here",
            "test/1",
        )
        assert (entry["state"], entry["sample_rate"], entry["version"]) == (3, 99, "V2")
        client.say(b"CLS\n")
        client.expect(response("CLOSE_WAIT"))
        [entry] = channel_of(nsqd, topic)["clients"]
        assert (entry["state"], entry["ready_count"]) == (4, 0)
