"""Kinds of option values that are names of topics and channels."""

from __future__ import annotations

import re

from nsqflow.config.kinds import List, Text
from nsqflow.errors import ConfigError
from nsqflow.protocol.names import check_channel, check_topic, is_ephemeral


def topic_pattern(text: str) -> str:
    """Validate a regular expression."""
    try:
        re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise ConfigError(f"{text!r} is not a regular expression: {error}") from None
    return text


def durable_channel(text: str) -> str:
    """Validate a channel's name; an ephemeral channel would lose messages."""
    if is_ephemeral(check_channel(text)):
        raise ConfigError(
            f"{text!r} would lose messages: nsqd deletes an ephemeral channel with its last "
            "client, for example between two batches, and keeps it only in memory"
        )
    return text


def target_topic(text: str) -> str:
    """Validate the one topic that a sink writes to."""
    if "," in text:
        raise ConfigError(
            f"{text!r} names several topics: must be one; for more, use a column topic"
        )
    return check_topic(text)


TOPIC = Text("a topic's name", check_topic)
TOPICS = List(TOPIC)
TARGET = Text("a topic's name", target_topic)
"""The one topic that a sink writes to."""
CHANNEL = Text("a channel's name, without #ephemeral", durable_channel)
"""A channel that keeps its messages while no client is connected."""
PATTERN = Text("a regular expression", topic_pattern)
"""A pattern of topic names."""
