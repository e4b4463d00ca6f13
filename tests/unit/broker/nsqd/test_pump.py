"""The pump: what waits for the store is answered, whatever goes wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pytest

from nsqflow.broker.engine.engine import Engine
from nsqflow.broker.nsqd.clock import Clock
from nsqflow.broker.nsqd.pump import Pump
from nsqflow.broker.storage.store import Store
from tests.fixtures.loops import asynchronous

Done = Callable[[Exception | None], None]


class Commits:
    """A store that is told when its commits end."""

    def __init__(self) -> None:
        self.done: list[Done] = []

    def commit(self, done: Done | None, waiting: int) -> None:
        if done is not None:
            self.done.append(done)


class Broken(Engine):
    """An engine with a defect."""

    def stored(self, *_: object) -> None:
        raise ZeroDivisionError("a defect")

    def refused(self, *_: object) -> None:
        raise ZeroDivisionError("a defect")


@pytest.mark.parametrize("error", [None, OSError("disk full")], ids=["stored", "refused"])
@asynchronous
async def test_clients_have_their_answers_though_the_engine_fails(error: OSError | None) -> None:
    store, answers = Commits(), list[Exception | None]()
    pump = Pump(Broken(), Clock(), cast(Store, store), lambda: None)

    def fail(_: Exception | None) -> None:
        raise ConnectionError("gone")

    for stored in (answers.append, fail, answers.append):
        pump.when_stored(stored)
    pump.run()
    [done] = store.done
    with pytest.raises(ZeroDivisionError):
        done(error)
    assert answers == [error, error]
    pump.stop()
