"""The options of a consumer."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from nsqflow.client.config import ClientConfig
from nsqflow.client.header_filter import HeaderFilter
from nsqflow.client.options import OnBlocked, OnGivingUp, OnOrderViolation
from nsqflow.client.position import PositionLike
from nsqflow.config.kinds import CALLBACK, Instance
from nsqflow.config.numbers import Integer, Number
from nsqflow.config.options import option
from nsqflow.errors import ConfigError
from nsqflow.protocol import is_valid_name

if TYPE_CHECKING:
    from nsqflow.client.message import Message

_POSITIVE = Number(0, above=True)
BLOCKED_DECISIONS = ("wait", "dead_letter", "stop")
_REDESIGNED_OPTIONS = ("ordered", "partitions", "desired_tag", "header_filter", "start_from")
_MAX_TAG = 100  # bytes
_INTERVAL = Number(0.001)  # a shorter one would keep the event loop busy


def is_path(text: str) -> bool:
    """Return whether a text is a file's path, not a topic's name: it contains a slash."""
    return "/" in text or os.sep in text


def is_partitions(value: object) -> bool:
    """Return whether a value has the numbers of some partitions."""
    return (
        isinstance(value, Collection)
        and len(value) > 0
        and all(type(number) is int and number >= 0 for number in value)
    )


def _is_dead_letter(value: object) -> bool:
    if isinstance(value, str):
        return is_path(value) or is_valid_name(value)
    return isinstance(value, os.PathLike | None) or callable(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConfig(ClientConfig):
    """The options of a ``Consumer``."""

    max_in_flight: int = option(
        200,
        Integer(1),
        "maximum number of messages that your code holds at a time, over all connections; also "
        "the maximum that is requested in advance",
    )
    max_attempts: int = option(
        5,
        Integer(0, 65534),
        "your code receives a message this many times; at the next delivery the consumer gives it "
        "up; 0: no limit. Deliveries that your code never received don't count",
    )
    dead_letter: str | os.PathLike[str] | Callable[[Message, BaseException | None], Any] | None = (
        option(
            None,
            Instance("a topic, a path or a function, or None", _is_dead_letter),
            "where a message goes that the consumer gives up: a topic (its body, unchanged), a "
            "path (a `Path`, or text with a slash: a line of JSON), or a function of message and "
            "error",
        )
    )
    on_giving_up: OnGivingUp | None = option(
        None,
        CALLBACK,
        "a function, plain or async, of message and last error; by default a WARNING is logged",
    )
    default_requeue_delay: float = option(
        90.0,
        Number(0, 10**9),
        "seconds until a failed message is delivered again, times its attempts: 90, 180, 270 ...",
    )
    max_requeue_delay: float = option(900.0, Number(0, 10**9), "the longest such delay, in seconds")
    max_backoff_duration: float = option(
        120.0, Number(0), "seconds, the longest pause after failures; 0: no backoff"
    )
    backoff_multiplier: float = option(
        1.0, _POSITIVE, "the pause at level n is this times 2 to the n seconds"
    )
    rdy_redistribute_interval: float = option(
        5.0,
        _INTERVAL,
        "seconds between two redistributions of RDY, from idle connections to busy ones",
    )
    low_rdy_idle_timeout: float = option(
        10.0,
        _INTERVAL,
        "when `max_in_flight` is below the number of connections: seconds after which a "
        "connection without a message gives up its RDY",
    )
    low_rdy_timeout: float = option(
        30.0, _INTERVAL, "... and after which any connection gives it up"
    )

    ordered: bool | str | None = option(
        None,
        Instance("True, 'force' or None", lambda value: value in (None, True, "force")),
        "redesigned NSQ: one message of each partition at a time, in order. None: as the topic "
        "is; True: only if the topic is; `force`: on an ordinary topic too, whose channel then "
        "stays ordered",
    )
    partitions: Collection[int] | None = option(
        None,
        Instance(
            "numbers of partitions, at least one, or None",
            lambda value: value is None or is_partitions(value),
        ),
        "redesigned NSQ: consume these partitions only; None: all",
    )
    blocked_after: int = option(
        10, Integer(1), "ordered topics: deliveries of a message after which `on_blocked` decides"
    )
    on_blocked: str | OnBlocked = option(
        "wait",
        Instance(
            "'wait', 'dead_letter', 'stop' or a function",
            lambda value: value in BLOCKED_DECISIONS or callable(value),
        ),
        "ordered topics: what happens to a message that was delivered `blocked_after` times: "
        "`wait` delivers it again, `dead_letter` stores it there and goes on, `stop` ends the "
        "consumer; or a function of the message that returns one of them",
    )
    on_order_violation: OnOrderViolation | None = option(
        None,
        CALLBACK,
        "ordered topics: a function of message and `OrderViolation`, called when a message is "
        "older than the one before it; if it raises, the consumer ends. By default an ERROR is "
        "logged. The message is delivered in any case",
    )
    desired_tag: str | None = option(
        None,
        Instance(
            "text of 1 to 100 bytes, or None",
            lambda value: (
                value is None or (isinstance(value, str) and 1 <= len(value.encode()) <= _MAX_TAG)
            ),
        ),
        "redesigned NSQ, topics with headers: receive messages with this tag only; they go to "
        "consumers that ask for it",
    )
    header_filter: HeaderFilter | None = option(
        None,
        Instance("a HeaderFilter, or None", lambda value: isinstance(value, HeaderFilter | None)),
        "redesigned NSQ, topics with headers: a `HeaderFilter` that nsqd applies; it finishes what "
        "does not match, for the whole channel",
    )
    start_from: PositionLike | Mapping[int, PositionLike] | None = option(
        None,
        Instance(
            "a position, a mapping of partitions to positions, or None",
            lambda value: isinstance(value, str | datetime | Mapping | None),
        ),
        "redesigned NSQ: move the channel, for all of its consumers, when this one starts: "
        "`earliest`, `latest`, `count:N`, `offset:N`, `timestamp:SECONDS`, an ISO time or a "
        "`datetime`; or a mapping of partitions to these. None: go on where the channel is",
    )

    def __post_init__(self) -> None:
        super(ConsumerConfig, self).__post_init__()
        if self.on_blocked == "dead_letter" and self.dead_letter is None:
            raise ConfigError("on_blocked='dead_letter' is invalid without dead_letter")
        if self.sample_rate and self.ordered:
            raise ConfigError(
                f"sample_rate={self.sample_rate} is invalid together with ordered: nsqd refuses it"
            )
        if self.nsqd and (name := self.redesigned_option()) is not None:
            raise ConfigError(
                f"{name}={getattr(self, name)!r} is invalid: it is for topics of the redesigned "
                "NSQ; pass lookupd="
            )
        if self.heartbeat_interval == -1:
            raise ConfigError(
                "heartbeat_interval=-1 is invalid for a Consumer: nsqd requires heartbeats to "
                "subscribe"
            )

    def redesigned_option(self) -> str | None:
        """Return the name of an option that is set and has no meaning on the classic NSQ."""
        return next((name for name in _REDESIGNED_OPTIONS if getattr(self, name) is not None), None)
