"""What a shell completes."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path
from shutil import which

import pytest

from nsqflow.cli import VERBS
from tests.cli.commands import COMMAND, install_command
from tests.cli.sites import Site, unique
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
    assert completed("nsqflow un") == ["unpause"]
    assert sorted(completed("nsqflow ns")) == ["nsqd", "nsqlookupd"]
    assert sorted(completed("nsqflow ")) == sorted(VERBS)


def test_options_are_completed() -> None:
    assert sorted(completed("nsqflow tail --n")) == ["--n", "--nsqd", "--nsqd-http"]
    assert completed("nsqflow pub orders --de") == ["--delay"]


def test_topics_and_channels_are_completed_from_the_servers(nowhere: Path, site: Site) -> None:
    topic = unique("completed")
    site.create(topic, "billing")
    env = {"NSQFLOW_LOOKUPD": site.lookupd}
    assert completed(f"nsqflow tail {topic[:-2]}", env) == [topic]
    assert completed(f"nsqflow stat {topic[:-2]}", env) == [topic]
    assert completed(f"nsqflow pause {topic} b", env) == ["billing"]
    assert completed(f"nsqflow tail --lookupd {site.lookupd} {topic[:-2]}") == [topic]


@pytest.mark.skipif(which("bash") is None, reason="there is no bash here")
def test_bash_completes_after_an_address_which_it_takes_for_several_words(
    nowhere: Path, site: Site
) -> None:
    topic = unique("completed")
    site.create(topic, "billing")
    host, port = site.lookupd.split(":")
    cut, command = topic[:-2], str(install_command(nowhere))
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


@pytest.mark.parametrize(
    ("shell", "file"),
    [
        ("bash", ".bash_completions/nsqflow.sh"),
        ("zsh", ".zfunc/_nsqflow"),
        ("fish", ".config/fish/completions/nsqflow.fish"),
    ],
)
def test_completion_is_installed_for_a_shell(shell: str, file: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [*COMMAND, "--install-completion", shell],
        env={
            **os.environ,
            "HOME": str(tmp_path),
            "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1",
        },
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "completion installed in" in done.stdout
    assert f"_NSQFLOW_COMPLETE=complete_{shell}" in (tmp_path / file).read_text()


def test_where_nobody_answers_nothing_is_completed_and_nothing_said(nowhere: Path) -> None:
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
