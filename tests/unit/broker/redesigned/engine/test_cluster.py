"""Topics of a cluster: where their partitions are, what is refused, memory."""

from __future__ import annotations

import pytest

from nsqflow.broker.redesigned.engine.cluster import ClusterRefusal
from nsqflow.broker.redesigned.engine.leadership import ClusterTimes
from nsqflow.broker.redesigned.engine.partition import Publication, Refused
from nsqflow.protocol import TopicMeta
from tests.unit.broker.redesigned.engine.cluster_parts import Lab
from tests.unit.broker.redesigned.engine.parts import SECOND


def placed(lab: Lab, name: str) -> list[list[int]]:
    return [each.replicas for each in lab.cluster.topics[name].partitions]


def test_the_partitions_of_a_topic_are_on_different_nodes() -> None:
    lab = Lab(nodes=4)
    lab.create("t", partition_num=2, replica=2)
    assert placed(lab, "t") == [[0, 1], [2, 3]]


def test_the_node_that_leads_least_is_the_next_leader() -> None:
    lab = Lab(nodes=3)
    leaders = [lab.create(name).leader for name in "abcd"]
    assert leaders == [0, 1, 2, 0]


def test_an_ordered_topic_may_have_more_partitions_than_there_are_nodes() -> None:
    lab = Lab(nodes=2)
    lab.create("o", partition_num=3, replica=2, ordered=True)
    assert placed(lab, "o") == [[0, 1], [1, 0], [0, 1]]
    lab.create("m", partition_num=3, multi_part=True)
    assert len(placed(lab, "m")) == 3


@pytest.mark.parametrize(
    "meta", [{"partition_num": 4}, {"partition_num": 2, "replica": 2}, {"replica": 4}]
)
def test_a_topic_needs_nodes(meta: dict[str, int]) -> None:
    lab = Lab(nodes=3)
    with pytest.raises(ClusterRefusal, match="ErrType:9 ErrCode:1 : No node is available"):
        lab.create("t", **meta)
    assert lab.cluster.topics == {}


def test_a_topic_is_created_once() -> None:
    lab = Lab()
    assert lab.create("t") is lab.create("t")
    with pytest.raises(ClusterRefusal, match="already exist"):
        lab.create("t", replica=2)


def test_a_deleted_topic_closes_its_consumers_and_frees_its_memory() -> None:
    lab = Lab()
    partition = lab.create(replica=2)
    consumer = lab.subscribe(partition)
    lab.publish(partition, b"x" * 100)
    lab.leadership.kill_node(1, lab.now)
    assert lab.publish(partition) == "waits"
    lab.cluster.delete_topic("t", lab.now)
    assert lab.results == ["E_FAILED_ON_NOT_LEADER"]
    assert lab.observer.gone == [consumer]
    assert lab.cluster.memory.used == 0
    with pytest.raises(ClusterRefusal, match="Key not found"):
        lab.cluster.delete_topic("t", lab.now)
    assert lab.create("t").log.end == 0


def test_nothing_is_delivered_of_a_deleted_channel() -> None:
    lab = Lab()
    partition = lab.create()
    consumer = lab.subscribe(partition)
    lab.publish(partition)
    lab.cluster.delete_channel(partition, "c")
    assert lab.observer.gone == [consumer]
    assert lab.attempts(partition) == []
    lab.cluster.delete_channel(partition, "c")  # it need not exist
    assert partition.channels == {}


def test_registered_channels_are_in_every_partition() -> None:
    lab = Lab()
    lab.create(partition_num=2, disable_channel_auto_create=True)
    topic = lab.cluster.topics["t"]
    lab.cluster.register_channel(topic, "c")
    assert [[*each.channels] for each in topic.partitions] == [["c"], ["c"]]
    assert (topic.channels, topic.registered_channels) == (["c"], ["c"])
    lab.cluster.unregister_channel(topic, "c")
    assert (topic.channels, topic.registered_channels) == ([], [])


def test_a_partition_is_found_where_it_has_a_copy() -> None:
    lab = Lab(nodes=3)
    lab.create("t", partition_num=1, replica=2)
    find = lab.cluster.find
    assert find(0, "t", 0) is find(1, "t", 0) is find(0, "t", None)
    for node, topic, number in ((2, "t", 0), (1, "t", None), (0, "t", 1), (0, "u", 0)):
        with pytest.raises(Refused) as refused:
            find(node, topic, number)
        assert refused.value.code == "E_TOPIC_NOT_EXIST"


