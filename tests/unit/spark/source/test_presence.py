"""Which of two queries on a channel is the older one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from nsqflow.spark.source.offsets import make_key
from nsqflow.spark.source.presence import (
    ConnectedClient,
    client_id,
    find_rivals,
    in_use,
    parse_clients,
)

KEY = make_key("orders", "127.0.0.1:4150")
OTHER = make_key("orders", "127.0.0.1:4152")


def client(generation: str, since: int, key: str = KEY) -> ConnectedClient:
    return ConnectedClient(key, client_id(generation), "127.0.0.1:1", since)


def rivals(*clients: ConnectedClient) -> tuple[list[str], list[str]]:
    older, tied = find_rivals(clients, "mine")
    return [each.generation for each in older], [each.generation for each in tied]


def test_a_query_that_connected_first_is_a_rival() -> None:
    assert rivals(client("mine", 5), client("other", 4)) == (["other"], [])
    assert rivals(client("mine", 5), client("other", 6)) == ([], [])


def test_a_query_that_connected_in_the_same_second_is_one_too() -> None:
    assert rivals(client("mine", 5), client("other", 5)) == ([], ["other"])


def test_connections_of_the_same_query_count_from_the_first() -> None:
    assert rivals(client("mine", 9), client("mine", 2), client("other", 4)) == ([], [])
    assert rivals(client("mine", 3), client("other", 8), client("other", 2)) == (["other"], [])


def test_to_a_query_that_is_not_connected_all_others_are_rivals() -> None:
    assert rivals(client("mine", 1), client("other", 5, OTHER)) == (["other"], [])
    assert rivals(client("other", 5)) == (["other"], [])


def test_other_consumers_are_not_queries() -> None:
    rows: dict[str, list[dict[str, Any]]] = {
        KEY: [
            {"client_id": "web-1", "remote_address": "10.0.0.1:5", "connect_ts": 1},
            {"client_id": client_id("other"), "remote_address": "10.0.0.2:5", "connect_ts": 2},
            {},
        ]
    }
    consumer, query, unknown = parse_clients(rows)
    assert (consumer.is_query, query.is_query, unknown.is_query) == (False, True, False)
    assert query.generation == "other"
    assert rivals(consumer, unknown) == ([], [])


@given(st.dictionaries(st.sampled_from("abcd"), st.integers(0, 3), min_size=2))
def test_of_queries_that_see_each_other_one_goes_on_when_the_others_have_yielded(
    connected: dict[str, int],
) -> None:
    def clients(names: Iterable[str]) -> list[ConnectedClient]:
        return [client(name, connected[name]) for name in names]

    first = min(connected.values())
    # Those that connected later wait in vain for the older ones, and fail.
    left = [name for name, since in connected.items() if since == first]
    yielding = [name for name in left if find_rivals(clients(left), name).yields(name)]
    assert sorted(left)[1:] == sorted(yielding)
    for name in connected:
        older, _ = find_rivals(clients(connected), name)
        assert bool(older) == (connected[name] > first)
        assert (name in left) or not find_rivals(clients([name, *left]), name).tied


def test_the_error_names_channel_query_and_what_to_do() -> None:
    said = str(in_use(client("abc", 1), "spark"))
    for part in (
        "channel 'spark' of topic 'orders' on 127.0.0.1:4150",
        "127.0.0.1:1",
        "abc",
        "a channel and a spoolLocation of its own",
        "foreachBatch and persist()",
        "allowSharedChannel=true",
    ):
        assert part in said
