"""Nothing is lost while servers are stopped, killed and started again under load.

The long runs are ``./dev chaos``; these are short ones of the same kind.
"""

import logging
from pathlib import Path

import pytest

from tests.faults.campaign import Plan, run_campaign
from tests.faults.cluster import Member
from tests.faults.ledger import Account, Ledger, Result, body_of
from tests.fixtures.loops import asynchronous
from tests.fixtures.servers import start_nsqlookupd


@pytest.fixture(autouse=True)
def no_logs(caplog: pytest.LogCaptureFixture) -> None:
    """Let nothing be logged: handlers fail on purpose, and would hide the account."""
    caplog.set_level(logging.CRITICAL + 1, "nsqflow")


@pytest.mark.proves(rows=[56, 57], wishes=[10, 14, 18, 21])
@asynchronous
async def test_nothing_is_lost_while_servers_are_stopped_and_started(tmp_path: Path) -> None:
    account = await run_campaign(Plan(seconds=12, seed=1), tmp_path)
    print(account)
    assert account.faults() == []
    assert account.ends.total() >= 10
    assert len(account.ledger.consumed) > 1000


@pytest.mark.proves(rows=[57], wishes=[10, 14, 21])
@asynchronous
async def test_only_what_nsqd_had_in_memory_is_lost_when_servers_are_killed(
    tmp_path: Path,
) -> None:
    account = await run_campaign(Plan(seconds=8, seed=2, crash=True), tmp_path)
    print(account)
    assert account.faults() == []
    assert account.ends.total() >= 5
    assert len(account.ledger.consumed) > 1000


# The ledger itself.


@pytest.fixture
def account() -> Account:
    ledger = Ledger()
    ledger.record(ledger.open(10), Result.ACKNOWLEDGED)
    for number in range(10):
        ledger.consume(body_of(number))
    return Account("ledger", ledger)


def test_a_ledger_that_balances_has_no_fault(account: Account) -> None:
    account.ledger.consume(body_of(3))
    account.ledger.record(account.ledger.open(), Result.UNCERTAIN)
    account.ledger.record(account.ledger.open(), Result.REFUSED)
    assert account.faults() == []
    assert "FAULT" not in str(account)


def test_a_message_acknowledged_and_never_consumed_is_lost(account: Account) -> None:
    account.ledger.record(account.ledger.open(2), Result.ACKNOWLEDGED)
    assert account.faults() == ["2 lost: acknowledged and never consumed [10, 11]"]


def test_a_message_certainly_not_stored_must_not_be_consumed(account: Account) -> None:
    account.ledger.record(account.ledger.open(), Result.REFUSED)
    account.ledger.consume(body_of(10))
    assert account.faults() == ["1 consumed though certainly not stored [10]"]


@pytest.mark.parametrize("body", [b"", b"3:", b"11:" + b"l" * 99, b"junk", body_of(3) + b"x"])
def test_a_message_that_comes_out_changed_is_noticed(account: Account, body: bytes) -> None:
    account.ledger.consume(body)
    assert account.faults() == ["1 came out changed or from nowhere"]


def test_a_publish_without_outcome_is_noticed(account: Account) -> None:
    account.ledger.open()
    assert account.faults() == ["1 published without any outcome"]


def test_more_outstanding_than_allowed_and_a_slow_close_are_noticed(account: Account) -> None:
    account.outstanding["loop"] = 25, 24
    account.closing["loop"] = 11.0, 10.0
    assert account.faults() == [
        "loop had 25 outstanding; 24 are allowed",
        "loop took 11.0 s to close; 10 are allowed",
    ]


@asynchronous
async def test_messages_that_died_with_an_nsqd_are_counted_apart_from_lost_ones(
    account: Account,
) -> None:
    member = Member("any", lambda options: start_nsqlookupd(options=options))
    try:
        await member.start()
        account.ledger.record(account.ledger.open(), Result.ACKNOWLEDGED, member)
        await member.end(crash=True)
        await member.start()
        account.ledger.record(account.ledger.open(), Result.ACKNOWLEDGED, member)
    finally:
        member.retire()
    assert account.ledger.missing() == ([11], [10])
