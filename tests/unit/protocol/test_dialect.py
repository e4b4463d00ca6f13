"""Which errors close the connection: the measured facts, row by row."""

import pytest

from nsqflow.errors import SERVER_ERRORS
from nsqflow.protocol.dialect import MESSAGE_ERRORS, Dialect, dialect_of_version

PUBLISHES = ("PUB", "MPUB", "DPUB", "PUB_TRACE", "MPUB_TRACE", "PUB_EXT", "MPUB_EXT")
SUBSCRIBES = ("SUB", "SUB_ORDERED", "SUB_ADVANCED")
COMMANDS = (*PUBLISHES, *SUBSCRIBES, "IDENTIFY", "AUTH", "RDY", "FIN", "REQ", "TOUCH", "CLS", "NOP")

NON_FATAL = {"E_FIN_FAILED", "E_REQ_FAILED", "E_TOUCH_FAILED"}

# Measured on 0.3.7-HA.1.13.0: error, the commands it answers, does the server close?
REDESIGNED = [
    ("E_TOPIC_NOT_EXIST", (*PUBLISHES, *SUBSCRIBES), True),
    ("E_FAILED_ON_NOT_LEADER", ("PUB", "MPUB", "PUB_TRACE"), False),
    ("E_FAILED_ON_NOT_LEADER", (*SUBSCRIBES, "FIN"), True),
    ("E_FAILED_ON_NOT_WRITABLE", ("PUB",), False),
    ("E_FAILED_ON_NOT_WRITABLE", ("SUB", "FIN"), True),
    ("E_SUB_ORDER_IS_MUST", ("SUB", "SUB_ADVANCED"), True),
    ("E_SUB_EXTEND_NEED", SUBSCRIBES, True),
    ("E_SUB_EXTEND_FORBIDDON", SUBSCRIBES, True),
    ("E_BAD_PARTITION", ("PUB", "MPUB", "SUB"), True),
    ("E_BAD_TOPIC", SUBSCRIBES, True),
    ("E_BAD_CHANNEL", SUBSCRIBES, True),
    ("E_BAD_BODY", PUBLISHES, True),
    ("E_BAD_MESSAGE", PUBLISHES, True),
    ("E_EXT_NOT_SUPPORT", ("PUB_EXT",), False),
    ("E_INVALID_JSON_HEADER", ("PUB_EXT",), False),
    ("INVALID_TRACE_ID", ("PUB_EXT",), False),
    ("E_MPUB_FAILED", ("MPUB",), False),
    ("E_PUB_FAILED", ("PUB",), False),
    ("E_INVALID", COMMANDS, True),
    ("E_PUB_TOO_MUCH_WAITING", PUBLISHES, True),
    ("E_SUB_CHANNEL_NOT_REGISTERED", SUBSCRIBES, True),
    ("E_AUTH_DISABLED", ("AUTH",), True),
    ("E_AUTH_FAILED", ("AUTH", "PUB"), True),
    ("E_AUTH_FIRST", ("PUB", "SUB"), True),
    ("E_AUTH_ERROR", ("AUTH",), True),
]


@pytest.mark.parametrize(("code", "commands", "closes"), REDESIGNED)
def test_the_redesigned_server_closes_as_it_was_measured(
    code: str, commands: tuple[str, ...], closes: bool
) -> None:
    found = {command: Dialect.REDESIGNED.closes(code, command) for command in commands}
    assert found == dict.fromkeys(commands, closes)


@pytest.mark.parametrize("code", sorted(SERVER_ERRORS))
@pytest.mark.parametrize("command", [*COMMANDS, None])
def test_a_failed_batch_with_headers_always_closes_and_so_does_what_is_not_a_publish(
    code: str, command: str | None
) -> None:
    goes_on = not Dialect.REDESIGNED.closes(code, command)
    alone = ("PUB", "MPUB", "PUB_TRACE", "MPUB_TRACE", "PUB_EXT")  # MPUB_EXT leaves bytes unread
    assert goes_on == (
        code in NON_FATAL
        or (code.startswith("E_FAILED_ON_NOT_") and command in alone)
        or (code in ("E_PUB_FAILED", "E_MPUB_FAILED") and command in alone)
        or (code in ("E_EXT_NOT_SUPPORT", "E_INVALID_JSON_HEADER") and command == "PUB_EXT")
        or (code == "INVALID_TRACE_ID" and command == "PUB_EXT")
    )


@pytest.mark.parametrize("code", [*SERVER_ERRORS, "E_NEW_IN_2031", ""])
def test_the_classic_server_goes_on_after_three_errors_alone(code: str) -> None:
    found = {command: Dialect.CLASSIC.closes(code, command) for command in (*COMMANDS, None)}
    assert found == dict.fromkeys((*COMMANDS, None), code not in NON_FATAL)


@pytest.mark.parametrize("command", [*COMMANDS, None])
def test_an_unknown_code_is_taken_as_closing(command: str | None) -> None:
    assert Dialect.REDESIGNED.closes("E_NEW_IN_2031", command)


def test_the_errors_of_one_message_name_their_commands() -> None:
    expected = {"E_FIN_FAILED": "FIN", "E_REQ_FAILED": "REQ", "E_TOUCH_FAILED": "TOUCH"}
    assert expected == MESSAGE_ERRORS


@pytest.mark.parametrize(
    ("version", "dialect"),
    [
        ("0.3.7-HA.1.13.0", Dialect.REDESIGNED),
        ("1.3.0", Dialect.CLASSIC),
        ("0.3.7", Dialect.CLASSIC),
        ("1.0.0-compat", Dialect.CLASSIC),
        ("", Dialect.CLASSIC),
    ],
)
def test_the_version_decides_the_dialect(version: str, dialect: Dialect) -> None:
    assert dialect_of_version(version) is dialect


@pytest.mark.parametrize("code", ["E_FAILED_ON_NOT_LEADER", "E_FAILED_ON_NOT_WRITABLE"])
def test_what_may_answer_a_fin_closes_a_subscribed_connection(code: str) -> None:
    assert Dialect.REDESIGNED.closes(code, "PUB", subscribed=True)
    assert not Dialect.REDESIGNED.closes(code, "PUB")
    assert not Dialect.REDESIGNED.closes("E_PUB_FAILED", "PUB", subscribed=True)
