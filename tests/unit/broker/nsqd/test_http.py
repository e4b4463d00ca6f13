"""The HTTP API of nsqd: storing, limits, delivery, TLS, options."""

from __future__ import annotations

import json
import logging
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqflow.broker.http_api import ApiError
from nsqflow.broker.nsqd.daemon import NsqdDaemon
from nsqflow.broker.nsqd.http import NsqdApi, split_binary, split_lines
from nsqflow.broker.storage import StorageError
from tests.fixtures.certificates import Certificates
from tests.fixtures.loops import asynchronous, eventually
from tests.unit.broker.nsqd.running import RawClient, ask, connected, make_nsqd, new_name, stats_of

DONE = (200, b"")


OK = (200, b"OK")


ADMINISTRATION = [
    ("/topic/create", {}),
    ("/topic/pause", {}),
    ("/topic/unpause", {}),
    ("/topic/empty", {}),
    ("/channel/create", {"channel": "new"}),
    ("/channel/pause", {"channel": "ch"}),
    ("/channel/unpause", {"channel": "ch"}),
    ("/channel/empty", {"channel": "ch"}),
    ("/channel/delete", {"channel": "ch"}),
    ("/topic/delete", {}),
]


def refused(status: int, message: str) -> tuple[int, bytes]:
    return status, json.dumps({"message": message}, separators=(",", ":")).encode()


async def post(nsqd: NsqdDaemon, path: str, body: bytes = b"", **query: str) -> tuple[int, bytes]:
    return await ask(nsqd.http_address, "POST", path, body, **query)


async def put(nsqd: NsqdDaemon, option: str, value: object) -> tuple[int, bytes]:
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    return await ask(nsqd.http_address, "PUT", f"/config/{option}", body)


async def topic_of(nsqd: NsqdDaemon, topic: str) -> dict[str, Any]:
    [stats] = (await stats_of(nsqd.http_address, topic=topic))["topics"]
    assert isinstance(stats, dict)
    return stats


async def set_rdy(nsqd: NsqdDaemon, consumer: RawClient, count: int) -> None:
    """Send RDY and wait until nsqd has it: there is no response."""
    consumer.writer.write(b"RDY %d\n" % count)
    await eventually(
        lambda: [each.subscriber.rdy for each in nsqd.clients if each.subscriber] == [count]
    )


@pytest.fixture
def log_level() -> Iterator[None]:
    logger = logging.getLogger("nsqflow.broker.nsqd")
    level = logger.level
    yield
    logger.setLevel(level)


# Storing.


@asynchronous
async def test_publishes_answered_with_ok_survive_a_crash(tmp_path: Path) -> None:
    topic = new_name()
    async with make_nsqd(data_path=tmp_path) as nsqd:
        assert await post(nsqd, "/pub", b"1", topic=topic) == OK
        assert await post(nsqd, "/pub", b"2", topic=topic, defer="600000") == OK
        assert await post(nsqd, "/mpub", b"3\n4", topic=topic) == OK
        await nsqd.kill()
    async with make_nsqd(data_path=tmp_path) as nsqd:
        assert (await topic_of(nsqd, topic))["depth"] == 4


@asynchronous
async def test_a_pause_that_was_answered_survives_a_crash(tmp_path: Path) -> None:
    topic = new_name()
    async with make_nsqd(data_path=tmp_path) as nsqd:
        await post(nsqd, "/topic/create", topic=topic)
        await post(nsqd, "/channel/create", topic=topic, channel="ch")
        assert await post(nsqd, "/topic/pause", topic=topic) == DONE
        assert await post(nsqd, "/channel/pause", topic=topic, channel="ch") == DONE
        await nsqd.kill()
    async with make_nsqd(data_path=tmp_path) as nsqd:
        stats = await topic_of(nsqd, topic)
        assert (stats["paused"], stats["channels"][0]["paused"]) == (True, True)


@asynchronous
async def test_a_publish_that_could_not_be_stored_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async with make_nsqd(data_path=str(tmp_path)) as nsqd:
        _fail_to_store(nsqd, monkeypatch)
        removed = refused(503, "EXITING")
        assert await post(nsqd, "/pub", b"x", topic="t") == removed
        assert await post(nsqd, "/mpub", b"x", topic="t") == removed
        # Never stored, so this can't fail.
        assert await post(nsqd, "/pub", b"x", topic="t#ephemeral") == OK


@pytest.mark.parametrize(("path", "query"), ADMINISTRATION)
@asynchronous
async def test_a_change_that_could_not_be_stored_is_an_error(
    monkeypatch: pytest.MonkeyPatch, path: str, query: dict[str, str]
) -> None:
    async with make_nsqd() as nsqd:
        nsqd.engine.topic("t", nsqd.now()).channel("ch", nsqd.now())
        _fail_to_store(nsqd, monkeypatch)
        assert await post(nsqd, path, b"", topic="t", **query) == refused(500, "INTERNAL_ERROR")


