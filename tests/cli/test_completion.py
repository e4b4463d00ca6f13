"""What a shell completes."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path
from shutil import which

import pytest

from nsqflow.broker import BackgroundBroker
from nsqflow.cli import VERBS
from tests.cli.clusters import NsqCluster, unique
from tests.cli.commands import COMMAND, OnTerminal, install_command, run
from tests.fixtures.servers import PATIENCE


def completed(line: str, env: dict[str, str] | None = None) -> list[str]:
    """What bash would offer for the last word of a line."""
    asked = {
        "_NSQFLOW_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(line.split(" ")) - 1),
    }
    done = subprocess.run(
        COMMAND,
        env={**os.environ, **asked, **(env or {})},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.stderr == ""
    return done.stdout.split()


def test_verbs_are_completed() -> None:
    assert sorted(completed("nsqflow un")) == ["unblock", "unpause"]
    assert sorted(completed("nsqflow ns")) == ["nsqd", "nsqlookupd"]
    assert sorted(completed("nsqflow ")) == sorted(VERBS)


def test_options_are_completed() -> None:
    assert sorted(completed("nsqflow tail --n")) == ["--n", "--nsqd", "--nsqd-http"]
    assert completed("nsqflow pub orders --de") == ["--delay"]


def test_topics_and_channels_are_completed_from_the_servers(
    empty_folder: Path, cluster: NsqCluster
) -> None:
    topic = unique("completed")
    cluster.create(topic, "billing")
    env = {"NSQFLOW_LOOKUPD": cluster.lookupd}
    assert completed(f"nsqflow tail {topic[:-2]}", env) == [topic]
    assert completed(f"nsqflow stat {topic[:-2]}", env) == [topic]
    assert completed(f"nsqflow pause {topic} b", env) == ["billing"]
    assert completed(f"nsqflow tail {topic} --channel b", env) == ["billing"]
    assert completed(f"nsqflow tail {topic} --channel ", env) == ["billing"]
    assert completed(f"nsqflow tail --lookupd {cluster.lookupd} {topic[:-2]}") == [topic]


def test_the_verbs_for_topics_with_partitions_complete_them_and_positions(
    empty_folder: Path, nsq_redesigned_broker: BackgroundBroker
) -> None:
    broker = nsq_redesigned_broker
    broker.create_topic("orders", partitions=2)
    broker.create_channel("orders", "billing")
    env = {"NSQFLOW_LOOKUPD": ",".join(broker.lookupd_addresses)}
    for verb in ("browse", "seek", "unblock"):
        assert completed(f"nsqflow {verb} o", env) == ["orders"]
    for verb in ("seek", "unblock"):
        assert completed(f"nsqflow {verb} orders b", env) == ["billing"]
    assert completed("nsqflow seek orders billing e", env) == ["earliest"]
    for verb in ("tail", "browse"):
        assert completed(f"nsqflow {verb} orders --from ", env) == ["earliest", "latest"]


@pytest.mark.skipif(which("bash") is None, reason="there is no bash here")
def test_bash_completes_after_an_address_which_it_takes_for_several_words(
    empty_folder: Path, cluster: NsqCluster
) -> None:
    topic = unique("completed")
    cluster.create(topic, "billing")
    host, port = cluster.lookupd.split(":")
    cut, command = topic[:-2], str(install_command(empty_folder))
    for words, position, expected in (
        (["tail", "--lookupd", host, ":", port, cut], 6, topic),
        (["tail", "--lookupd", "=", host, ":", port, cut], 7, topic),
        (["stat", "--lookupd", "http", ":", f"//{host}", ":", port, cut], 8, topic),
        (["pause", "--lookupd", host, ":", port, topic, "bil"], 7, "billing"),
    ):
        # What bash does when Tab is pressed.
        script = (
            f'eval "$({command} --show-completion bash)"\n'
            f"COMP_WORDS=({shlex.join([command, *words])}) COMP_CWORD={position}\n"
            f"_nsqflow_completion {command}\n"
            'printf "%s\\n" "${COMPREPLY[@]}"'
        )
        done = subprocess.run(
            ["bash", "-c", script],
            env={**os.environ, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"},
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert (done.stdout, done.stderr) == (f"{expected}\n", ""), words


INSTALLED = [
    ("bash", ".bash_completions/nsqflow.sh", ".bashrc"),
    ("zsh", ".zfunc/_nsqflow", ".zshrc"),
    ("fish", ".config/fish/completions/nsqflow.fish", None),
]


def at_home(home: Path) -> dict[str, str]:
    """Variables with which ``home`` is the home folder."""
    return {"HOME": str(home), "ZDOTDIR": "", "XDG_CONFIG_HOME": ""}


def files(home: Path) -> dict[str, str]:
    return {
        str(path.relative_to(home)): path.read_text() for path in home.rglob("*") if path.is_file()
    }


@pytest.mark.parametrize(("shell", "script", "start"), INSTALLED)
def test_completion_is_installed_for_a_shell_once(
    shell: str, script: str, start: str | None, tmp_path: Path
) -> None:
    if start:
        (tmp_path / start).write_text("alias l=ls")  # without an end of its line
    done = run("--install-completion", shell, "--yes", env=at_home(tmp_path))
    assert (done.code, done.err) == (0, "")
    assert f"~/{script}: create it" in done.out
    assert f"wrote {tmp_path / script}\n" in done.out
    found = files(tmp_path)
    assert f"_NSQFLOW_COMPLETE=complete_{shell}" in found.pop(script)
    if start:
        assert f"added to {tmp_path / start}\n" in done.out
        before, line = found.pop(start).splitlines()
        assert before == "alias l=ls"
        assert f"~/{start}: add the line\n      {line}\n" in done.out
    assert found == {}
    found = files(tmp_path)
    done = run("--install-completion", shell, env=at_home(tmp_path))
    assert (done.code, done.out) == (0, f"{shell} completes nsqflow already; nothing to change\n")
    assert files(tmp_path) == found


@pytest.mark.parametrize(("shell", "script", "start"), INSTALLED)
def test_nothing_is_installed_without_a_terminal_to_ask_on(
    shell: str, script: str, start: str | None, tmp_path: Path
) -> None:
    done = run("--install-completion", shell, env=at_home(tmp_path))
    assert done.code == 2
    assert f"~/{script}: create it" in done.out
    assert start is None or f"~/{start}: add the line" in done.out
    assert done.err.endswith("stdin is not a terminal; pass --yes\n")
    assert files(tmp_path) == {}


@pytest.mark.parametrize(("answer", "code"), [("n", 1), ("y", 0)])
def test_a_terminal_shows_what_will_be_edited_and_asks(
    answer: str, code: int, tmp_path: Path
) -> None:
    with OnTerminal(["--install-completion", "bash"], at_home(tmp_path)) as command:
        command.await_text(r"\[y/N\] ")
        assert "~/.bashrc: add the line" in command.shown
        assert f"source '{tmp_path}/.bash_completions/nsqflow.sh'" in command.shown
        assert files(tmp_path) == {}
        command.type(f"{answer}\n")
        assert command.end() == code
    assert ("nothing was changed" in command.shown) == bool(code)
    assert (".bashrc" in files(tmp_path)) == (not code)


@pytest.mark.skipif(which("bash") is None, reason="there is no bash here")
def test_a_bash_that_starts_then_completes(tmp_path: Path) -> None:
    home = tmp_path / "it's a home"
    home.mkdir()
    install_command(home)
    assert run("--install-completion", "bash", "--yes", env=at_home(home)).code == 0
    script = (
        f"PATH={shlex.quote(str(home))}:$PATH; . ~/.bashrc\n"
        "COMP_WORDS=(nsqflow unp) COMP_CWORD=1\n"
        'complete -p nsqflow; _nsqflow_completion nsqflow; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(
        ["bash", "-c", script],
        env={**os.environ, **at_home(home)},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        "complete -o default -F _nsqflow_completion nsqflow",
        "unpause",
    ]


def test_what_typer_installed_before_is_not_added_again(tmp_path: Path) -> None:
    start = tmp_path / ".bashrc"
    start.write_text(f"\nsource '{tmp_path}/.bash_completions/nsqflow.sh'\n")
    before = start.read_text()
    assert run("--install-completion", "bash", "--yes", env=at_home(tmp_path)).code == 0
    assert start.read_text() == before


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["tcsh"], "no completion for the shell 'tcsh'; "),
        (["bash", "zsh"], "unknown arguments: bash zsh; "),
        (["--force"], "unknown arguments: --force; "),
    ],
)
def test_what_cannot_be_installed_is_an_error_in_one_line(
    words: list[str], error: str, tmp_path: Path
) -> None:
    done = run("--install-completion", *words, env=at_home(tmp_path))
    usage = "nsqflow --install-completion [bash|zsh|fish] [--yes]"
    assert done == (2, "", f"nsqflow: {error}{usage}\n")
    assert files(tmp_path) == {}


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / ".bash_completions").write_text("")
    done = run("--install-completion", "bash", "--yes", env=at_home(tmp_path))
    assert done.code == 1
    assert done.err == f"nsqflow: {tmp_path}/.bash_completions: File exists\n"


def test_without_a_server_nothing_is_completed_and_nothing_printed(empty_folder: Path) -> None:
    assert completed("nsqflow tail o", {"NSQFLOW_LOOKUPD": "127.0.0.1:9"}) == []
    assert completed("nsqflow pause o b", {"NSQFLOW_LOOKUPD": "127.0.0.1:9"}) == []
    assert completed("nsqflow tail o", {"NSQFLOW_LOOKUPD": "no address"}) == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_for_a_shell_is_shown(shell: str) -> None:
    done = subprocess.run(
        [*COMMAND, "--show-completion", shell],
        env={**os.environ, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert f"_NSQFLOW_COMPLETE=complete_{shell}" in done.stdout


def test_completing_a_verb_loads_none_of_them() -> None:
    asked = {"_NSQFLOW_COMPLETE": "complete_bash", "COMP_WORDS": "nsqflow p", "COMP_CWORD": "1"}
    done = subprocess.run(
        [COMMAND[0], "-X", "importtime", *COMMAND[1:]],
        env={**os.environ, **asked},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "nsqflow.cli.app" in loaded
    assert loaded.isdisjoint({"asyncio", "rich", "nsqflow.cli.pub"})
