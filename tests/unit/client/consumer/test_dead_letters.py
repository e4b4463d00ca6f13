"""Dead letters: stored before the message is finished, or the message comes again."""

from __future__ import annotations

import asyncio
import fcntl
import json
import logging
import os
import resource
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from nsqflow.client.consumer import dead_letters
from nsqflow.client.consumer.config import ConsumerConfig
from nsqflow.client.consumer.dead_letters import DeadLetters
from nsqflow.client.consumer.queue import MessageQueue
from nsqflow.client.consumer.stats import Counts
from nsqflow.client.events import EventEmitter
from nsqflow.client.message import Message
from nsqflow.errors import ConfigError
from tests.fixtures.loops import asynchronous, eventually
from tests.unit.client.fakes import FakeSubscription


def new_dead_letters(**options: Any) -> DeadLetters:
    config = ConsumerConfig.of("Consumer", "127.0.0.1:4150", (), options)
    return DeadLetters(config, MessageQueue(10), Counts(), EventEmitter(None))


def command_of(message: Message) -> str | None:
    return message.answer and message.answer.command


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


class Callback:
    """Writes down what it is called with, and in which state the message was then."""

    def __init__(self, error: Exception | None = None) -> None:
        self.calls: list[tuple[Message, BaseException | None]] = []
        self.answered: list[bool] = []
        self.error = error

    def plain(self, message: Message, error: BaseException | None) -> None:
        self.calls.append((message, error))
        self.answered.append(message.answered)
        if self.error is not None:
            raise self.error

    async def later(self, message: Message, error: BaseException | None) -> None:
        await asyncio.sleep(0)
        self.plain(message, error)


# --- where they go


@pytest.mark.parametrize("kind", ["str", "Path"])
def test_a_dead_letter_is_a_line_in_a_file(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "dead_letters.jsonl"

    @asynchronous
    async def give_up() -> None:
        subscription, dead = (
            FakeSubscription(),
            new_dead_letters(dead_letter=str(path) if kind == "str" else path),
        )
        first = subscription.message("grüße".encode(), attempts=6)
        second = subscription.message(b"\xff\x00", attempts=7, id=b"\xff" * 16)
        dead.remember(first, ValueError("wrong"))
        for message in (first, second):
            await dead.give_up(message)
            assert command_of(message) == "FIN"
        await dead.close()

    give_up()
    common = {"topic": "orders", "channel": "billing", "nsqd": "10.0.0.1:4150", "timestamp": 1}
    assert read(path) == [
        {
            **common,
            "id": "0123456789abcdef",
            "attempts": 6,
            "error": "ValueError: wrong",
            "body": "grüße",
        },
        {**common, "id": "\xff" * 16, "attempts": 7, "error": None, "body_hex": "ff00"},
    ]


@asynchronous
async def test_dead_letters_written_at_the_same_time_do_not_mix(tmp_path: Path) -> None:
    dead, path = new_dead_letters(dead_letter=tmp_path / "dead_letters"), tmp_path / "dead_letters"
    bodies = [b"%d" % number * 5000 for number in range(10)]
    messages = [FakeSubscription().message(body, attempts=6) for body in bodies]
    await asyncio.gather(*map(dead.give_up, messages))
    assert sorted(line["body"].encode() for line in read(path)) == sorted(bodies)
    # (to_thread keeps its threads for the next time, until the loop ends.)


@pytest.mark.parametrize("kind", ["plain", "later"])
def test_a_dead_letter_is_passed_to_a_function(kind: str) -> None:
    @asynchronous
    async def give_up() -> None:
        callback, error = Callback(), ValueError("wrong")
        dead = new_dead_letters(dead_letter=getattr(callback, kind))
        message = FakeSubscription().message(attempts=5)
        dead.remember(message, error)
        await dead.give_up(message)
        assert callback.calls == [(message, error)]
        assert (callback.answered, command_of(message)) == ([False], "FIN")

    give_up()


@pytest.mark.parametrize("name", ["", "no topic", "a" * 65, "$"])
def test_what_is_neither_topic_nor_path_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="dead_letter="):
        new_dead_letters(dead_letter=name)


