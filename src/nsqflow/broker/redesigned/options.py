"""The options of a redesigned cluster: how long its changes take, and which hazards it has.

The delays of real servers are in the texts; here they are short, so that tests are.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from nsqflow.broker.redesigned.engine.leadership import ClusterTimes
from nsqflow.broker.redesigned.engine.partition import Hazards
from nsqflow.config.kinds import Boolean
from nsqflow.config.numbers import Duration
from nsqflow.config.options import check_options, option

NSQD_DEFAULTS: dict[str, Any] = {
    "max_req_timeout": 3 * 24 * 3600.0,
    "output_buffer_timeout": 0.05,
    "min_output_buffer_timeout": 0.001,
    "max_output_buffer_timeout": 1.0,
}
"""The defaults of nsqd that differ from those of the classic one."""


def _seconds(default: float, text: str) -> Any:
    return option(default, Duration(), text)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOptions:
    """The options of a cluster. Durations are in seconds."""

    election_delay: float = _seconds(
        0.3, "until a killed node is replaced as leader (real servers: 21 to 34, or far longer)"
    )
    follower_timeout: float = _seconds(
        0.3, "how long publishes wait for a follower that was killed (real servers: 12)"
    )
    move_delay: float = _seconds(
        0.1, "how long publishes are refused while a leader moves (real servers: 0.1 to 0.9)"
    )
    rejoin_delay: float = _seconds(
        0.1, "how long publishes are refused while a node rejoins (real servers: 0.1 to 2.1)"
    )
    flap_time: float = _seconds(
        0.0, "after a crash, how long nsqlookupd names the new leader, forgets it, and names it "
        "again before it leads (real servers: up to 2)"
    )  # fmt: skip
    resubscribe_delay: float = _seconds(
        0.0, "how long a leader that lost its majority refuses consumers (real servers: 80 seen)"
    )
    new_topic_delay: float = _seconds(
        0.0, "until a new topic is writable (real servers: 1, or 73 to 120)"
    )
    lookup_delay: float = _seconds(
        0.0, "how long the leading nsqlookupd takes to answer for a partition without a leader, "
        "for producers (real servers: 1)"
    )  # fmt: skip
    lookupd_election_delay: float = _seconds(
        0.3, "until another nsqlookupd leads after the leading one stopped (real servers: 18)"
    )
    allow_write_without_channels: bool = option(
        True,
        Boolean(),
        "name partitions without a channel to producers; real servers do not, unless configured "
        "(`-allow-write-with-nochannels`)",
    )
    repeat_messages: bool = option(
        False,
        Boolean(),
        "a change of leaders repeats messages of ordered channels, and so does the first ordered "
        "subscription to a channel that was made without one",
    )
    skip_unfinished: bool = option(
        False,
        Boolean(),
        "a change of leaders moves channels that have never finished a message to the end",
    )
    lose_moved_cursor: bool = option(
        False, Boolean(), "a change of leaders undoes a seek that went back"
    )

    def __post_init__(self) -> None:
        check_options(self)

    def times(self) -> ClusterTimes:
        """Return the delays as the engine takes them."""
        names = [each.name for each in fields(ClusterTimes)]
        return ClusterTimes(**{name: round(getattr(self, name) * 1e9) for name in names})

    def hazards(self) -> Hazards:
        """Return the hazards as the engine takes them."""
        return Hazards(**{each.name: getattr(self, each.name) for each in fields(Hazards)})
