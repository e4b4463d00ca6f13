"""The verbs of ``nsqflow spool``: what a spool holds, and what may leave it."""

from __future__ import annotations

import json
import os
import shlex
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from nsqflow.blocking import Consumer
from nsqflow.broker import BackgroundBroker
from nsqflow.client.body_compression import compress_body
from nsqflow.spark.spool.generation import MAX_READ_AGE
from nsqflow.spark.spool.layout import LEASES, generation_marker, lease_name, slot_name
from nsqflow.spark.spool.local_store import LocalStore
from nsqflow.spark.spool.store import open_store
from tests.cli.clusters import NsqCluster, unique
from tests.cli.commands import InProcess, OnTerminal, Result, run
from tests.cli.test_completion import completed
from tests.cli.test_help_examples import examples
from tests.fixtures.s3 import S3
from tests.unit.spark.source.position_rows import rows_with_headers
from tests.unit.spark.spools import HERE, NEW, NSQD, OLD, SpoolBuilder, elsewhere

ABANDONED = (
    "nsqflow: generation 00000000 is abandoned: its last batch may have been committed; with its "
    "checkpoint, --checkpoint shows whether it was\n"
)
SPOOL = "orders/spool"
ORPHAN, NIGHTLY = f"batch-{OLD}", "read-nightly"


@pytest.fixture
def store(empty_folder: Path) -> LocalStore:
    return LocalStore(str(empty_folder / SPOOL))


@pytest.fixture
def builder(store: LocalStore) -> SpoolBuilder:
    return SpoolBuilder(store)


@pytest.fixture
def two(builder: SpoolBuilder) -> SpoolBuilder:
    """A spool whose first query has left rows, and which another query has taken and left."""
    builder.lease(1, OLD)
    builder.generation(OLD, committed=1)
    builder.batch(OLD, 2, range(15))
    builder.lease(2, NEW)
    builder.generation(NEW, committed=3)
    builder.batch(NEW, 3, range(5))
    return builder


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def files(store: LocalStore) -> dict[str, bytes]:
    return {name: bytes(store.read(name)) for name in store.tree("")}


def grow_older(store: LocalStore, name: str, seconds: float = MAX_READ_AGE + 60) -> None:
    then = time.time() - seconds
    os.utime(f"{store.location}/{name}", (then, then))


# --- ls -----------------------------------------------------------------------------------------


def test_ls_shows_whose_the_generations_are_and_what_is_uncommitted(
    nsqflow: InProcess, two: SpoolBuilder
) -> None:
    before = files(LocalStore(two.store.location))
    done = nsqflow("spool", "ls", SPOOL)
    assert (done.code, done.err) == (0, "")
    heads, old, new = done.out.splitlines()
    assert heads.split() == [
        *["GENERATION", "KIND", "STATE", "OWNER", "CHANNEL", "TOPICS"],
        *["BATCHES", "SIZE", "UNCOMMITTED", "LAST", "USED"],
    ]
    owner = f"pid {HERE.pid} on {HERE.host}, since {HERE.taken_at}"
    assert old.startswith(f"{OLD[:8]}    stream  abandoned  {owner}  spark    orders")
    assert " 15  " in old
    assert new.startswith(f"{NEW[:8]}    stream  stopped    {owner}  spark    orders")
    assert old.endswith(" s ago")
    assert files(LocalStore(two.store.location)) == before


def test_ls_prints_objects_for_scripts(nsqflow: InProcess, two: SpoolBuilder) -> None:
    two.generation(NIGHTLY, topics=(), pattern="o.*")
    done = nsqflow("spool", "ls", SPOOL, "--json")
    assert (done.code, done.err) == (0, "")
    old, new, read = lines(done.out)
    size, used = old.pop("size"), old.pop("last_used")
    assert size > 0
    assert used.endswith("+00:00")
    assert old == {
        "generation": OLD,
        "kind": "stream",
        "state": "abandoned",
        "owner": {"host": HERE.host, "pid": HERE.pid, "since": HERE.taken_at},
        "channel": "spark",
        "topics": ["orders"],
        "pattern": None,
        "former_topics": [],
        "batches": 1,
        "committed": 1,
        "uncommitted": 15,
    }
    assert (new["state"], new["uncommitted"]) == ("stopped", 0)
    assert (read["generation"], read["kind"], read["state"]) == (NIGHTLY, "named read", "kept")
    assert (read["pattern"], read["owner"], read["uncommitted"]) == ("o.*", None, None)


def test_ls_names_channels_that_keep_filling_with_what_deletes_them(
    nsqflow: InProcess, builder: SpoolBuilder
) -> None:
    builder.generation(OLD, former_topics=("returns", "$(evil)\n"))
    done = nsqflow("spool", "ls", SPOOL)
    assert done.code == 0
    evil, returns = done.err.splitlines()
    assert returns == (
        "nsqflow: topic returns is not read any more, and its channel spark, if it still exists, "
        "keeps filling: nsqflow delete returns spark removes it"
    )
    assert evil.startswith("nsqflow: topic '$(evil)\\n' is not read any more")


