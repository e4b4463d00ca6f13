"""Who may read the spool: its owner alone, whatever the umask is, unless an option says so."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from nsqflow.spark.options import parse_batch
from nsqflow.spark.source.batch_reader import NsqBatchReader
from nsqflow.spark.spool.local_store import LocalStore
from tests.fixtures.servers import Nsqd
from tests.fixtures.spark import published
from tests.unit.spark.users import user


@pytest.fixture
def shared() -> Iterator[str]:
    """A folder in which each user can make folders."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o1777)
        yield folder


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
def test_a_batch_read_leaves_alone_what_other_users_have_in_a_shared_folder(
    shared: str, nsqd: Nsqd
) -> None:
    with user(4711):
        LocalStore(shared).write("batch-1/_gen", b"1")
        LocalStore(shared).write("gen/_gen", b"1")
    options = {"topic": "t", "channel": "c", "nsqd": nsqd.tcp_address, "spoolLocation": shared}
    published(nsqd, "t", 1, channel="c")
    with user(4712):
        NsqBatchReader(parse_batch(options | {"nsqdHttp": nsqd.http_address})).partitions()
    assert {"batch-1", "gen"} < {path.name for path in Path(shared).iterdir()}
