"""Who may read the spool: its owner alone, whatever the umask is, unless an option says so."""

from __future__ import annotations

import errno
import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from stat import S_IMODE

import pytest

from nsqflow.errors import ConfigError
from nsqflow.spark.options import parse_stream
from nsqflow.spark.spool.local_store import LocalStore
from tests.unit.spark.users import user

BASE = {"topic": "t", "channel": "c", "nsqd": "h:1"}


# In a process of its own, as the umask is that of all threads.
WRITE = """
import os, sys
from nsqflow.spark.spool.local_store import LocalStore

location, permissions, umask = sys.argv[1:]
os.umask(int(umask, 8))
store = LocalStore(location, permissions)
store.probe()
store.create("gen/batches/1", [b"1"])
store.write("gen/mark", b"2")
store.write("gen/late", b"3", durable=False)
"""


def modes(folder: Path) -> tuple[set[int], set[int]]:
    """The modes of a folder and all folders in it, and those of all files."""
    found = [folder, *folder.rglob("*")]
    return (
        {S_IMODE(path.stat().st_mode) for path in found if path.is_dir()},
        {S_IMODE(path.stat().st_mode) for path in found if path.is_file()},
    )


@pytest.mark.parametrize(
    ("permissions", "umask", "folders", "files"),
    [
        ("owner", "000", 0o700, 0o600),
        ("owner", "022", 0o700, 0o600),
        ("owner", "277", 0o700, 0o600),
        ("group", "077", 0o770, 0o660),
        ("umask", "027", 0o750, 0o640),
    ],
)
def test_folders_and_files_are_for_those_that_the_option_names(
    tmp_path: Path, permissions: str, umask: str, folders: int, files: int
) -> None:
    spool = tmp_path / "spool"
    subprocess.run([sys.executable, "-c", WRITE, str(spool), permissions, umask], check=True)
    assert modes(spool) == ({folders}, {files})


def test_folders_above_the_spool_let_others_pass(tmp_path: Path) -> None:
    spool = tmp_path / "data" / "spools" / "orders"
    subprocess.run([sys.executable, "-c", WRITE, str(spool), "owner", "000"], check=True)
    assert S_IMODE(spool.parent.stat().st_mode) == 0o755
    assert S_IMODE(spool.stat().st_mode) == 0o700


def test_a_folder_that_is_there_stays_as_it_is(tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    spool.mkdir()
    spool.chmod(0o2750)
    LocalStore(str(spool), "group").write("gen/mark", b"1")
    assert S_IMODE(spool.stat().st_mode) == 0o2750
    assert S_IMODE((spool / "gen").stat().st_mode) == 0o2770  # files have the spool's group


@pytest.mark.parametrize(("mode", "warns"), [(0o777, True), (0o1777, False), (0o775, False)])
def test_a_world_writable_folder_causes_a_warning(
    tmp_path: Path, mode: int, warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    tmp_path.chmod(mode)
    with caplog.at_level(logging.WARNING, "nsqflow.spark.spool.local_store"):
        LocalStore(str(tmp_path)).probe()
    said = f"spoolLocation {str(tmp_path)!r} can be written by all users of this machine"
    assert [message.startswith(said) for message in caplog.messages] == [True] * warns


def test_a_folder_of_another_user_is_refused_unless_it_is_shared_on_purpose(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if os.geteuid() == 0:
        os.chown(tmp_path, 4711, -1)
    monkeypatch.setattr(os, "geteuid", lambda: 4712)
    with pytest.raises(
        ConfigError, match=r"belongs to user \d+, .*; .* spoolPermissions=group or umask"
    ):
        LocalStore(str(tmp_path)).probe()
    LocalStore(str(tmp_path), "group").probe()
    LocalStore(str(tmp_path), "umask").probe()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_another_user_is_only_a_warning_for_root(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    os.chown(tmp_path, 4711, -1)
    with caplog.at_level(logging.WARNING, "nsqflow.spark.spool.local_store"):
        LocalStore(str(tmp_path)).probe()
    (warning,) = caplog.messages
    assert "belongs to user 4711, who can read and replace what is in it" in warning


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a link away")
def test_a_link_that_another_user_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    link = tmp_path / "spool"
    link.symlink_to("real")
    LocalStore(str(link)).probe()
    os.lchown(link, 4711, 4711)
    with pytest.raises(ConfigError, match="belongs to user 4711"):
        LocalStore(str(link)).probe()


@pytest.fixture
def shared() -> Iterator[str]:
    """A folder in which each user can make folders."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o1777)
        yield folder


ACTIONS: dict[str, Callable[[LocalStore], object]] = {
    "read": lambda store: store.read("gen/mark"),
    "read the end": lambda store: store.read_tail("gen/mark", 1),
    "age": lambda store: store.age("gen/mark"),
    "list": lambda store: store.names("gen"),
    "list all": lambda store: store.tree("gen"),
    "create": lambda store: store.create("gen/batches/1", [b"1"]),
    "replace": lambda store: store.write("gen/mark", b"1"),
    "remove": lambda store: store.remove("gen/mark"),
}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
@pytest.mark.parametrize("action", ACTIONS)
def test_an_error_about_access_names_the_owner_and_the_option(shared: str, action: str) -> None:
    with user(4711):
        LocalStore(shared).write("gen/mark", b"1")
    with user(4712), pytest.raises(ConfigError) as caught:
        ACTIONS[action](LocalStore(shared))
    said = str(caught.value)
    assert f"spoolLocation {shared!r}: user 4712 has no access to '{shared}/gen" in said
    assert "of user 4711 and mode 0700" in said
    assert "spoolPermissions=group or umask" in said


@pytest.mark.parametrize("permissions", ["owner", "group"])
def test_a_file_system_without_modes_is_used_if_its_modes_are_right_or_do_not_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, permissions: str
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "chmod", refuse)
    monkeypatch.setattr(os, "fchmod", refuse)
    umask = os.umask(0o077)
    try:
        LocalStore(str(tmp_path / "right")).write("gen/mark", b"1")
        os.umask(0o277)
        with pytest.raises(
            ConfigError, match=r"does not let mode 0\d00 become 07\d0: .*spoolPermissions=umask"
        ):
            LocalStore(str(tmp_path / "wrong"), permissions).write("gen/mark", b"1")
        os.umask(0o027)
        LocalStore(str(tmp_path / "any"), "umask").write("gen/mark", b"1")
    finally:
        os.umask(umask)


def test_a_folder_whose_creator_died_gets_its_mode_later(
    tmp_path: Path,
) -> None:
    (tmp_path / "gen").mkdir()
    (tmp_path / "gen").chmod(0o750)
    LocalStore(str(tmp_path), "group").write("gen/mark", b"1")
    assert S_IMODE((tmp_path / "gen").stat().st_mode) == 0o770


def test_permissions_are_refused_where_they_protect_nothing() -> None:
    with pytest.raises(ConfigError, match="is invalid for a spool on S3"):
        parse_stream(BASE | {"spoolLocation": "s3://bucket/spool", "spoolPermissions": "owner"})
