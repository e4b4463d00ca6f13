"""An engine with one topic and one channel; a module may override the engine."""

from __future__ import annotations

import pytest

from nsqflow.broker.engine.channel import Channel
from nsqflow.broker.engine.engine import Engine
from nsqflow.broker.engine.topic import Topic
from tests.unit.broker.engine.parts import NOW


@pytest.fixture
def engine() -> Engine:
    return Engine()


@pytest.fixture
def topic(engine: Engine) -> Topic:
    return engine.topic("t", NOW)


@pytest.fixture
def channel(topic: Topic) -> Channel:
    return topic.channel("c", NOW)
