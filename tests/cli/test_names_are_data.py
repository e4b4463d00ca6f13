"""What servers and messages say is data: it acts neither on a shell nor on a terminal."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from shutil import which
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqflow.cli.terminal import escape, to_json
from tests.cli.clusters import NsqCluster, unique
from tests.cli.commands import COMMAND, InProcess, OnTerminal, install_command
from tests.cli.scripted_http import lookupd_answers, scripted_http
from tests.cli.terminals import Terminal
from tests.cli.test_tail import await_reader, publishing
from tests.fixtures.servers import PATIENCE

# Of a terminal: ESC, and CSI in one character (C1). Of the text around them: all that changes its
# direction, and what ends a line.
CONTROLS = "\x1b\x7f\x80\x9b\x9f\u061c\u200e\u200f\u2028\u2029\u202a\u202e\u2066\u2069"
UNSAFE = re.compile(f"[\x00-\x09\x0b-\x1f{CONTROLS}]")
BODY = f'{{"user":"ann{CONTROLS[1:]}"}}'  # JSON has ESC escaped


class Bash(Terminal):
    """An interactive bash on a terminal."""

    def _start(self, command: list[str], env: Any) -> subprocess.Popen[bytes]:
        bash = which("bash")
        assert bash is not None
        return super()._start([bash, "--norc", "--noprofile", "-i"], env)


@contextmanager
def on_bash(folder: Path, lookupd: str) -> Iterator[Bash]:
    """Start a bash that has the command on its path, and its completion."""
    bin_folder = folder / "bin"
    bin_folder.mkdir()
    install_command(bin_folder)
    env = {
        "HOME": str(folder),
        "PATH": f"{bin_folder}:{os.environ['PATH']}",
        "PS1": "ready> ",
        "NSQFLOW_LOOKUPD": lookupd,
        "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1",
    }
    with Bash([], env) as bash:
        bash.await_text("ready> ")
        bash.type('eval "$(nsqflow --show-completion bash)"; complete -p nsqflow\r')
        bash.await_text("-F _nsqflow_completion nsqflow")
        yield bash


@pytest.mark.skipif(which("bash") is None, reason="there is no bash here")
def test_bash_does_not_run_what_a_server_calls_a_topic(empty_folder: Path, tmp_path: Path) -> None:
    pwned = tmp_path / "pwned"
    names = [f"evil$(touch {pwned})", f"worse;touch {pwned};", f"`touch {pwned}`", "orders-eu"]
    with (
        scripted_http(lookupd_answers(names)) as lookupd,
        on_bash(tmp_path, lookupd.address) as bash,
    ):
        for number, typed in enumerate(("ev", "wor", "\\`")):
            bash.type(f"nsqflow tail {typed}\t; echo done-$(({number} + 40))\r")
            bash.await_text(f"done-{number + 40}")
            assert not pwned.exists()
        bash.type("nsqflow tail or\t; echo done-$((2 * 30))\r")
        bash.await_text("done-60")
        assert "nsqflow tail orders-eu ; echo" in bash.shown
        bash.type("exit\r")
        bash.end()


def completed(line: str, shell: str, lookupd: str) -> str:
    """What a shell is given for the last word of a line."""
    asked = {
        "_NSQFLOW_COMPLETE": f"complete_{shell}",
        "_TYPER_COMPLETE_ARGS": line,
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
        "NSQFLOW_LOOKUPD": lookupd,
    }
    if shell == "bash":
        asked |= {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1)}
    done = subprocess.run(
        COMMAND,
        env={**os.environ, **asked},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.stderr == ""
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("shell", "expected"),
    [("bash", "orders-eu"), ("zsh", "_arguments '*: :((\"orders-eu\"))'"), ("fish", "orders-eu")],
)
def test_only_valid_names_are_completed(empty_folder: Path, shell: str, expected: str) -> None:
    names = [
        *("orders$(touch x)", "orders`touch x`", "orders;x", "orders x", "orders'x", 'orders"x'),
        *("orders\nx", "orders\x1b[2J", "orders\u202e", "orders*", "orders|x", "o" * 65, "-orders"),
    ]
    with scripted_http(lookupd_answers([*names, "orders-eu"], names)) as lookupd:
        for line in ("nsqflow tail o", "nsqflow tail ", "nsqflow stat o", "nsqflow delete o"):
            assert completed(line, shell, lookupd.address) == expected
        nothing = "_files" if shell == "zsh" else ""
        assert completed("nsqflow delete orders-eu ", shell, lookupd.address) == nothing


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_channel_that_is_named_like_an_option_is_not_completed(
    empty_folder: Path, shell: str
) -> None:
    with scripted_http(lookupd_answers(["orders"], ["--yes", "billing"])) as lookupd:
        assert "--yes" not in completed("nsqflow delete orders ", shell, lookupd.address)
        assert "billing" in completed("nsqflow delete orders ", shell, lookupd.address)


@given(st.text())
def test_text_that_is_shown_has_nothing_that_acts(text: str) -> None:
    assert not UNSAFE.search(escape(text + CONTROLS))
    assert "\n" not in escape(f"{text}\n")


@given(st.text() | st.sampled_from(["\ud800", "\udfff", CONTROLS]))
def test_json_that_is_shown_has_nothing_that_acts_and_the_same_value(text: str) -> None:
    value = {"body": text, text: [text]}
    for indent in (None, 2):
        written = to_json(value, indent)
        assert not UNSAFE.search(written)
        assert json.loads(written) == value
        written.encode()
    assert "\n" not in to_json(value)


@pytest.mark.parametrize("place", ["terminal", "pipe"])
def test_a_message_as_json_has_no_raw_controls(
    nsqflow: InProcess, empty_folder: Path, cluster: NsqCluster, place: str
) -> None:
    topic = unique()
    cluster.create(topic)
    words = ["tail", topic, "-n", "1", "--json", *cluster.directly]
    if place == "pipe":
        with publishing(cluster, topic, BODY.encode()):
            text = nsqflow(*words).out
    else:
        with OnTerminal(words, columns=1000) as command:
            await_reader(cluster, topic)
            cluster.publish(topic, BODY.encode())
            assert command.end() == 0
        text = command.text.replace("\r\n", "\n")
    assert not UNSAFE.search(text)
    assert json.loads(text)["body"] == BODY


@pytest.mark.parametrize(
    "environment", [{"NO_COLOR": "1"}, {"TERM": "dumb"}], ids=["xterm", "dumb"]
)
@pytest.mark.parametrize(
    "body", [BODY, f"ann{CONTROLS}", '"\\ud800"'], ids=["json", "text", "surrogate"]
)
def test_a_message_on_a_terminal_has_no_raw_controls(
    empty_folder: Path, cluster: NsqCluster, body: str, environment: Mapping[str, str]
) -> None:
    topic = unique()
    cluster.create(topic)
    with OnTerminal(["tail", topic, "-n", "1", *cluster.directly], environment) as command:
        await_reader(cluster, topic)
        cluster.publish(topic, body.encode())
        assert command.end() == 0, command.text
    assert not UNSAFE.search(command.shown)
    if "ann" in body:
        assert "\\u202e" in command.shown


def test_names_on_a_terminal_and_in_lists_have_no_raw_controls(
    nsqflow: InProcess, empty_folder: Path
) -> None:
    name = f"orders{CONTROLS}\nmore"
    node = {"broadcast_address": "127.0.0.1", "tcp_port": 9, "http_port": 10, "hostname": name}
    answers = lookupd_answers([name, "orders"], [name], [{**node, "version": f"1.3.0{name}"}])
    stats = {
        "version": "1.3.0",
        "health": name,
        "topics": [{"topic_name": name, "channels": [{"channel_name": name}]}],
    }
    with scripted_http(answers) as lookupd, scripted_http({"/stats": stats, "/info": {}}) as nsqd:
        through = ["--lookupd", lookupd.address]
        directly = ["--nsqd", "127.0.0.1:9", "--nsqd-http", nsqd.address]
        for words in (
            ["topics", *through],
            ["topics", "--json", *through],
            ["topics", *directly],
            ["channels", "orders", *through],
            ["channels", "missing", *through],
            ["channels", "missing", "--debug", *through],
            ["nodes", *through],
            ["nodes", "--json", *through],
            ["nodes", *directly],
            ["stat", "--once", *directly],
            ["stat", "--once", "--json", *directly],
            ["stat", "missing", "--once", *directly],
            ["tail", "missing", *through],
            ["doctor", *through],
            ["delete", "missing", "--yes", *directly],
        ):
            done = nsqflow(*words)
            assert not UNSAFE.search(done.out + done.err), shlex.join(words)
            assert "\nmore" not in done.out + done.err, shlex.join(words)
        with OnTerminal(["stat", *directly], {"NO_COLOR": "1"}, columns=500) as command:
            command.await_text("more")
            command.end(2)
            assert not UNSAFE.search(command.shown)


LOOKALIKES = ["orders\u200b", "or\u00adders", "\ufefforders", "orders\u3164", "orders\ufe0f"]


def test_a_name_that_only_looks_like_another_is_quoted(nsqflow: InProcess) -> None:
    with scripted_http(lookupd_answers(["orders", *LOOKALIKES], LOOKALIKES)) as server:
        topics = nsqflow("topics", "--lookupd", server.address).out
        channels = nsqflow("channels", "orders", "--lookupd", server.address).out
    quoted = sorted(map(ascii, LOOKALIKES))
    assert sorted(topics.split("\n")[:-1]) == [*quoted, "orders"]
    assert sorted(channels.split("\n")[:-1]) == quoted


def test_what_a_server_says_begins_no_line_of_its_own_with_debug(nsqflow: InProcess) -> None:
    forged = "nsqflow: published 5 messages to orders"
    with scripted_http({"/topics": f"x\n{forged}"}) as server:
        done = nsqflow("topics", "--debug", "--lookupd", server.address)
    assert done.code == 1
    assert "| Traceback" in done.err
    assert forged not in done.err.split("\n")


STATS = {
    "start_time": ('{"start_time": 1%s, "topics": []}' % ("0" * 400)),
    "depth": ('{"topics": [{"topic_name": "t", "depth": 1%s}]}' % ("0" * 400)),
}


@pytest.mark.parametrize("text", STATS.values(), ids=STATS)
def test_an_endless_number_is_an_error_of_that_server(nsqflow: InProcess, text: str) -> None:
    with scripted_http({"/stats": json.loads(text), "/info": {}}) as server:
        done = nsqflow("nodes", "--nsqd", "127.0.0.1:1", "--nsqd-http", server.address)
    assert "expected 64 bits at most" in done.err
    assert "a mistake in nsqflow" not in done.err


def test_a_hint_names_only_valid_names(nsqflow: InProcess) -> None:
    invalid = ["orders$(touch x)", "orders x", "orders`x`", "orders\x1b[2J"]
    for topics, hint in (
        ([*invalid, "refunds"], "there are refunds"),
        ([*invalid, "order"], "did you mean 'order'?"),
        (invalid, "there is no topic with a valid name"),
    ):
        with scripted_http(lookupd_answers(topics)) as lookupd:
            done = nsqflow("channels", "orders", "--lookupd", lookupd.address)
        assert done.err == f"nsqflow: there is no topic 'orders'; {hint}\n"