def test_ls_names_what_is_damaged_and_what_is_not_of_a_spool(
    nsqflow: InProcess, store: LocalStore, builder: SpoolBuilder
) -> None:
    store.write(generation_marker(OLD), b"{")
    store.write("evil\x1b[2J", b"")
    done = nsqflow("spool", "ls", SPOOL)
    assert done.code == 0
    damaged, foreign = done.err.splitlines()
    assert damaged.startswith(f"nsqflow: {generation_marker(OLD)} is damaged: ")
    assert foreign == "nsqflow: not of a spool: evil\\x1b[2J"
    assert len(done.out.splitlines()) == 2


@pytest.mark.parametrize("verb", ["ls", "gc", "recover"])
@pytest.mark.parametrize("location", ["nowhere", "/nowhere/at/all", "file:///nowhere"])
def test_a_place_without_a_spool_is_an_error_and_nothing_is_created(
    nsqflow: InProcess, empty_folder: Path, verb: str, location: str
) -> None:
    done = nsqflow("spool", verb, location)
    hint = "is it the spoolLocation of a query that has started?"
    assert done == (2, "", f"nsqflow: {location} holds no spool; {hint}\n")
    assert [*empty_folder.iterdir()] == []
    assert not Path("/nowhere").exists()


def test_a_folder_of_something_else_is_not_a_spool(nsqflow: InProcess, empty_folder: Path) -> None:
    (empty_folder / "data").mkdir()
    (empty_folder / "data" / "part-0.parquet").write_text("")
    assert nsqflow("spool", "ls", "data").code == 2
    assert nsqflow("spool", "release", "data", "nightly").code == 2


def test_an_invalid_location_is_an_error(nsqflow: InProcess) -> None:
    done = nsqflow("spool", "ls", "hdfs://namenode/spool")
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("nsqflow: spoolLocation='hdfs://namenode/spool' is invalid: ")


# --- gc -----------------------------------------------------------------------------------------


def test_gc_removes_what_is_abandoned_and_orphaned(
    nsqflow: InProcess, store: LocalStore, two: SpoolBuilder
) -> None:
    two.generation(OLD, committed=2)
    for read in (ORPHAN, f"batch-{NEW}", NIGHTLY):
        two.generation(read)
        two.batch(read, 1, range(5))
    for read in (ORPHAN, NIGHTLY):
        grow_older(store, generation_marker(read))
    done = nsqflow("spool", "gc", SPOOL, "--yes")
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines()[-1].startswith("removed 2 generations (")
    assert store.names("") == [LEASES, f"batch-{NEW}", NEW, NIGHTLY]
    assert nsqflow("spool", "gc", SPOOL) == (0, "nothing to remove\n", "")


def test_gc_keeps_rows_that_were_never_committed_unless_it_is_forced(
    nsqflow: InProcess, store: LocalStore, two: SpoolBuilder
) -> None:
    before = files(store)
    done = nsqflow("spool", "gc", SPOOL, "--yes")
    assert (done.code, done.out) == (0, "nothing to remove\n")
    recover = f"nsqflow spool recover {SPOOL} {OLD[:8]}"
    assert done.err == (
        f"nsqflow: generation {OLD} stays: it has 15 rows that were never committed; {recover} "
        "shows them, and --force removes them\n"
    )
    named = nsqflow("spool", "gc", SPOOL, OLD[:4], "--yes")
    assert (named.code, named.out) == (1, "")
    assert named.err == (
        f"nsqflow: generation {OLD[:8]} has 15 rows that were never committed; {recover} shows "
        "them, and --force removes them\n"
    )
    assert files(store) == before
    assert nsqflow("spool", "gc", SPOOL, "--yes", "--force").code == 0
    assert store.names("") == [LEASES, NEW]


def test_gc_shows_what_it_would_remove(
    nsqflow: InProcess, store: LocalStore, two: SpoolBuilder
) -> None:
    before = files(store)
    done = nsqflow("spool", "gc", SPOOL, "--dry-run", "--force")
    assert (done.code, done.err) == (0, "")
    heads, old, last = done.out.splitlines()
    assert heads.startswith("GENERATION")
    assert old.startswith(OLD[:8])
    assert last.startswith("would remove 1 generation (")
    [found] = lines(nsqflow("spool", "gc", SPOOL, "--dry-run", "--force", "--json").out)
    assert (found["generation"], found["result"]) == (OLD, "removable")
    assert files(store) == before


def test_gc_prints_objects_for_scripts(nsqflow: InProcess, two: SpoolBuilder) -> None:
    done = nsqflow("spool", "gc", SPOOL, "--yes", "--json")
    assert (done.code, done.err) == (0, "")
    [kept] = lines(done.out)
    assert (kept["generation"], kept["result"]) == (OLD, "kept")
    assert kept["reason"].startswith("has 15 rows")
    [removed] = lines(nsqflow("spool", "gc", SPOOL, "--yes", "--json", "--force").out)
    assert (removed["generation"], removed["result"]) == (OLD, "removed")
    assert nsqflow("spool", "gc", SPOOL, "--yes", "--json") == (0, "", "")


