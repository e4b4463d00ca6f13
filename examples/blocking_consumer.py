"""Consume in plain code: message by message, in batches, and with handlers on threads."""

import os
import signal
import threading

from nsqflow import Message
from nsqflow.blocking import Consumer, Producer

NSQD = os.environ.get("NSQFLOW_NSQD", "127.0.0.1:4150")

with Producer(NSQD) as producer:
    producer.publish_many("orders", [b"order %d" % number for number in range(100)])
    producer.publish_many("pallets", [b"pallet %d" % number for number in range(100)])

with Consumer("orders", "archive", nsqd=NSQD) as consumer:
    for message in consumer:
        with message:  # FIN when the block ends well, REQ when it raises
            print("first:", message.body.decode())
        break

    seen = 1
    for batch in consumer.batches(size=40, max_wait=0.5):
        with batch:
            seen += len(batch)
        if seen >= 100:
            break
    print("seen:", seen)

handled = threading.Semaphore(0)


def handle(message: Message) -> None:
    handled.release()


def stop_when_done() -> None:
    for _ in range(100):
        handled.acquire()
    os.kill(os.getpid(), signal.SIGTERM)  # as an operator would


threading.Thread(target=stop_when_done, daemon=True).start()
print(Consumer("pallets", "archive", nsqd=NSQD).run(handle, concurrency=4))
