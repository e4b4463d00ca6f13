"""What the tests of the command share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.clusters import NsqCluster, embedded_cluster, real_cluster
from tests.cli.commands import InProcess
from tests.cli.partitioned_clusters import PartitionedCluster, partitioned_cluster


@pytest.fixture(scope="session", params=["real", "embedded"])
def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[NsqCluster]:
    """A cluster of either kind, for the whole run."""
    if request.param == "embedded":
        making = embedded_cluster()
    else:
        making = real_cluster(tmp_path_factory.mktemp("cluster"))
    with making as made:
        yield made


@pytest.fixture(scope="session")
def partitioned() -> Iterator[PartitionedCluster]:
    """A cluster of the redesigned NSQ, for the whole run: no test stops parts of it."""
    with partitioned_cluster() as made:
        yield made


@pytest.fixture
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to be in, where no variable and no file names a server."""
    for name in [*os.environ]:
        if name.startswith("NSQFLOW_") and name not in ("NSQFLOW_SERVERS", "NSQFLOW_UV"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    return here


@pytest.fixture
def nsqflow(capsys: pytest.CaptureFixture[str], empty_folder: Path) -> InProcess:
    """The command, in this process."""
    return InProcess(capsys)
