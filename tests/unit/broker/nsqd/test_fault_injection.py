"""Fault injection: valid faults, and the commands that fail."""

from __future__ import annotations

import pytest

from nsqflow.broker.nsqd.fault_injection import FaultInjector
from nsqflow.errors import ConfigError
from tests.fixtures.loops import asynchronous
from tests.unit.broker.nsqd.frames import error, pub, receive, receive_all, receive_message
from tests.unit.broker.nsqd.running import connected, make_nsqd, new_name


def test_a_fault_is_taken_once_and_by_its_command_only() -> None:
    faults = FaultInjector()
    assert not faults
    faults.fail_next("PUB", "E_PUB_FAILED")
    assert faults
    assert faults.take("MPUB") is None
    assert faults.take("PUB") == "E_PUB_FAILED"
    assert faults.take("PUB") is None
    assert not faults


def test_faults_of_a_command_are_taken_in_order() -> None:
    faults = FaultInjector()
    faults.fail_next("PUB", "E_PUB_FAILED")
    faults.fail_next("PUB", "E_BAD_TOPIC")
    assert [faults.take("PUB") for _ in range(3)] == ["E_PUB_FAILED", "E_BAD_TOPIC", None]


@pytest.mark.parametrize(
    ("command", "code", "text"),
    [
        ("pub", "E_PUB_FAILED", "command='pub'"),
        ("", "E_PUB_FAILED", "command=''"),
        ("PUB", "PUB_FAILED", "code='PUB_FAILED'"),
        ("SUB", "E_FIN_FAILED", "code='E_FIN_FAILED'"),
        ("FIN", "E_REQ_FAILED", "code='E_REQ_FAILED'"),
        ("REQ", "E_TOUCH_FAILED", "code='E_TOUCH_FAILED'"),
    ],
)
def test_a_fault_that_no_server_responds_with_is_refused(
    command: str, code: str, text: str
) -> None:
    faults = FaultInjector()
    with pytest.raises(ConfigError, match=text):
        faults.fail_next(command, code)
    assert not faults


@pytest.mark.parametrize("seconds", [0, 0.001, 3600])
def test_a_delay_may_be_up_to_an_hour(seconds: float) -> None:
    faults = FaultInjector()
    faults.slow(seconds)
    assert faults.delay == seconds


@pytest.mark.parametrize("seconds", [-0.001, 3600.1, float("nan"), float("inf")])
def test_a_delay_out_of_range_is_refused(seconds: float) -> None:
    faults = FaultInjector()
    with pytest.raises(ConfigError, match=f"seconds={seconds}"):
        faults.slow(seconds)
    assert faults.delay == 0


@asynchronous
async def test_only_the_next_of_several_fins_in_one_packet_fails() -> None:
    topic = new_name()
    async with make_nsqd() as nsqd, connected(nsqd.tcp_address) as raw:
        for _ in range(3):
            await raw.command(pub(topic, b"x"))
        await raw.command(b"SUB %s ch\n" % topic.encode())
        raw.writer.write(b"RDY 3\n")
        ids = [(await receive_message(raw)).id for _ in range(3)]
        nsqd.faults.fail_next("FIN", "E_FIN_FAILED")
        raw.writer.write(b"".join(b"FIN %s\n" % id for id in ids))
        failure = f"E_FIN_FAILED FIN {ids[0].decode()} failed on demand"
        assert await receive(raw) == error(failure)
        channel = nsqd.engine.topics[topic].channels["ch"]
        assert channel.in_flight_count == 1


@pytest.mark.parametrize("command", ["REQ {id} 0", "TOUCH {id}"])
@asynchronous
async def test_a_failed_req_or_touch_leaves_the_connection_open(
    command: str,
) -> None:
    topic, name = new_name(), command.split()[0]
    async with make_nsqd() as nsqd, connected(nsqd.tcp_address) as raw:
        await raw.command(pub(topic, b"x"))
        await raw.command(b"SUB %s ch\n" % topic.encode())
        raw.writer.write(b"RDY 1\n")
        id = (await receive_message(raw)).id.decode()
        nsqd.faults.fail_next(name, f"E_{name}_FAILED")
        raw.writer.write(command.format(id=id).encode() + b"\n")
        assert await receive(raw) == error(f"E_{name}_FAILED {name} {id} failed on demand")
        await raw.command(pub(topic, b"y"))


@asynchronous
async def test_any_other_fault_closes_the_connection() -> None:
    async with make_nsqd() as nsqd, connected(nsqd.tcp_address) as raw:
        nsqd.faults.fail_next("NOP", "E_INVALID")
        raw.writer.write(b"NOP\n" + pub(new_name(), b"x"))
        assert await receive_all(raw) == [error("E_INVALID NOP failed on demand")]
