"""The server's side: states, refusals in nsqd's words, upgrades, messages."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqflow.errors import LocalProtocolError, RemoteProtocolError
from nsqflow.protocol import (
    Auth,
    Cls,
    Dialect,
    Fin,
    Fins,
    Identify,
    IdentifyReply,
    IdentifyRequest,
    Limits,
    Message,
    Nop,
    Pub,
    Rdy,
    Receipt,
    Req,
    ServerSession,
    ServerState,
    StartTls,
    Sub,
    Touch,
    encode_fins,
)
from nsqflow.protocol.client_session import failed_id
from tests.unit.protocol.strategies import pieces

ID = b"0123456789abcdef"
IDENTIFY_TLS = b'IDENTIFY\n\x00\x00\x00\x2a{"feature_negotiation":true,"tls_v1":true}'
IDENTIFY = b'IDENTIFY\n\x00\x00\x00\x1c{"feature_negotiation":true}'


def error_frame(text: bytes) -> bytes:
    return (len(text) + 4).to_bytes(4, "big") + b"\x00\x00\x00\x01" + text


def fed(data: bytes, **options: object) -> ServerSession:
    server = ServerSession(**options)  # type: ignore[arg-type]
    server.receive_data(data)
    return server


def subscribed(**options: object) -> ServerSession:
    server = fed(b"  V2SUB t c\n", **options)
    assert server.events() == [Sub("t", "c")]
    return server


def refusal(data: bytes, **options: object) -> str:
    """Feed what ends in a violation; check that it is answered and raised alike."""
    server = fed(data, **options)
    with pytest.raises(RemoteProtocolError) as raised:
        while server.events():
            pass
    assert server.state is ServerState.FAILED
    words = str(raised.value)
    assert server.data_to_send() == error_frame(words.encode())
    return words


def test_the_magic_comes_first_and_may_come_in_pieces() -> None:
    server = ServerSession()
    for piece in (b"", b" ", b" V", b"2NO", b"P\n"):
        assert server.events() == []
        server.receive_data(piece)
    assert server.events() == [Nop()]
    assert server.state is ServerState.INIT


def test_another_magic_is_answered_and_refused() -> None:
    assert refusal(b"GET / HTTP/1.1\r\n") == "E_BAD_PROTOCOL"


def test_a_whole_conversation_comes_out_as_commands() -> None:
    server = fed(b"  V2" + IDENTIFY)
    (identify,) = server.events()
    assert identify == Identify(b'{"feature_negotiation":true}')
    server.accept_identify(IdentifyReply(version="1.3.0", auth_required=True))
    assert b'"version":"1.3.0"' in server.data_to_send()
    server.receive_data(
        b"AUTH\n\x00\x00\x00\x06secretPUB t\n\x00\x00\x00\x01xSUB t c\nRDY 5\n"
        b"FIN 0123456789abcdef\nREQ 0123456789abcdef 10\nTOUCH 0123456789abcdef\n"
        b"CLS\nRDY 3\nFIN 0123456789abcdef\nNOP\n"
    )
    # RDY after CLS is ignored, as in nsqd.
    assert server.events() == [
        *(Auth(b"secret"), Pub("t", b"x"), Sub("t", "c"), Rdy(5)),
        *(Fin(ID), Req(ID, 10), Touch(ID), Cls(), Fin(ID), Nop()),
    ]
    assert server.state is ServerState.CLOSING


def test_identify_is_not_needed() -> None:
    assert fed(b"  V2SUB t c\n").events() == [Sub("t", "c")]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"FIN 0123456789abcdef\n", "E_INVALID cannot FIN in current state"),
        (b"REQ 0123456789abcdef 0\n", "E_INVALID cannot REQ in current state"),
        (b"TOUCH 0123456789abcdef\n", "E_INVALID cannot TOUCH in current state"),
        (b"RDY 1\n", "E_INVALID cannot RDY in current state"),
        (b"CLS\n", "E_INVALID cannot CLS in current state"),
        (b"SUB t c\nSUB t c\n", "E_INVALID cannot SUB in current state"),
        (b"SUB t c\nIDENTIFY\n", "E_INVALID cannot IDENTIFY in current state"),
        (b"SUB t c\nAUTH\n", "E_INVALID cannot AUTH in current state"),
        (b"SUB t c\nCLS\nCLS\n", "E_INVALID cannot CLS in current state"),
        (b"SUB t c\nRDY 2501\n", "E_INVALID RDY count 2501 out of range 0-2500"),
        (b"NONSENSE\n", "E_INVALID invalid command NONSENSE"),
    ],
)
def test_what_the_state_does_not_allow_is_refused_in_nsqds_words(data: bytes, words: str) -> None:
    assert refusal(b"  V2" + data) == words


def test_the_redesigned_server_adds_a_space_to_a_bare_code() -> None:
    server = ServerSession(dialect=Dialect.REDESIGNED)
    server.send_error("E_TOPIC_NOT_EXIST")
    assert server.data_to_send() == error_frame(b"E_TOPIC_NOT_EXIST ")


def test_the_classic_server_does_not() -> None:
    server = ServerSession()
    server.send_error("E_BAD_PROTOCOL")
    server.send_error("E_INVALID", "cannot")
    assert server.data_to_send() == error_frame(b"E_BAD_PROTOCOL") + error_frame(
        b"E_INVALID cannot"
    )


def test_limits_are_the_servers_own() -> None:
    limits = Limits(max_msg_size=4, max_rdy_count=7)
    words = refusal(b"  V2PUB t\n\x00\x00\x00\x05", limits=limits)
    assert words == "E_BAD_MESSAGE PUB message too big 5 > 4"
    words = refusal(b"  V2SUB t c\nRDY 8\n", limits=limits)
    assert words == "E_INVALID RDY count 8 out of range 0-7"


def test_a_line_without_an_end_is_refused_without_an_error_frame() -> None:
    server = fed(b"  V2" + b"x" * 16384)
    with pytest.raises(RemoteProtocolError, match="line of more than 16384 bytes"):
        server.events()
    assert server.data_to_send() == b""


def test_commands_before_the_violation_come_out_first() -> None:
    server = fed(b"  V2NOP\nPUB t\n\x00\x00\x00\x01xFIN x\nNOP\n")
    assert server.events() == [Nop(), Pub("t", b"x")]
    with pytest.raises(RemoteProtocolError, match="cannot FIN in current state"):
        server.events()


def test_answers_to_commands_before_the_violation_go_out_before_its_error() -> None:
    pub = b"PUB t\n\x00\x00\x00\x01x"
    server = fed(b"  V2SUB t c\n" + pub + pub + b"BOGUS\n")
    for command in server.events():
        if isinstance(command, Sub):
            server.send_messages([Message(1, 1, ID, b"x")])
        else:
            server.send_response()
    with pytest.raises(RemoteProtocolError, match="invalid command BOGUS"):
        server.events()
    ok = b"\x00\x00\x00\x06\x00\x00\x00\x00OK"
    sent = server.data_to_send()
    assert sent.endswith(ok + ok + error_frame(b"E_INVALID invalid command BOGUS"))
    assert server.state is ServerState.FAILED


@pytest.mark.parametrize("rest", [b"", b"PUB", b"BOGUS\n"])
def test_a_broker_may_fail_the_connection_itself(rest: bytes) -> None:
    server = fed(b"  V2PUB t\n\x00\x00\x00\x01x" + rest)
    server.events()
    server.receive_data(b"NOP\n")
    server.fail("E_PUB_FAILED", "PUB failed exiting")
    assert server.events() == []
    server.receive_data(b"NOP\n")
    assert server.events() == []
    assert server.data_to_send() == error_frame(b"E_PUB_FAILED PUB failed exiting")
    assert server.state is ServerState.FAILED


@pytest.mark.parametrize(
    ("dialect", "words"),
    [
        (Dialect.CLASSIC, b"E_REQ_FAILED REQ 0123456789abcdef failed ID not in flight"),
        (
            Dialect.REDESIGNED,
            b"E_REQ_FAILED REQ [48 49 50 51 52 53 54 55 56 57 97 98 99 100 101 102] failed "
            b"ID not in flight",
        ),
    ],
)
def test_a_failed_answer_is_reported_with_its_id(dialect: Dialect, words: bytes) -> None:
    server = ServerSession(dialect=dialect)
    server.send_answer_failed(Req(ID), "ID not in flight")
    assert server.data_to_send() == error_frame(words)
    assert failed_id(words, "REQ") == ID


def test_tls_may_be_required() -> None:
    words = refusal(b"  V2NOP\n", tls_required=True)
    assert words == "E_INVALID cannot NOP in current state (TLS required)"


def test_nothing_is_parsed_before_identify_is_answered() -> None:
    server = fed(b"  V2" + IDENTIFY + b"NOP\n")
    assert len(server.events()) == 1
    assert server.events() == []
    server.accept_identify(IdentifyReply())
    assert server.events() == [Nop()]


def test_the_identify_of_the_client_can_be_read() -> None:
    body = IdentifyRequest(client_id="me", msg_timeout=5000).encode()
    server = fed(b"  V2IDENTIFY\n" + len(body).to_bytes(4, "big") + body)
    server.events()
    assert (server.identify.client_id, server.identify.msg_timeout) == ("me", 5000)


def test_identify_with_a_broken_body_is_refused() -> None:
    words = refusal(b"  V2IDENTIFY\n\x00\x00\x00\x02{]")
    assert words == "E_BAD_BODY IDENTIFY failed to decode JSON body"


def test_a_client_that_does_not_negotiate_gets_a_plain_ok() -> None:
    server = fed(b"  V2IDENTIFY\n\x00\x00\x00\x02{}NOP\n")
    server.events()
    server.accept_identify(IdentifyReply(auth_required=True))
    assert server.data_to_send() == b"\x00\x00\x00\x06\x00\x00\x00\x00OK"
    assert server.events() == [Nop()]


def test_identify_is_answered_only_once() -> None:
    with pytest.raises(LocalProtocolError, match="there is no IDENTIFY to answer"):
        ServerSession().accept_identify(IdentifyReply())


@pytest.mark.parametrize("feature", ["tls_v1", "snappy", "deflate"])
def test_nothing_is_granted_that_was_not_asked_for(feature: str) -> None:
    server = fed(b"  V2" + IDENTIFY)
    server.events()
    with pytest.raises(LocalProtocolError, match=f"{feature} is granted to a client that did not"):
        server.accept_identify(IdentifyReply(**{feature: True}))  # type: ignore[arg-type]
    server.accept_identify(IdentifyReply())


def test_a_classic_server_knows_nothing_of_extended_messages() -> None:
    body = b'{"extend_support":true,"ext_filter":"x"}'
    server = fed(b"  V2IDENTIFY\n\x00\x00\x00\x28" + body + b"SUB t c\n")
    server.events()
    server.accept_identify(IdentifyReply())
    assert server.events() == [Sub("t", "c")]
    server.data_to_send()
    server.send_messages([Message(1, 2, ID, b"BODY")])
    assert server.data_to_send().endswith(ID + b"BODY")


def test_the_clear_reply_is_sent_before_the_handshake_begins() -> None:
    server = fed(b"  V2" + IDENTIFY_TLS + b"\x16\x03\x01", tls_required=True)
    server.events()
    server.accept_identify(IdentifyReply(tls_v1=True))
    assert server.events() == [StartTls(b"\x16\x03\x01")]
    assert b'"tls_v1":true' in server.data_to_send()
    server.tls_started()
    assert server.data_to_send() == b"\x00\x00\x00\x06\x00\x00\x00\x00OK"
    server.receive_data(b"NOP\n")
    assert server.events() == [Nop()]


def test_a_subscription_without_heartbeats_is_refused() -> None:
    body = b'{"heartbeat_interval":-1}'
    server = fed(b"  V2IDENTIFY\n\x00\x00\x00\x19" + body + b"SUB t c\n")
    server.events()
    server.accept_identify(IdentifyReply())
    with pytest.raises(RemoteProtocolError, match="cannot SUB with heartbeats disabled"):
        server.events()


def test_an_ordered_subscription_with_a_sample_rate_is_refused() -> None:
    body = b'{"sample_rate":50}'
    server = fed(
        b"  V2IDENTIFY\n\x00\x00\x00\x12" + body + b"SUB_ORDERED t c 0\n",
        dialect=Dialect.REDESIGNED,
    )
    server.events()
    server.accept_identify(IdentifyReply())
    with pytest.raises(RemoteProtocolError, match="E_INVALID order consume is not allowed"):
        server.events()


def test_messages_need_a_subscription() -> None:
    with pytest.raises(LocalProtocolError, match="client in state magic"):
        ServerSession().send_messages([Message(1, 1, ID, b"x")])


def test_messages_receipts_heartbeats_and_close_wait_are_framed() -> None:
    server = fed(b"  V2SUB t c\n")
    server.events()
    server.send_messages([Message(1, 2, ID, b"x")])
    assert server.data_to_send() == (
        b"\x00\x00\x00\x1f\x00\x00\x00\x02" + (1).to_bytes(8, "big") + b"\x00\x02" + ID + b"x"
    )
    server.send_heartbeat()
    server.send_close_wait()
    assert server.data_to_send() == (
        b"\x00\x00\x00\x0f\x00\x00\x00\x00_heartbeat_\x00\x00\x00\x0e\x00\x00\x00\x00CLOSE_WAIT"
    )
    server.send_receipt(Receipt(1, 2, 3, 4))
    assert len(server.data_to_send()) == 8 + 30


CLASSIC_IDS = st.lists(
    st.binary(min_size=16, max_size=16).filter(lambda id: not {*b" \r\n"} & {*id}), max_size=8
)


@given(ids=CLASSIC_IDS, data=st.data())
def test_a_row_of_fins_comes_as_one_event_if_that_is_asked_for(
    ids: list[bytes], data: st.DataObject
) -> None:
    server = subscribed(gather_fins=True)
    stream = encode_fins(ids) + b"NOP\n" + encode_fins(ids)
    found: list[object] = []
    for piece in data.draw(pieces(stream)):
        server.receive_data(piece)
        while events := server.events():
            found += events
    assert found.count(Nop()) == 1
    rows = [event for event in found if event != Nop()]
    assert all(isinstance(row, Fins) and row.ids for row in rows)
    assert [id for row in rows if isinstance(row, Fins) for id in row.ids] == ids + ids
    assert b"".join(row.encode() for row in rows if isinstance(row, Fins)) == encode_fins(ids + ids)


def test_a_row_of_fins_in_one_piece_is_one_event() -> None:
    server = subscribed(gather_fins=True)
    ids = (b"0123456789abcdef", b"fedcba9876543210")
    server.receive_data(encode_fins(ids) + b"FIN 012")
    assert server.events() == [Fins(ids)]


@pytest.mark.parametrize("dialect", Dialect)
def test_a_fin_of_another_form_is_read_singly(dialect: Dialect) -> None:
    server = subscribed(gather_fins=True, dialect=dialect)
    id = b"0123456789abcdef"
    server.receive_data(b"FIN " + id + b" more\nFIN " + id + b"\r\n" + encode_fins([id]))
    assert server.events() == [Fin(id), Fin(id), Fins((id,))]


def test_redesigned_ids_in_a_row_of_fins_may_hold_any_byte() -> None:
    server = subscribed(gather_fins=True, dialect=Dialect.REDESIGNED)
    ids = (b"\n FIN \r\n456789ab", b"\n" * 16)
    server.receive_data(encode_fins(ids))
    assert server.events() == [Fins(ids)]


@pytest.mark.parametrize("id", [b"0123456789abcde\r", b"0123456789 bcdef", b"0123456789abcd"])
def test_an_invalid_id_ends_a_row_of_fins(id: bytes) -> None:
    server = subscribed(gather_fins=True)
    server.receive_data(b"FIN " + id + b"\n")
    with pytest.raises(RemoteProtocolError, match="E_INVALID invalid message ID"):
        server.events()


def test_a_row_of_fins_without_a_subscription_is_refused() -> None:
    server = ServerSession(gather_fins=True)
    server.receive_data(b"  V2" + encode_fins([b"0123456789abcdef"]))
    with pytest.raises(RemoteProtocolError, match="E_INVALID cannot FIN in current state"):
        server.events()


def test_what_looks_like_a_fin_in_a_body_is_not_a_fin() -> None:
    server = subscribed(gather_fins=True)
    body = encode_fins([b"0123456789abcdef"])
    server.receive_data(b"PUB t\n" + len(body).to_bytes(4, "big"))
    assert server.events() == []
    server.receive_data(body)
    assert server.events() == [Pub("t", body)]


@pytest.mark.parametrize(
    ("cut", "words"),
    [
        (b"IDENTIFY\n\x00", "E_BAD_BODY IDENTIFY failed to read body size"),
        (b"IDENTIFY\n\x00\x00\x00\x02{", "E_BAD_BODY IDENTIFY failed to read body"),
        (b"PUB t\n", "E_BAD_MESSAGE PUB failed to read message body size"),
        (b"PUB t\n\x00\x00\x00\x02a", "E_BAD_MESSAGE PUB failed to read message body"),
        (b"MPUB t\n\x00\x00\x00", "E_BAD_BODY MPUB failed to read body size"),
        (b"MPUB t\n\x00\x00\x00\x14\x00", "E_BAD_BODY MPUB failed to read message count"),
        (
            b"MPUB t\n\x00\x00\x00\x14\x00\x00\x00\x02\x00\x00\x00\x01a\x00",
            "E_BAD_MESSAGE MPUB failed to read message(1) body size",
        ),
        (
            b"MPUB t\n\x00\x00\x00\x14\x00\x00\x00\x02\x00\x00\x00\x01a\x00\x00\x00\x03b",
            "E_BAD_MESSAGE MPUB failed to read message body",
        ),
    ],
)
def test_a_client_that_closes_within_a_body_gets_an_error(cut: bytes, words: str) -> None:
    server = fed(b"  V2NOP\n" + cut)
    server.receive_eof()
    assert server.events() == [Nop()]  # what came before it is still valid
    with pytest.raises(RemoteProtocolError, match=re.escape(words)):
        server.events()
    assert server.data_to_send() == error_frame(words.encode())
    assert server.state is ServerState.FAILED


@pytest.mark.parametrize("data", [b"", b"  V", b"  V2", b"  V2NOP\n", b"  V2PUB t"])
def test_a_client_that_closes_between_two_bodies_gets_no_error(data: bytes) -> None:
    server = fed(data)
    server.receive_eof()
    while server.events():
        pass
    assert server.data_to_send() == b""
