"""The spool on a path: objects are complete, exclusive and on disk, whatever races or dies."""

import errno
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nsqflow.errors import ConfigError
from nsqflow.spark.spool.local_store import LocalStore
from nsqflow.spark.spool.store import Buffers
from tests.fixtures.stores import Behaviour, Deed, Step, Workers, explains

SLOT = "gen/1/part/000000"


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(str(tmp_path / "spool"))


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    with Workers(4) as workers:
        yield workers


def files(folder: Path | str) -> list[str]:
    """The names of all files, also of those that a store does not show."""
    return sorted(path.name for path in Path(folder).rglob("*") if path.is_file())


class LocalBehaviour(Behaviour):
    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.mkdtemp()
        self.store = LocalStore(f"{self.folder}/spool")

    def teardown(self) -> None:
        hidden = [name for name in files(self.folder) if name.startswith(".")]
        shutil.rmtree(self.folder)
        assert hidden == []


TestLocalBehaviour = LocalBehaviour.TestCase
TestLocalBehaviour.settings = settings(max_examples=30, stateful_step_count=30)


def test_an_object_may_come_in_many_pieces(store: LocalStore) -> None:
    pieces = [b"%d," % number for number in range(5000)]
    data: Buffers = [b"", memoryview(pieces[0]), *pieces[1:], b"", memoryview(b"end")]
    assert store.create(SLOT, data)
    assert store.read(SLOT) == b"".join(pieces) + b"end"


def test_pieces_may_be_any_buffers(store: LocalStore) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    numbers = memoryview(bytes(80)).cast("q")
    assert store.create(SLOT, [pyarrow.py_buffer(b"arrow"), numbers, memoryview(b"")])
    assert store.read(SLOT) == b"arrow" + bytes(80)


def test_an_object_may_be_empty(store: LocalStore) -> None:
    assert store.create(SLOT, [])
    assert store.read(SLOT) == b""
    assert store.read_tail(SLOT, 10) == b""
    assert not store.create(SLOT, [b"more"])


def test_a_slot_that_exists_stays_as_it_is(store: LocalStore) -> None:
    assert store.create(SLOT, [b"first"])
    assert not store.create(SLOT, [b"second"])
    assert store.read(SLOT) == b"first"
    assert files(store.location) == ["000000"]


def test_names_may_contain_the_characters_of_addresses(store: LocalStore) -> None:
    name = "gen/orders|[::1]:4150 50%25+1=ü&?#/000000"
    assert store.create(name, [b"1"])
    assert store.tree("") == [name]
    assert store.names("gen") == [name.split("/")[1]]
    store.remove(name)
    assert store.tree("") == []


def test_what_was_read_outlives_the_file(store: LocalStore) -> None:
    store.create(SLOT, [b"x" * 100_000])
    content = store.read(SLOT)
    store.remove("gen")
    assert content == b"x" * 100_000


def test_the_age_of_an_object_counts_from_when_it_was_written(store: LocalStore) -> None:
    store.write("object", b"1")
    path = f"{store.location}/object"
    written = os.stat(path).st_mtime
    os.utime(path, (0, written - 5000))
    age = store.age("object")
    assert age is not None
    assert age > 4999
    os.utime(path, (0, written + 5000))
    assert store.age("object") == 0.0  # a clock that is ahead of ours makes nothing negative
    assert store.age("") is None  # a folder has none
    assert store.age("object/below") is None


def test_what_crashed_writers_left_is_found_by_its_age(store: LocalStore) -> None:
    store.create(SLOT, [b"1"])
    for name in ("gen/1/part/.tmp-1", "gen/.tmp-2", ".tmp-3"):
        path = Path(store.location, name)
        path.write_bytes(b"half")
        os.utime(path, (0, time.time() - 5000))
    Path(store.location, "gen/.tmp-young").write_bytes(b"half")
    assert store.unfinished("gen", 4000.0) == ["gen/.tmp-2", "gen/1/part/.tmp-1"]
    assert store.unfinished("", 4000.0) == [".tmp-3", "gen/.tmp-2", "gen/1/part/.tmp-1"]
    assert store.unfinished("gen", 6000.0) == store.unfinished("nowhere", 0.0) == []
    for name in store.unfinished("", 4000.0):
        store.remove(name)
    left = [path.name for path in Path(store.location).rglob("*") if path.is_file()]
    assert sorted(left) == [".tmp-young", "000000"]


