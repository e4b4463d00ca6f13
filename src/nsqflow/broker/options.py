"""The options of nsqd and nsqlookupd, with their kinds, defaults and texts.

They have the names of the real daemons' flags. Durations are in seconds. The text of each is
printed by ``-help``.
"""

from __future__ import annotations

import hashlib
import socket
import zlib
from dataclasses import dataclass
from typing import Any, TypeVar

from nsqflow.address import TcpAddress, parse_listen_address
from nsqflow.config.addresses import HOST, HTTP, ListenAddress, PeerAddress
from nsqflow.config.kinds import Boolean, Choice, List, Path, Text, invalid, without_null
from nsqflow.config.numbers import MAX_INTEGER, Duration, Integer
from nsqflow.config.options import check_options, declared_options, option
from nsqflow.errors import ConfigError
from nsqflow.loopback import is_loopback

MEBIBYTE = 1024 * 1024


class TlsRequired(Choice):
    """Whether clients must use TLS: a flag with a third value."""

    is_bool = True

    def from_go(self, name: str, value: Any) -> str:
        """Return one of the words; as text in any of Go's spellings."""
        text = str(value).lower()
        if text == "tcp-https":
            return text
        try:
            return "true" if Boolean().from_go(name, text) else ""
        except ConfigError:
            raise invalid(name, value, "true, false or tcp-https") from None


class TlsVersion(Choice):
    """The lowest version of TLS; empty text is the default."""

    def from_go(self, name: str, value: Any) -> str:
        """Parse the word."""
        return super().from_go(name, self.words[0] if value == "" else value)


TEXT = Text("text without null characters", without_null)
LOG_LEVEL = Choice("debug", "info", "warn", "error", "fatal", go=(1, 2, 3, 4, 5))
TLS_VERSION = TlsVersion("tls1.0", "tls1.1", "tls1.2", "tls1.3", go=(0x301, 0x302, 0x303, 0x304))
TLS_REQUIRED = TlsRequired("", "tcp-https", "true", go=(0, 1, 2))
CLIENT_AUTH_POLICY = Choice("", "require", "require-verify")


PEERS = List(PeerAddress("host:port"))
LISTEN = ListenAddress()
LISTEN_OR_NOT = ListenAddress(optional=True)
PORT = Integer(0, 65535)
COUNT = Integer(0, MAX_INTEGER)
POSITIVE = Integer(1, MAX_INTEGER)
INT32 = Integer(1, 2**31 - 1)


def seconds(default: float, text: str) -> Any:
    """Declare a duration above 0."""
    return option(default, Duration(above=True), text)


def default_node_id() -> int:
    """Return nsqd's default: a hash of the host name."""
    digest = hashlib.md5(socket.gethostname().encode(), usedforsecurity=False).digest()
    return zlib.crc32(digest) % 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonOptions:
    """The options of both daemons."""

    log_level: str = option("info", LOG_LEVEL, "log level: debug, info, warn, error or fatal")
    log_prefix: str = option("", TEXT, "prefix of each line of the log")
    tcp_address: str = option("", LISTEN, "TCP address to listen on")
    http_address: str = option("", LISTEN, "HTTP address to listen on")
    broadcast_address: str = option(
        "",
        TEXT,
        "host that is announced to others (default: the host's name, or the loopback address if it "
        "listens there)",
    )
    allowed_host: tuple[str, ...] = option(
        (),
        List(HOST),
        "name that HTTP requests may have in Host, besides localhost, IP addresses, the host's "
        "name and the broadcast address (default: any, unless it listens on the loopback interface "
        "alone); may be repeated",
        name="allowed_hosts",
    )

    def __post_init__(self) -> None:
        check_options(self)
        if not self.broadcast_address:
            self._set("broadcast_address", self._own_address())

    def value(self, name: str) -> Any:
        """Return what nsqd's ``GET /config/NAME`` answers; raise ``KeyError`` for an unknown name.

        It is text, a number, a bool or a list; durations are in nanoseconds.
        """
        for known in declared_options(type(self)):
            if known.has_flag and name == known.name:
                return known.kind.to_go(getattr(self, known.field))
        raise KeyError(name)

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)  # as the dataclass is frozen

    def _own_address(self) -> str:
        address = parse_listen_address("tcp_address", self.tcp_address)
        if isinstance(address, TcpAddress):
            host = address.host
            if host.lower() == "localhost" or is_loopback(host):
                return "127.0.0.1" if host == "localhost" else host
        return socket.gethostname()


D = TypeVar("D", bound=DaemonOptions)


