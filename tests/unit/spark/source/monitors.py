"""Backlog monitors for the tests."""

from __future__ import annotations

from collections.abc import Sequence

from nsqflow.spark.options import SourceOptions
from nsqflow.spark.server_options import Access, ServerOptions
from tests.fixtures.servers import (
    Nsqd,
    Nsqlookupd,
    Server,
)

CHANNEL = "spark"


def options(
    *topics: str,
    pattern: str | None = None,
    nsqd: Sequence[Nsqd | str] = (),
    http: Sequence[str] = (),
    lookupd: Sequence[Nsqlookupd | str] = (),
    access: Access | None = None,
) -> SourceOptions:
    return SourceOptions(
        topics=topics,
        topic_pattern=pattern,
        channel=CHANNEL,
        servers=ServerOptions(
            lookupd=tuple(_http(each) for each in lookupd),
            nsqd=tuple(each if isinstance(each, str) else each.tcp_address for each in nsqd),
            nsqd_http=tuple(http or [_http(each) for each in nsqd]),
        ),
        access=access or Access(),
    )


def _http(server: Server | str) -> str:
    return server if isinstance(server, str) else server.http_address
