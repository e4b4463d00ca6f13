"""Handlers for several channels in one program, drained together.

Runs until SIGINT or SIGTERM; here it sends itself one once all is done.
"""

import asyncio
import logging
import os
import signal
import threading

import nsqflow

NSQD = os.environ.get("NSQFLOW_NSQD", "127.0.0.1:4150")

done = threading.Semaphore(0)


async def charge(message: nsqflow.Message) -> None:
    print("charging", message.body.decode())
    done.release()


def greet(message: nsqflow.Message) -> None:
    # A plain function runs on a thread: it may block.
    print("greeting", message.body.decode())
    done.release()


def stop_when_done() -> None:
    for _ in range(4):
        done.acquire()
    os.kill(os.getpid(), signal.SIGTERM)


async def main() -> None:
    async with nsqflow.Producer(NSQD) as producer:
        await producer.publish_many("payments", [b"order 1", b"order 2"])
        await producer.publish_many("signups", [b"ada", b"grace"])
    threading.Thread(target=stop_when_done, daemon=True).start()
    drained = await nsqflow.run(
        {("payments", "billing"): charge, ("signups", "mail"): greet}, nsqd=NSQD
    )
    print("drained:", drained)


logging.basicConfig(level=logging.WARNING)
asyncio.run(main())
