"""``nsqflow.blocking`` when its process forks, and when it exits."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import ssl
import stat
import subprocess
import sys
import textwrap
import threading
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from nsqflow import ClientEvent, LocalProtocolError, Message
from nsqflow.blocking import Consumer, Producer
from tests.conformance.server_side import channel_stats, kinds, topic_of
from tests.fixtures.certificates import Certificates
from tests.fixtures.servers import PATIENCE, Nsqd
from tests.fixtures.threads import no_thread_left

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here"),
    # Newer Pythons warn of what is tested here.
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),
]


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    return topic_of(request)


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    with no_thread_left("nsqflow"):
        yield


def in_child(work: Callable[[], object]) -> None:
    """Do it in a forked child, and fail if that fails."""
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        signal.alarm(int(PATIENCE))
        try:
            work()
        except BaseException:
            os.write(writer, traceback.format_exc().encode())
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader) as said:
        words = said.read()
    _, status = os.waitpid(pid, 0)
    assert (words, status) == ("", 0)


def bodies_from(nsqd: Nsqd, topic: str, count: int) -> list[bytes]:
    with Consumer(topic, "ch", nsqd=nsqd.tcp_address) as consumer:
        return sorted(_finish(next(consumer)) for _ in range(count))


def _finish(message: Message) -> bytes:
    message.finish()
    return message.body


def peers() -> set[str]:
    """Return what this process is connected to."""
    found = set()
    for descriptor in range(256):
        try:
            if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                with socket.socket(fileno=os.dup(descriptor)) as sock:
                    found.add("{}:{}".format(*sock.getpeername()))
        except (OSError, IndexError):
            pass
    return found


# Fork


@pytest.mark.proves(wishes=[34])
@pytest.mark.parametrize("encrypted", [False, True])
def test_a_producer_publishes_in_the_child_and_goes_on_in_the_parent(
    nsqd: Nsqd, topic: str, encrypted: bool, certificates: Certificates
) -> None:
    events: list[ClientEvent] = []
    tls = ssl.create_default_context(cafile=certificates.ca) if encrypted else None
    with Producer(nsqd.tcp_address, tls=tls, on_event=events.append) as producer:
        producer.publish(topic, b"1 before")
        in_child(partial(producer.publish, topic, b"2 in the child"))
        producer.publish(topic, b"3 after")
        assert kinds(events) == ["connected"]  # once: the child has not disturbed it
    assert bodies_from(nsqd, topic, 3) == [b"1 before", b"2 in the child", b"3 after"]


@pytest.mark.proves(wishes=[34])
def test_a_child_holds_none_of_its_parents_connections(nsqd: Nsqd, topic: str) -> None:
    def look() -> None:
        assert nsqd.tcp_address not in peers()

    with (
        Producer(nsqd.tcp_address) as producer,
        Consumer(topic, "ch", nsqd=nsqd.tcp_address) as consumer,
    ):
        producer.publish(topic, b"x")
        _finish(next(consumer))
        assert nsqd.tcp_address in peers()
        in_child(look)


@pytest.mark.proves(wishes=[34])
def test_a_consumer_is_refused_in_the_child_and_goes_on_in_the_parent(
    nsqd: Nsqd, topic: str
) -> None:
    events: list[ClientEvent] = []

    def use() -> None:
        calls = (
            lambda: next(consumer),
            lambda: next(consumer.batches()),
            lambda: consumer.run(print),
            consumer.stats,
            consumer.pause,
            message.finish,
        )
        for call in calls:
            with pytest.raises(LocalProtocolError, match="parent of this process"):
                call()
        consumer.close()
        producer.publish(topic, b"from the child")

    with (
        Producer(nsqd.tcp_address) as producer,
        Consumer(topic, "ch", nsqd=nsqd.tcp_address, on_event=events.append) as consumer,
    ):
        producer.publish(topic, b"x")
        message = next(consumer)
        in_child(use)
        _finish(message)
        assert _finish(next(consumer)) == b"from the child"
        assert kinds(events) == ["connected"]
    assert channel_stats(nsqd, topic)["requeue_count"] == 0


def test_a_child_can_have_a_consumer_of_its_own(nsqd: Nsqd, topic: str) -> None:
    with Producer(nsqd.tcp_address) as producer:
        producer.publish(topic, b"for the child")
        in_child(lambda: bodies_from(nsqd, topic, 1))
    assert channel_stats(nsqd, topic)["depth"] == 0


@pytest.mark.proves(wishes=[34])
def test_forks_during_publishing_lose_nothing(nsqd: Nsqd, topic: str) -> None:
    done = threading.Event()
    published: list[int] = []

    def work() -> None:
        while not done.is_set():
            producer.publish(topic, b"parent")
            published.append(1)

    with Producer(nsqd.tcp_address) as producer:
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(10):
                in_child(partial(producer.publish, topic, b"child"))
        finally:
            done.set()
            for thread in threads:
                thread.join()
    bodies = bodies_from(nsqd, topic, len(published) + 10)
    assert (bodies.count(b"child"), bodies.count(b"parent")) == (10, len(published))


def test_a_grandchild_publishes_too(nsqd: Nsqd, topic: str) -> None:
    def work() -> None:
        producer.publish(topic, b"child")
        in_child(partial(producer.publish, topic, b"grandchild"))
        producer.publish(topic, b"child again")
        producer.close()

    with Producer(nsqd.tcp_address) as producer:
        producer.publish(topic, b"parent")
        in_child(work)
    assert bodies_from(nsqd, topic, 4) == [b"child", b"child again", b"grandchild", b"parent"]


@pytest.mark.proves(wishes=[34])
@pytest.mark.parametrize("used", [False, True], ids=["unused", "used"])
def test_workers_of_multiprocessing_publish(nsqd: Nsqd, topic: str, used: bool) -> None:
    context = multiprocessing.get_context("fork")
    producer = Producer(nsqd.tcp_address)
    if used:
        producer.publish(topic, b"parent")
    workers = [
        context.Process(target=producer.publish, args=(topic, b"%d" % number))
        for number in range(3)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(PATIENCE)
    assert [worker.exitcode for worker in workers] == [0, 0, 0]
    producer.close()
    assert bodies_from(nsqd, topic, 3 + used)[:3] == [b"0", b"1", b"2"]


# Exit


PREAMBLE = """
import atexit, contextlib, logging, os, sys, threading, warnings
from nsqflow import LocalProtocolError
from nsqflow.blocking import Consumer, Producer
warnings.filterwarnings("ignore", ".*fork", DeprecationWarning)
logging.getLogger("nsqflow").setLevel(logging.CRITICAL)
nsqd, topic = sys.argv[1:]
"""

PROGRAMS = {
    "a producer": """
        producer = Producer(nsqd)
        producer.publish(topic, b"x")
    """,
    "a consumer with outstanding messages": """
        Producer(nsqd).publish_many(topic, [b"x"] * 10)
        consumer = Consumer(topic, "ch", nsqd=nsqd)
        message = next(consumer)
        next(consumer).finish()
    """,
    "a thread that waits for messages": """
        consumer = Consumer(topic, "ch", nsqd=nsqd)
        threading.Thread(target=list, args=[consumer], daemon=True).start()
        Producer(nsqd).publish("other", b"x")
    """,
    "a thread that publishes in vain": """
        unconnected = Producer("127.0.0.1:1", reconnect_delay=0.1)

        def publish():
            with contextlib.suppress(LocalProtocolError):
                unconnected.publish(topic, b"x")

        threading.Thread(target=publish, daemon=True).start()
        Producer(nsqd).publish(topic, b"x")
    """,
    "a callback at exit that publishes": """
        producer = Producer(nsqd)
        producer.publish(topic, b"x")
        atexit.register(producer.publish, topic, b"y")
    """,
    "a child that exits": """
        producer = Producer(nsqd)
        producer.publish(topic, b"x")
        pid = os.fork()
        producer.publish(topic, b"y")
        if pid:
            assert os.waitpid(pid, 0)[1] == 0
    """,
}


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS.keys())
def test_a_program_that_closes_nothing_exits_anyway(
    nsqd: Nsqd, topic: str, program: str, tmp_path: Path
) -> None:
    script = tmp_path / "program.py"
    script.write_text(PREAMBLE + textwrap.dedent(program))
    command = [sys.executable, "-W", "error", script, nsqd.tcp_address, topic]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert (done.returncode, done.stderr) == (0, "")
    assert channel_stats(nsqd, topic).get("in_flight_count", 0) == 0


BREAK = """
    import sys
    from nsqflow.blocking import Consumer

    with Consumer(sys.argv[2], "ch", nsqd=sys.argv[1]) as consumer:
        for message in consumer:
            break  # and it is not answered
"""


def test_a_break_with_an_unanswered_message_says_what_it_waits_for(nsqd: Nsqd, topic: str) -> None:
    with Producer(nsqd.tcp_address) as producer:
        producer.publish(topic, b"x")
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(BREAK), nsqd.tcp_address, topic],
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        # Without any set-up of logging, and while it still waits.
        said = process.stderr.readline()
        assert process.poll() is None
        process.kill()
    assert "waiting for 1 unanswered message, 30 s at most; finish or requeue" in said
