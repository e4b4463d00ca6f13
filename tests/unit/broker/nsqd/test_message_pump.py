"""The message pump: publishes that wait for the store get their responses."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pytest

from nsqflow.broker.engine.engine import Engine
from nsqflow.broker.nsqd.message_pump import Clock, MessagePump
from nsqflow.broker.storage.store import Store
from tests.fixtures.loops import asynchronous

DoneCallback = Callable[[Exception | None], None]


class FakeStore:
    """Collects the callbacks of its commits."""

    def __init__(self) -> None:
        self.done: list[DoneCallback] = []

    def commit(self, done: DoneCallback | None, waiting: int) -> None:
        if done is not None:
            self.done.append(done)


@pytest.mark.parametrize("error", [None, OSError("disk full")], ids=["stored", "refused"])
@asynchronous
async def test_a_response_that_fails_holds_back_no_other(error: OSError | None) -> None:
    store, responses = FakeStore(), list[Exception | None]()
    pump = MessagePump(Engine(), Clock(), cast(Store, store), lambda: None)

    def fail(_: Exception | None) -> None:
        raise ConnectionError("removed")

    for stored in (responses.append, fail, responses.append):
        pump.when_stored(stored)
    pump.run()
    [done] = store.done
    done(error)
    assert responses == [error, error]
    pump.stop()
