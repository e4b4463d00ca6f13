"""Publishing over several nsqd: all of it arrives, whichever of them fails."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import closing
from functools import partial

import pytest

from nsqflow.errors import (
    ConfigError,
    NetworkError,
)
from nsqflow.protocol import IdentifyReply, Mpub
from nsqflow.spark.sink import publisher as module
from nsqflow.spark.sink.encoder import PackedMpub
from nsqflow.spark.sink.publisher import Publisher
from tests.fixtures.loops import BEHAVE, CLOSE, HANG, RESET, Deed, asynchronous, eventually
from tests.fixtures.scripted import Connection, ScriptedNsqd
from tests.unit.spark.sink.publications import PLAIN, bodies_of, commands, publish_all, refusal


def expected(sent: list[PackedMpub]) -> Counter[bytes]:
    return Counter(body for command in sent for body in bodies_of(command))


# With real nsqd


def test_nothing_is_connected_before_there_is_something_to_publish() -> None:
    with closing(Publisher(["127.0.0.1:1"], PLAIN)) as publisher:
        publisher.finish()
        assert publisher.acknowledged == {}


def test_without_a_reachable_nsqd_it_fails_with_the_reasons() -> None:
    error = refusal("127.0.0.1:1", commands("t", 1), give_up_after=0.3)
    assert isinstance(error, NetworkError)
    assert str(error).startswith("no nsqd has acknowledged anything for 0.3 s: 127.0.0.1:1: [Errno")


# With peers that misbehave


@pytest.mark.parametrize("deed", [CLOSE, RESET])
@asynchronous
async def test_only_unanswered_commands_are_sent_again(deed: Deed) -> None:
    async with ScriptedNsqd() as peer:
        peer.on(Mpub, [BEHAVE, BEHAVE, BEHAVE, deed])
        sent = commands("t", 6)
        with closing(Publisher([peer.address], PLAIN)) as publisher:
            await asyncio.to_thread(publish_all, publisher, sent)
            assert publisher.acknowledged == {peer.address: 6}
        received = Counter(
            body
            for command in peer.commands
            if isinstance(command, Mpub)
            for body in command.bodies
        )
        # The fourth was refused; what is behind it may have been read before the end.
        assert set(received) == set(expected(sent))
        firsts = [body for command in sent[:3] for body in bodies_of(command)]
        assert all(received[body] == 1 for body in firsts)
        assert received[bodies_of(sent[3])[0]] == 2


@asynchronous
async def test_a_failure_of_nsqd_itself_is_tried_again() -> None:
    async with ScriptedNsqd() as peer:

        def fail(connection: Connection, _: Mpub) -> None:
            connection.send_error(b"E_MPUB_FAILED MPUB failed exiting")
            connection.close()

        peer.on(Mpub, [fail])
        with closing(Publisher([peer.address], PLAIN)) as publisher:
            await asyncio.to_thread(publish_all, publisher, commands("t", 3))
            assert publisher.acknowledged == {peer.address: 3}
        assert len(peer.connections) == 2


@asynchronous
async def test_an_nsqd_that_never_answers_is_given_up_for_another() -> None:
    async with ScriptedNsqd() as mute, ScriptedNsqd() as peer:
        mute.on(Mpub, HANG)
        sent = commands("t", 8)
        with closing(
            Publisher([mute.address, peer.address], PLAIN, response_timeout=0.2)
        ) as publisher:
            await asyncio.to_thread(publish_all, publisher, sent)
            assert publisher.acknowledged == {peer.address: 8}


@asynchronous
async def test_if_no_nsqd_answers_an_error_is_raised() -> None:
    async with ScriptedNsqd() as mute:
        mute.on(Mpub, HANG)
        error = await asyncio.to_thread(
            refusal, mute.address, commands("t", 2), give_up_after=0.5, response_timeout=0.2
        )
        assert "for 0.5 s: " in str(error)
        assert f"{mute.address}: no answer within 0.2 s" in str(error)


@asynchronous
async def test_what_is_unanswered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_PENDING_PER_NSQD", 1000)
    monkeypatch.setattr(module, "_MAX_PENDING", 1500)
    held: list[Connection] = []

    def holds(number: int) -> bool:
        assert len(held) <= number
        return len(held) == number

    async with ScriptedNsqd() as first, ScriptedNsqd() as second:
        for peer in (first, second):
            peer.on(Mpub, lambda connection, _: held.append(connection))
        # Each has some 210 bytes: with 8 of them unanswered the ninth waits.
        with closing(Publisher([first.address, second.address], PLAIN)) as publisher:
            work = asyncio.create_task(asyncio.to_thread(publish_all, publisher, commands("t", 20)))
            for answered in range(20):
                await eventually(partial(holds, min(20, 8 + answered)))
                held[answered].send_response()
            await work


@asynchronous
async def test_an_nsqd_of_the_redesigned_nsq_is_refused_at_once() -> None:
    async with ScriptedNsqd(IdentifyReply(version="0.3.7-HA.1.13.0")) as peer:
        error = await asyncio.to_thread(refusal, peer.address, commands("t", 1))
        assert isinstance(error, ConfigError)
        assert "redesigned" in str(error)
