"""The live view of stat: its keys, and that the terminal is given back as it was."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from shutil import which
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqflow.broker import BackgroundBroker
from nsqflow.cli.keys import ESCAPE, KeyDecoder
from nsqflow.cli.stat_view import Sort, StatView, sort_rows
from tests.cli.clusters import NsqCluster
from tests.cli.commands import OnTerminal
from tests.cli.terminals import Terminal
from tests.fixtures.servers import start_nsqd

DOWN, UP, PAGE_DOWN, PAGE_UP = "\x1b[B", "\x1b[A", "\x1b[6~", "\x1b[5~"
HOME, END = "\x1b[H", "\x1b[F"


@pytest.fixture
def forty(empty_folder: Path) -> Iterator[NsqCluster]:
    """A cluster with forty topics; some have messages."""
    with BackgroundBroker() as broker:
        cluster = NsqCluster(
            broker.lookupd_addresses[0], broker.nsqd_addresses, broker.nsqd_http_addresses
        )
        for number in range(40):
            broker.create_topic(f"topic-{number:02}")
        cluster.publish("topic-35", b"1")
        cluster.publish("topic-30", b"1", b"2", b"3")
        cluster.publish("topic-05", b"1", b"2")
        yield cluster


def topics(command: OnTerminal) -> list[str]:
    """The topics on the screen, from its top."""
    return [row.split()[0] for row in command.picture[2:] if row.startswith("topic-")]


def number_of(topic: str) -> int:
    return int(topic.removeprefix("topic-"))


def test_keys_scroll_by_rows_and_pages_and_to_both_ends(forty: NsqCluster) -> None:
    with Terminal(["stat", "--interval", "60", *forty.through_lookupd], lines=13) as command:
        command.await_text("1-10 of 40 rows by name.*scroll")
        for keys, first in (
            (DOWN, 1),
            ("jj", 3),
            (UP, 2),
            ("kkkk", 0),
            (PAGE_DOWN, 10),
            (PAGE_UP, 0),
            (END, 30),
            (DOWN + PAGE_DOWN, 30),
            (UP, 29),
            (HOME, 0),
            ("G", 30),
            ("g", 0),
        ):
            command.press(keys, rf"(?<!\d){first + 1}-{first + 10} of 40 rows.*scroll")
            assert topics(command) == [f"topic-{first + n:02}" for n in range(10)], keys
        command.type("q")
        assert command.end() == 0


def test_rows_are_sorted_by_keys_and_reversed(forty: NsqCluster) -> None:
    with Terminal(["stat", "--interval", "60", *forty.through_lookupd], lines=13) as command:
        command.await_text("by name.*scroll")
        command.press("d", "by depth  .*scroll")
        assert topics(command)[:4] == ["topic-30", "topic-05", "topic-35", "topic-00"]
        command.press("r", "by depth, reversed.*scroll")
        assert topics(command)[:2] == ["topic-00", "topic-01"]
        command.press("n", "by name  .*scroll")
        command.press("r", "by name, reversed.*scroll")
        assert topics(command)[:2] == ["topic-39", "topic-38"]
        for sort in [*Sort][1:]:
            command.press("s", f"by {sort.value}  .*scroll")
        command.press("s", "by name  .*scroll")
        command.type("q")
        assert command.end() == 0


def test_an_option_says_how_rows_are_sorted_at_first(forty: NsqCluster) -> None:
    words = ["stat", "--sort", "depth", "--interval", "60", *forty.through_lookupd]
    with Terminal(words, lines=13) as command:
        command.await_text("by depth.*scroll")
        assert topics(command)[:3] == ["topic-30", "topic-05", "topic-35"]
        command.type("q")
        assert command.end() == 0


def test_a_resized_terminal_is_filled_at_once_and_scrolls_on(forty: NsqCluster) -> None:
    with Terminal(["stat", "--interval", "60", *forty.through_lookupd], lines=13) as command:
        command.await_text("1-10 of 40 rows.*scroll")
        command.press(END, "31-40 of 40 rows.*scroll")
        command.text = ""
        command.resize(90, 23)
        command.await_text("21-40 of 40 rows.*scroll")
        assert [number_of(topic) for topic in topics(command)] == [*range(20, 40)]
        assert len(command.picture) == 23
        assert max(map(len, command.picture)) <= 90
        command.text = ""
        command.resize(60, 8)
        command.await_text("21-25 of 40 rows")
        command.press(DOWN, "22-26 of 40 rows")
        command.type("q")
        assert command.end() == 0


@pytest.mark.parametrize(
    ("end", "code"),
    [("q", 0), ("\x1b", 0), ("\x03", 130), (signal.SIGTERM, 143), (signal.SIGINT, 130)]
    + [(number, -number) for number in (signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1)],
)
def test_the_terminal_is_restored(forty: NsqCluster, end: str | int, code: int) -> None:
    with Terminal(["stat", "--interval", "60", *forty.through_lookupd]) as command:
        before = command.modes
        command.await_text("q quit[^\n]*scroll")
        assert command.modes != before
        if isinstance(end, str):
            command.type(end)
        assert command.end(None if isinstance(end, str) else end) == code
        assert command.modes == before
    for on, off in (("\x1b[?1049h", "\x1b[?1049l"), ("\x1b[?25l", "\x1b[?25h")):
        assert command.text.count(on) == command.text.count(off) == 1
    assert "Traceback" not in command.shown


FAILING = """
import sys
from nsqflow.cli import main, stat
def fail(*_):
    raise ZeroDivisionError("a mistake")