# --- what fails


@pytest.mark.parametrize("kind", ["plain", "later"])
@pytest.mark.parametrize("option", ["dead_letter", "on_giving_up"])
def test_a_message_whose_dead_letter_is_refused_is_requeued(
    option: str, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    @asynchronous
    async def give_up() -> None:
        callback = Callback(OSError("disk full"))
        dead = new_dead_letters(**{option: getattr(callback, kind)})
        message = FakeSubscription().message(b"secret", attempts=6)
        await dead.give_up(message)
        assert message.answer is not None
        assert (message.answer.command, message.answer.counts) == ("REQ", False)

    give_up()
    assert "could not give up <Message" in caplog.text
    assert "disk full" in caplog.text
    assert "secret" not in caplog.text


@asynchronous
async def test_a_file_that_cannot_be_written_brings_the_message_back(tmp_path: Path) -> None:
    dead = new_dead_letters(dead_letter=tmp_path / "missing" / "dead_letters")
    message = FakeSubscription().message(attempts=6)
    await dead.give_up(message)
    assert command_of(message) == "REQ"


@asynchronous
async def test_on_giving_up_is_not_called_if_the_dead_letter_is_not_stored() -> None:
    callback = Callback()
    dead = new_dead_letters(dead_letter=Callback(OSError()).plain, on_giving_up=callback.plain)
    await dead.give_up(FakeSubscription().message(attempts=6))
    assert callback.calls == []


# --- whole lines only


@contextmanager
def full_disk(path: Path, free: int) -> Iterator[None]:
    """Let no file of this process grow beyond the length of this one and ``free`` bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    size = path.stat().st_size if path.exists() else 0
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + free, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


async def give_up(path: Path, body: bytes) -> str | None:
    """Return the answer to a message whose dead letter goes to a file."""
    message = FakeSubscription().message(body, attempts=6)
    await new_dead_letters(dead_letter=path).give_up(message)
    return command_of(message)


@pytest.mark.parametrize("free", [0, 1, 100])
@pytest.mark.parametrize("first", [True, False], ids=["empty", "filled"])
def test_a_dead_letter_after_a_full_disk_is_on_its_own_line(
    tmp_path: Path, free: int, first: bool
) -> None:
    path = tmp_path / "dead_letters"

    @asynchronous
    async def fill() -> None:
        if first:
            assert await give_up(path, b"first") == "FIN"
        before = path.read_bytes() if first else b""
        with full_disk(path, free):
            assert await give_up(path, b"too much") == "REQ"
            assert path.read_bytes() == before
            assert await give_up(path, b"too much") == "REQ"
        assert await give_up(path, b"last") == "FIN"

    fill()
    bodies = [line["body"] for line in read(path)]
    assert bodies == (["first", "last"] if first else ["last"])


@asynchronous
async def test_a_dead_letter_after_a_fragment_is_on_its_own_line(tmp_path: Path) -> None:
    path = tmp_path / "dead_letters"
    path.write_bytes(fragment := b'{"topic": "orders", "cha')  # its process was killed
    for body in (b"one", b"two"):
        assert await give_up(path, body) == "FIN"
    lines = path.read_bytes().splitlines()
    assert lines[0] == fragment
    assert [json.loads(line)["body"] for line in lines[1:]] == ["one", "two"]


@asynchronous
async def test_a_fragment_is_not_completed_where_the_disk_is_full(tmp_path: Path) -> None:
    path = tmp_path / "dead_letters"
    path.write_bytes(b"{")
    with full_disk(path, 5):
        assert await give_up(path, b"too much") == "REQ"
    assert path.read_bytes() == b"{"


def instead_of_fsync(monkeypatch: pytest.MonkeyPatch, act: Callable[[], None]) -> None:
    """Have something happen to the file when the next dead letter is synced."""
    fsync, acts = os.fsync, [act]

    def fake(descriptor: int) -> None:
        fsync(descriptor)
        if acts:
            acts.pop()()

    monkeypatch.setattr("nsqflow.client.consumer.dead_letters.os.fsync", fake)


@asynchronous
async def test_only_a_dead_letter_that_can_be_read_back_finishes_its_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "dead_letters"
    assert await give_up(path, b"first") == "FIN"
    before = path.read_bytes()

    def damage() -> None:
        with path.open("r+b") as file:
            file.seek(len(before) + 5)
            file.write(b"\0\0\0")

    instead_of_fsync(monkeypatch, damage)
    assert await give_up(path, b"spoilt") == "REQ"
    assert "cannot be read back" in caplog.text
    assert await give_up(path, b"last") == "FIN"
    first, *_, last = path.read_bytes().splitlines()
    assert [json.loads(line)["body"] for line in (first, last)] == ["first", "last"]


@asynchronous
async def test_what_another_program_appends_is_not_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "dead_letters"

    def append_and_fail() -> None:
        with path.open("ab") as file:
            file.write(b"from another program\n")
        raise OSError("broken")

    instead_of_fsync(monkeypatch, append_and_fail)
    assert await give_up(path, b"x") == "REQ"
    assert path.read_bytes().endswith(b"}\nfrom another program\n")


@asynchronous
async def test_a_file_that_was_emptied_meanwhile_is_not_filled_with_zeros(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "dead_letters"
    assert await give_up(path, b"first") == "FIN"
    instead_of_fsync(monkeypatch, lambda: os.truncate(path, 0))
    assert await give_up(path, b"x") == "REQ"
    assert path.read_bytes() == b""


@asynchronous
async def test_a_dead_letter_waits_for_another_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, tried, seen = tmp_path / "dead_letters", threading.Event(), list[bytes]()
    sleep = time.sleep

    def sleep_and_say(seconds: float) -> None:
        tried.set()
        sleep(seconds)

    monkeypatch.setattr(time, "sleep", sleep_and_say)
    monkeypatch.setattr(dead_letters, "_LOCK_TIMEOUT", 600)
    with path.open("ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        task = asyncio.create_task(give_up(path, b"x"))
        await asyncio.to_thread(tried.wait)
        seen.append(path.read_bytes())
    assert await task == "FIN"
    assert seen == [b""]
    assert [line["body"] for line in read(path)] == ["x"]


@asynchronous
async def test_a_writer_that_never_ends_brings_the_message_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "dead_letters"
    monkeypatch.setattr(dead_letters, "_LOCK_TIMEOUT", 0.05)
    with path.open("ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert await give_up(path, b"x") == "REQ"
    assert path.read_bytes() == b""


# --- callbacks


@pytest.mark.parametrize("kind", ["plain", "later"])
def test_on_giving_up_gets_the_last_error(kind: str) -> None:
    @asynchronous
    async def give_up() -> None:
        callback = Callback()
        dead = new_dead_letters(on_giving_up=getattr(callback, kind))
        message = FakeSubscription().message(attempts=5)
        for error in (ValueError("first"), last := KeyError("last")):
            dead.remember(message, error)
        again = FakeSubscription().message(attempts=6)
        await dead.give_up(again)
        assert callback.calls == [(again, last)]
        assert command_of(again) == "FIN"

    give_up()


@asynchronous
async def test_an_answer_by_the_callback_stands() -> None:
    dead = new_dead_letters(on_giving_up=lambda message, error: message.requeue(7))
    message = FakeSubscription().message(attempts=6)
    await dead.give_up(message)
    assert message.answer is not None
    assert message.answer.delay == 7


@asynchronous
async def test_without_a_callback_there_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        await new_dead_letters().give_up(FakeSubscription().message(b"secret", attempts=6))
    [record] = caplog.records
    assert record.levelno == logging.WARNING
    assert "giving up <Message b'0123456789abcdef'" in record.getMessage()
    assert "secret" not in caplog.text


# --- what is remembered


def test_only_the_error_of_the_last_attempt_is_kept() -> None:
    dead = new_dead_letters(max_attempts=3)
    for attempts in (1, 2):
        dead.remember(FakeSubscription().message(attempts=attempts), ValueError())
    assert not dead._errors
    dead.remember(FakeSubscription().message(attempts=3), ValueError())
    assert len(dead._errors) == 1
    unlimited = new_dead_letters(max_attempts=0)
    unlimited.remember(FakeSubscription().message(attempts=65535), ValueError())
    assert not unlimited._errors


def test_no_more_errors_are_kept_than_can_be_afforded() -> None:
    dead = new_dead_letters()
    for number in range(3000):
        dead.remember(FakeSubscription().message(attempts=5, id=b"%016d" % number), ValueError())
    assert len(dead._errors) == 1024
    assert next(reversed(dead._errors)) == (FakeSubscription.address, b"%016d" % 2999)


@asynchronous
async def test_ids_of_different_nsqd_are_different_messages() -> None:
    callback = Callback()
    dead = new_dead_letters(on_giving_up=callback.plain)
    here, there = FakeSubscription(), FakeSubscription()
    there.address = "10.0.0.2:4150"
    dead.remember(here.message(attempts=5), error := ValueError("here"))
    await dead.give_up(there.message(attempts=6))
    await dead.give_up(here.message(attempts=6))
    assert [error for _, error in callback.calls] == [None, error]


# --- whatever user code raises


class Unusual(BaseException):
    """No failure of a message, by its class."""


async def await_cancelled_task() -> None:
    task = asyncio.create_task(asyncio.sleep(3600))
    await asyncio.sleep(0)
    task.cancel()
    await task


async def raise_odd() -> None:
    raise Unusual


@pytest.mark.parametrize("raising", [await_cancelled_task, raise_odd])
@pytest.mark.parametrize("option", ["dead_letter", "on_giving_up"])
def test_whatever_user_code_raises_the_message_is_requeued_and_the_next_one_comes(
    option: str, raising: Callable[[], Awaitable[None]], caplog: pytest.LogCaptureFixture
) -> None:
    @asynchronous
    async def give_up() -> None:
        subscription, turns = FakeSubscription(), []

        async def callback(message: Message, error: BaseException | None) -> None:
            turns.append(message.body)
            await raising()

        queue = MessageQueue(2)
        config = ConsumerConfig.of("Consumer", "127.0.0.1:4150", (), {option: callback})
        dead_letters = DeadLetters(config, queue, Counts(), EventEmitter(None))
        messages = [subscription.message(b"%d" % number, attempts=6) for number in range(5)]
        for message in messages:
            dead_letters.add(message)
        # Two places, and each is released when its message is answered.
        await eventually(
            lambda: not subscription.release(queue) and len(turns) == 5 and not queue.taken
        )
        assert turns == [b"0", b"1", b"2", b"3", b"4"]
        assert [command_of(message) for message in messages] == ["REQ"] * 5
        assert queue.taken == 0
        await dead_letters.close()

    give_up()
    assert caplog.text.count("could not give up") == 5


@asynchronous
async def test_a_close_in_the_midst_of_giving_up_requeues_and_ends() -> None:
    subscription, begun = FakeSubscription(), asyncio.Event()

    async def hang(message: Message, error: BaseException | None) -> None:
        begun.set()
        await asyncio.get_running_loop().create_future()

    queue = MessageQueue(2)
    config = ConsumerConfig.of("Consumer", "127.0.0.1:4150", (), {"on_giving_up": hang})
    dead_letters = DeadLetters(config, queue, Counts(), EventEmitter(None))
    message = subscription.message(attempts=6)
    dead_letters.add(message)
    await begun.wait()
    await dead_letters.close()
    assert command_of(message) == "REQ"
