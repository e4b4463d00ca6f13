"""Publish from plain code: no asyncio, any number of threads."""

import os
from concurrent.futures import ThreadPoolExecutor

from nsqflow.blocking import Producer

NSQD = os.environ.get("NSQFLOW_NSQD", "127.0.0.1:4150")

with Producer(NSQD) as producer:
    producer.publish("letters", b"one")
    producer.publish("letters", b"later", delay=60)
    producer.publish_many("letters", [b"two", b"three"])
    with ThreadPoolExecutor(10) as pool:  # what threads publish at the same time goes together
        for number in range(100):
            pool.submit(producer.publish, "letters", b"letter %d" % number)
print("nsqd has them all")