def test_gc_without_a_terminal_requires_yes(
    nsqflow: InProcess, store: LocalStore, two: SpoolBuilder
) -> None:
    before = files(store)
    done = run("spool", "gc", store.location, "--force")
    assert done.code == 2
    assert "Remove 1 generation (" in done.err
    assert done.err.endswith("stdin is not a terminal; pass --yes\n")
    assert files(store) == before


@pytest.mark.parametrize(("answer", "code"), [("n", 1), ("y", 0)])
def test_gc_asks_on_a_terminal(
    store: LocalStore, two: SpoolBuilder, answer: str, code: int
) -> None:
    with OnTerminal(["spool", "gc", store.location, "--force"]) as command:
        command.await_text(r"\[y/N\] ")
        command.type(f"{answer}\n")
        assert command.end() == code
    assert ("nothing was removed" in command.shown) == bool(code)
    assert (OLD in store.names("")) == bool(code)


def test_gc_keeps_what_was_started_again_while_it_asked(
    store: LocalStore, two: SpoolBuilder
) -> None:
    with OnTerminal(["spool", "gc", store.location, "--force"]) as command:
        command.await_text(r"\[y/N\] ")
        two.lease(3, OLD, released=False)
        command.type("y\n")
        assert command.end() == 1
    assert f"generation {OLD} has changed since, and stays" in command.shown.replace("\n", "")
    assert OLD in store.names("")


@pytest.mark.parametrize("released", [True, False])
def test_gc_never_removes_the_generation_of_the_last_query(
    nsqflow: InProcess, store: LocalStore, builder: SpoolBuilder, released: bool
) -> None:
    builder.generation(OLD, committed=1)
    builder.lease(1, OLD, released=released)
    assert nsqflow("spool", "gc", SPOOL, "--force", "--yes").out == "nothing to remove\n"
    done = nsqflow("spool", "gc", SPOOL, OLD, "--force", "--yes")
    assert (done.code, done.out) == (1, "")
    why = "belongs to the query that used the spool last" if released else "is in use by pid "
    assert done.err.startswith(f"nsqflow: generation {OLD[:8]} {why}")
    assert OLD in store.names("")


def test_gc_removes_a_generation_of_an_unknown_query_only_by_its_name(
    nsqflow: InProcess, store: LocalStore, builder: SpoolBuilder
) -> None:
    builder.generation(OLD, committed=1)
    done = nsqflow("spool", "gc", SPOOL, "--yes")
    assert (done.code, done.out) == (0, "nothing to remove\n")
    assert done.err == (
        f"nsqflow: generation {OLD} stays: it may be in use; if it is not, nsqflow spool gc "
        f"{SPOOL} {OLD[:8]} removes it\n"
    )
    assert nsqflow("spool", "gc", SPOOL, OLD[:8], "--yes").code == 0
    assert store.names("") == []


def test_gc_keeps_the_generation_of_a_query_elsewhere_without_a_sign_of_life(
    nsqflow: InProcess, store: LocalStore, builder: SpoolBuilder
) -> None:
    builder.generation(OLD, committed=1)
    builder.lease(1, OLD, record=elsewhere(timeout=0.0), released=False)
    grow_older(store, f"{lease_name(1)}.beat")
    assert nsqflow("spool", "gc", SPOOL, "--yes") == (0, "nothing to remove\n", "")
    assert nsqflow("spool", "gc", SPOOL, OLD, "--yes", "--force").code == 1
    assert OLD in store.names("")


def test_gc_leaves_named_reads_to_release(
    nsqflow: InProcess, store: LocalStore, builder: SpoolBuilder
) -> None:
    builder.generation(NIGHTLY)
    done = nsqflow("spool", "gc", SPOOL, NIGHTLY, "--yes", "--force")
    assert done == (
        1,
        "",
        "nsqflow: generation read-nightly is a named read; nsqflow spool release orders/spool "
        "nightly removes it\n",
    )
    assert NIGHTLY in store.names("")


def test_gc_removes_a_read_of_today_only_if_it_is_named_and_forced(
    nsqflow: InProcess, store: LocalStore, builder: SpoolBuilder
) -> None:
    builder.generation(ORPHAN)
    assert nsqflow("spool", "gc", SPOOL, "--yes", "--force").out == "nothing to remove\n"
    assert "its job may still run" in nsqflow("spool", "gc", SPOOL, ORPHAN, "--yes").err
    assert store.names("") == [ORPHAN]
    assert nsqflow("spool", "gc", SPOOL, ORPHAN, "--yes", "--force").code == 0
    assert store.names("") == []


