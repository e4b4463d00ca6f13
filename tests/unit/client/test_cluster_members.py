"""nsqlookupd of the redesigned NSQ: the members of their cluster, and the leaders they name."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from nsqflow.address import HttpAddress
from nsqflow.client.config import ClientConfig
from nsqflow.client.discovery import Discovery
from nsqflow.client.lookup_poller import LookupPoller
from nsqflow.client.lookup_schedule import LookupSchedule
from nsqflow.errors import DiscoveryError
from nsqflow.http.client import HttpClient, HttpResponse
from nsqflow.protocol import Dialect, LookupAnswer, LookupdNode, Node, TopicMeta
from tests.fixtures.loops import asynchronous
from tests.fixtures.servers import PATIENCE

A, B, C = "10.0.0.1:4161", "10.0.0.2:4161", "10.0.0.3:4161"


def node(number: int) -> Node:
    return Node(broadcast_address=f"10.1.0.{number}", tcp_port=4150)


def leads(*numbers: int, partitions: int | None = None) -> LookupAnswer:
    """Return an answer in which partition 0, 1 ... is led by the nodes of these numbers."""
    leaders = dict(enumerate(map(node, numbers)))
    meta = TopicMeta(partition_num=len(numbers) if partitions is None else partitions)
    return LookupAnswer(producers=tuple(leaders.values()), partitions=leaders, meta=meta)


def members(*addresses: str, leader: str = A) -> list[LookupdNode]:
    return [LookupdNode(address=each, leader=each == leader) for each in addresses]


def leaders_of(machine: Discovery) -> dict[int, str]:
    return {number: each.address for number, each in machine.answer().partitions.items()}


# --- members of the cluster


@pytest.mark.proves(rows=[61])
def test_listed_members_are_queried_in_the_same_round_and_later_ones() -> None:
    machine = Discovery([A])
    assert machine.begin_round(early=False).asked == (A,)
    assert machine.listed(members(A, B)) == (B,)
    machine.succeeded(A, leads(1))
    assert not machine.settled, "the round waits for the new member"
    machine.succeeded(B, leads(1))
    assert machine.settled
    assert machine.begin_round(early=False).asked == (A, B)


def test_members_that_are_no_longer_listed_are_forgotten_but_configured_ones_stay() -> None:
    machine = Discovery([A])
    machine.begin_round(early=False)
    machine.listed(members(B, C))
    for each in (A, B, C):
        machine.succeeded(each, leads(1))
    machine.begin_round(early=False)
    machine.listed(members(B))
    for each in (A, B, C):
        machine.succeeded(each, leads(1))
    assert machine.begin_round(early=False).asked == (A, B)


def test_without_a_list_the_members_known_before_are_kept() -> None:
    machine = Discovery([A])
    machine.begin_round(early=False)
    machine.listed(members(A, B))
    for each in (A, B):
        machine.succeeded(each, leads(1))
    machine.begin_round(early=False)
    for each in (A, B):
        machine.failed(each, DiscoveryError("down"))
    assert machine.begin_round(early=False).asked == (A, B)


def test_a_list_without_end_is_cut() -> None:
    machine = Discovery([A])
    machine.begin_round(early=False)
    many = [LookupdNode(address=f"10.9.{i // 250}.{i % 250}:4161") for i in range(10_000)]
    assert len(machine.listed(many)) == 63


# --- conflicting answers


@pytest.mark.proves(rows=[62])
def test_answers_are_merged_by_partition() -> None:
    machine = Discovery([A, B])
    machine.begin_round(early=False)
    machine.succeeded(A, leads(1, partitions=2))
    machine.succeeded(B, LookupAnswer(partitions={1: node(2)}, meta=TopicMeta(partition_num=2)))
    assert leaders_of(machine) == {0: "10.1.0.1:4150", 1: "10.1.0.2:4150"}
    assert machine.unsettled, "they disagree"


@pytest.mark.parametrize("leading", [A, B])
def test_while_answers_conflict_the_leading_nsqlookupd_counts(leading: str) -> None:
    machine = Discovery([A, B])
    machine.begin_round(early=False)
    machine.listed(members(A, B, leader=leading))
    machine.succeeded(A, leads(1))
    machine.succeeded(B, leads(2))
    assert leaders_of(machine) == {0: "10.1.0.1:4150" if leading == A else "10.1.0.2:4150"}
    assert machine.unsettled


def test_a_leading_nsqlookupd_that_names_none_counts_too() -> None:
    # A new topic: the others name a node that refuses publishes for up to two minutes.
    machine = Discovery([A, B])
    machine.begin_round(early=False)
    machine.listed(members(A, B))
    machine.succeeded(A, LookupAnswer(meta=TopicMeta(partition_num=1)))
    machine.succeeded(B, leads(1))
    assert leaders_of(machine) == {}
    assert machine.unsettled


def test_a_leading_nsqlookupd_that_does_not_answer_does_not_count() -> None:
    machine = Discovery([A, B])
    machine.begin_round(early=False)
    machine.listed(members(A, B))
    machine.failed(A, DiscoveryError("down"))
    machine.succeeded(B, leads(1))
    assert leaders_of(machine) == {0: "10.1.0.1:4150"}
    assert not machine.unsettled


@pytest.mark.parametrize(
    ("answer", "unsettled"),
    [(leads(1, 2), False), (leads(1, partitions=2), True), (leads(partitions=2), True)],
)
def test_an_answer_is_unsettled_until_every_partition_has_a_leader(
    answer: LookupAnswer, unsettled: bool
) -> None:
    machine = Discovery([A])
    machine.begin_round(early=False)
    machine.listed(members(A))
    machine.succeeded(A, answer)
    assert machine.unsettled is unsettled


# --- the dialect


@pytest.mark.proves(rows=[65])
def test_a_topic_with_producers_and_no_partitions_is_classic() -> None:
    machine = Discovery([A])
    machine.begin_round(early=False)
    machine.succeeded(A, LookupAnswer(producers=(node(1),)))
    assert machine.dialect is Dialect.CLASSIC
    assert not machine.unsettled


def test_an_empty_answer_decides_nothing() -> None:
    machine = Discovery([A])
    machine.begin_round(early=False)
    machine.succeeded(A, LookupAnswer())
    assert machine.dialect is None
    assert not machine.unsettled, "a classic topic that does not exist yet"
    machine.listed(members(A))
    assert machine.unsettled, "after a crash in a cluster"


def test_an_answer_with_metadata_is_that_of_a_cluster() -> None:
    machine = Discovery([A])
    machine.begin_round(early=False)
    machine.succeeded(A, leads(partitions=1))
    assert machine.dialect is None
    assert machine.has_leaders
    assert machine.unsettled, "after a crash, or a new topic"


def test_a_redesigned_topic_never_becomes_classic() -> None:
    machine = Discovery([A])
    for answer in (leads(1), LookupAnswer(), LookupAnswer(producers=(node(1),))):
        machine.begin_round(early=False)
        machine.succeeded(A, answer)
        assert machine.dialect is Dialect.REDESIGNED


def test_a_topic_refused_for_want_of_a_channel_is_redesigned() -> None:
    assert LookupAnswer(lacks_channel=True).dialect is Dialect.REDESIGNED


# --- when to ask again


def ended(schedule: LookupSchedule, now: float, *, unsettled: bool) -> float:
    """Hold a round whose answer is unsettled or not; return when the next one is due."""
    schedule.begin()
    schedule.settle(unsettled, now, 0.0)
    schedule.end(now, 0.0)
    return schedule.round_at


@pytest.mark.proves(rows=[63])
def test_unsettled_leaders_are_asked_for_every_half_second_then_less_often() -> None:
    schedule, now, times = LookupSchedule(60, 0.3), 0.0, []
    for _ in range(135):
        now = ended(schedule, now, unsettled=True)
        times.append(now)
    gaps = [after - before for before, after in pairwise(times)]
    assert set(gaps[:118]) == {0.5}
    assert gaps[-6:] == [60, 60, 60, 60, 60, 60]
    assert gaps == sorted(gaps)


def test_settled_leaders_are_asked_for_at_the_interval() -> None:
    schedule = LookupSchedule(60, 0.0)
    now = ended(schedule, 0.0, unsettled=True)
    assert ended(schedule, now, unsettled=False) == now + 60
    schedule.lost("10.1.0.1:4150/0", now + 1, 0.0, worked=True)
    assert schedule.round_at == now + 1, "a lost leader is asked for at once"


def test_leaders_that_become_unsettled_again_are_asked_for_soon() -> None:
    schedule, now = LookupSchedule(60, 0.0), 0.0
    for _ in range(140):
        now = ended(schedule, now, unsettled=True)
    now = ended(schedule, now, unsettled=False)
    assert ended(schedule, now, unsettled=True) <= now + 0.5


# --- the poller


class FakeHttp(HttpClient):
    """Answers ``/listlookup`` from a table; the rest fails."""

    def __init__(self, lists: dict[str, bytes | None]) -> None:
        super().__init__(timeout=PATIENCE)
        self.lists = lists
        self.listed: list[str] = []

    async def get(  # type: ignore[override]
        self, address: HttpAddress, path: str, query: object = None
    ) -> HttpResponse:
        self.listed.append(str(address))
        body = self.lists.get(str(address))
        return HttpResponse(404, b"{}") if body is None else HttpResponse(200, body)


def member_list(*addresses: str) -> bytes:
    hosts = [address.partition(":") for address in addresses]
    nodes = ",".join(f'{{"NodeIP":"{host}","HttpPort":"{port}"}}' for host, _, port in hosts)
    return f'{{"lookupdleader":{{}},"lookupdnodes":[{nodes}]}}'.encode()


class Polling:
    """A poller with answers from a table."""

    def __init__(self, http: FakeHttp, answers: dict[str, LookupAnswer], **options: object) -> None:
        self.asked: list[str] = []
        self.reported: asyncio.Queue[LookupAnswer] = asyncio.Queue()
        self._answers = answers

        async def query(http: HttpClient, address: HttpAddress) -> LookupAnswer:
            self.asked.append(str(address))
            return answers[str(address)]

        self.poller = LookupPoller(
            ClientConfig(lookupd=(A,), lookupd_poll_jitter=0, lookupd_poll_timeout=PATIENCE),
            query,
            http,
            on_answer=self.reported.put_nowait,
            on_failure=lambda address, error: None,
            **options,  # type: ignore[arg-type]
        )

    async def __aenter__(self) -> Polling:
        self._task = asyncio.create_task(self.poller.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])

    async def until(self, *leaders: int) -> None:
        """Wait for an answer that names these leaders."""
        async with asyncio.timeout(PATIENCE):
            while (await self.reported.get()).partitions != leads(*leaders).partitions:
                pass


@pytest.mark.proves(rows=[61, 62])
@asynchronous
async def test_a_poller_asks_every_member_and_merges_their_answers() -> None:
    http = FakeHttp({A: member_list(A, B), B: member_list(A, B)})
    both = LookupAnswer(partitions={1: node(2)}, meta=TopicMeta(partition_num=2))
    async with Polling(http, {A: leads(1, partitions=2), B: both}) as polling:
        await polling.until(1, 2)
        assert {*polling.asked} == {A, B}


@asynchronous
async def test_members_outside_the_allowed_addresses_are_not_asked() -> None:
    http = FakeHttp({A: member_list(A, B, "not a host:4161")})
    answers = {A: leads(1)}
    async with Polling(http, answers, allow=lambda address: address != B) as polling:
        await polling.until(1)
    assert {*polling.asked} == {A}


@asynchronous
async def test_a_classic_nsqlookupd_is_asked_for_its_cluster_once() -> None:
    http = FakeHttp({})
    classic = LookupAnswer(producers=(node(1),))
    async with Polling(http, {A: classic}) as polling:
        async with asyncio.timeout(PATIENCE):
            await polling.reported.get()
            polling.poller.lost("10.1.0.1:4150", worked=True)
            await polling.reported.get()
    assert http.listed == [A]
    assert polling.poller.dialect is Dialect.CLASSIC
