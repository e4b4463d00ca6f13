"""Planning: what the driver decides before each batch, and what it learns from the last one."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from time import monotonic, sleep
from typing import Any
from uuid import uuid4

from nsqflow.errors import ConfigError, DiscoveryError, NetworkError
from nsqflow.spark.backlog import Backlog
from nsqflow.spark.budget import Hold, Patience, Target, divide, limit_by_bytes, split
from nsqflow.spark.losses import Losses
from nsqflow.spark.offsets import (
    PLANNED,
    Offset,
    batches_folder,
    gen_mark,
    planned_mark,
    split_key,
)
from nsqflow.spark.options import SourceOptions
from nsqflow.spark.progress import counters
from nsqflow.spark.slots import Slots, Totals
from nsqflow.spark.store import Store, open_store
from nsqflow.spark.survey import Survey

logger = logging.getLogger(__name__)

_SOONEST = 0.02  # seconds between two looks at the servers, while something was there just now
_LATEST = 0.25  # ... and after some seconds in which nothing was: nsqd logs every look
_LATE = 6.0  # seconds by which nsqd may miss a timeout: it looks for new channels every five
_FLOW = 1.0  # seconds in which a topic's messages reach a new channel; a huge backlog takes longer


class Planning:
    """Turns what waits on the servers into offsets."""

    def __init__(self, options: SourceOptions) -> None:
        assert options.spool is not None
        self._options = options
        self.store: Store = open_store(options.spool)
        self._survey = Survey(options)
        self._patience = Patience()
        self._hold = Hold(options.min_messages_per_trigger, options.max_trigger_delay)
        self._target: Target | None = None
        self._fruitless: set[str] = set()  # keys of which the last batch brought nothing
        self._backlogs: list[Backlog] = []
        self._losses = Losses(self.store.location, options.channel, fail=options.fail_on_data_loss)
        self._counters: dict[str, Any] = {}  # of the last batch that was looked at
        self._found: set[int] = set()  # batches that are in the spool, and not in Spark's log
        self._made = ""  # the generation that was begun here
        self._counted = -1  # the batch whose outcome is known
        self._looked = self._busy = 0.0
        self._blind = False  # nobody answered the last time
        self._began = False
        self._available_now = False

    def available_now(self) -> None:
        """Read what is there now, and then no more."""
        self._available_now = True

    def next(self, start: Offset, limit: int | None) -> Offset:
        """Return the end of the next batch, or ``start`` itself if there is nothing to read."""
        self._begin(start)
        if (again := self._earlier(start)) is not None:
            return again
        if not self._look():
            return start
        self._learn(start)
        if self._available_now:
            counts = self._within_target()
        else:
            counts = self._countable()
            if self._hold.holds(sum(counts.values()), monotonic()):
                return start
        plan = self._divide(counts, limit)
        if not plan:
            return self._begun(start)
        self._hold.triggered(monotonic())
        return self._write_down(start.next(self._generation(start), plan))

    def check_replay(self, end: Offset) -> None:
        """See that the spool still has the batch; one that was planned must be there."""
        if self.store.age(planned_mark(end.gen, end.seq)) is None:
            self._losses.batch_is_missing(end)
            self._write_down(end)

    def report(self) -> dict[str, Any]:
        """Return what waits where, and what came of the last batch that is known of."""
        return {
            "backlog": sum(backlog.available for backlog in self._backlogs),
            "places": {backlog.key: _described(backlog) for backlog in self._backlogs},
            "unreachable": dict(self._survey.unreachable),
            "spool": self.store.location,
            "last_batch": self._counters,
        }

    def mean_sizes(self) -> dict[str, int]:
        """Return how large a message of each key is, by what its nsqd says; 0 is unknown."""
        return {backlog.key: backlog.mean_size for backlog in self._backlogs}

    def close(self) -> None:
        """Let go of the servers."""
        self._survey.close()

    # Private methods

    def _begin(self, start: Offset) -> None:
        if self._began:
            return
        self.store.probe()
        self._check_generation(start)
        if self._options.starting_position == "latest" and not start.gen:
            self._survey.empty()
        else:
            self._survey.create()
        self._found = self._find_batches(start)
        self._losses.batches_are_missing(start, self._found)
        self._began = True

    def _check_generation(self, start: Offset) -> None:
        """See that the spool is that of the checkpoint, and of this channel."""
        if not start.gen:
            return
        try:
            about = json.loads(bytes(self.store.read(gen_mark(start.gen))))
        except FileNotFoundError:
            logger.warning(
                "spoolLocation %r has nothing of generation %s: messages that are delivered twice "
                "may not be recognised",
                self.store.location,
                start.gen,
            )
            return
        if about["channel"] != self._options.channel:
            raise ConfigError(
                f"channel {self._options.channel!r}; the checkpoint is that of a query on channel "
                f"{about['channel']!r}. Give a new query a new checkpointLocation"
            )

    def _find_batches(self, start: Offset) -> set[int]:
        """Return the batches behind ``start`` that are in the spool, with something in them."""
        if not start.gen:
            return set()
        folder = batches_folder(start.gen)
        later = [name for name in self.store.names(folder) if int(name) > start.seq]
        contents = {int(name): self.store.names(f"{folder}/{name}") for name in later}
        return {seq for seq, names in contents.items() if PLANNED in names and len(names) > 1}

    def _earlier(self, start: Offset) -> Offset | None:
        """Return the next batch as it was planned before, if it is in the spool.

        Then somebody took the checkpoint back by some batches, and its messages are finished.
        """
        if start.seq + 1 not in self._found:
            return None
        mark = planned_mark(start.gen, start.seq + 1)
        return Offset.decode(json.loads(bytes(self.store.read(mark))))

    def _look(self) -> bool:
        """Ask the servers, but not too often; tell whether one of them answered."""
        now = monotonic()
        idle = now - self._busy
        interval = min(_LATEST, max(_SOONEST, idle / 50))
        if (wait := self._looked + interval - now) > 0:
            sleep(wait)
        try:
            self._backlogs = self._survey.look()
        except (NetworkError, DiscoveryError) as error:
            if not self._looked:
                raise
            # They may come back; who runs until everything is read must know that it was not.
            if self._available_now:
                raise
            if not self._blind:
                logger.warning("%s; trying again", error)
            self._blind = True
            self._looked = monotonic()
            return False
        self._blind = False
        self._looked = monotonic()
        self._losses.look_at(self._backlogs, self._survey.take_gone())
        return True

    def _learn(self, start: Offset) -> None:
        """Read, once for each batch, what came of it."""
        if start.seq == self._counted:
            return
        known = self._counted >= 0
        self._counted = start.seq
        if not start.seq:
            return
        now = self._busy = monotonic()
        whole = Totals()
        for key, planned in start.plan.items():
            totals = Totals()
            for name in start.shares():
                if name.key == key:
                    totals += Slots(self.store, name.folder).totals()[0]
            whole += totals
            # Also what was dropped or given back shows that something is there.
            came = totals.rows + totals.duplicates + totals.dead_lettered + totals.requeued
            self._patience.brought(key, sum(planned), came, now)
            if self._target is not None and known:
                self._count(self._target, key, totals.rows, came)
        self._counters = {"seq": start.seq} | counters(whole)

    def _count(self, target: Target, key: str, rows: int, came: int) -> None:
        target.brought(key, rows)
        if came:
            self._fruitless.discard(key)
        elif key in self._fruitless:
            target.give_up(key)  # others take what we plan for
        else:
            self._fruitless.add(key)

    def _countable(self) -> dict[str, int]:
        now = monotonic()
        return {
            backlog.key: backlog.available
            for backlog in self._backlogs
            if self._patience.allowed(backlog.key, now)
        }

    def _within_target(self) -> dict[str, int]:
        """Return what is to be read of what was there at the start; wait for what is in flight."""
        deadline = monotonic() + self._options.msg_timeout + _LATE
        if self._target is None:
            self._await_all(deadline)
            self._await_flow()
            self._target = Target(self._backlogs)
        while True:
            counts = self._target.bound(
                {backlog.key: backlog.available for backlog in self._backlogs}
            )
            remaining = self._target.remaining()
            missing = {key for key in remaining if split_key(key)[1] in self._survey.unreachable}
            coming = any(
                backlog.in_flight and backlog.key in remaining for backlog in self._backlogs
            )
            if counts or not (coming or missing):
                return counts
            if monotonic() > deadline:
                self._check_reachable()
                return counts
            self._look()

    def _await_all(self, deadline: float) -> None:
        """Wait for those who do not answer: what they have belongs to it, too."""
        while self._survey.unreachable and monotonic() < deadline:
            self._look()
        self._check_reachable()

    def _check_reachable(self) -> None:
        if not self._survey.unreachable:
            return
        reasons = "; ".join(self._survey.unreachable.values())
        text = f"not everything can be read, as some nsqd don't answer: {reasons}"
        if self._options.fail_on_data_loss:
            raise NetworkError(f"{text}; start with failOnDataLoss=false to go on without")
        logger.warning("%s; going on without", text)

    def _await_flow(self) -> None:
        """Let the topics pass on to the channel what they had, so that it can be counted.

        What nsqd has in its hands on the way is in no count, so it takes two looks that agree.
        """
        deadline = monotonic() + _FLOW
        before: list[Backlog] = []
        while before != self._backlogs or any(backlog.topic_depth for backlog in before):
            before = self._backlogs
            if monotonic() > deadline or not self._look():
                return

    def _divide(self, counts: Mapping[str, int], limit: int | None) -> dict[str, list[int]]:
        options = self._options
        if options.max_bytes_per_trigger is not None:
            by_bytes = limit_by_bytes(counts, self.mean_sizes(), options.max_bytes_per_trigger)
            limit = min((each for each in (limit, by_bytes) if each is not None), default=None)
        parts, most = options.partitions_per_nsqd, options.max_messages_per_partition
        return {key: split(budget, parts, most) for key, budget in divide(counts, limit).items()}

    def _begun(self, start: Offset) -> Offset:
        """Return the same offset, but in place of the very first one that names a generation.

        Spark makes an empty batch of that one in any case, and logs it: so a query that comes
        again knows that it has begun before, and what has come meanwhile is not thrown away.
        """
        return start if start.gen else self._write_down(Offset(self._generation(start)))

    def _generation(self, start: Offset) -> str:
        if not start.gen and not self._made:
            self._made = uuid4().hex
        return start.gen or self._made

    def _write_down(self, end: Offset) -> Offset:
        """Put marks into the spool, before the offset is logged: so their absence means a loss."""
        if self.store.age(gen_mark(end.gen)) is None:
            if end.seq > 1:
                logger.warning("%r was emptied under the query", self.store.location)
            self.store.write(gen_mark(end.gen), describe(self._options))
        self.store.write(planned_mark(end.gen, end.seq), json.dumps(end.encode()).encode())
        return end


def describe(options: SourceOptions) -> bytes:
    """Return what the mark of a generation says of the query."""
    return json.dumps({"channel": options.channel, "topics": list(options.topics)}).encode()


def _described(backlog: Backlog) -> dict[str, Any]:
    return {
        "depth": backlog.depth,
        "topic_depth": backlog.topic_depth,
        "in_flight": backlog.in_flight,
        "deferred": backlog.deferred,
        "requeues": backlog.requeues,
        "timeouts": backlog.timeouts,
        "paused": backlog.paused or backlog.topic_paused,
    }
