"""The options' names and types, for editors and type checkers; ``config`` checks the values."""

from __future__ import annotations

import os
import ssl
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict

from nsqflow.address import AddressMap
from nsqflow.client.producer.partitioner import Partitioner

if TYPE_CHECKING:
    from nsqflow.client.events import ClientEvent
    from nsqflow.client.header_filter import HeaderFilter
    from nsqflow.client.message import Message
    from nsqflow.client.position import PositionLike
    from nsqflow.errors import OrderViolation

OnEvent = Callable[["ClientEvent"], None]
OnBlocked = Callable[["Message"], str]
OnOrderViolation = Callable[["Message", "OrderViolation"], None]
OnGivingUp = Callable[["Message", "BaseException | None"], "Awaitable[None] | None"]


class ClientOptions(TypedDict, total=False):
    """The options of both a ``Producer`` and a ``Consumer``."""

    lookupd_poll_interval: float
    lookupd_poll_jitter: float
    lookupd_poll_timeout: float
    lookupd_headers: Mapping[str, str]
    lookupd_tls: ssl.SSLContext | None
    reconnect_delay: float
    max_reconnect_delay: float
    dial_timeout: float
    heartbeat_interval: float | None
    output_buffer_size: int | None
    output_buffer_timeout: float | None
    msg_timeout: float | None
    sample_rate: int | None
    tls: bool | ssl.SSLContext | None
    snappy: bool
    deflate: bool
    deflate_level: int
    auth_secret: str | bytes | None
    client_id: str | None
    hostname: str | None
    user_agent: str | None
    address_map: AddressMap | None
    allowed_addresses: Sequence[str] | None
    dialect: str | None
    on_event: OnEvent | None


class ProducerOptions(ClientOptions, total=False):
    """The options of a ``Producer``."""

    publish_timeout: float
    max_msg_size: int
    max_body_size: int
    max_pending: int
    connections_per_nsqd: int
    retry_uncertain: bool
    partitioner: str | Partitioner
    body_compression: Mapping[str, str]


class ConsumerOptions(ClientOptions, total=False):
    """The options of a ``Consumer``."""

    max_in_flight: int
    max_attempts: int
    dead_letter: str | os.PathLike[str] | Callable[[Message, BaseException | None], Any] | None
    on_giving_up: OnGivingUp | None
    default_requeue_delay: float
    max_requeue_delay: float
    max_backoff_duration: float
    backoff_multiplier: float
    rdy_redistribute_interval: float
    low_rdy_idle_timeout: float
    low_rdy_timeout: float
    ordered: bool | str | None
    partitions: Collection[int] | None
    blocked_after: int
    on_blocked: str | OnBlocked
    on_order_violation: OnOrderViolation | None
    desired_tag: str | None
    header_filter: HeaderFilter | None
    start_from: PositionLike | Mapping[int, PositionLike] | None
