"""Offsets: what Spark's offset log keeps of a query, and the names of what belongs to them.

NSQ has no positions, so an offset is not a place in a topic but the number of a batch and the
plan for it: who may pull how many messages from where. A batch that is run again finds the
same plan in the log, whatever became of the servers, and its rows in the spool.

    <generation>/_gen                      the generation began here
    <generation>/batches/00000007/_planned
    <generation>/batches/00000007/<key>-0/ slots of one share: 000000, 000001, ...
    <generation>/unfin/<key>/              ids whose FIN nobody has confirmed

A generation is one checkpoint's life: a new checkpoint gets a new one, so that it can never
see the rows of another. A key is ``topic|host:port``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from nsqflow.errors import ConfigError

VERSION = 1
PLANNED = "_planned"

_UNSAFE = re.compile(rb"[^0-9A-Za-z._-]")
_ESCAPED = re.compile(rb"%([0-9A-F]{2})")


@dataclass(frozen=True, slots=True)
class Offset:
    """The end of a batch; the start of all is the one with nothing in it."""

    gen: str = ""
    seq: int = 0
    """The batch's number within the generation."""
    total: int = 0
    """How many messages were planned for so far."""
    plan: Mapping[str, list[int]] = field(default_factory=dict)
    """For each key how many messages each of its shares may have."""

    def next(self, gen: str, plan: Mapping[str, list[int]]) -> Offset:
        """Return the end of the batch that comes after this one."""
        ordered = dict(sorted(plan.items()))
        planned = sum(map(sum, ordered.values()))
        return Offset(self.gen or gen, self.seq + 1, self.total + planned, ordered)

    def encode(self) -> dict[str, Any]:
        """Return what goes into the log; equal offsets give equal text."""
        return {
            "v": VERSION,
            "gen": self.gen,
            "seq": self.seq,
            "total": self.total,
            "plan": {key: list(shares) for key, shares in self.plan.items()},
        }

    @staticmethod
    def decode(data: Mapping[str, Any]) -> Offset:
        """Read what came out of the log; raise ``ConfigError`` if it is not of this source."""
        if data.get("v") != VERSION:
            raise ConfigError(
                f"offset of version {data.get('v')!r}; this nsqflow reads {VERSION}. Is the "
                "checkpoint one of another source, or of a newer nsqflow?"
            )
        try:
            plan = {str(key): [int(n) for n in shares] for key, shares in data["plan"].items()}
            return Offset(str(data["gen"]), int(data["seq"]), int(data["total"]), plan)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"offset {data!r:.200} can't be read: {error!r}") from None

    @property
    def planned(self) -> int:
        """How many messages the batch may have."""
        return sum(map(sum, self.plan.values()))

    def shares(self) -> list[ShareName]:
        """Return the names of all shares of the batch."""
        return [
            ShareName(self.gen, self.seq, key, part)
            for key, budgets in self.plan.items()
            for part in range(len(budgets))
        ]


class ShareName(NamedTuple):
    """One share of a batch: what one task pulls from one nsqd."""

    gen: str
    seq: int
    key: str
    part: int

    @property
    def folder(self) -> str:
        """Where its slots are in the spool."""
        return f"{batch_folder(self.gen, self.seq)}/{quoted(self.key)}-{self.part}"


def make_key(topic: str, nsqd: str) -> str:
    """Join a topic and the address of an nsqd."""
    return f"{topic}|{nsqd}"


def split_key(key: str) -> tuple[str, str]:
    """Return topic and address; a topic's name can't have the sign between them."""
    topic, _, nsqd = key.partition("|")
    return topic, nsqd


def quoted(key: str) -> str:
    """Return a key as the name of a folder."""
    return _UNSAFE.sub(lambda match: b"%%%02X" % ord(match[0]), key.encode()).decode()


def unquoted(name: str) -> str:
    """Return the key of which ``quoted`` made a folder's name."""
    return _ESCAPED.sub(lambda match: bytes((int(match[1], 16),)), name.encode()).decode()


def batches_folder(gen: str) -> str:
    """Where a generation's batches are in the spool."""
    return f"{gen}/batches"


def batch_folder(gen: str, seq: int) -> str:
    """Where a batch is in the spool; names sort as the numbers do."""
    return f"{gen}/batches/{seq:08d}"


def gen_mark(gen: str) -> str:
    """The object that is there from a generation's first batch on."""
    return f"{gen}/_gen"


def planned_mark(gen: str, seq: int) -> str:
    """The object that is there from a batch's planning until it leaves the spool."""
    return f"{batch_folder(gen, seq)}/{PLANNED}"


def unfin_folder(gen: str, key: str) -> str:
    """Where a key's ids wait that may be delivered again."""
    return f"{gen}/unfin/{quoted(key)}"