def test_the_default_partition_is_the_first_that_a_node_leads() -> None:
    lab = Lab(nodes=2)
    lab.create("t", partition_num=4, ordered=True)
    assert [lab.cluster.find(node, "t", None).number for node in (0, 1)] == [0, 1]


def test_a_new_topic_may_take_its_time() -> None:
    lab = Lab(times=ClusterTimes(new_topic_delay=90 * SECOND))
    partition = lab.create()
    topic = lab.cluster.topics["t"]
    assert (topic.ready, partition.leader, partition.writable) == (False, 0, False)
    assert lab.publish(partition) == "E_FAILED_ON_NOT_LEADER"
    lab.wait(90)
    assert (topic.ready, partition.writable) == (True, True)
    assert lab.publish(partition) == "OK"


def test_a_topic_that_is_deleted_before_it_is_ready_stays_so() -> None:
    lab = Lab(times=ClusterTimes(new_topic_delay=90 * SECOND))
    lab.create()
    lab.cluster.delete_topic("t", lab.now)
    again = lab.create(replica=2)
    lab.wait(89)
    lab.wait(1)
    assert again.writable


def test_only_leaders_serve_consumers() -> None:
    lab = Lab()
    partition = lab.create(replica=2)
    lab.cluster.check_leader(0, partition)
    with pytest.raises(Refused) as refused:
        lab.cluster.check_leader(1, partition)
    assert (refused.value.code, refused.value.text) == ("E_FAILED_ON_NOT_LEADER", "")


def test_finished_messages_make_space_for_new_ones() -> None:
    lab = Lab(max_memory=40_000)
    partition = lab.create()
    consumer = lab.subscribe(partition)
    for _ in range(100):
        assert lab.publish(partition, b"x" * 1000) == "OK"
        lab.attempts(partition)
        lab.finish(partition, consumer)
    assert partition.log.first > 0
    assert lab.cluster.memory.used == partition.log.memory < 40_000


@pytest.mark.parametrize(("batch", "code"), [(False, "E_PUB_FAILED"), (True, "E_MPUB_FAILED")])
def test_a_publish_beyond_the_memory_is_refused(batch: bool, code: str) -> None:
    lab = Lab(max_memory=40_000)
    partition = lab.create()
    lab.subscribe(partition, rdy=0)
    for _ in range(30):
        lab.publish(partition, b"x" * 1000)
    end = partition.log.end
    assert lab.publish(partition, b"x" * 20_000, batch=batch) == code
    assert (partition.log.end, partition.log.first) == (end, 0)


def test_the_memory_stays_bounded_however_much_is_published() -> None:
    lab = Lab(max_memory=40_000)
    partition = lab.create()
    consumer = lab.subscribe(partition, rdy=0)
    results = {lab.publish(partition, b"x" * 1000) for _ in range(200)}
    results.add(lab.publish(partition, *(b"x",) * 20_000, batch=True))
    assert results == {"OK", "E_PUB_FAILED", "E_MPUB_FAILED"}
    assert lab.cluster.memory.used <= 40_000
    consumer.rdy = 1
    lab.attempts(partition)
    lab.finish(partition, consumer)
    assert lab.publish(partition, b"x" * 1000) == "OK", "there is space for one more"


def test_a_topic_without_channels_keeps_what_fits() -> None:
    lab = Lab(max_memory=40_000)
    partition = lab.create()
    for _ in range(100):
        assert lab.publish(partition, b"x" * 1000) == "OK"
    assert 0 < partition.log.first < partition.log.end


def test_timers_and_work_can_be_asked_for() -> None:
    lab = Lab()
    partition = lab.create()
    assert lab.cluster.next_at is None
    assert not lab.cluster.has_work
    lab.subscribe(partition)
    lab.publish(partition)
    assert lab.cluster.has_work
    lab.attempts(partition)
    assert lab.cluster.next_at == lab.now + 60 * SECOND


def test_a_partition_has_a_name_and_a_publication_needs_no_callback() -> None:
    lab = Lab()
    partition = lab.create(replica=2)
    assert repr(partition) == "Partition('t', 0)"
    lab.leadership.kill_node(1, lab.now)
    assert lab.cluster.publish(0, partition, Publication([b"x"]), lab.now) is None
    lab.wait(12)
    assert partition.log.end == 0


def test_an_extended_topic_has_extended_logs() -> None:
    lab = Lab()
    lab.create("t", extend_support=True)
    assert lab.cluster.topics["t"].meta == TopicMeta(
        partition_num=1, replica=1, extend_support=True
    )
    assert lab.cluster.topics["t"].partitions[0].log.extended