def test_a_folder_is_removed_with_what_crashed_writers_left_in_it(store: LocalStore) -> None:
    store.create(SLOT, [b"1"])
    Path(store.location, "gen/1/part/.tmp-of-the-dead").write_bytes(b"half")
    assert store.names("gen/1/part") == ["000000"]
    assert store.tree("") == [SLOT]
    assert store.sizes("gen") == {"1/part/000000": 1}
    store.remove("gen")
    assert os.listdir(store.location) == []
    store.remove("gen")
    store.remove("gen/1")


def test_links_to_elsewhere_are_removed_and_not_followed(store: LocalStore, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "file").touch()
    store.create(SLOT, [b"1"])
    os.symlink(elsewhere, f"{store.location}/gen/link")
    store.remove("gen")
    assert files(elsewhere) == ["file"]


# --- what dies ------------------------------------------------------------------------------------

# Dies before the call with the given number, of all that touch the disk, or survives them.
DYING = """
import os, signal, sys
from nsqflow.spark.spool.local_store import LocalStore

location, method, left = sys.argv[1], sys.argv[2], int(sys.argv[3])

def mortal(call):
    def called(*arguments, **options):
        global left
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        left -= 1
        return call(*arguments, **options)
    return called

store = LocalStore(location)
for name in ("mkdir", "open", "writev", "fsync", "close", "link", "replace", "unlink"):
    setattr(os, name, mortal(getattr(os, name)))
data = b"new" * 1000
store.create(sys.argv[4], [data]) if method == "create" else store.write(sys.argv[4], data)
"""


def deaths(location: str, method: str) -> Iterator[int]:
    """Let a writer die at each of its steps, one after the other; how far it came."""
    for step in range(100):
        run = [sys.executable, "-c", DYING, location, method, str(step), SLOT]
        died = subprocess.run(run, timeout=60).returncode != 0
        yield step
        if not died:
            return
    raise AssertionError("it never survived")


def test_a_writer_that_dies_at_any_step_leaves_a_whole_object_or_none(tmp_path: Path) -> None:
    location = str(tmp_path / "spool")
    store = LocalStore(location)
    left = []
    for step in deaths(location, "create"):
        left.append(store.tree(""))
        # The next process reads or creates it, and leftovers of the dead one do no harm.
        assert store.create(SLOT, [b"next"]) == (not left[-1])
        assert store.read(SLOT) == (b"new" * 1000 if left[-1] else b"next")
        assert store.names("gen/1/part") == ["000000"]
        store.remove("gen")
        assert files(location) == []
        if step % 2:  # the folders are there already
            os.makedirs(f"{location}/gen/1/part")
    assert [] in left
    assert left[-1] == [SLOT]
    assert len(left) > 8


def test_a_replacement_that_dies_at_any_step_leaves_the_old_or_the_new(tmp_path: Path) -> None:
    location = str(tmp_path / "spool")
    store = LocalStore(location)
    left = set()
    store.write(SLOT, b"old")
    for _ in deaths(location, "write"):
        left.add(store.read(SLOT))
        assert store.tree("") == [SLOT]
        store.write(SLOT, b"old")
    assert left == {b"old", b"new" * 1000}


def test_a_full_disk_leaves_no_partial_object(tmp_path: Path) -> None:
    script = """
import resource, sys
from nsqflow.spark.spool.local_store import LocalStore
resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))
store = LocalStore(sys.argv[1])
assert store.create("small", [b"x" * 2000] * 2)
creating = lambda: store.create("large", [b"x" * 2000] * 3)
replacing = lambda: store.write("small", b"y" * 6000)
for call in (creating, replacing):
    try:
        call()
    except OSError as error:
        print(error.errno)
"""
    run = [sys.executable, "-c", script, str(tmp_path)]
    output = subprocess.check_output(run, text=True, timeout=60).split()
    assert output == [str(errno.EFBIG)] * 2
    assert files(tmp_path) == ["small"]
    assert LocalStore(str(tmp_path)).read("small") == b"x" * 4000


# --- what is on disk ------------------------------------------------------------------------------


