"""One query on a spool and on a channel, as their planners and readers see it on real nsqd."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from time import monotonic
from uuid import uuid4

import pytest

from nsqflow.errors import ConfigError, DataLossError, SourceInUseError
from nsqflow.spark.options import parse_batch, parse_stream
from nsqflow.spark.source.batch_reader import NsqBatchReader
from nsqflow.spark.source.offsets import Offset
from nsqflow.spark.source.planner import BatchPlanner
from nsqflow.spark.spool.layout import generation_marker, refusal_name
from nsqflow.spark.spool.lease import LeaseRecord
from nsqflow.spark.spool.slot_format import SlotFooter
from nsqflow.spark.spool.slots import Slots
from tests.fixtures.crashing import until
from tests.fixtures.servers import Nsqd, start_nsqd, start_nsqlookupd
from tests.spark.queries import Rival, channel_stats, post, waiting
from tests.unit.spark.spool_rows import rows_of

Options = Callable[..., dict[str, str]]


@pytest.fixture
def topic() -> str:
    return f"t{uuid4().hex[:16]}"


@pytest.fixture
def options(tmp_path: Path, nsqd: Nsqd, topic: str) -> Options:
    """The options of a query, with a spool by its name."""

    def options(spool: str = "spool", **more: str) -> dict[str, str]:
        given = {
            "topic": topic,
            "channel": "spark",
            "nsqd": nsqd.tcp_address,
            "nsqdHttp": nsqd.http_address,
            "spoolLocation": str(tmp_path / spool),
        }
        return given | more

    return options


@contextmanager
def planner(options: dict[str, str]) -> Iterator[BatchPlanner]:
    with closing(BatchPlanner(parse_stream(options))) as found:
        yield found


def clients(nsqd: Nsqd, topic: str) -> list[str]:
    return [str(client["client_id"]) for client in channel_stats(nsqd, topic).clients]


# --- on a channel -------------------------------------------------------------------------------


def test_a_query_shows_its_generation_among_the_clients_until_it_ends(
    options: Options, nsqd: Nsqd, topic: str
) -> None:
    with planner(options()) as query:
        generation = query.next(Offset(), 10).generation
        assert clients(nsqd, topic) == [f"nsqflow-spark:{generation}"]
    until(lambda: not clients(nsqd, topic))


def test_it_receives_nothing_there(options: Options, nsqd: Nsqd, topic: str) -> None:
    with planner(options()) as query:
        query.next(Offset(), 10)
        waiting(nsqd, topic, 5)
        assert channel_stats(nsqd, topic).in_flight_count == 0


def test_a_second_query_leaves_the_first_alone(options: Options) -> None:
    with planner(options()) as first, planner(options("other")) as second:
        start = first.next(Offset(), 10)
        for _ in range(2):  # Spark may ask again
            with pytest.raises(SourceInUseError, match="is read by another query"):
                second.next(Offset(), 10)
        assert first.next(start, 10) is start


def test_a_query_on_another_channel_or_topic_is_no_rival(
    options: Options, nsqd: Nsqd, topic: str
) -> None:
    with (
        planner(options()) as first,
        planner(options("other", channel="second")) as second,
        planner(options("third", topic=f"{topic}-2")) as third,
    ):
        for query in (first, second, third):
            assert query.next(Offset(), 10).generation


def test_a_query_whose_nsqd_was_restarted_shows_itself_again(
    options: Options, topic: str, tmp_path: Path
) -> None:
    (tmp_path / "data").mkdir()
    with start_nsqd(tmp_path / "data") as server:
        given = options(nsqd=server.tcp_address, nsqdHttp=server.http_address)
        query = BatchPlanner(parse_stream(given))
        first = query.next(Offset(), 1)
    same = [f"-tcp-address={server.tcp_address}", f"-http-address={server.http_address}"]
    with closing(query), start_nsqd(tmp_path / "data", options=same) as server:

        def shown() -> bool:
            query.next(first, 1)
            return clients(server, topic) == [f"nsqflow-spark:{first.generation}"]

        until(shown)


def test_a_topic_that_was_deleted_is_not_created_again_by_showing_the_query(
    options: Options, topic: str, tmp_path: Path
) -> None:
    (tmp_path / "data").mkdir()
    with start_nsqlookupd() as lookupd, start_nsqd(tmp_path / "data", lookupd=[lookupd]) as server:
        waiting(server, topic, 1)
        given = options(lookupd=lookupd.http_address, failOnDataLoss="false")
        del given["nsqd"], given["nsqdHttp"]
        with planner(given) as query:
            first = query.next(Offset(), 10)
            assert first.planned == 1
            assert clients(server, topic) == [f"nsqflow-spark:{first.generation}"]
            post(server, "/topic/delete", topic)

            def gone() -> bool:
                query.next(first, 10)
                return not query.report()["places"]

            until(gone)
            await_seconds_without(server, topic, lambda: query.next(first, 10))


def await_seconds_without(server: Nsqd, topic: str, act: Callable[[], object]) -> None:
    """Check for longer than a lost connection is retried after that a topic stays away."""
    end = monotonic() + 3.0
    while monotonic() < end:
        act()
        assert topic.encode() not in server.ask("/stats?format=json")[1]


def test_other_consumers_are_a_warning(
    options: Options, nsqd: Nsqd, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    waiting(nsqd, topic, 1)
    with closing(Rival(nsqd, topic)), planner(options()) as query:
        query.next(Offset(), 10)
    assert "channel 'spark' has 1 other clients, which take a part of the messages" in caplog.text


def test_a_replay_of_a_second_query_is_refused_too(
    options: Options, nsqd: Nsqd, topic: str
) -> None:
    waiting(nsqd, topic, 5)
    with planner(options()) as first:
        end = first.next(Offset(), 5)
    with planner(options("other")) as second:
        second.next(Offset(), 5)
        with planner(options()) as restarted:
            restarted.claim(end.generation)
            with pytest.raises(SourceInUseError, match="is read by another query"):
                restarted.check_replay(end)


# --- batch reads --------------------------------------------------------------------------------


def test_a_read_without_a_name_warns_that_a_failed_job_loses_its_messages(
    options: Options, nsqd: Nsqd, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    waiting(nsqd, topic, 5)
    assert len(NsqBatchReader(parse_batch(options(readId="one"))).partitions()) == 1
    assert caplog.text == ""
    NsqBatchReader(parse_batch(options())).partitions()
    assert "mode=consume without readId" in caplog.text
    assert "trigger(availableNow=True)" in caplog.text


def test_of_two_processes_with_one_name_both_have_the_plan_of_the_faster(
    options: Options, nsqd: Nsqd, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting(nsqd, topic, 5)
    slow = NsqBatchReader(parse_batch(options(readId="one")))
    fast = NsqBatchReader(parse_batch(options(readId="one")))
    find, plans = slow._find, []

    def find_too_early(*arguments: object) -> Offset | None:
        monkeypatch.undo()
        found = find(*arguments)  # type: ignore[arg-type]
        plans.append(fast.partitions())
        waiting(nsqd, topic, 5, first=5)
        return found

    monkeypatch.setattr(slow, "_find", find_too_early)
    plans.append(slow.partitions())
    assert [[vars(part)["budget"] for part in plan] for plan in plans] == [[5], [5]]


def test_a_limit_is_shared_by_all_nsqd(
    options: Options, nsqd: Nsqd, topic: str, tmp_path: Path
) -> None:
    (tmp_path / "second").mkdir()
    with start_nsqd(tmp_path / "second") as second:
        waiting(nsqd, topic, 30)
        waiting(second, topic, 10)
        both = (nsqd, second)
        given = options(
            maxMessages="20",
            nsqd=",".join(each.tcp_address for each in both),
            nsqdHttp=",".join(each.http_address for each in both),
        )
        plan = NsqBatchReader(parse_batch(given)).partitions()
    assert sorted(vars(part)["budget"] for part in plan) == [5, 15]


# --- checkpoints and spools ---------------------------------------------------------------------


def test_an_old_checkpoint_with_another_spool_is_an_error_unless_the_loss_is_accepted(
    options: Options, nsqd: Nsqd, topic: str
) -> None:
    waiting(nsqd, topic, 5)
    with planner(options()) as query:
        end = query.next(Offset(), 5)
    said = (
        f"spoolLocation '.*other' has nothing of generation {end.generation}, which the "
        "checkpoint belongs to: .*set the spoolLocation back, or start once with "
        "failOnDataLoss=false"
    )
    with planner(options("other")) as query, pytest.raises(DataLossError, match=said):
        query.next(end, 5)
    with planner(options("other", failOnDataLoss="false")) as query:
        query.next(end, 5)
    with planner(options("other")) as query:  # to accept it once is enough
        query.next(end, 5)


def test_a_channel_that_is_read_no_more_is_named_at_the_restart(
    options: Options, nsqd: Nsqd, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    both = f"{topic},{topic}-2"
    with planner(options(topic=both)) as query:
        start = query.next(Offset(), 5)
    waiting(nsqd, f"{topic}-2", 7)
    with planner(options()) as query:
        query.next(start, 5)
    said = (
        f"topic '{topic}-2' is not read any more, and its channel 'spark' keeps filling (7 "
        f"messages wait): nsqflow delete {topic}-2 spark removes it"
    )
    assert said in caplog.text
    assert caplog.text.count("keeps filling") == 1
    caplog.clear()
    with planner(options()) as query:  # as long as it is there
        query.next(start, 5)
    assert said in caplog.text
    caplog.clear()
    post(nsqd, "/channel/delete", f"{topic}-2")
    with planner(options()) as query:
        query.next(start, 5)
    assert "keeps filling" not in caplog.text
    with planner(options(topic=both)) as query:
        marker = generation_marker(start.generation)
        query.next(start, 5)
        assert b'"former_topics": []' in query.store.read(marker)


def test_a_generation_keeps_its_channel(options: Options) -> None:
    with planner(options()) as query:
        start = query.next(Offset(), 5)
    said = "channel='other' is invalid: the checkpoint is that of a query on channel 'spark'"
    with planner(options(channel="other")) as query, pytest.raises(ConfigError, match=said):
        query.next(start, 5)


@pytest.fixture(autouse=True)
def warnings(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)


# --- in one application -------------------------------------------------------------------------


def read_all(query: BatchPlanner, end: Offset) -> None:
    """Leave in the spool what the tasks of a batch would."""
    for partition in end.partition_ids():
        footer = SlotFooter(writer="w", last=True)
        Slots(query.store, partition.folder).create(0, rows_of(range(3)), footer)


def test_a_new_checkpoint_in_an_application_that_has_read_is_refused(
    options: Options, nsqd: Nsqd, topic: str
) -> None:
    waiting(nsqd, topic, 3)
    with planner(options()) as query:
        end = query.next(Offset(), 10)
        read_all(query, end)
    said = (
        "has the messages of another query of this Spark application, with another checkpoint "
        rf"\(generation {end.generation}\): give each query a channel and a spoolLocation"
    )
    with planner(options()) as query, pytest.raises(SourceInUseError, match=said):
        query.next(Offset(), 10)
    with planner(options()) as query:  # its own checkpoint
        query.next(end, 10)
    with planner(options(allowSharedChannel="true")) as query:
        query.next(Offset(), 10)


def test_a_start_that_failed_before_anything_was_read_can_be_tried_again(
    options: Options, nsqd: Nsqd, topic: str
) -> None:
    waiting(nsqd, topic, 3)
    for _ in range(2):
        with planner(options()) as query:
            assert query.next(Offset(), 10).planned == 3


def test_another_application_may_begin_with_a_new_checkpoint(
    options: Options, nsqd: Nsqd, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting(nsqd, topic, 3)
    with planner(options()) as query:
        read_all(query, query.next(Offset(), 10))
    monkeypatch.setattr("os.getppid", lambda: 1)
    with planner(options()) as query:
        assert query.next(Offset(), 10).planned == 3


@pytest.mark.parametrize("spool", ["spool", "other"])
def test_a_query_that_was_refused_is_not_let_in_when_the_other_has_ended(
    options: Options, nsqd: Nsqd, topic: str, spool: str
) -> None:
    with planner(options()) as first:
        start = first.next(Offset(), 10)
        with planner(options(spool)) as second, pytest.raises(SourceInUseError) as refused:
            second.next(Offset(), 10)
    reason = str(refused.value)
    said = "was refused there before, and is not started later with what is left: "
    with planner(options(spool)) as second:
        with pytest.raises(SourceInUseError, match=said) as again:
            second.next(Offset(), 10)
        assert str(again.value).endswith(reason)
    with planner(options()) as first:  # a checkpoint that exists is never refused for this
        first.next(start, 10)


@pytest.mark.parametrize("content", [b"", b"[]", b"{}"])
def test_a_damaged_mark_of_a_refusal_is_one_too(options: Options, content: bytes) -> None:
    with planner(options()) as query:
        mine = LeaseRecord.of_this_process("gen", "spark", (), 30.0)
        query.store.write(refusal_name(mine.machine, mine.jvm_pid, mine.jvm_started), content)
        with pytest.raises(SourceInUseError, match="another query was reading"):
            query.next(Offset(), 10)
