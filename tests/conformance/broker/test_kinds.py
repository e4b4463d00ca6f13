"""Each kind of servers is what it is meant to be: else one might be tested twice, unnoticed."""

import sys
from pathlib import Path

import pytest

from tests.fixtures.servers import Kind, Nsqd, Nsqlookupd, start_nsqd


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows what a process has loaded")
def test_only_ours_are_on_uvloop(server_kind: Kind, nsqd: Nsqd, nsqlookupd: Nsqlookupd) -> None:
    for server in (nsqd, nsqlookupd):
        loaded = Path(f"/proc/{server.process.pid}/maps").read_text()
        assert ("/uvloop/" in loaded) == (server_kind == "ours")


def test_only_the_kind_without_a_disk_leaves_its_folder_empty(
    server_kind: Kind, tmp_path: Path
) -> None:
    with start_nsqd(tmp_path, kind=server_kind) as nsqd:
        assert nsqd.ask("/topic/create?topic=t", "POST")[0] == 200
    assert (list(tmp_path.iterdir()) == []) == (server_kind == "memory")