def test_gc_removes_files_of_crashed_writers_and_checks_after_a_day(
    nsqflow: InProcess, store: LocalStore, builder: SpoolBuilder
) -> None:
    builder.generation(OLD)
    builder.lease(1, OLD)
    old = [f"{LEASES}/.tmp-1", f"{OLD}/.tmp-1", "_probe-1/object"]
    for name in (*old, f"{LEASES}/.tmp-2", f"{OLD}/.tmp-2", "_probe-2/object"):
        path = Path(store.location, name)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"")
    for name in old:
        grow_older(store, name)
    done = nsqflow("spool", "gc", SPOOL, "--dry-run")
    assert done == (0, "would remove 3 unfinished files\n", "")
    found = lines(nsqflow("spool", "gc", SPOOL, "--yes", "--json").out)
    assert [each["file"] for each in found] == [*old[:2], "_probe-1"]
    left = {path.name for path in Path(store.location).rglob("*") if "tmp" in path.name}
    assert left == {".tmp-2"}
    assert "_probe-2" in store.names("")
    assert "_probe-1" not in store.names("")


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("e", "there is no generation 'e'; nsqflow spool ls orders/spool lists them"),
        (OLD[:-1] + "7", f"there is no generation '{OLD[:-1]}7'; did you mean '{OLD}'?"),
        ("", f"generation '' is ambiguous; there are {OLD}, {NEW}"),
    ],
)
def test_a_generation_that_is_not_there_is_an_error(
    nsqflow: InProcess, two: SpoolBuilder, name: str, error: str
) -> None:
    for verb in ("gc", "recover"):
        assert nsqflow("spool", verb, SPOOL, name) == (1, "", f"nsqflow: {error}\n")


# --- release ------------------------------------------------------------------------------------


def test_release_removes_a_named_read_alone(
    nsqflow: InProcess, store: LocalStore, builder: SpoolBuilder
) -> None:
    for name in (NIGHTLY, f"{NIGHTLY}-2", OLD):
        builder.generation(name)
        builder.batch(name, 1, range(5))
    assert nsqflow("spool", "release", SPOOL, "nightly", "--yes") == (0, "released nightly\n", "")
    assert store.names("") == [OLD, f"{NIGHTLY}-2"]


def test_release_asks(nsqflow: InProcess, store: LocalStore, builder: SpoolBuilder) -> None:
    builder.generation(NIGHTLY)
    done = run("spool", "release", store.location, "nightly")
    assert done.code == 2
    assert "Remove the rows of read 'nightly' of channel spark, " in done.err
    with OnTerminal(["spool", "release", store.location, "nightly"]) as command:
        command.await_text(r"\[y/N\] ")
        command.type("n\n")
        assert command.end() == 1
    assert "nothing was removed" in command.shown
    assert store.names("") == [NIGHTLY]


def test_a_read_that_is_not_there_is_an_error_with_those_that_are(
    nsqflow: InProcess, builder: SpoolBuilder
) -> None:
    builder.generation(OLD)
    no_read = "nsqflow: there is no read 'nightli'; "
    done = nsqflow("spool", "release", SPOOL, "nightli", "--yes")
    assert done == (1, "", f"{no_read}no read of this spool has a name\n")
    builder.generation("read-weekly")
    done = nsqflow("spool", "release", SPOOL, "nightli", "--yes")
    assert done == (1, "", f"{no_read}there are weekly\n")
    builder.generation(NIGHTLY)
    done = nsqflow("spool", "release", SPOOL, "nightli", "--yes")
    assert done == (1, "", f"{no_read}did you mean 'nightly'?\n")


# --- recover ------------------------------------------------------------------------------------


def test_recover_counts_rows_by_generation_batch_and_topic(
    nsqflow: InProcess, store: LocalStore, two: SpoolBuilder
) -> None:
    two.batch(OLD, 2, range(100, 103), topic="returns", finished=False)
    two.batch(OLD, 3, range(200, 204))
    before = files(store)
    done = nsqflow("spool", "recover", SPOOL)
    assert done.code == 0
    assert [line.split() for line in done.out.splitlines()] == [
        ["GENERATION", "BATCH", "TOPIC", "ROWS", "UNFINISHED"],
        [OLD, "2", "orders", "15", "0"],
        [OLD, "2", "returns", "3", "3"],
        [OLD, "3", "orders", "4", "0"],
    ]
    assert done.err == ABANDONED
    assert lines(nsqflow("spool", "recover", SPOOL, "--json").out) == [
        {"generation": OLD, "batch": batch, "topic": topic, "rows": rows, "unfinished": unfinished}
        for batch, topic, rows, unfinished in [
            (2, "orders", 15, 0),
            (2, "returns", 3, 3),
            (3, "orders", 4, 0),
        ]
    ]
    assert files(store) == before


def test_recover_writes_rows_as_tail_prints_messages(
    nsqflow: InProcess, two: SpoolBuilder, empty_folder: Path
) -> None:
    done = nsqflow("spool", "recover", SPOOL, "--output", "rows.jsonl")
    assert done.code == 0
    assert done.out.splitlines()[-1] == "wrote 15 rows to rows.jsonl"
    assert done.err == (
        f"{ABANDONED}nsqflow: they are still in the spool: nsqflow spool gc {SPOOL} {OLD[:8]} "
        "--force removes them\n"
    )
    path = empty_folder / "rows.jsonl"
    assert path.stat().st_mode & 0o777 == 0o600
    written = lines(path.read_text())
    assert written[7] == {
        "topic": "orders",
        "channel": "spark",
        "nsqd": NSQD,
        "id": "0" * 15 + "7",
        "timestamp": 7000,
        "attempts": 1,
        "body": "0000000007",
    }
    assert [int(row["id"]) for row in written] == [*range(15)]


