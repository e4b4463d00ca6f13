"""Negotiation by IDENTIFY: a client's settings within nsqd's bounds, and the reply."""

from __future__ import annotations

from dataclasses import dataclass

from nsqflow.broker.options import NsqdOptions
from nsqflow.broker.version import VERSION
from nsqflow.errors import RemoteProtocolError
from nsqflow.protocol import IdentifyReply, IdentifyRequest

_BUFFER_SIZE = 16 * 1024
_MIN_BUFFER_SIZE = 64
_MIN_INTERVAL = 1000  # milliseconds, for heartbeats and message timeouts


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """The negotiated settings of a client. Times are in seconds; 0 means off."""

    heartbeat_interval: float
    output_buffer_size: int
    output_buffer_timeout: float
    msg_timeout: float
    sample_rate: int = 0

    @staticmethod
    def default(options: NsqdOptions) -> ClientSettings:
        """Return the settings of a client that has not sent IDENTIFY."""
        return ClientSettings(
            heartbeat_interval=options.client_timeout / 2,
            output_buffer_size=_BUFFER_SIZE,
            output_buffer_timeout=options.output_buffer_timeout,
            msg_timeout=options.msg_timeout,
        )


def negotiate(
    request: IdentifyRequest, default: ClientSettings, options: NsqdOptions
) -> ClientSettings:
    """Return the settings that the client asks for; raise nsqd's error if one is out of bounds."""
    interval = _within(
        "heartbeat interval",
        request.heartbeat_interval,
        default.heartbeat_interval,
        _MIN_INTERVAL,
        _ms(options.max_heartbeat_interval),
        off=True,
    )
    timeout = _within(
        "output buffer timeout",
        request.output_buffer_timeout,
        default.output_buffer_timeout,
        _ms(options.min_output_buffer_timeout),
        _ms(options.max_output_buffer_timeout),
        off=True,
    )
    size = request.output_buffer_size or 0
    if size == 0:  # nsqd's default need not be within its bounds
        size = default.output_buffer_size
    elif size == -1:  # no buffering
        size, timeout = 1, 0
    elif not _MIN_BUFFER_SIZE <= size <= options.max_output_buffer_size:
        raise _invalid("output buffer size", size)
    rate = request.sample_rate or 0
    if not 0 <= rate <= 99:
        raise _invalid("sample rate", rate)
    msg_timeout = _within(
        "msg timeout",
        request.msg_timeout,
        default.msg_timeout,
        _MIN_INTERVAL,
        _ms(options.max_msg_timeout),
    )
    return ClientSettings(interval, size, timeout, msg_timeout, rate)


def build_reply(
    request: IdentifyRequest, settings: ClientSettings, options: NsqdOptions, *, tls: bool
) -> IdentifyReply:
    """Build the reply; raise nsqd's error if the client asks for both compressions."""
    deflate = options.deflate and request.deflate
    snappy = options.snappy and request.snappy
    if request.feature_negotiation and deflate and snappy:
        raise RemoteProtocolError(
            "cannot enable both deflate and snappy compression", "E_IDENTIFY_FAILED"
        )
    level = request.deflate_level or 0
    level = level if deflate and level > 0 else 6
    return IdentifyReply(
        max_rdy_count=options.max_rdy_count,
        version=VERSION,
        max_msg_timeout=_ms(options.max_msg_timeout),
        msg_timeout=_ms(settings.msg_timeout),
        tls_v1=tls and request.tls_v1,
        deflate=deflate,
        deflate_level=min(level, options.max_deflate_level),
        max_deflate_level=options.max_deflate_level,
        snappy=snappy,
        sample_rate=settings.sample_rate,
        auth_required=bool(options.auth_http_address),
        output_buffer_size=settings.output_buffer_size,
        output_buffer_timeout=_ms(settings.output_buffer_timeout),
    )


def _within(
    what: str, asked: int | None, default: float, minimum: int, maximum: int, off: bool = False
) -> float:
    if not asked:
        return default
    if off and asked == -1:
        return 0
    if not minimum <= asked <= maximum:
        raise _invalid(what, asked)
    return asked / 1000


def _invalid(what: str, value: int) -> RemoteProtocolError:
    return RemoteProtocolError(f"IDENTIFY {what} ({value}) is invalid", "E_BAD_BODY")


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
