"""nsqlookupd of a redesigned cluster over HTTP: lookups in both forms, topics, moving a leader."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.conformance.broker.asking import DONE, PONG, Answer, refused
from tests.conformance.redesigned import recorded
from tests.conformance.redesigned.http_driver import (
    CHANNEL,
    TOPIC,
    Cluster,
    opened,
    refused_in_envelope,
)
from tests.conformance.redesigned.recorded import mask_changing

LEADER, SLAVE = 0, 1
NOT_LEADER = refused(400, "E_FAILED_ON_NOT_LEADER")
NO_NODE = refused(400, "ErrType:9 ErrCode:1 : No node is available for topic")
EMPTY: dict[str, Any] = {"channels": [], "partitions": {}, "producers": []}

both_forms = pytest.mark.parametrize("v1", [True, False], ids=["v1", "envelope"])
both_lookupds = pytest.mark.parametrize("number", [LEADER, SLAVE], ids=["leader", "slave"])


@pytest.fixture
def servers() -> Iterator[Cluster]:
    """Three nodes, and a topic with two partitions on two of them."""
    with Cluster() as cluster:
        cluster.create(partitions=2)
        yield cluster


def content(answer: Answer, v1: bool) -> Any:
    """Return what an answer says, in either form."""
    return answer.json() if v1 else opened(answer)


# The shapes that were recorded


@both_forms
@both_lookupds
@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/info", recorded.LOOKUPD_INFO),
        ("/listlookup", recorded.LIST_LOOKUP),
        (f"/lookup?topic={TOPIC}&access=w&metainfo=true", recorded.LOOKUP),
    ],
    ids=["info", "listlookup", "lookup"],
)
def test_answers_are_those_of_the_real_servers_but_for_ids_and_ports(
    servers: Cluster, number: int, v1: bool, path: str, expected: dict[str, Any]
) -> None:
    answer = content(servers.lookupd(f"GET {path}", number, v1=v1), v1)
    assert mask_changing(answer) == mask_changing(expected)


@both_forms
@both_lookupds
@pytest.mark.parametrize(
    ("path", "expected"),
    [("/topics?metaInfo=true", recorded.TOPICS), ("/nodes", recorded.NODES)],
    ids=["topics", "nodes"],
)
def test_lists_are_those_of_the_real_servers(
    number: int, v1: bool, path: str, expected: dict[str, Any]
) -> None:
    with Cluster(nodes=1) as cluster:
        cluster.create(extend=True)
        answer = content(cluster.lookupd(f"GET {path}", number, v1=v1), v1)
    assert mask_changing(answer) == mask_changing(expected)


@both_forms
def test_the_stats_of_a_cluster_are_those_of_the_real_servers_in_one_form(v1: bool) -> None:
    with Cluster(nodes=1) as cluster:
        answer = cluster.lookupd("GET /cluster/stats", v1=v1).json()
        assert mask_changing(answer) == mask_changing(recorded.CLUSTER_STATS)
        assert cluster.lookupd("GET /cluster/stats", SLAVE, v1=v1) == NOT_LEADER


def test_ping(servers: Cluster) -> None:
    assert servers.lookupd("GET /ping") == PONG


@both_forms
def test_both_nsqlookupd_list_the_same_members_and_each_has_its_own_id(
    servers: Cluster, v1: bool
) -> None:
    lists = [content(servers.lookupd("GET /listlookup", each, v1=v1), v1) for each in (0, 1)]
    assert lists[0] == lists[1]
    members = lists[0]["lookupdnodes"]
    assert lists[0]["lookupdleader"] == members[0]
    ports = [address.split(":")[1] for address in servers.broker.lookupd_addresses]
    assert [each["HttpPort"] for each in members] == ports
    assert len({each["ID"] for each in members}) == 2


# Lookups


def test_ids_differ_between_nsqlookupd_and_names_within_the_cluster_do_not(
    servers: Cluster,
) -> None:
    path = f"GET /lookup?topic={TOPIC}"
    first, second = (servers.lookupd(path, each).json()["partitions"] for each in (0, 1))
    for number in ("0", "1"):
        assert first[number]["id"] == first[number]["remote_address"]
        assert first[number]["id"] != second[number]["id"]
        same = ("broadcast_address", "tcp_port", "http_port", "distributed_id")
        assert [first[number][key] for key in same] == [second[number][key] for key in same]


@pytest.mark.parametrize("access", ["", "&access=r", "&access=w"])
@pytest.mark.parametrize("metainfo", ["", "&metainfo=", "&metainfo=true", "&metainfo=false"])
def test_any_metainfo_asks_for_the_topics_properties(
    servers: Cluster, access: str, metainfo: str
) -> None:
    answer = servers.lookupd(f"GET /lookup?topic={TOPIC}{access}{metainfo}").json()
    expected = {"channels", "partitions", "producers"}
    if metainfo not in ("", "&metainfo="):
        expected.add("meta")
        assert answer["meta"] == recorded.META
    assert answer.keys() == expected


@pytest.mark.parametrize(("partition", "named"), [("", "01"), ("0", "0"), ("1", "1"), ("7", "")])
@pytest.mark.parametrize("access", "rw")
def test_a_lookup_of_one_partition_names_its_leader_alone(
    servers: Cluster, access: str, partition: str, named: str
) -> None:
    path = f"GET /lookup?topic={TOPIC}&access={access}&partition={partition}"
    answer = servers.lookupd(path).json()
    assert sorted(answer["partitions"]) == [*named]
    assert len(answer["producers"]) == len(named)


@pytest.mark.parametrize("options", [{"orderedmulti": True}, {"multipart": True}], ids=str)
def test_producers_are_listed_once_though_they_lead_several_partitions(
    options: dict[str, Any],
) -> None:
    with Cluster() as cluster:
        cluster.create(partitions=4, **options)
        answer = cluster.lookupd(f"GET /lookup?topic={TOPIC}").json()
    assert sorted(answer["partitions"]) == ["0", "1", "2", "3"]
    assert len(answer["producers"]) == 3


QUESTIONS: dict[str, tuple[str, int, str]] = {
    "an unknown topic, for producers": ("/lookup?topic=none&access=w", 404, "Key not found"),
    "an unknown topic with metainfo, for producers": (
        *("/lookup?topic=none&access=w&metainfo=true", 404),
        "Key not found",
    ),
    "another access": (f"/lookup?topic={TOPIC}&access=x", 400, "INVALID_ACCESS_MODE"),
    "a lookup without a topic": ("/lookup", 400, "MISSING_ARG_TOPIC"),
    "a lookup of an empty topic": ("/lookup?topic=", 400, "MISSING_ARG_TOPIC"),
    "a lookup with a bad query": ("/lookup?topic=%zz", 400, "INVALID_REQUEST"),
    "channels without a topic": ("/channels", 400, "MISSING_ARG_TOPIC"),
}


@both_lookupds
@pytest.mark.parametrize("question", QUESTIONS.values(), ids=QUESTIONS)
def test_a_refusal_has_an_honest_status_in_one_form_and_500_in_the_other(
    servers: Cluster, number: int, question: tuple[str, int, str]
) -> None:
    path, status, text = question
    assert servers.lookupd(f"GET {path}", number) == refused(status, text)
    assert servers.lookupd(f"GET {path}", number, v1=False) == refused_in_envelope(text)


@both_forms
@pytest.mark.parametrize("access", ["", "&access=r"])
def test_an_unknown_topic_is_empty_for_consumers(servers: Cluster, access: str, v1: bool) -> None:
    path = f"GET /lookup?topic=none{access}"
    assert content(servers.lookupd(path, v1=v1), v1) == EMPTY
    answer = content(servers.lookupd(f"{path}&metainfo=true", v1=v1), v1)
    assert answer.pop("meta") == recorded.META | {"partition_num": 0, "replica": 0}
    assert answer == EMPTY


# Lists


def test_topics_have_their_properties_if_metainfo_has_a_capital() -> None:
    with Cluster() as cluster:
        cluster.create("ordered", orderedmulti=True)
        cluster.create("registered", disable_channel_auto_create=True, multipart=True)
        for number in (LEADER, SLAVE):
            answer = cluster.lookupd("GET /topics?metaInfo=true", number).json()
            assert sorted(answer["topics"]) == ["ordered", "registered"]
            found = {each["topic_name"]: each for each in answer["meta_info"]}
            assert [name for name, value in found["ordered"].items() if value is True] == [
                "ordered"
            ]
            assert [name for name, value in found["registered"].items() if value is True] == [
                "multi_part",
                "disable_channel_auto_create",
            ]
            for query in ("", "?metainfo=true", "?metaInfo=1"):
                answer = cluster.lookupd(f"GET /topics{query}", number).json()
                assert [*answer] == ["topics"]


def test_nodes_name_the_partitions_that_each_leads(servers: Cluster) -> None:
    servers.create("others", partitions=4, replicas=2, multipart=True)
    led: dict[str, list[str]] = {TOPIC: [], "others": []}
    for node in servers.lookupd("GET /nodes", SLAVE).json()["producers"]:
        assert node["topics"] == [*node["partitions"]]
        assert node["tombstones"] == [False] * len(node["topics"])
        for topic, numbers in node["partitions"].items():
            led[topic] += numbers
    assert {topic: sorted(numbers) for topic, numbers in led.items()} == {
        TOPIC: ["0", "1"],
        "others": ["0", "1", "2", "3"],
    }


def test_a_cluster_is_unstable_while_a_node_is_missing(servers: Cluster) -> None:
    servers.broker.kill_node(2)
    answer = servers.lookupd("GET /cluster/stats").json()
    assert (answer["stable"], len(answer["node_stat_list"])) == (False, 2)


# Topics

CREATE = "/topic/create?topic=new"

CREATIONS: dict[str, tuple[str, Answer]] = {
    "all options": (
        f"POST {CREATE}&partition_num=1&replicator=3&extend=true&retention=2&syncdisk=10"
        "&suggestload=1",
        DONE,
    ),
    "PUT": (f"PUT {CREATE}&partition_num=1&replicator=1", DONE),
    "no topic": ("POST /topic/create", refused(400, "MISSING_ARG_TOPIC")),
    "a bad topic": (
        "POST /topic/create?topic=a$b&partition_num=1&replicator=1",
        refused(400, "INVALID_ARG_TOPIC"),
    ),
    "no partitions": (
        f"POST {CREATE}&replicator=1",
        refused(400, "MISSING_ARG_TOPIC_PARTITION_NUM"),
    ),
    "no replicas": (
        f"POST {CREATE}&partition_num=1",
        refused(400, "MISSING_ARG_TOPIC_REPLICATOR"),
    ),
    **{
        f"{number} partitions": (
            f"POST {CREATE}&partition_num={number}&replicator=1",
            refused(400, "INVALID_ARG_TOPIC_PARTITION_NUM"),
        )
        for number in ("0", "256", "-1", "x")
    },
    **{
        f"{number} replicas": (
            f"POST {CREATE}&partition_num=1&replicator={number}",
            refused(400, "INVALID_ARG_TOPIC_REPLICATOR"),
        )
        for number in ("0", "6", "-1", "x")
    },
    "255 partitions of an ordered topic": (
        f"POST {CREATE}&partition_num=255&replicator=1&orderedmulti=true",
        DONE,
    ),
    "more replicas than nodes": (f"POST {CREATE}&partition_num=1&replicator=4", NO_NODE),
    "more partitions and replicas than nodes": (
        f"POST {CREATE}&partition_num=2&replicator=2",
        NO_NODE,
    ),
    "GET": (
        f"GET {CREATE}&partition_num=1&replicator=1",
        refused(405, "METHOD_NOT_ALLOWED", allow="OPTIONS, POST, PUT"),
    ),
}


@both_forms
@pytest.mark.parametrize("creation", CREATIONS.values(), ids=CREATIONS)
def test_topics_are_created_or_refused_in_one_form(
    servers: Cluster, creation: tuple[str, Answer], v1: bool
) -> None:
    request, answer = creation
    assert servers.lookupd(request, v1=v1) == answer
    known = servers.lookupd("GET /topics").json()["topics"]
    assert ("new" in known) is (answer == DONE)


@pytest.mark.parametrize("options", [{}, {"orderedmulti": True}, {"extend": True}], ids=str)
def test_creating_a_topic_again_is_no_error(options: dict[str, Any]) -> None:
    with Cluster() as cluster:
        for _ in range(2):
            cluster.create(**options)


CHANGES: dict[str, tuple[str, int, str]] = {
    "create a topic": (f"{CREATE}&partition_num=1&replicator=1", 400, "E_FAILED_ON_NOT_LEADER"),
    "delete a topic": (f"/topic/delete?topic={TOPIC}&partition=**", 500, "Not nsqlookup leader"),
    "move a leader": (
        f"/topic/partition/move?topic={TOPIC}&partition=0&move_leader=true",
        400,
        "Not nsqlookup leader",
    ),
}


@both_forms
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_only_the_leading_nsqlookupd_changes_anything(
    servers: Cluster, change: tuple[str, int, str], v1: bool
) -> None:
    path, status, text = change
    assert servers.lookupd(f"POST {path}", SLAVE, v1=v1) == refused(status, text)


@pytest.mark.parametrize(
    ("query", "answer"),
    [
        ("topic=none&partition=**", refused(500, "Key not found")),
        (f"topic={TOPIC}&partition=0", refused(400, "REMOVE_SINGLE_PARTITION_NOT_ALLOWED")),
        (f"topic={TOPIC}", refused(400, "MISSING_ARG_TOPIC_PARTITION")),
        ("partition=**", refused(400, "MISSING_ARG_TOPIC")),
    ],
)
def test_a_topic_is_not_deleted(servers: Cluster, query: str, answer: Answer) -> None:
    assert servers.lookupd(f"POST /topic/delete?{query}") == answer
    assert servers.leaders().keys() == {"0", "1"}


def test_a_deleted_topic_is_gone_from_both_at_once_and_begins_again_at_the_first_id(
    servers: Cluster,
) -> None:
    servers.create_channel()
    traced = f"POST /pubtrace?topic={TOPIC}&partition=0&trace_id=1"
    first = servers.nsqd(traced, b"x").json()
    assert (first["id"], first["queue_offset"]) == (2, 0)
    delete = f"POST /topic/delete?topic={TOPIC}&partition=**"
    assert servers.lookupd(delete) == DONE
    for number in (LEADER, SLAVE):
        lookup = f"GET /lookup?topic={TOPIC}"
        assert servers.lookupd(f"{lookup}&access=w", number) == refused(404, "Key not found")
        assert servers.lookupd(lookup, number).json() == EMPTY
        assert servers.lookupd("GET /topics", number).json() == {"topics": []}
    assert servers.lookupd(delete) == refused(500, "Key not found")
    servers.create(partitions=2)
    assert servers.nsqd(traced, b"y").json() == first
    assert CHANNEL not in servers.lookupd(f"GET /channels?topic={TOPIC}").json()["channels"]


# Moving a leader


def move(cluster: Cluster, move_from: str, move_to: str, partition: str = "0") -> Answer:
    query = f"topic={TOPIC}&partition={partition}&move_leader=true"
    return cluster.lookupd(
        f"POST /topic/partition/move?{query}&move_from={move_from}&move_to={move_to}"
    )


def test_a_leader_is_moved_by_the_names_that_lookups_and_coordinators_have() -> None:
    with Cluster() as cluster:
        cluster.create(replicas=3)
        [stats] = cluster.nsqd(f"GET /coordinator/stats?topic={TOPIC}").json()["topic_coord_stats"]
        names = [each["node_id"] for each in stats["isr_stats"]]
        named = cluster.lookupd(f"GET /lookup?topic={TOPIC}").json()["partitions"]["0"]
        assert names[0] == named["distributed_id"] == cluster.distributed_id(0)
        assert move(cluster, *names[:2]) == DONE
        assert cluster.leaders() == cluster.leaders("w", SLAVE) == {"0": 1}


def test_a_move_is_refused_while_the_cluster_is_unstable_or_its_names_are_wrong() -> None:
    with Cluster() as cluster:
        cluster.create(replicas=2)
        names = [cluster.distributed_id(each) for each in range(3)]
        for wrong in ((names[1], names[0]), (names[0], "nowhere")):
            assert move(cluster, *wrong).status == 400
        assert move(cluster, names[0], names[1], partition="7").status == 400
        cluster.broker.kill_node(2)
        assert move(cluster, *names[:2]) == refused(400, "the cluster is unstable")
        assert cluster.leaders() == {"0": 0}