def test_recover_writes_to_stdout_for_a_pipe(nsqflow: InProcess, two: SpoolBuilder) -> None:
    done = run("spool", "recover", two.store.location, "-o", "-", "--json")
    assert done.code == 0
    assert [int(row["id"]) for row in lines(done.out)] == [*range(15)]
    assert done.err.splitlines()[0] == "nsqflow: wrote 15 rows to -"


def test_recover_never_overwrites_a_file(
    nsqflow: InProcess, two: SpoolBuilder, empty_folder: Path
) -> None:
    (empty_folder / "rows.jsonl").write_text("mine")
    (empty_folder / "link").symlink_to("elsewhere")
    for name in ("rows.jsonl", "link", "orders"):
        done = nsqflow("spool", "recover", SPOOL, "--output", name)
        error = f"{name} exists already; name another file, or remove it"
        assert done == (2, "", f"nsqflow: {error}\n")
    assert (empty_folder / "rows.jsonl").read_text() == "mine"


def test_a_file_that_cannot_be_written_is_named(nsqflow: InProcess, two: SpoolBuilder) -> None:
    done = nsqflow("spool", "recover", SPOOL, "--output", "nowhere/rows")
    assert done == (1, "", "nsqflow: nowhere/rows: No such file or directory\n")
    if Path("/dev/full").exists():
        # It exists, so only standard output can be it.
        full = f"exec nsqflow spool recover {shlex.quote(two.store.location)} -o - > /dev/full"
        assert "No space left on device" in shell(full).err


def shell(line: str) -> Result:
    import subprocess
    import sys

    line = line.replace("nsqflow", f"{shlex.quote(sys.executable)} -m nsqflow", 1)
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=False)
    return Result(done.returncode, done.stdout, done.stderr)


def test_a_file_of_rows_is_never_left_incomplete(
    two: SpoolBuilder, empty_folder: Path, monkeypatch: pytest.MonkeyPatch, nsqflow: InProcess
) -> None:
    from nsqflow.cli import spool_recover

    two.batch(OLD, 3, range(100, 200))
    written = 0

    def interrupt(*arguments: Any) -> None:
        nonlocal written
        written += 1
        if written == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        write(*arguments)

    write = spool_recover._write
    with monkeypatch.context() as patch:
        patch.setattr(spool_recover, "_write", interrupt)
        assert nsqflow("spool", "recover", SPOOL, "--output", "rows.jsonl").code == 143
    assert not (empty_folder / "rows.jsonl").exists()


def test_recover_without_rows_writes_nothing(
    nsqflow: InProcess, builder: SpoolBuilder, empty_folder: Path
) -> None:
    builder.generation(OLD, committed=1)
    builder.batch(OLD, 1, range(5))
    builder.lease(1, OLD)
    done = nsqflow("spool", "recover", SPOOL, OLD, "-o", "rows.jsonl")
    assert (done.code, done.out) == (0, "no rows to recover\n")
    assert not (empty_folder / "rows.jsonl").exists()
    assert nsqflow("spool", "recover", SPOOL, "--json").out == ""


def test_recover_leaves_out_a_running_query_unless_it_is_named(
    nsqflow: InProcess, two: SpoolBuilder
) -> None:
    two.batch(NEW, 4, range(300, 304))
    two.lease(2, NEW, released=False)
    done = nsqflow("spool", "recover", SPOOL, "--json")
    assert {each["generation"] for each in lines(done.out)} == {OLD}
    assert done.err == (
        f"nsqflow: generation {NEW[:8]} is left out: its query runs, and may still commit what it "
        f"has read\n{ABANDONED}"
    )
    done = nsqflow("spool", "recover", SPOOL, NEW[:4], "--json")
    assert [each["rows"] for each in lines(done.out)] == [4]
    assert done.err == (
        f"nsqflow: generation {NEW[:8]} is running: its query runs, and may still commit these "
        "rows\n"
    )


@pytest.mark.parametrize("leased", [True, False])
def test_recover_says_that_a_query_may_read_the_rows_itself(
    nsqflow: InProcess, builder: SpoolBuilder, leased: bool
) -> None:
    builder.generation(OLD)
    builder.batch(OLD, 1, range(5))
    if leased:
        builder.lease(1, OLD)
    done = nsqflow("spool", "recover", SPOOL)
    assert done.code == 0
    state = "stopped" if leased else "unknown"
    assert done.err.startswith(f"nsqflow: generation {OLD[:8]} is {state}: ")
    assert "reads these rows itself" in done.err


def test_recover_of_a_batch_read_has_all_its_rows_and_needs_its_name(
    nsqflow: InProcess, builder: SpoolBuilder
) -> None:
    for name in (NIGHTLY, ORPHAN):
        builder.generation(name)
        builder.batch(name, 1, range(5))
    done = nsqflow("spool", "recover", SPOOL)
    assert done == (
        0,
        "no rows to recover\n",
        "nsqflow: 2 batch reads left out: name one to recover its rows\n",
    )
    for name in (NIGHTLY, "batch-"):
        assert lines(nsqflow("spool", "recover", SPOOL, name, "--json").out)[0]["rows"] == 5


