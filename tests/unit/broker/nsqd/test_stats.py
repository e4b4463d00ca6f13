"""Stats: ours beside those of the real nsqd after the same events."""

from __future__ import annotations

import pytest

from nsqflow.broker.nsqd import stats as stats_text
from tests.fixtures.loops import asynchronous
from tests.unit.broker.nsqd.running import ask, connected, make_nsqd, new_name, sized, stats_of


@asynchronous
async def test_a_producer_lists_all_its_topics_or_the_requested_one() -> None:
    first, second = new_name(), new_name()
    async with make_nsqd() as nsqd, connected(nsqd.tcp_address) as producer:
        for topic, count in (first, 1), (second, 2):
            for _ in range(count):
                await producer.command(f"PUB {topic}\n".encode() + sized(b"x"))
        [all_of_it] = (await stats_of(nsqd.http_address))["producers"]
        assert all_of_it["pub_counts"] == [
            {"topic": first, "count": 1},
            {"topic": second, "count": 2},
        ]
        [part] = (await stats_of(nsqd.http_address, topic=second))["producers"]
        assert part["pub_counts"] == [{"topic": second, "count": 2}]
        _, text = await ask(nsqd.http_address, "GET", "/stats")
        assert f"msgs: 3        topics: {first}=1,{second}=2 connected: " in text.decode()


@asynchronous
async def test_memory_stats_have_values() -> None:
    async with make_nsqd() as nsqd:
        memory = (await stats_of(nsqd.http_address))["memory"]
    assert memory["heap_in_use_bytes"] > 1024 * 1024
    assert memory["heap_objects"] > 10_000
    assert memory["gc_total_runs"] > 0


@pytest.mark.parametrize(
    ("nanoseconds", "text"),
    [
        (0, "0s"),
        (1_000_000_000, "1s"),
        (1_500_000_000, "1.5s"),
        (10_000_000_000, "10s"),
        (60_000_000_000, "1m0s"),
        (3_600_000_000_000, "1h0m0s"),
        (90_061_000_000_001, "25h1m1.000000001s"),
        (-5, "0s"),
    ],
)
def test_uptime_is_written_as_go_writes_it(nanoseconds: int, text: str) -> None:
    stats = {"version": "1", "start_time": 100, "health": "OK", "topics": None, "producers": None}
    lines = stats_text.render(stats, 100 * 10**9 + nanoseconds).splitlines()
    assert lines[2] == f"uptime {text}"
    assert lines[3:] == ["", "Health: OK", "", "Topics: None", "", "Producers: None"]
