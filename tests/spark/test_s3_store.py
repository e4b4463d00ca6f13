"""The spool on S3: exclusive whichever task is faster, and certain whatever response is lost."""

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import run_state_machine_as_test

from nsqflow.errors import ConfigError
from nsqflow.spark.spool.store import ObjectStore, open_store
from tests.fixtures.s3 import S3
from tests.fixtures.stores import Behaviour, Step, Workers, explains

SLOT = "gen/1/part/000000"
LARGE = 33 << 20  # so large that it goes up in parts


@pytest.fixture
def store(s3: S3) -> ObjectStore:
    return open_store(fresh(s3))


@pytest.fixture(scope="module")
def workers(s3: S3) -> Iterator[Workers]:
    with Workers(4) as workers:
        yield workers


def fresh(s3: S3, word: str = "spool") -> str:
    """An unused location."""
    return s3.location(f"{word}/{uuid.uuid4()}")


def test_it_behaves_as_every_store_does(s3: S3) -> None:
    class OnS3(Behaviour):
        def __init__(self) -> None:
            super().__init__()
            self.store = open_store(fresh(s3))

    run_state_machine_as_test(OnS3, settings=settings(max_examples=8, stateful_step_count=25))


def test_a_store_that_works_is_left_as_it_was(store: ObjectStore) -> None:
    store.write("before", b"1")
    store.probe()
    assert store.tree("") == ["before"]


def test_pieces_may_be_any_buffers(store: ObjectStore) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    assert store.create(SLOT, [pyarrow.py_buffer(b"arrow"), memoryview(b"view"), b"bytes"])
    assert store.read(SLOT) == b"arrowviewbytes"


def test_names_may_contain_the_characters_of_addresses(store: ObjectStore) -> None:
    name = "gen/orders|[::1]:4150 50%25+1=ü&#/000000"
    assert store.create(name, [b"1"])
    assert not store.create(name, [b"2"])
    assert store.read(name) == b"1"
    assert store.tree("") == [name]
    assert store.names("gen") == [name.split("/")[1]]
    store.remove(name)
    assert store.tree("") == []


def test_neighbours_with_the_same_beginning_stay(store: ObjectStore) -> None:
    for name in ("seq/1/a", "seq/10/a", "seq/1.old"):
        store.write(name, b"1")
    assert store.names("seq/1") == ["a"]
    store.remove("seq/1")
    assert store.tree("seq") == ["1.old", "10/a"]


def test_folders_that_some_tool_made_an_object_of_are_not_shown(store: ObjectStore) -> None:
    store.write("gen/", b"")
    store.write("gen/1/", b"")
    store.write("gen/1/a", b"1")
    assert store.names("gen") == ["1"]
    assert store.tree("gen") == ["1/a"]
    store.remove("gen")
    assert store.names("") == []


