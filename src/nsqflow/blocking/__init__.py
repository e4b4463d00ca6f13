"""``Producer`` and ``Consumer`` for plain code: the same methods, without ``await``.

    from nsqflow.blocking import Producer

    with Producer("127.0.0.1:4150") as producer:
        producer.publish("orders", b"...")

All objects share one background thread, which owns the connections. Any number of threads
may use one object. After a fork a ``Producer`` connects again in the child; a ``Consumer``
belongs to the process that started it.
"""

from nsqflow.blocking.consumer import Consumer, run
from nsqflow.blocking.producer import Producer

__all__ = ["Consumer", "Producer", "run"]