def _fail_to_store(nsqd: NsqdDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    async def stored() -> None:
        raise StorageError("disk full")

    monkeypatch.setattr(nsqd, "stored", stored)


@asynchronous
async def test_ping_reports_that_storing_fails() -> None:
    async with make_nsqd() as nsqd:
        assert await ask(nsqd.http_address, "GET", "/ping") == OK
        nsqd.health = "NOK - disk full"
        assert await ask(nsqd.http_address, "GET", "/ping") == (500, b"NOK - disk full")
        assert (await stats_of(nsqd.http_address))["health"] == "NOK - disk full"


# Limits.


@asynchronous
async def test_a_publish_beyond_max_memory_is_refused_as_a_whole() -> None:
    topic = new_name()
    async with make_nsqd(max_memory=10_000) as nsqd:
        assert await post(nsqd, "/pub", b"x" * 9000, topic=topic) == OK
        full = refused(503, "FULL")
        assert await post(nsqd, "/pub", b"x" * 1000, topic=topic) == full
        assert await post(nsqd, "/mpub", b"1\n2\n3", topic=topic) == full
        assert await post(nsqd, "/pub", b"x", topic=topic) == OK
        assert (await topic_of(nsqd, topic))["message_count"] == 2


@asynchronous
async def test_bodies_are_read_up_to_the_limit_of_their_path() -> None:
    async with make_nsqd(max_msg_size=100, max_body_size=1000) as nsqd:
        limit = NsqdApi(nsqd).body_limit
        assert limit("POST", "/pub") == 100
        assert limit("PUT", "/config/log_level") == 100
        assert limit("POST", "/mpub") == 1000
        assert limit("POST", "/topic/create") == 4096


@asynchronous
async def test_an_unexpected_body_is_ignored() -> None:
    async with make_nsqd(max_msg_size=100) as nsqd:
        assert await post(nsqd, "/topic/create", b"x" * 4096, topic="t") == DONE
        assert await post(nsqd, "/topic/delete", b"x" * 10_000, topic="t") == DONE


@pytest.mark.parametrize("text", ["0", "+5", "-0", "0" * 30 + "5", "3600000"])
@asynchronous
async def test_a_delay_is_read_as_go_reads_it(text: str) -> None:
    async with make_nsqd() as nsqd:
        assert await post(nsqd, "/pub", b"x", topic="t", defer=text) == OK


@pytest.mark.parametrize(
    "text", ["", "-1", "3600001", " 5", "5 ", "1_0", "1e3", "0x5", "5.0", "٣", "9" * 19, "9" * 5000]
)
@asynchronous
async def test_a_delay_that_go_cannot_read_is_refused(text: str) -> None:
    async with make_nsqd() as nsqd:
        invalid = refused(400, "INVALID_DEFER")
        assert await post(nsqd, "/pub", b"x", topic="t", defer=text) == invalid
        assert (await topic_of(nsqd, "t"))["message_count"] == 0


# Delivery.


@asynchronous
async def test_a_waiting_consumer_gets_messages_published_over_http() -> None:
    async with make_nsqd() as nsqd, connected(nsqd.tcp_address) as consumer:
        await consumer.command(b"SUB t ch\n")
        await set_rdy(nsqd, consumer, 1)
        assert await post(nsqd, "/pub", b"1", topic="t") == OK
        assert (await consumer.receive()).endswith(b"1")
        await set_rdy(nsqd, consumer, 3)
        assert await post(nsqd, "/mpub", b"2\n3", topic="t") == OK
        assert (await consumer.receive()).endswith(b"2")
        assert (await consumer.receive()).endswith(b"3")


@pytest.mark.parametrize(
    ("what", "query"), [("topic", {"topic": "t"}), ("channel", {"topic": "t", "channel": "ch"})]
)
@asynchronous
async def test_a_consumer_gets_paused_messages_after_the_unpause(
    what: str, query: dict[str, str]
) -> None:
    async with make_nsqd() as nsqd, connected(nsqd.tcp_address) as consumer:
        await consumer.command(b"SUB t ch\n")
        await set_rdy(nsqd, consumer, 1)
        assert await post(nsqd, f"/{what}/pause", b"", **query) == DONE
        assert await post(nsqd, "/pub", b"1", topic="t") == OK
        assert (await topic_of(nsqd, "t"))["channels"][0]["in_flight_count"] == 0
        assert await post(nsqd, f"/{what}/unpause", b"", **query) == DONE
        assert (await consumer.receive()).endswith(b"1")


# TLS.


@asynchronous
async def test_where_tls_is_required_plain_http_names_the_https_port(
    certificates: Certificates,
) -> None:
    async with make_nsqd(tls_required="true", **_tls(certificates)) as nsqd:
        body = f'{{"message": "TLS_REQUIRED", "https_port": {nsqd.https_port}}}'.encode()
        assert await ask(nsqd.http_address, "GET", "/ping") == (403, body)
        assert await post(nsqd, "/no/such/path") == (403, body)


@asynchronous
async def test_tls_can_be_required_for_all_but_plain_http(certificates: Certificates) -> None:
    async with make_nsqd(tls_required="tcp-https", **_tls(certificates)) as nsqd:
        assert await ask(nsqd.http_address, "GET", "/ping") == OK


def _tls(files: Certificates) -> dict[str, str]:
    address = "127.0.0.1:0"
    return {"tls_cert": str(files.cert), "tls_key": str(files.key), "https_address": address}


# Options.


@pytest.mark.parametrize(
    "value",
    [b"127.0.0.1:4160", b"{", b"\xff", {}, "127.0.0.1:4160", [1], ["nowhere"], b"[" * 100_000],
    ids=repr,
)
@asynchronous
async def test_invalid_nsqlookupd_addresses_are_refused(value: object) -> None:
    before = ("127.0.0.1:1",)
    async with make_nsqd(lookupd_tcp_address=before) as nsqd:
        answer = await put(nsqd, "nsqlookupd_tcp_addresses", value)
        assert answer == refused(400, "INVALID_VALUE")
        assert nsqd.options.lookupd_tcp_address == before


@asynchronous
async def test_the_log_level_can_be_set(log_level: None) -> None:
    logger = logging.getLogger("nsqflow.broker.nsqd")
    async with make_nsqd() as nsqd:
        assert await put(nsqd, "log_level", b"WARN") == (200, b"3")
        assert not logger.isEnabledFor(logging.INFO)
        assert await put(nsqd, "log_level", b"debug") == (200, b"1")
        assert logger.isEnabledFor(logging.DEBUG)
        assert await put(nsqd, "log_level", b"loud") == refused(400, "INVALID_VALUE")
        assert await put(nsqd, "log_level", b"\xff") == refused(400, "INVALID_VALUE")
        assert nsqd.options.log_level == "debug"


@asynchronous
async def test_other_options_and_empty_values_are_refused() -> None:
    async with make_nsqd(max_msg_size=100) as nsqd:
        assert await put(nsqd, "max_msg_size", 5) == refused(400, "INVALID_OPTION")
        assert await put(nsqd, "log_level", b"") == refused(413, "INVALID_VALUE")
        assert await put(nsqd, "log_level", b"x" * 101) == refused(413, "INVALID_VALUE")


# /debug.


@asynchronous
async def test_freememory_works_and_go_profiles_do_not_exist() -> None:
    async with make_nsqd() as nsqd:
        assert await post(nsqd, "/debug/freememory") == DONE
        answer = await ask(nsqd.http_address, "GET", "/debug/pprof/heap")
        assert answer == refused(404, "NOT_FOUND")


# Bodies of /mpub.


bodies = st.lists(st.binary(min_size=1, max_size=20), min_size=1, max_size=10)


def _binary(messages: Sequence[bytes]) -> bytes:
    sized = (struct.pack(">i", len(each)) + each for each in messages)
    return struct.pack(">i", len(messages)) + b"".join(sized)


@given(bodies, st.binary(max_size=5))
def test_a_binary_body_is_split_and_the_rest_ignored(messages: list[bytes], rest: bytes) -> None:
    assert split_binary(_binary(messages) + rest, 20, 1000) == messages


@given(bodies, st.data())
def test_a_binary_body_that_ends_early_is_refused(
    messages: list[bytes], data: st.DataObject
) -> None:
    body = _binary(messages)
    end = data.draw(st.integers(0, len(body) - 1))
    with pytest.raises(ApiError) as caught:
        split_binary(body[:end], 20, 1000)
    assert caught.value.status == 413
    assert caught.value.message == ("BAD_BODY" if end < 4 else "BAD_MESSAGE")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (struct.pack(">i", 0), "BAD_BODY"),
        (struct.pack(">i", -1), "BAD_BODY"),
        (struct.pack(">i", 200), "BAD_BODY"),  # 4 bytes and 5 for each exceed 1000
        (struct.pack(">ii", 1, 0), "BAD_MESSAGE"),
        (struct.pack(">ii", 1, -1), "BAD_MESSAGE"),
        (struct.pack(">ii", 1, 21) + b"x" * 21, "BAD_MESSAGE"),
    ],
)
def test_a_binary_body_with_a_number_out_of_range_is_refused(body: bytes, message: str) -> None:
    with pytest.raises(ApiError) as caught:
        split_binary(body, 20, 1000)
    assert (caught.value.status, caught.value.message) == (413, message)


def test_empty_lines_are_skipped() -> None:
    assert split_lines(b"\n1\n\n 2\r\n3", 10) == [b"1", b" 2\r", b"3"]
    assert split_lines(b"\n\n", 10) == []
    assert split_lines(b"", 10) == []


def test_a_line_that_is_too_long_is_refused() -> None:
    assert split_lines(b"1234\n12", 4) == [b"1234", b"12"]
    with pytest.raises(ApiError) as caught:
        split_lines(b"12\n12345", 4)
    assert (caught.value.status, caught.value.message) == (413, "MSG_TOO_BIG")
