"""One run of gnsq, which runs on gevent."""

from __future__ import annotations

import gevent
from gevent.event import Event
from gnsq import Consumer, Message, Producer

from benchmarks.clients.worker import (
    BATCH,
    BODY,
    CHANNEL,
    IN_FLIGHT,
    LINGER,
    MAX_IN_FLIGHT,
    Stopwatch,
    Task,
    batches,
    main,
)


def publish(task: Task, stopwatch: Stopwatch) -> None:
    producer = Producer([task.nsqd])
    producer.start()
    turns = iter(range(task.count))

    def publish_on() -> None:
        for _ in turns:
            producer.publish(task.topic, BODY)

    stopwatch.start()
    gevent.joinall([gevent.spawn(publish_on) for _ in range(IN_FLIGHT)], raise_error=True)
    stopwatch.stop()


def publish_many(task: Task, stopwatch: Stopwatch) -> None:
    producer = Producer([task.nsqd])
    producer.start()
    stopwatch.start()
    for _ in batches(task.count):
        producer.multipublish(task.topic, BATCH)
    stopwatch.stop()


def consume(task: Task, stopwatch: Stopwatch) -> None:
    done = Event()
    seen = 0

    def handle(_: Consumer, message: Message) -> None:
        nonlocal seen
        seen += 1
        if seen == 1:
            stopwatch.start()
        if seen == task.count:
            stopwatch.stop()
            done.set()

    consumer = Consumer(
        task.topic, CHANNEL, [task.nsqd], message_handler=handle, max_in_flight=MAX_IN_FLIGHT
    )
    consumer.start(block=False)
    done.wait()
    gevent.sleep(LINGER)
    consumer.close()


if __name__ == "__main__":
    main({"publish": publish, "publish_many": publish_many, "consume": consume})
