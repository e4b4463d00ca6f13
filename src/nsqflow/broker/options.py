"""The options of nsqd and nsqlookupd: what they mean, their defaults and their ranges.

They have the names of the real daemons' flags. Times are in seconds. The text beside each is
also what ``-help`` prints.
"""

from __future__ import annotations

import hashlib
import socket
import zlib
from dataclasses import dataclass, field, fields
from typing import Any

from nsqflow.broker.address import TcpAddress, parse_listen_address
from nsqflow.broker.values import (
    AuthServers,
    Choice,
    Duration,
    Folder,
    Kind,
    Listen,
    Peers,
    Switch,
    Text,
    TlsRequired,
    TlsVersion,
    Whole,
)
from nsqflow.errors import ConfigError

MEBIBYTE = 1024 * 1024

LOG_LEVEL = Choice({"debug": 1, "info": 2, "warn": 3, "error": 4, "fatal": 5})
TLS_VERSION = TlsVersion({"tls1.0": 0x301, "tls1.1": 0x302, "tls1.2": 0x303, "tls1.3": 0x304})
TLS_REQUIRED = TlsRequired({"": 0, "tcp-https": 1, "true": 2})
CLIENT_AUTH_POLICY = Choice({"": "", "require": "require", "require-verify": "require-verify"})


@dataclass(frozen=True, slots=True)
class Option:
    """What is known of an option besides its default."""

    kind: Kind
    text: str
    name: str = ""
    """In config files and over HTTP, if that is not its name here."""
    has_flag: bool = True


def option(default: Any, kind: Kind, text: str, *, name: str = "", has_flag: bool = True) -> Any:
    """Declare an option; a default that is a function is called for each set of options."""
    metadata = {"option": Option(kind, text, name, has_flag)}
    shown = not isinstance(kind, AuthServers)  # a URL may have a password in it
    if callable(default):
        return field(default_factory=default, metadata=metadata)
    return field(default=default, metadata=metadata, repr=shown)


def seconds(default: float, text: str) -> Any:
    """Declare a time."""
    return option(default, Duration(), text)


def default_node_id() -> int:
    """Give the number that nsqd takes for itself: a hash of the host's name."""
    digest = hashlib.md5(socket.gethostname().encode(), usedforsecurity=False).digest()
    return zlib.crc32(digest) % 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonOptions:
    """What both daemons have."""

    log_level: str = option("info", LOG_LEVEL, "what to log: debug, info, warn, error or fatal")
    log_prefix: str = option("", Text(), "what each line of the log begins with")
    tcp_address: str = option("", Listen(), "where to listen for TCP")
    http_address: str = option("", Listen(), "where to listen for HTTP")
    broadcast_address: str = option(
        "", Text(), "the host that others are told (default: this one's name, or the loopback "
        "address if it listens there)"
    )  # fmt: skip

    def __post_init__(self) -> None:
        for f in fields(self):
            kind: Kind = f.metadata["option"].kind
            value = kind.clean(getattr(self, f.name))
            kind.check(f.name, value)
            self._set(f.name, value)
        if not self.broadcast_address:
            self._set("broadcast_address", self._own_address())

    def value(self, name: str) -> Any:
        """Give what nsqd's ``GET /config/NAME`` answers; ``KeyError`` if there is no such option.

        Text, a number, a bool or a list; times are in nanoseconds.
        """
        for f in fields(self):
            known: Option = f.metadata["option"]
            if known.has_flag and name == (known.name or f.name):
                return known.kind.to_go(getattr(self, f.name))
        raise KeyError(name)

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)  # how a frozen dataclass completes itself

    def _own_address(self) -> str:
        address = parse_listen_address("tcp_address", self.tcp_address)
        if isinstance(address, TcpAddress) and address.is_loopback:
            return "127.0.0.1" if address.host == "localhost" else address.host
        return socket.gethostname()