def test_recover_names_slots_that_cannot_be_read(
    nsqflow: InProcess, store: LocalStore, two: SpoolBuilder
) -> None:
    slots = two.batch(OLD, 4, range(400, 430))
    folder = slots.location.removeprefix(f"{store.location}/")
    store.write(slot_name(folder, 0), b"damaged")
    store.remove(slot_name(folder, 1))
    done = nsqflow("spool", "recover", SPOOL, "--json")
    assert done.code == 1
    assert [each["rows"] for each in lines(done.out)] == [15, 10]
    damaged, missing, note = done.err.splitlines()
    assert note == ABANDONED.rstrip()
    assert damaged.startswith(f"nsqflow: {slots.location}/000000 is damaged: ")
    assert missing == f"nsqflow: {slots.location}/000001 is missing"


def test_recover_takes_the_last_commit_from_the_checkpoint(
    nsqflow: InProcess, two: SpoolBuilder, empty_folder: Path
) -> None:
    for name in ("offsets", "commits"):
        (empty_folder / "checkpoint" / name).mkdir(parents=True)
    end = json.dumps({"v": 1, "gen": OLD, "seq": 2, "total": 15, "plan": {}})
    (empty_folder / "checkpoint" / "offsets" / "1").write_text(f"v1\n{{}}\n{end}")
    checkpoints = ["checkpoint", f"file://{empty_folder}/checkpoint"]
    for checkpoint in checkpoints:
        done = nsqflow("spool", "recover", SPOOL, "--checkpoint", checkpoint, "--json")
        assert [each["rows"] for each in lines(done.out)] == [15]
    (empty_folder / "checkpoint" / "commits" / "1").write_text("v1\n{}")
    for checkpoint in checkpoints:
        done = nsqflow("spool", "recover", SPOOL, "--checkpoint", checkpoint)
        assert done == (0, "no rows to recover\n", "")


def test_a_checkpoint_of_another_query_is_an_error(
    nsqflow: InProcess, two: SpoolBuilder, empty_folder: Path
) -> None:
    (empty_folder / "checkpoint" / "offsets").mkdir(parents=True)
    other = "a" * 32
    path = empty_folder / "checkpoint" / "offsets" / "0"
    options = ["--checkpoint", "checkpoint"]
    for generation, words, error in (
        (NEW, [OLD], f"the checkpoint is not that of generation {OLD[:8]}; it is that of {NEW}"),
        (other, [], f"{SPOOL} has nothing of the checkpoint's generation {other}; is it the "),
    ):
        end = json.dumps({"v": 1, "gen": generation, "seq": 2, "total": 15, "plan": {}})
        path.write_text(f"v1\n{{}}\n{end}")
        done = nsqflow("spool", "recover", SPOOL, *words, *options)
        assert (done.code, done.out) == (2, "")
        assert done.err.startswith(f"nsqflow: {error}")
    done = nsqflow("spool", "recover", SPOOL, "--checkpoint", "s3://bucket/checkpoint")
    assert done.code == 2
    assert "must be a local folder" in done.err
    assert nsqflow("spool", "recover", SPOOL, "--checkpoint", "nowhere").code == 2


# --- recover --publish --------------------------------------------------------------------------


def test_rows_are_published_again_to_their_topics(
    nsqflow: InProcess, builder: SpoolBuilder, cluster: NsqCluster
) -> None:
    topics = [unique("recovered"), unique("recovered")]
    for topic in topics:
        cluster.create(topic, "c")
    builder.lease(1, OLD)
    builder.generation(OLD)
    builder.batch(OLD, 1, range(15), topic=topics[0])
    builder.batch(OLD, 2, range(3), topic=topics[1])
    builder.generation(NEW)
    builder.lease(2, NEW)
    done = nsqflow("spool", "recover", SPOOL, "--publish", "--nsqd", cluster.nsqd[0])
    assert done.code == 0
    assert sorted(done.out.splitlines()) == sorted(
        [f"published 15 messages to {topics[0]}", f"published 3 messages to {topics[1]}"]
    )
    assert "they are still in the spool" in done.err
    bodies = nsqflow("tail", topics[1], "--channel", "c", "-n", "3", *cluster.through_lookupd).out
    assert sorted(bodies.split()) == [f"{number:010}" for number in range(3)]


def test_rows_are_published_to_another_topic(
    nsqflow: InProcess, two: SpoolBuilder, cluster: NsqCluster
) -> None:
    topic = unique("recovered")
    cluster.create(topic, "c")
    words = ["--publish", "--topic", topic, "--json", "--nsqd", cluster.nsqd[0]]
    done = nsqflow("spool", "recover", SPOOL, OLD, *words)
    assert lines(done.out) == [
        {"topic": topic, "published": 15, "refused": 0, "uncertain": 0, "empty": 0}
    ]


