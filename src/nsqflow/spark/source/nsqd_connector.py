"""Opens the connections of a task to a classic nsqd."""

from __future__ import annotations

import logging
import threading
from time import monotonic
from typing import TYPE_CHECKING, Protocol

from nsqflow.errors import ConfigError, NetworkError, NsqError, ServerError
from nsqflow.spark.connection import connect
from nsqflow.spark.options import SourceOptions
from nsqflow.transport.sync_connection import SyncConnection

if TYPE_CHECKING:
    from nsqflow.spark.source.reader import NsqInputPartition

logger = logging.getLogger(__name__)

_CONNECT_TIMEOUT = 10.0  # seconds until an nsqd with planned messages must be reachable
_RETRY_INTERVAL = 0.2
_OUTPUT_BUFFER_TIMEOUT = 0.05  # seconds after which nsqd sends what does not fill its buffer


class Connector(Protocol):
    """Opens the connections of one task."""

    @property
    def leader(self) -> str:
        """The nsqd of the last connection, if it leads a partition of the redesigned NSQ."""

    def open(
        self, client_id: str, left: int, resume: int | None, *, must_seek: bool = False
    ) -> SyncConnection | None:
        """Connect and subscribe; None if the task has to do without the ``left`` messages.

        ``resume`` is the offset that the channel of a partition must not be beyond; with
        ``must_seek`` it is moved there in any case.
        """


class NsqdConnector(Connector):
    """Opens connections to the nsqd of one partition."""

    leader = ""

    def __init__(
        self, partition: NsqInputPartition, options: SourceOptions, stopping: threading.Event
    ) -> None:
        self._partition = partition
        self._options = options
        self._stopping = stopping

    def open(
        self, client_id: str, left: int, resume: int | None, *, must_seek: bool = False
    ) -> SyncConnection | None:
        """Connect and subscribe; None if the query continues without the ``left`` messages."""
        partition, options = self._partition, self._options
        deadline = monotonic() + _CONNECT_TIMEOUT
        while True:
            try:
                return connect(
                    partition.nsqd,
                    options.access,
                    topic=partition.topic,
                    channel=options.channel,
                    msg_timeout=options.msg_timeout,
                    output_buffer_timeout=_OUTPUT_BUFFER_TIMEOUT,
                    client_id=client_id,
                )
            except ServerError as error:
                raise _explained(error) from None
            except NetworkError as error:
                if self._stopping.wait(_RETRY_INTERVAL):
                    return None
                if monotonic() < deadline:
                    continue
                if not options.fail_on_data_loss:
                    logger.warning("%s; continuing without the messages planned from it", error)
                    return None
                raise NetworkError(
                    f"{error}: {left} messages of topic {partition.topic!r} were planned from "
                    "there; bring that nsqd back, or start once with failOnDataLoss=false to "
                    "continue without them"
                ) from error


def _explained(error: ServerError) -> NsqError:
    """Return an error that says why a channel with one consumer has no place for a task."""
    if "exceeds limit" not in str(error):
        return error
    return ConfigError(
        f"{error}: the query itself is one consumer, beside one for each task; raise nsqd's "
        "--max-channel-consumers"
    )