stat.LiveStat.draw = fail
sys.exit(main(["stat", *sys.argv[1:]]))
"""


class Failing(Terminal):
    """The live view, with a mistake in it."""

    def _start(self, command: list[str], env: Any) -> subprocess.Popen[bytes]:
        return super()._start([sys.executable, "-c", FAILING, *command[4:]], env)


def test_the_terminal_is_restored_after_an_error_of_ours(forty: NsqCluster) -> None:
    with Failing(["stat", *forty.through_lookupd]) as command:
        before = command.modes
        assert command.end() == 1
        assert command.modes == before
    assert "ZeroDivisionError: a mistake" in command.shown
    assert command.text.count("\x1b[?1049h") == command.text.count("\x1b[?1049l") == 1


STOPPING = """
set -m
"$@"
stty -a
echo "stopped here"
fg
echo "ended with $?"
"""
IN_BACKGROUND = """
set -m
"$@"
bg
echo "in the background"
read line
echo "read $line"
fg
echo "ended with $?"
"""


class InShell(Terminal):
    """A command in a shell that can stop and continue it."""

    script = STOPPING

    def _start(self, command: list[str], env: Any) -> subprocess.Popen[bytes]:
        return super()._start([str(which("bash")), "-c", self.script, "bash", *command], env)


@pytest.mark.skipif(which("bash") is None, reason="there is no bash here")
def test_ctrl_z_restores_the_terminal_and_fg_draws_again(forty: NsqCluster) -> None:
    with InShell(["stat", "--interval", "60", *forty.through_lookupd]) as command:
        before = command.modes
        command.await_text("q quit[^\n]*scroll")
        command.press("\x1a", r"stopped here[^\x00]*q quit[^\n]*scroll")
        stopped, _, continued = command.text.partition("stopped here")
        assert re.search(r"\s(icanon)\b", stopped)
        assert re.search(r"\secho\b", stopped)
        assert "\x1b[?1049l" in stopped
        assert "\x1b[?1049h" in continued
        assert command.modes != before
        command.press("q", "ended with 0")
        assert command.end() == 0
        assert command.modes == before


class InBackground(InShell):
    """The same, with a shell that lets it go on in the background, and reads a line meanwhile."""

    script = IN_BACKGROUND


@pytest.mark.skipif(which("bash") is None, reason="there is no bash here")
def test_in_the_background_it_leaves_the_terminal_alone(forty: NsqCluster) -> None:
    with InBackground(["stat", "--interval", "0.1", *forty.through_lookupd]) as command:
        before = command.modes
        command.await_text("q quit[^\n]*scroll")
        command.press("\x1a", "in the background")
        command.press("quite another line\n", "read quite another line")
        assert "q quit" not in command.text.partition("read quite")[0]
        command.await_text("q quit[^\n]*scroll")
        command.press("q", "ended with 0")
        assert command.end() == 0
        assert command.modes == before


def test_a_key_works_while_a_server_does_not_answer(empty_folder: Path, tmp_path: Path) -> None:
    with start_nsqd(tmp_path) as nsqd:
        servers = ["--nsqd", nsqd.tcp_address, "--nsqd-http", nsqd.http_address]
        assert nsqd.ask("/topic/create?topic=orders", "POST")[0] == 200
        words = ["stat", "--interval", "60", *servers]
        with Terminal(words, {"NSQFLOW_TIMEOUT": "600"}) as command:
            command.await_text("1 row by name.*scroll")
            nsqd.process.send_signal(signal.SIGSTOP)
            try:
                command.press("c", "asking for clients .*scroll")
                command.press("d", "asking for clients .*scroll")
                command.type("q")
                assert command.end() == 0
            finally:
                nsqd.process.send_signal(signal.SIGCONT)


def test_it_goes_on_while_no_server_answers(empty_folder: Path) -> None:
    with BackgroundBroker() as broker:
        cluster = NsqCluster(
            broker.lookupd_addresses[0], broker.nsqd_addresses, broker.nsqd_http_addresses
        )
        cluster.create("orders")
        with Terminal(["stat", "--interval", "0.1", *cluster.directly]) as command:
            command.await_text("1 row by name.*scroll")
            broker.stop_node(0)
            command.await_text("Connection refused[^\x00]*0 rows by name")
            command.type("q")
            assert command.end() == 0


# --- pure ---------------------------------------------------------------------------------------


def test_keys_come_out_whole_however_their_bytes_arrive() -> None:
    data = b"q\x1b[A\x1bOB\x1b[5~\x1b[1;5C\xc3\xa4j\x1bx\x1b\x1b[6~"
    whole = KeyDecoder().feed(data)
    assert whole == ["q", "up", "down", "page up", "ä", "j", ESCAPE, "page down"]
    for cut in range(len(data) + 1):
        if data[:cut].endswith(b"\xc3"):
            continue
        decoder = KeyDecoder()
        assert decoder.feed(data[:cut]) + decoder.feed(data[cut:]) == whole, cut


def test_an_escape_that_nothing_follows_is_the_key() -> None:
    decoder = KeyDecoder()
    assert decoder.feed(b"\x1b") == []
    assert decoder.is_waiting
    assert decoder.flush() == [ESCAPE]
    assert not decoder.is_waiting
    assert decoder.feed(b"\x1b[") == []
    assert decoder.flush() == []


@given(st.binary(max_size=200))
def test_whatever_a_terminal_sends_is_taken(data: bytes) -> None:
    decoder = KeyDecoder()
    keys = decoder.feed(data)
    assert len(keys) <= len(data)
    decoder.flush()
    assert decoder.feed(b"q") == ["q"]


KEYS = ["up", "down", "j", "k", "page up", "page down", "home", "end", "g", "G", "s", "r", "c", "x"]


@given(
    st.lists(
        st.one_of(st.sampled_from(KEYS), st.tuples(st.integers(0, 60), st.integers(-2, 30))),
        max_size=40,
    )
)
def test_a_screen_is_full_wherever_one_scrolls(steps: list[str | tuple[int, int]]) -> None:
    view, rows, height = StatView(), 20, 5
    for step in steps:
        if isinstance(step, str):
            view.press(step)
        else:
            rows, height = step
        shown = view.window(rows, height)
        assert len(shown) == min(rows, max(height, 1))
        assert rows == 0 or (shown.start >= 0 and shown.stop <= rows)
    assert not view.is_over


@given(st.lists(st.tuples(st.text(max_size=3), st.none() | st.integers(0, 5))), st.booleans())
def test_rows_without_a_number_come_last_either_way(
    rows: list[tuple[str, int | None]], reverse: bool
) -> None:
    done = sort_rows(rows, lambda row: (row[0],), lambda row: row[1], reverse=reverse)
    numbers = [number for _, number in done if number is not None]
    assert sorted(done, key=repr) == sorted(rows, key=repr)
    assert numbers == sorted(numbers, reverse=not reverse)
    assert [number for _, number in done][: len(numbers)] == numbers
