"""Connects tasks to nsqd, with IDENTIFY, TLS and AUTH as set by the query's options."""

from __future__ import annotations

import socket
from dataclasses import replace
from typing import NamedTuple

import nsqflow
from nsqflow.protocol import Dialect, IdentifyRequest, Sub, SubscribeMode
from nsqflow.spark.server_options import Access
from nsqflow.transport.handshake import ConnectionSettings
from nsqflow.transport.sync_connection import SyncConnection

_OUTPUT_BUFFER_SIZE = 64 * 1024  # the maximum of an nsqd with default flags

_OPTION_NAMES = {
    "msg_timeout": "msgTimeout",
    "auth_secret": "authSecretFile, authSecretEnv or authSecret",
}


class LeaderEndpoint(NamedTuple):
    """Where and how a partition is read now."""

    nsqd: str
    http: str
    mode: SubscribeMode
    extended: bool
    """The topic's messages have headers."""


def connect(
    address: str,
    access: Access,
    *,
    topic: str | None = None,
    channel: str | None = None,
    partition: int | None = None,
    mode: SubscribeMode = SubscribeMode.PLAIN,
    extended: bool = False,
    msg_timeout: float | None = None,
    output_buffer_timeout: float | None = None,
    client_id: str | None = None,
    heartbeat_interval: float | None = None,
    tag: str = "",
    timeout: float = 10.0,
) -> SyncConnection:
    """Connect to nsqd, and subscribe if a topic and a channel are given; times are in seconds.

    With a ``partition`` it is an nsqd of the redesigned NSQ; ``extended`` says that the topic's
    messages have headers.

    Raises ``NetworkError``, ``ServerError``, ``RemoteProtocolError`` or ``ConfigError``, which
    name the address. ``tag`` is added to the user agent, which nsqd lists.
    """
    subscription = None
    if topic is not None and channel is not None:
        subscription = Sub(topic, channel, partition, mode)
    settings = connection_settings(
        access, msg_timeout, output_buffer_timeout, client_id, heartbeat_interval, tag
    )
    if partition is not None:
        identify = replace(settings.identify, extend_support=extended or None)
        settings = replace(settings, identify=identify, dialect=Dialect.REDESIGNED)
    return SyncConnection.open(address, settings, subscription, timeout=timeout)


def connection_settings(
    access: Access,
    msg_timeout: float | None = None,
    output_buffer_timeout: float | None = None,
    client_id: str | None = None,
    heartbeat_interval: float | None = None,
    tag: str = "",
) -> ConnectionSettings:
    """Return the settings for a connection; by default its client id is the host's name."""
    host = socket.gethostname()
    identify = IdentifyRequest(
        client_id=client_id or host.partition(".")[0],
        hostname=host,
        user_agent=f"nsqflow-spark/{nsqflow.__version__} {tag}".rstrip(),
        output_buffer_size=_OUTPUT_BUFFER_SIZE,
        output_buffer_timeout=_milliseconds(output_buffer_timeout),
        msg_timeout=_milliseconds(msg_timeout),
        heartbeat_interval=_milliseconds(heartbeat_interval),
        tls_v1=access.tls,
        snappy=access.snappy,
        deflate=access.deflate,
    )
    return ConnectionSettings(
        identify=identify,
        tls=access.http_context if access.tls else None,
        secret=access.secret,
        optional=frozenset({"output_buffer_size", "output_buffer_timeout"}),
        option_names=_OPTION_NAMES,
    )


def _milliseconds(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1000)
