"""Faults on demand: which can be asked for, and whom they hit."""

from __future__ import annotations

import pytest

from nsqflow.broker.nsqd.faults import Faults
from nsqflow.errors import ConfigError
from tests.fixtures.loops import asynchronous
from tests.unit.broker.nsqd.frames import error, hear, hear_message, hear_out, pub
from tests.unit.broker.nsqd.running import connected, make_nsqd, new_name


def test_a_fault_is_taken_once_and_by_its_command_only() -> None:
    faults = Faults()
    assert not faults
    faults.fail_next("PUB", "E_PUB_FAILED")
    assert faults
    assert faults.take("MPUB") is None
    assert faults.take("PUB") == "E_PUB_FAILED"
    assert faults.take("PUB") is None
    assert not faults


def test_faults_of_a_command_are_taken_in_their_order() -> None:
    faults = Faults()
    faults.fail_next("PUB", "E_PUB_FAILED")
    faults.fail_next("PUB", "E_BAD_TOPIC")
    assert [faults.take("PUB") for _ in range(3)] == ["E_PUB_FAILED", "E_BAD_TOPIC", None]


@pytest.mark.parametrize(
    ("command", "code", "text"),
    [
        ("pub", "E_PUB_FAILED", "command 'pub'; allowed are AUTH, CLS, DPUB"),
        ("", "E_PUB_FAILED", "command ''; allowed are AUTH, CLS, DPUB"),
        ("PUB", "PUB_FAILED", "code 'PUB_FAILED'; allowed are "),
        ("SUB", "E_FIN_FAILED", "code 'E_FIN_FAILED' for SUB; no server answers it with that"),
        ("FIN", "E_REQ_FAILED", "code 'E_REQ_FAILED' for FIN; no server answers it with that"),
        ("REQ", "E_TOUCH_FAILED", "code 'E_TOUCH_FAILED' for REQ; no server"),
    ],
)
def test_a_fault_that_no_server_has_is_refused(command: str, code: str, text: str) -> None:
    faults = Faults()
    with pytest.raises(ConfigError, match=text):
        faults.fail_next(command, code)
    assert not faults


@pytest.mark.parametrize("seconds", [0, 0.001, 3600])
def test_a_delay_may_have_up_to_an_hour(seconds: float) -> None:
    faults = Faults()
    faults.slow(seconds)
    assert faults.delay == seconds


@pytest.mark.parametrize("seconds", [-0.001, 3600.1, float("nan"), float("inf")])
def test_a_delay_out_of_range_is_refused(seconds: float) -> None:
    faults = Faults()
    with pytest.raises(ConfigError, match=r"seconds \S+; 0 to 3600 are allowed"):
        faults.slow(seconds)
    assert faults.delay == 0


@asynchronous
async def test_only_the_next_of_several_fins_in_one_packet_fails() -> None:
    topic = new_name()
    async with make_nsqd() as nsqd, connected(nsqd.tcp_address) as speaker:
        for _ in range(3):
            await speaker.say(pub(topic, b"x"))
        await speaker.say(b"SUB %s ch\n" % topic.encode())
        speaker.writer.write(b"RDY 3\n")
        ids = [(await hear_message(speaker)).id for _ in range(3)]
        nsqd.faults.fail_next("FIN", "E_FIN_FAILED")
        speaker.writer.write(b"".join(b"FIN %s\n" % id for id in ids))
        failure = f"E_FIN_FAILED FIN {ids[0].decode()} failed on demand"
        assert await hear(speaker) == error(failure)
        channel = nsqd.engine.topics[topic].channels["ch"]
        assert channel.in_flight_count == 1


@pytest.mark.parametrize("command", ["REQ {id} 0", "TOUCH {id}"])
@asynchronous
async def test_a_message_that_is_not_answered_for_leaves_the_connection_open(
    command: str,
) -> None:
    topic, name = new_name(), command.split()[0]
    async with make_nsqd() as nsqd, connected(nsqd.tcp_address) as speaker:
        await speaker.say(pub(topic, b"x"))
        await speaker.say(b"SUB %s ch\n" % topic.encode())
        speaker.writer.write(b"RDY 1\n")
        id = (await hear_message(speaker)).id.decode()
        nsqd.faults.fail_next(name, f"E_{name}_FAILED")
        speaker.writer.write(command.format(id=id).encode() + b"\n")
        assert await hear(speaker) == error(f"E_{name}_FAILED {name} {id} failed on demand")
        await speaker.say(pub(topic, b"y"))


@asynchronous
async def test_any_other_fault_ends_the_connection() -> None:
    async with make_nsqd() as nsqd, connected(nsqd.tcp_address) as speaker:
        nsqd.faults.fail_next("NOP", "E_INVALID")
        speaker.writer.write(b"NOP\n" + pub(new_name(), b"x"))
        assert await hear_out(speaker) == [error("E_INVALID NOP failed on demand")]