def test_rows_that_a_query_may_still_read_are_published_only_by_its_name(
    nsqflow: InProcess, builder: SpoolBuilder, cluster: NsqCluster
) -> None:
    topic = unique("recovered")
    builder.generation(OLD)
    builder.batch(OLD, 1, range(5), topic=topic)
    builder.lease(1, OLD)
    words = ["--publish", "--nsqd", cluster.nsqd[0]]
    done = nsqflow("spool", "recover", SPOOL, *words)
    assert (done.code, done.out) == (1, "")
    assert done.err == (
        f"nsqflow: generation {OLD[:8]} is stopped: started with its checkpoint, its query reads "
        f"these rows itself; nsqflow spool recover {SPOOL} {OLD[:8]} --publish publishes them "
        "anyway\n"
    )
    done = nsqflow("spool", "recover", SPOOL, OLD, *words)
    assert (done.code, done.out) == (0, f"published 5 messages to {topic}\n")


@pytest.fixture
def rows_of_partitions(builder: SpoolBuilder) -> str:
    """A spool with rows of two partitions, which have headers; it returns their topic."""
    topic = unique("recovered")
    packed, packing = compress_body("gzip", b"x" * 100)
    builder.generation(OLD)
    headers = packing | {"region": "eu", "##client_dispatch_tag": "blue", "##trace_id": "7"}
    rows = rows_with_headers([(b"a", {}), (packed, headers), (b"c", {"n": 1})], 7)
    builder.partition(OLD, 1, 2, rows, topic=topic)
    builder.partition(OLD, 2, 0, rows_with_headers([(b"d", None)]), topic=topic)
    return topic


def test_rows_of_partitions_are_written_with_all_that_nsqd_said_of_them(
    nsqflow: InProcess, rows_of_partitions: str
) -> None:
    _, second, _, last = lines(nsqflow("spool", "recover", SPOOL, OLD, "--output", "-").out)
    assert (second["body"], second["nsqd"], second["tag"]) == ("x" * 100, NSQD, "blue")
    assert (second["partition"], second["offset"], second["trace_id"]) == (2, 10, "7")
    assert second["headers"]["region"] == "eu"
    assert (last["body"], last["partition"], last["headers"]) == ("d", 0, None)


def test_rows_of_partitions_are_published_with_all_that_they_were_published_with(
    nsqflow: InProcess, rows_of_partitions: str, nsq_redesigned_broker: BackgroundBroker
) -> None:
    broker, topic = nsq_redesigned_broker, rows_of_partitions
    broker.create_topic(topic, partitions=3, extended=True)
    broker.create_channel(topic, "c")
    servers = ["--lookupd", ",".join(broker.lookupd_addresses)]
    done = nsqflow("spool", "recover", SPOOL, OLD, "--publish", *servers)
    assert done.code == 0, done.err
    assert done.out.splitlines()[-1] == f"published 4 messages to {topic}"
    found = {}
    with Consumer(topic, "c", lookupd=broker.lookupd_addresses) as consumer:
        for message in consumer:
            message.finish()
            found[message.body] = message
            if len(found) == 4:
                break
    place = {body: (each.partition, each.trace_id) for body, each in found.items()}
    assert place == {b"a": (2, 7), b"x" * 100: (2, 7), b"c": (2, 7), b"d": (0, 0)}
    assert (found[b"x" * 100].headers or {})["region"] == "eu"
    assert "nsq.client.compress" not in (found[b"x" * 100].headers or {})
    assert found[b"x" * 100].tag == "blue"
    assert (found[b"c"].headers or {})["n"] == 1


@pytest.mark.parametrize(
    ("partitions", "extended", "error"),
    [
        (3, False, "rows of {source!r} have headers or tags, and {topic!r} takes none"),
        (2, True, "rows of {source!r} are of partition 2, and {topic!r} has only 2"),
    ],
)
def test_a_topic_that_can_not_take_all_of_a_row_is_an_error(
    nsqflow: InProcess,
    rows_of_partitions: str,
    nsq_redesigned_broker: BackgroundBroker,
    partitions: int,
    extended: bool,
    error: str,
) -> None:
    topic = unique("another")
    nsq_redesigned_broker.create_topic(topic, partitions=partitions, extended=extended)
    servers = ["--lookupd", ",".join(nsq_redesigned_broker.lookupd_addresses)]
    done = nsqflow("spool", "recover", SPOOL, OLD, "--publish", "--topic", topic, *servers)
    assert done.code == 2
    assert error.format(source=rows_of_partitions, topic=topic) in done.err


def test_an_nsqd_that_is_down_is_an_error(nsqflow: InProcess, two: SpoolBuilder) -> None:
    done = nsqflow("spool", "recover", SPOOL, "--publish", "--nsqd", "127.0.0.1:9")
    assert (done.code, done.out) == (1, "")
    assert "127.0.0.1:9" in done.err


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--publish", "--output", "f"], "give either --output or --publish"),
        (["--topic", "orders"], "--topic is for --publish"),
        (["--publish", "--topic", "a b"], "topic name 'a b' has"),
    ],
)
def test_options_that_contradict_each_other_are_an_error(
    nsqflow: InProcess, two: SpoolBuilder, words: list[str], error: str
) -> None:
    done = nsqflow("spool", "recover", SPOOL, *words)
    assert (done.code, done.out) == (2, "")
    assert error in done.err