@dataclass(frozen=True, slots=True, kw_only=True)
class NsqdOptions(DaemonOptions):
    """What nsqd takes."""

    log_prefix: str = option("[nsqd] ", Text(), "what each line of the log begins with")
    tcp_address: str = option(
        "127.0.0.1:4150", Listen(), "where to listen for clients: host:port, or a socket's path"
    )
    http_address: str = option(
        "127.0.0.1:4151", Listen(optional=True), "where to listen for HTTP; empty: nowhere"
    )
    https_address: str = option(
        "127.0.0.1:4152", Listen(optional=True), "where to listen for HTTPS, given a certificate"
    )
    broadcast_tcp_port: int = option(
        0, Whole(0, 65535), "the TCP port that others are told (default: the one it listens on)"
    )
    broadcast_http_port: int = option(
        0, Whole(0, 65535), "the HTTP port that others are told (default: the one it listens on)"
    )
    lookupd_tcp_address: tuple[str, ...] = option(
        (), Peers(), "an nsqlookupd to register with; may be given several times",
        name="nsqlookupd_tcp_addresses",
    )  # fmt: skip
    auth_http_address: tuple[str, ...] = option(
        (), AuthServers(), "host:port or URL of an auth server; may be given several times",
        name="auth_http_addresses",
    )  # fmt: skip
    http_client_connect_timeout: float = seconds(
        2.0, "how long connecting to an auth server may take"
    )
    http_client_request_timeout: float = seconds(5.0, "how long an auth server may take to answer")
    node_id: int = option(
        default_node_id, Whole(0, 1023), "part of each message's id (default: a hash of the "
        "host's name)", name="id",
    )  # fmt: skip

    # None: nothing is stored.
    data_path: str | None = option(
        None, Folder(), "the folder to store messages in; without one they are kept in memory"
    )
    mem_queue_size: int = option(
        10_000, Whole(), "messages to keep in memory, of each topic and channel"
    )
    max_memory: int = option(
        256 * MEBIBYTE,
        Whole(1),
        "bytes of messages in memory; beyond them none are taken, or go to disk alone",
    )

    msg_timeout: float = seconds(
        60.0, "how long a consumer has for a message before it is given again"
    )
    max_msg_timeout: float = seconds(900.0, "the longest that a consumer may have for a message")
    max_msg_size: int = option(MEBIBYTE, Whole(1, 2**31 - 1), "bytes of one message")
    max_body_size: int = option(5 * MEBIBYTE, Whole(1, 2**31 - 1), "bytes of a command's body")
    max_req_timeout: float = option(
        3600.0, Duration(zero=True), "the longest delay of a message, requeued or deferred"
    )
    client_timeout: float = option(
        60.0, Duration(), "how long a client may be silent, unless it asks otherwise",
        has_flag=False,
    )  # fmt: skip

    max_heartbeat_interval: float = seconds(
        60.0, "the longest interval of heartbeats that a client may ask for"
    )
    max_rdy_count: int = option(2500, Whole(1), "the most messages in flight to a client")
    max_output_buffer_size: int = option(
        65_536, Whole(64), "bytes: the largest output buffer that a client may ask for"
    )
    max_output_buffer_timeout: float = seconds(
        30.0, "the longest that a client may have its output buffered"
    )
    min_output_buffer_timeout: float = seconds(
        0.025, "the shortest that a client may have its output buffered"
    )
    output_buffer_timeout: float = seconds(
        0.25, "how long output is buffered for a client that does not say"
    )
    max_channel_consumers: int = option(0, Whole(), "consumers of one channel; 0: no limit")

    tls_cert: str = option("", Text(), "path of the certificate, with its chain")
    tls_key: str = option("", Text(), "path of the certificate's key")
    tls_client_auth_policy: str = option(
        "", CLIENT_AUTH_POLICY, "whether clients need a certificate: require, require-verify"
    )
    tls_root_ca_file: str = option(
        "", Text(), "path of the authorities that clients' certificates are signed by"
    )
    tls_required: str = option(
        "", TLS_REQUIRED, "whether clients must use TLS: true, false, or tcp-https (not for HTTP)"
    )
    tls_min_version: str = option(
        "tls1.0",
        TLS_VERSION,
        "the oldest version of TLS: tls1.2 (as are tls1.0 and tls1.1) or tls1.3",
    )

    deflate: bool = option(True, Switch(), "let clients use deflate")
    max_deflate_level: int = option(
        6, Whole(1, 9), "the highest level of deflate that a client may ask for"
    )
    snappy: bool = option(True, Switch(), "let clients use snappy")

    def __post_init__(self) -> None:
        # (super() without arguments does not work in a dataclass with slots.)
        super(NsqdOptions, self).__post_init__()
        if bool(self.tls_cert) != bool(self.tls_key):
            given, missing = ("tls_cert", "tls_key")[:: 1 if self.tls_cert else -1]
            raise ConfigError(f"{given} without {missing}; give both or neither")
        if self.tls_client_auth_policy and not self.tls_required:
            self._set("tls_required", "true")
        if self.tls_required and not self.tls_cert:
            raise ConfigError("tls_required without tls_cert and tls_key; clients need them")


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupdOptions(DaemonOptions):
    """What nsqlookupd takes."""

    log_prefix: str = option("[nsqlookupd] ", Text(), "what each line of the log begins with")
    tcp_address: str = option("127.0.0.1:4160", Listen(), "where to listen for nsqd")
    http_address: str = option("127.0.0.1:4161", Listen(), "where to listen for HTTP")
    inactive_producer_timeout: float = seconds(
        300.0, "how long an nsqd is named after its last ping"
    )
    tombstone_lifetime: float = seconds(
        45.0, "how long an nsqd that was tombstoned for a topic is not named for it"
    )