@dataclass(frozen=True, slots=True, kw_only=True)
class NsqdOptions(DaemonOptions):
    """The options of nsqd."""

    log_prefix: str = option("[nsqd] ", TEXT, "prefix of each line of the log")
    tcp_address: str = option(
        "127.0.0.1:4150", LISTEN, "address to listen on for clients: host:port or a socket's path"
    )
    http_address: str = option(
        "127.0.0.1:4151", LISTEN_OR_NOT, "HTTP address to listen on; empty: none"
    )
    https_address: str = option(
        "127.0.0.1:4152", LISTEN_OR_NOT, "HTTPS address to listen on, if there is a certificate"
    )
    broadcast_tcp_port: int = option(
        0, PORT, "TCP port that is announced to others (default: the one it listens on)"
    )
    broadcast_http_port: int = option(
        0, PORT, "HTTP port that is announced to others (default: the one it listens on)"
    )
    lookupd_tcp_address: tuple[str, ...] = option(
        (), PEERS, "nsqlookupd to register with; may be repeated", name="nsqlookupd_tcp_addresses"
    )
    auth_http_address: tuple[str, ...] = option(
        (),
        List(HTTP, secret=True),
        "host:port or URL of an auth server; may be repeated",
        name="auth_http_addresses",
        secret=True,
    )
    http_client_connect_timeout: float = seconds(
        2.0, "how long connecting to an auth server may take"
    )
    http_client_request_timeout: float = seconds(5.0, "how long an auth server may take to answer")
    node_id: int = option(
        default_node_id,
        Integer(0, 1023),
        "part of each message's id (default: a hash of the host's name)",
        name="id",
    )

    # None: nothing is stored.
    data_path: str | None = option(
        None,
        Path("the path of a folder", optional=True),
        "folder to store messages in; without one they are kept in memory alone",
    )
    mem_queue_size: int = option(
        10_000, COUNT, "number of messages to keep in memory, for each topic and channel"
    )
    max_memory: int = option(
        256 * MEBIBYTE,
        POSITIVE,
        "bytes of messages to keep in memory; beyond them a publish is refused, or stored on disk "
        "alone",
    )

    msg_timeout: float = seconds(60.0, "how long a consumer has for a message until it is requeued")
    max_msg_timeout: float = seconds(900.0, "longest timeout of a message that a client may set")
    max_msg_size: int = option(MEBIBYTE, INT32, "maximum bytes of one message")
    max_body_size: int = option(5 * MEBIBYTE, INT32, "maximum bytes of a command's body")
    max_req_timeout: float = option(
        3600.0, Duration(), "longest delay of a requeued or deferred message"
    )
    client_timeout: float = option(
        60.0,
        Duration(above=True),
        "how long a client may be silent, unless it asks otherwise",
        has_flag=False,
    )

    max_heartbeat_interval: float = seconds(
        60.0, "longest heartbeat interval that a client may set"
    )
    max_rdy_count: int = option(2500, POSITIVE, "maximum RDY count of a client")
    max_output_buffer_size: int = option(
        65_536, Integer(64, MAX_INTEGER), "largest output buffer, in bytes, that a client may set"
    )
    max_output_buffer_timeout: float = seconds(
        30.0, "longest output buffer timeout that a client may set"
    )
    min_output_buffer_timeout: float = seconds(
        0.025, "shortest output buffer timeout that a client may set"
    )
    output_buffer_timeout: float = seconds(
        0.25, "output buffer timeout of clients that do not set one"
    )
    max_channel_consumers: int = option(
        0, COUNT, "maximum number of consumers of a channel; 0: no limit"
    )

    tls_cert: str = option("", TEXT, "path of the certificate, with its chain")
    tls_key: str = option("", TEXT, "path of the certificate's key")
    tls_client_auth_policy: str = option(
        "", CLIENT_AUTH_POLICY, "whether clients need a certificate: require, require-verify"
    )
    tls_root_ca_file: str = option(
        "", TEXT, "path of the authorities that clients' certificates are verified with"
    )
    tls_required: str = option(
        "", TLS_REQUIRED, "whether clients must use TLS: true, false, or tcp-https (not for HTTP)"
    )
    tls_min_version: str = option(
        "tls1.0",
        TLS_VERSION,
        "oldest version of TLS: tls1.2 (as are tls1.0 and tls1.1) or tls1.3",
    )

    deflate: bool = option(True, Boolean(), "allow deflate compression")
    max_deflate_level: int = option(6, Integer(1, 9), "highest deflate level that a client may set")
    snappy: bool = option(True, Boolean(), "allow snappy compression")

    def __post_init__(self) -> None:
        # (super() without arguments does not work in a dataclass with slots.)
        super(NsqdOptions, self).__post_init__()
        if bool(self.tls_cert) != bool(self.tls_key):
            given, missing = ("tls_cert", "tls_key")[:: 1 if self.tls_cert else -1]
            raise ConfigError(f"{given} without {missing}: set both or neither")
        if self.tls_client_auth_policy and not self.tls_required:
            self._set("tls_required", "true")
        if self.tls_required and not self.tls_cert:
            raise ConfigError("tls_required without tls_cert and tls_key: TLS needs both")


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupdOptions(DaemonOptions):
    """The options of nsqlookupd."""

    log_prefix: str = option("[nsqlookupd] ", TEXT, "prefix of each line of the log")
    tcp_address: str = option("127.0.0.1:4160", LISTEN, "address to listen on for nsqd")
    http_address: str = option("127.0.0.1:4161", LISTEN, "HTTP address to listen on")
    inactive_producer_timeout: float = seconds(
        300.0, "how long an nsqd is listed after its last ping"
    )
    tombstone_lifetime: float = seconds(
        45.0, "how long an nsqd is not listed for a topic after it was tombstoned for it"
    )
