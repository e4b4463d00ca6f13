"""``Producer`` and ``Consumer`` for plain code: the same methods, without ``await``.

    from nsqflow.blocking import Producer

    with Producer("127.0.0.1:4150") as producer:
        producer.publish("orders", b"...")

All of them share one background thread, which has the connections. Any number of threads
may use one object. After a fork a ``Producer`` connects anew in the child; a ``Consumer``
belongs to the process that started it.
"""

from nsqflow.blocking.consumer import Consumer
from nsqflow.blocking.producer import Producer
from nsqflow.blocking.running import run

__all__ = ["Consumer", "Producer", "run"]