# --- help and completion ------------------------------------------------------------------------


def test_the_examples_of_the_verbs_do_what_they_say(
    store: LocalStore, builder: SpoolBuilder, empty_folder: Path
) -> None:
    builder.generation(OLD)
    builder.batch(OLD, 1, range(5))
    builder.generation(NIGHTLY)
    for verb in ("ls", "gc", "recover", "release"):
        for example in examples(f"spool {verb}"):
            done = shell(example)
            assert done.code == 0, done.err
            assert done.out, example


def test_a_wrong_verb_or_argument_is_an_error_with_a_hint(nsqflow: InProcess) -> None:
    for words, error, help_of in (
        (["lss"], "no such command 'lss'", "spool"),
        ([], "missing command", "spool"),
        (["ls"], "missing argument 'LOCATION'", "spool ls"),
        (["gc", "x", "--forse"], "no such option: --forse", "spool gc"),
    ):
        done = nsqflow("spool", *words)
        assert (done.code, done.out) == (2, "")
        assert done.err.startswith(f"nsqflow: {error}")
        assert done.err.endswith(f"; see nsqflow {help_of} --help\n")


def test_verbs_generations_and_reads_are_completed(
    builder: SpoolBuilder, empty_folder: Path
) -> None:
    for name in (OLD, NEW, NIGHTLY, "read--yes"):
        builder.generation(name)
    builder.store.write("0evil$(touch x)", b"")
    assert sorted(completed("nsqflow spool ")) == ["gc", "ls", "recover", "release"]
    assert completed(f"nsqflow spool gc {SPOOL} --d") == ["--dry-run"]
    assert completed(f"nsqflow spool gc {SPOOL} 0") == [OLD]
    assert completed(f"nsqflow spool gc {SPOOL} {OLD} f") == [NEW]
    assert completed(f"nsqflow spool recover {SPOOL} 0") == [OLD]
    assert completed(f"nsqflow spool release {SPOOL} ") == ["nightly"]
    assert completed("nsqflow spool release nowhere ") == []


# --- S3 -----------------------------------------------------------------------------------------


def test_a_spool_on_s3_is_listed_recovered_and_cleaned(nsqflow: InProcess, s3: S3) -> None:
    location = s3.location(f"cli-{uuid4().hex[:8]}")
    done = nsqflow("spool", "ls", location)
    assert (done.code, done.err.partition(";")[0]) == (2, f"nsqflow: {location} holds no spool")
    builder = SpoolBuilder(open_store(location))
    for number, generation in ((1, OLD), (2, NEW)):
        builder.lease(number, generation, record=replace(HERE, generation=generation))
        builder.generation(generation, committed=1)
        builder.batch(generation, 2, range(15))
    builder.generation(NIGHTLY)
    before = builder.store.tree("")
    old, new, _ = lines(nsqflow("spool", "ls", location, "--json").out)
    assert (old["state"], old["uncommitted"], old["batches"]) == ("abandoned", 15, 1)
    assert (new["state"], new["uncommitted"]) == ("stopped", 15)
    done = nsqflow("spool", "recover", location, OLD, "--output", "rows.jsonl")
    assert done.code == 0
    assert "wrote 15 rows" in done.out
    assert builder.store.tree("") == before
    assert nsqflow("spool", "release", location, "nightly", "--yes").code == 0
    assert nsqflow("spool", "gc", location, "--yes", "--force").code == 0
    assert builder.store.names("") == [LEASES, NEW]


def test_errors_of_s3_are_one_line_that_names_the_location(s3: S3, empty_folder: Path) -> None:
    done = run("spool", "ls", "s3://no-such-bucket/spool")
    assert done == (
        1,
        "",
        "nsqflow: s3://no-such-bucket/spool: The specified bucket does not exist\n",
    )
    keys = {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}
    done = run("spool", "ls", "s3://spools/x", env=keys)
    assert (done.code, done.out) == (1, "")
    assert done.err == "nsqflow: s3://spools/x: Unable to locate credentials\n"


# --- progress -----------------------------------------------------------------------------------


def test_progress_is_shown_while_a_slow_spool_is_read(
    store: LocalStore, builder: SpoolBuilder
) -> None:
    builder.generation(OLD)
    path = Path(store.location, generation_marker(OLD))
    marker = path.read_bytes()
    path.unlink()
    os.mkfifo(path)  # it can be read when it is written
    with OnTerminal(["spool", "ls", store.location]) as command:
        command.await_text("reading")
        path.write_bytes(marker)
        assert command.end() == 0
    assert OLD[:8] in command.shown


def test_a_slow_spool_can_be_interrupted(store: LocalStore, builder: SpoolBuilder) -> None:
    builder.generation(OLD)
    path = Path(store.location, generation_marker(OLD))
    path.unlink()
    os.mkfifo(path)
    for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
        with OnTerminal(["spool", "ls", store.location]) as command:
            command.await_text("reading")
            assert command.end(number) == code