class Journal:
    """What was asked of the disk, in order: calls and the names of what they touched."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.calls: list[tuple[str, str]] = []
        self._names: dict[int, str] = {}
        for name in ("open", "mkdir", "link", "replace", "fsync"):
            patch.setattr(os, name, self._noting(name, getattr(os, name)))

    def _noting(self, name: str, call: Callable[..., object]) -> Callable[..., object]:
        def called(target: int | str, *arguments: object) -> object:
            result = call(target, *arguments)
            if name == "open":
                assert isinstance(target, str)
                assert isinstance(result, int)
                self._names[result] = target
            else:
                self.calls.append((name, self._shown(target)))
            return result

        return called

    def _shown(self, target: int | str) -> str:
        name = os.path.basename(self._names[target] if isinstance(target, int) else target)
        return "temporary" if name.startswith(".tmp-") else name


def test_an_object_has_its_name_only_when_it_is_on_disk_with_all_its_folders(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal(monkeypatch)
    assert store.create("gen/1/0", [b"data"])
    assert journal.calls == [
        ("mkdir", "spool"),
        ("fsync", os.path.basename(os.path.dirname(store.location))),
        ("mkdir", "gen"),
        ("fsync", "spool"),
        ("mkdir", "1"),
        ("fsync", "gen"),
        ("fsync", "temporary"),
        ("link", "temporary"),
        ("fsync", "1"),
    ]


def test_a_folder_that_is_known_costs_nothing_more(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.create("gen/1/0", [b"data"])
    journal = Journal(monkeypatch)
    assert store.create("gen/1/1", [b"data"])
    store.write("gen/1/1", b"data")
    assert journal.calls == [
        ("fsync", "temporary"),
        ("link", "temporary"),
        ("fsync", "1"),
        ("fsync", "temporary"),
        ("replace", "temporary"),
        ("fsync", "1"),
    ]


def test_what_was_removed_does_not_come_back(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.create("gen/1/0", [b"data"])
    store.create("gen/1/1", [b"data"])
    journal = Journal(monkeypatch)
    store.remove("gen/1/0")
    store.remove("gen/1")
    store.remove("gen/1")
    assert journal.calls == [("fsync", "1"), ("fsync", "gen")]


def test_folders_of_other_processes_are_synced_too(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.makedirs(f"{store.location}/gen/1")  # by a process that dies before it syncs them
    journal = Journal(monkeypatch)
    store.create("gen/1/0", [b"data"])
    assert ("fsync", "spool") in journal.calls
    assert ("fsync", "gen") in journal.calls


def test_the_loser_of_a_slot_syncs_the_winners_name(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.create("gen/1/0", [b"data"])
    journal = Journal(monkeypatch)
    assert not store.create("gen/1/0", [b"other"])
    assert journal.calls[-1] == ("fsync", "1")


def test_many_folders_are_not_remembered_forever(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path))
    for number in range(1100):
        os.mkdir(tmp_path / str(number))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)  # this is about memory
        for number in range(1100):
            store.create(f"{number}/0", [b"1"])
    assert len(store._folders) <= 1000
    assert len(store.tree("")) == 1100


# --- file systems that are different --------------------------------------------------------------


def test_a_link_whose_answer_was_lost_is_still_ours(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = os.link

    def asked_twice(source: str, target: str) -> None:  # as an NFS client does
        link(source, target)
        link(source, target)

    monkeypatch.setattr(os, "link", asked_twice)
    assert store.create(SLOT, [b"ours"])
    assert not store.create(SLOT, [b"ours"])
    assert files(store.location) == ["000000"]


def test_a_file_system_that_cannot_sync_folders_is_accepted(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsync, failure = os.fsync, errno.EINVAL

    def files_only(file: int) -> None:
        if os.path.isdir(f"/dev/fd/{file}"):
            raise OSError(failure, "no")
        fsync(file)

    monkeypatch.setattr(os, "fsync", files_only)
    assert store.create(SLOT, [b"1"])
    failure = errno.EIO
    with pytest.raises(OSError, match="no"):
        store.create("gen/1/part/000001", [b"1"])


def test_a_file_system_without_links_is_refused(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_links(source: str, target: str) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted", source)

    monkeypatch.setattr(os, "link", no_links)
    with pytest.raises(ConfigError) as caught:
        store.probe()
    assert str(caught.value) == (
        f"spoolLocation '{store.location}': can't create an object: Operation not permitted"
    )
    assert files(store.location) == []


def test_a_location_that_cannot_be_created_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    location = f"{tmp_path}/file/spool"
    with pytest.raises(ConfigError, match=f"'{location}': can't create an object: Not a directory"):
        LocalStore(location).probe()


def test_a_location_that_leads_nowhere_is_not_retried_forever(tmp_path: Path) -> None:
    os.symlink("nowhere", tmp_path / "spool")
    with pytest.raises(FileNotFoundError):
        LocalStore(f"{tmp_path}/spool").create("object", [b"1"])


# --- races ----------------------------------------------------------------------------------------


def test_of_many_threads_one_creates_a_slot_and_all_read_the_same(store: LocalStore) -> None:
    barrier = threading.Barrier(8)
    won: list[list[str]] = [[] for _ in range(8)]
    read: list[list[bytes]] = [[] for _ in range(8)]

    def race(number: int) -> None:
        barrier.wait()
        for slot in range(25):
            name = f"gen/{slot % 3}/{slot}"
            if store.create(name, [b"%d" % number] * 5000):
                won[number].append(name)
            read[number].append(store.read(name))

    threads = [threading.Thread(target=race, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(chain(*won)) == sorted(f"gen/{slot % 3}/{slot}" for slot in range(25))
    assert all(contents == read[0] for contents in read)
    for number, names in enumerate(won):
        for name in names:
            assert store.read(name) == b"%d" % number * 5000


def test_of_many_processes_one_creates_a_slot_and_all_read_the_same(
    store: LocalStore, workers: Workers
) -> None:
    slots = [f"gen/1/{number:06}" for number in range(40)]
    script: list[Step] = [(what, slot) for slot in slots for what in ("create", "read")]
    deeds = workers.run(store.location, [script] * 4)
    for slot in slots:
        about = [deed for worker in deeds for deed in worker if deed.name == slot]
        winners = [deed.token for deed in about if deed.what == "create" and deed.outcome]
        assert len(winners) == 1
        assert {deed.outcome for deed in about if deed.what == "read"} == set(winners)
    assert store.tree("gen/1") == [f"{number:06}" for number in range(40)]
    assert len(files(store.location)) == 40


def test_readers_see_the_old_or_the_new_and_never_a_part(
    store: LocalStore, workers: Workers
) -> None:
    writing: list[Step] = [("write", "counters")] * 60
    reading: list[Step] = [("read", "counters"), ("tree", "")] * 60
    deeds = workers.run(store.location, [writing, writing, reading, reading])
    written = {deed.token for deed in deeds[0] + deeds[1]}
    for deed in deeds[2] + deeds[3]:
        assert deed.outcome in ([], ["counters"], None) or deed.outcome in written


STEPS = st.tuples(
    st.sampled_from(["create", "create", "read", "write"]), st.sampled_from(["f/a", "f/g/b"])
) | st.tuples(st.sampled_from(["remove", "remove", "tree"]), st.sampled_from(["f", "f/g"]))


@settings(max_examples=40)
@given(scripts=st.lists(st.lists(STEPS, min_size=1, max_size=8), min_size=2, max_size=4))
def test_whatever_several_processes_do_they_see_one_store(
    workers: Workers, scripts: list[list[Step]]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        deeds = list(chain(*workers.run(f"{folder}/spool", scripts)))
        assert explains(deeds, "f/a"), deeds
        assert explains(deeds, "f/g/b"), deeds
        assert not [name for name in files(folder) if name.startswith(".")]


def test_an_object_that_is_removed_as_soon_as_it_has_its_name_is_not_made_again(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = os.link

    def link_and_lose(source: str, target: str) -> None:
        link(source, target)
        LocalStore(store.location).remove("gen")

    monkeypatch.setattr(os, "link", link_and_lose)
    assert store.create(SLOT, [b"1"])  # another task may have read it
    assert store.tree("") == []


def test_two_may_remove_the_same_folder(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    unlink = os.unlink

    def too_late(path: str) -> None:
        try:
            unlink(path)
        except OSError:
            os.rename(path, f"{path}-gone")
            raise

    store.create(SLOT, [b"1"])
    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", too_late)
        store.remove("gen")
    assert store.names("") == ["gen-gone"]


def test_what_no_store_can_have_done_is_not_explained() -> None:
    one = Deed("create", "f/a", 0, 10, "one", True)
    two = Deed("create", "f/a", 5, 15, "two", True)
    removed = Deed("remove", "f", 2, 12, "", None)
    read = Deed("read", "f/a", 20, 30, "", "one")
    assert not explains([one, two], "f/a")
    assert explains([one, two, removed], "f/a")
    assert explains([one, read], "f/a")
    assert not explains([one, read, Deed("remove", "f", 12, 19, "", None)], "f/a")


def test_creating_goes_on_while_the_folder_is_removed_again_and_again(
    store: LocalStore, workers: Workers
) -> None:
    creating: list[Step] = [("create", "f/g/a"), ("read", "f/g/a"), ("create", "f/g/b")] * 40
    removing: list[Step] = [("remove", "f"), ("tree", "f"), ("remove", "f/g/a")] * 60
    deeds = workers.run(store.location, [creating, creating, removing])
    created = [deed for worker in deeds for deed in worker if deed.what == "create"]
    removed = sum(deed.what == "remove" for worker in deeds for deed in worker)
    for name in ("f/g/a", "f/g/b"):
        successes = sum(deed.name == name and deed.outcome is True for deed in created)
        assert 1 <= successes <= removed + 1
    for deed in deeds[0] + deeds[1]:
        if deed.what == "read" and deed.outcome is not None:
            assert deed.outcome in {deed.token for deed in created if deed.outcome}
