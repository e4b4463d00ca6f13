"""One query on a spool and on a channel, as their planners and readers see it on real nsqd."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from time import monotonic
from typing import Any
from uuid import uuid4

import pytest

from nsqflow.errors import ConfigError, DataLossError, SourceInUseError, SpoolError
from nsqflow.spark.connection import connect
from nsqflow.spark.options import parse_batch, parse_stream
from nsqflow.spark.process import process_tag
from nsqflow.spark.server_options import Access
from nsqflow.spark.source import presence
from nsqflow.spark.source.batch_reader import NsqBatchReader
from nsqflow.spark.source.offsets import Offset
from nsqflow.spark.source.planner import BatchPlanner
from nsqflow.spark.source.presence import client_id
from nsqflow.spark.source.reader import NsqStreamReader
from nsqflow.spark.spool.generation import remove_generation
from nsqflow.spark.spool.layout import generation_marker, refusal_name
from nsqflow.spark.spool.lease import LeaseRecord
from nsqflow.spark.spool.slot_format import SlotFooter
from nsqflow.spark.spool.slots import Slots
from nsqflow.spark.spool.store import open_store
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


def test_a_query_whose_jvm_has_gone_leaves_the_channel(
    options: Options, nsqd: Nsqd, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with planner(options()) as query:
        query.next(Offset(), 10)
        assert clients(nsqd, topic)
        monkeypatch.setattr("os.getppid", lambda: 1)
        until(lambda: not clients(nsqd, topic))


def test_a_query_whose_process_has_ended_is_no_rival(
    options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    with planner(options()) as first:
        first.next(Offset(), 10)
        ended = process_tag().replace(f"/{os.getpid()}/", f"/{2**22 + 1}/")
        monkeypatch.setattr(presence, "has_ended", lambda text: ended.split("/")[0] in text)
        with planner(options("other")) as second:
            second.next(Offset(), 10)


def test_a_query_that_ends_while_another_starts_has_had_its_messages(
    options: Options, nsqd: Nsqd, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting(nsqd, topic, 3)
    with planner(options()) as first, planner(options()) as second:
        end = first.next(Offset(), 10)

        def end_first(_: float) -> None:
            read_all(first, end)
            first.close()

        monkeypatch.setattr(second._ownership, "_wait", end_first)
        with pytest.raises(SourceInUseError, match="has the messages of another query"):
            second.next(Offset(), 10)
    with planner(options()) as third, pytest.raises(SourceInUseError):
        third.next(Offset(), 10)


def test_a_channel_for_one_consumer_has_no_place_for_a_task(
    options: Options, topic: str, tmp_path: Path
) -> None:
    (tmp_path / "data").mkdir()
    with start_nsqd(tmp_path / "data", options=["-max-channel-consumers=1"]) as server:
        waiting(server, topic, 3)
        given = options(nsqd=server.tcp_address, nsqdHttp=server.http_address)
        reader = NsqStreamReader(parse_stream(given))
        end = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
        (partition,) = reader.partitions({}, end)
        with pytest.raises(ConfigError, match="raise nsqd's --max-channel-consumers"):
            next(reader.read(partition))
        reader.stop()


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


def read_table(options: dict[str, str]) -> list[int]:
    """Read a table as Spark does; return the numbers in the bodies."""
    reader = NsqBatchReader(parse_batch(options))
    return read_partitions(reader, reader.partitions())


def read_partitions(reader: NsqBatchReader, partitions: Iterable[Any]) -> list[int]:
    batches = (batch for each in partitions for batch in reader.read(each))
    return sorted(int(body[:10]) for each in batches for body in each.column("body").to_pylist())


@pytest.mark.parametrize("spool", ["spool", "other"])
def test_two_loads_of_a_channel_are_not_split(
    options: Options, nsqd: Nsqd, topic: str, spool: str
) -> None:
    waiting(nsqd, topic, 50)
    first = NsqBatchReader(parse_batch(options()))
    planned = first.partitions()
    second = NsqBatchReader(parse_batch(options(spool)))
    if spool == "spool":
        with pytest.raises(SourceInUseError, match=r"was planned \d+ s ago and has not begun"):
            second.partitions()
    else:
        also_planned = second.partitions()
        generation = vars(planned[0])["id"].generation
        as_first: dict[str, Any] = {
            "topic": topic,
            "channel": "spark",
            "client_id": client_id(generation),
        }
        with (
            closing(connect(nsqd.tcp_address, Access(), **as_first)),
            pytest.raises(SourceInUseError, match="is read by another query"),
        ):
            read_partitions(second, also_planned)
        # When Spark tries the task again, the other may have ended.
        with pytest.raises(SourceInUseError, match="is read by another query"):
            read_partitions(second, also_planned)
    assert read_partitions(first, planned) == [*range(50)]


def test_a_named_read_that_goes_on_takes_nothing_from_a_query_that_has_begun_since(
    options: Options, nsqd: Nsqd, topic: str
) -> None:
    waiting(nsqd, topic, 50)
    NsqBatchReader(parse_batch(options(readId="one"))).partitions()
    with planner(options("other")) as query:
        query.next(Offset(), 10)
        with pytest.raises(SourceInUseError, match="is read by another query"):
            read_table(options(readId="one"))
    assert channel_stats(nsqd, topic).depth == 50


def test_a_named_read_that_was_released_is_a_new_one_and_late_tasks_leave_it_alone(
    options: Options, nsqd: Nsqd, topic: str
) -> None:
    waiting(nsqd, topic, 10)
    reader = NsqBatchReader(parse_batch(options(readId="one")))
    late = reader.partitions()
    assert read_partitions(reader, late) == [*range(10)]
    waiting(nsqd, topic, 10, first=10)
    remove_generation(open_store(options()["spoolLocation"]), "read-one")
    assert read_table(options(readId="one")) == [*range(10, 20)]
    with pytest.raises(SpoolError, match="comes too late"):
        read_partitions(reader, late)


def test_topics_may_be_in_any_order_and_a_limit_comes_too_late(
    options: Options, nsqd: Nsqd, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    waiting(nsqd, topic, 5)
    waiting(nsqd, f"{topic}-2", 5, first=5)
    one, two = f"{topic},{topic}-2", f"{topic}-2,{topic}"
    assert read_table(options(readId="one", topic=one)) == [*range(10)]
    assert read_table(options(readId="one", topic=two, maxMessages="3")) == [*range(10)]
    assert "maxMessages=3 has no effect: readId='one' has 10 messages already" in caplog.text


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"channel": "spark"}'])
def test_a_damaged_plan_of_a_named_read_is_an_error_that_names_it(
    options: Options, content: bytes
) -> None:
    store = open_store(options()["spoolLocation"])
    store.write("read-one/_gen", content)
    with pytest.raises(SpoolError, match=r"readId='one': .*/read-one/_gen is damaged: .* Put"):
        read_table(options(readId="one"))


def test_a_read_without_a_name_warns_that_a_failed_job_loses_its_messages(
    options: Options, nsqd: Nsqd, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    waiting(nsqd, topic, 5)
    read_table(options(readId="one"))
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

    def find_too_early(*arguments: Any) -> Any:
        monkeypatch.undo()
        found = find(*arguments)
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


def test_a_generation_keeps_its_channel(options: Options, nsqd: Nsqd, topic: str) -> None:
    waiting(nsqd, topic, 5)
    with planner(options()) as query:
        start = query.next(Offset(), 5)
    said = "channel='other' is invalid: the checkpoint is that of a query on channel 'spark'"
    with planner(options(channel="other")) as query, pytest.raises(ConfigError, match=said):
        query.next(start, 5)
    with planner(options(channel="other")) as query:  # with an open batch Spark replays it first
        query.claim(start.generation)
        with pytest.raises(ConfigError, match=said):
            query.check_replay(start)
    assert b'"other"' not in nsqd.ask(f"/stats?format=json&topic={topic}")[1]


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
    said = "was refused there before, and is not started later with what is left; if the other "
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