def test_more_objects_than_one_request_takes(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nsqflow.spark.spool.s3_store._MAX_KEYS", 7)
    store = open_store(fresh(s3, "small-pages"))
    expected = [f"{number:06}" for number in range(20)]
    for name in expected:
        store.write(f"gen/{name}", b"1")
    assert store.names("gen") == expected
    assert store.tree("") == [f"gen/{name}" for name in expected]
    store.remove("gen")
    assert store.tree("") == []


def test_what_cannot_be_removed_is_reported(store: ObjectStore) -> None:
    store.write("gen/undeletable", b"1")
    with pytest.raises(OSError, match="AccessDenied: never"):
        store.remove("gen")


def test_the_last_bytes_of_an_object_are_read_alone(store: ObjectStore) -> None:
    store.write("object", b"0123456789")
    assert store.read_tail("object", 3) == b"789"
    assert store.read_tail("object", 100) == b"0123456789"
    assert store.read_tail("object", 0) == b""
    store.write("object", b"")
    assert store.read_tail("object", 3) == b""


# --- objects in parts -----------------------------------------------------------------------------


def test_a_large_object_is_exclusive_too(s3: S3, store: ObjectStore) -> None:
    first, second = os.urandom(LARGE), os.urandom(LARGE)
    assert store.create(SLOT, [first[:1000], memoryview(first)[1000:]])
    assert not store.create(SLOT, [second])
    assert store.read(SLOT) == first
    assert store.read_tail(SLOT, 10) == first[-10:]
    store.write(SLOT, second)
    assert store.read(SLOT) == second
    assert s3.unfinished_uploads() == 0


def test_of_several_writers_of_a_large_object_one_creates_it(s3: S3, store: ObjectStore) -> None:
    contents = [bytes([number]) * LARGE for number in range(3)]
    with ThreadPoolExecutor(3) as pool:
        created = list(pool.map(lambda content: store.create(SLOT, [content]), contents))
    assert created.count(True) == 1
    assert store.read(SLOT) == contents[created.index(True)]
    assert s3.unfinished_uploads() == 0


# --- what is lost on the way ----------------------------------------------------------------------


def test_an_object_whose_answer_was_lost_is_ours(s3: S3) -> None:
    store = open_store(fresh(s3, "lost-answer"))
    assert store.create(SLOT, [b"ours"])
    assert s3.attempts(f"{store.location}/{SLOT}") == 2
    assert not store.create(SLOT, [b"theirs"])
    assert store.read(SLOT) == b"ours"


@pytest.mark.parametrize("accident", ["lost-answer", "lost-upload"])
def test_a_large_object_whose_answer_was_lost_is_ours(s3: S3, accident: str) -> None:
    store = open_store(fresh(s3, accident))
    content = os.urandom(LARGE)
    assert store.create(SLOT, [content])
    assert s3.attempts(f"{store.location}/{SLOT}") == 2
    assert store.read(SLOT) == content


def test_a_key_that_s3_is_busy_with_is_tried_again(s3: S3) -> None:
    store = open_store(fresh(s3, "conflict"))
    assert store.create(SLOT, [b"ours"])
    assert s3.attempts(f"{store.location}/{SLOT}") == 2
    assert store.read(SLOT) == b"ours"


# --- races ----------------------------------------------------------------------------------------


def test_of_many_processes_one_creates_a_slot_and_all_read_the_same(
    store: ObjectStore, workers: Workers
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


STEPS = st.tuples(
    st.sampled_from(["create", "create", "read", "write"]), st.sampled_from(["f/a", "f/g/b"])
) | st.tuples(st.sampled_from(["remove", "tree"]), st.sampled_from(["f", "f/g"]))


@settings(max_examples=15)
@given(scripts=st.lists(st.lists(STEPS, min_size=1, max_size=6), min_size=2, max_size=3))
def test_whatever_several_processes_do_they_see_one_store(
    s3: S3, workers: Workers, scripts: list[list[Step]]
) -> None:
    deeds = list(chain(*workers.run(fresh(s3), scripts)))
    assert explains(deeds, "f/a"), deeds
    assert explains(deeds, "f/g/b"), deeds


# --- other processes and other surroundings -------------------------------------------------------


def run(script: str, *arguments: str, **environment: str | None) -> str:
    """What a process prints whose environment is ours but for these variables."""
    changed = {**os.environ, **environment}
    return subprocess.check_output(
        [sys.executable, "-c", script, *arguments],
        env={name: value for name, value in changed.items() if value is not None},
        text=True,
        timeout=60,
    )


PROBE = """
import sys
{before}
from nsqflow.errors import ConfigError
from nsqflow.spark.spool.store import open_store
try:
    open_store(sys.argv[1]).probe()
except ConfigError as error:
    print(error)
"""


def test_a_store_goes_on_in_a_forked_process(store: ObjectStore) -> None:
    script = """
import os, sys
from nsqflow.spark.spool.store import open_store
store = open_store(sys.argv[1])
assert store.create("before", [b"1"])
child = os.fork()
who = "child" if child == 0 else "parent"
assert store.create(who, [b"1"]) and store.names("")[0] == "before"
if child == 0:
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
assert store.create("after", [b"1"])
"""
    run(script, store.location)
    assert store.tree("") == ["after", "before", "child", "parent"]


def test_a_bucket_that_is_not_there_is_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        open_store("s3://no-such-bucket/spool").probe()
    assert str(caught.value) == (
        "spoolLocation 's3://no-such-bucket/spool': can't create an object: "
        "The specified bucket does not exist"
    )


def test_a_store_that_ignores_conditions_is_refused(s3: S3) -> None:
    store = open_store(fresh(s3, "careless"))
    with pytest.raises(ConfigError, match=f"'{store.location}': create is not exclusive there"):
        store.probe()
    assert store.tree("") == []


def test_missing_credentials_are_reported(s3: S3) -> None:
    environment = {"AWS_ACCESS_KEY_ID": None, "AWS_SECRET_ACCESS_KEY": None}
    output = run(PROBE.format(before=""), s3.location("spool"), **environment)
    assert output == (
        "spoolLocation 's3://spools/spool': can't create an object: Unable to locate credentials\n"
    )


def test_an_endpoint_that_does_not_answer_is_reported(s3: S3) -> None:
    environment = {"AWS_ENDPOINT_URL": "http://127.0.0.1:1", "AWS_MAX_ATTEMPTS": "1"}
    output = run(PROBE.format(before=""), s3.location("spool"), **environment)
    assert output.startswith("spoolLocation 's3://spools/spool': can't create an object: Could not")
    assert "http://127.0.0.1:1" in output
    assert output.count("\n") == 1


@pytest.mark.parametrize(
    ("before", "words"),
    [
        ("sys.modules['s3fs'] = None", "a spool on S3 needs s3fs: pip install 's3fs>=2025.2'"),
        (
            "import botocore; botocore.__version__ = '1.35.19'",
            "a spool on S3 needs botocore 1.35.20 or later, and 1.35.19 is installed here",
        ),
        (
            "import s3fs; s3fs.__version__ = '2024.12.0'",
            "a spool on S3 needs s3fs 2025.2 or later, and 2024.12.0 is installed here",
        ),
    ],
    ids=["no s3fs", "old botocore", "old s3fs"],
)
def test_a_missing_or_old_package_is_reported(s3: S3, before: str, words: str) -> None:
    assert run(PROBE.format(before=before), s3.location("spool")) == words + "\n"
