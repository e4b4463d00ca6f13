"""Topics that are spread over several nsqd, and the options for Spark to find them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from benchmarks.clients.worker import CHANNEL
from benchmarks.spark_stand_ins import BODY_SIZE
from benchmarks.topics import Topic
from tests.fixtures.servers import Nsqd


@contextmanager
def spread_topic(nsqd: Sequence[Nsqd], messages: int = 0) -> Iterator[list[Topic]]:
    """A topic of the same name on each nsqd, gone at the end.

    Its channel has this number of messages, an equal part of them on each.
    """
    topics = [Topic(server.tcp_address, server.http_address) for server in nsqd]
    with ExitStack() as stack:
        for topic in topics:
            topic.name = topics[0].name
            stack.enter_context(topic)
            topic.fill(messages // len(topics), bytes(BODY_SIZE))
        yield topics


def sink_options(topic: str, nsqd: Sequence[Nsqd]) -> dict[str, str]:
    return {"topic": topic, "nsqd": ",".join(server.tcp_address for server in nsqd)}


def source_options(topic: str, nsqd: Sequence[Nsqd], spool: str) -> dict[str, str]:
    return {
        **sink_options(topic, nsqd),
        "nsqdHttp": ",".join(server.http_address for server in nsqd),
        "channel": CHANNEL,
        "spoolLocation": spool,
    }
