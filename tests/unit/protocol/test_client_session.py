"""The client's side: what it refuses to send, what it makes of what it gets."""

from __future__ import annotations

import pytest

from nsqflow.errors import (
    BadTopicError,
    FinishFailedError,
    InvalidCommandError,
    LocalProtocolError,
    NotLeaderError,
    RemoteProtocolError,
    ServerError,
    TlsNotGrantedError,
)
from nsqflow.protocol import (
    AnswerFailed,
    Auth,
    Authenticated,
    AuthReply,
    ClientSession,
    ClientState,
    CloseWait,
    Cls,
    Command,
    CommandFailed,
    CompressionRefused,
    Connected,
    Dialect,
    Dpub,
    Fin,
    FrameType,
    Heartbeat,
    Identify,
    IdentifyReply,
    IdentifyRequest,
    Layout,
    Message,
    MessageBatch,
    Mpub,
    MpubExt,
    MpubTrace,
    Nop,
    Pub,
    PubExt,
    Published,
    PubTrace,
    Rdy,
    Receipt,
    Req,
    Sub,
    Subscribed,
    SubscribeMode,
    Touch,
    encode_frame,
    encode_messages,
)
from nsqflow.protocol.client_session import failed_id

from .pair import Pair, connected_pair, flatten, make_pair, subscribed_pair

ID = b"0123456789abcdef"
RAW_ID = b"\x00\x00\x00\x00\x00\x00\x00'\n \n \n \n\n"
RECEIPT = Receipt(13, 0x1122334455667788, 389, 36)
REDESIGNED = Dialect.REDESIGNED


def answer(pair: Pair, data: bytes) -> list[object]:
    pair.pump()
    pair.server.send_response(data)
    return list(pair.take_client_events())


def fail(pair: Pair, data: bytes) -> list[object]:
    pair.pump()
    pair.client.receive_data(encode_frame(FrameType.ERROR, data))
    return list(pair.client.events())


# How it begins.


def test_the_first_bytes_are_the_magic_and_identify() -> None:
    client = ClientSession(IdentifyRequest(client_id="me", hostname="here"))
    sent = client.data_to_send()
    assert sent.startswith(b"  V2IDENTIFY\n\x00\x00\x00")
    assert b'"client_id":"me"' in sent
    assert b'"short_id":"me"' in sent
    assert client.state is ClientState.IDENTIFYING


def test_an_old_nsqd_that_says_ok_has_the_documented_defaults() -> None:
    client = ClientSession()
    client.receive_data(encode_frame(FrameType.RESPONSE, b"OK"))
    assert client.events() == [Connected(IdentifyReply(max_rdy_count=2500))]
    assert client.state is ClientState.CONNECTED


def test_tls_that_is_not_granted_is_an_error_before_another_byte_is_sent() -> None:
    client = ClientSession(IdentifyRequest(tls_v1=True))
    client.data_to_send()
    client.receive_data(encode_frame(FrameType.RESPONSE, b"_heartbeat_"))
    client.receive_data(encode_frame(FrameType.RESPONSE, IdentifyReply().encode()))
    assert client.events() == [Heartbeat()]
    with pytest.raises(TlsNotGrantedError, match="TLS was requested"):
        client.events()
    assert client.data_to_send() == b""
    assert client.state is ClientState.FAILED


@pytest.mark.parametrize("method", ["snappy", "deflate"])
def test_compression_that_is_not_granted_is_an_event_and_all_goes_on(method: str) -> None:
    asked = IdentifyRequest(snappy=method == "snappy", deflate=method == "deflate")
    pair = make_pair(asked, grants=IdentifyReply())
    refused, connected = pair.take_client_events()
    assert refused == CompressionRefused(method)
    assert isinstance(connected, Connected)
    pair.client.send(Nop())
    assert pair.client.data_to_send() == b"NOP\n"


@pytest.mark.parametrize("feature", ["tls_v1", "snappy", "deflate"])
def test_a_feature_granted_and_never_asked_for_is_an_error(feature: str) -> None:
    client = ClientSession()
    reply = b'{"%s":true}' % feature.encode()
    client.receive_data(encode_frame(FrameType.RESPONSE, reply))
    with pytest.raises(RemoteProtocolError, match=f"{feature} was granted"):
        client.events()


def test_anything_but_ok_after_an_upgrade_is_an_error() -> None:
    client = ClientSession(IdentifyRequest(tls_v1=True))
    client.receive_data(encode_frame(FrameType.RESPONSE, b'{"tls_v1":true}'))
    client.events()
    client.tls_started()
    client.receive_data(encode_frame(FrameType.RESPONSE, b"KO"))
    with pytest.raises(RemoteProtocolError, match="b'KO' while tls"):
        client.events()


def test_an_error_in_answer_to_identify_names_it_and_closes() -> None:
    client = ClientSession()
    client.receive_data(encode_frame(FrameType.ERROR, b"E_BAD_BODY IDENTIFY msg timeout (1)"))
    (event,) = client.events()
    assert isinstance(event, CommandFailed)
    assert (event.command, event.closes, event.error.code) == ("IDENTIFY", True, "E_BAD_BODY")


# What it answers by itself.


@pytest.mark.parametrize("asked", [IdentifyRequest(), IdentifyRequest(snappy=True)])
def test_a_heartbeat_is_answered_inside_the_session(asked: IdentifyRequest) -> None:
    pair = connected_pair(asked)
    pair.server.send_heartbeat()
    assert pair.take_client_events() == [Heartbeat()]
    assert pair.take_server_events() == [Nop()]


def test_a_heartbeat_before_the_reply_to_identify_is_answered_too() -> None:
    client = ClientSession()
    client.data_to_send()
    client.receive_data(encode_frame(FrameType.RESPONSE, b"_heartbeat_"))
    assert client.events() == [Heartbeat()]
    assert client.data_to_send() == b"NOP\n"
    assert client.state is ClientState.IDENTIFYING


@pytest.mark.parametrize("method", ["tls_v1", "snappy", "deflate"])
def test_the_answer_to_a_heartbeat_does_not_fall_into_an_upgrade(method: str) -> None:
    client = ClientSession(
        IdentifyRequest(
            tls_v1=method == "tls_v1", snappy=method == "snappy", deflate=method == "deflate"
        )
    )
    client.data_to_send()
    client.receive_data(encode_frame(FrameType.RESPONSE, b"_heartbeat_"))
    client.receive_data(encode_frame(FrameType.RESPONSE, b'{"%s":true}' % method.encode()))
    assert client.events()[0] == Heartbeat()
    assert client.data_to_send() == b""


# Answers to commands.


def test_publishes_are_answered_in_their_order() -> None:
    pair = connected_pair(dialect=REDESIGNED)
    commands: list[Command] = [
        Pub("t", b"1", 0),
        PubTrace("t", 7, b"2", 0),
        PubExt("t", b"{}", b"3", 0),
        PubExt("t", b'{"##trace_id":"7"}', b"4", 0),
        Mpub("t", [b"5"], 0),
        MpubTrace("t", [(7, b"6")], 0),
        MpubExt("t", [(b"", b"7")], 0),
    ]
    for command in commands:
        pair.client.send(command)
    assert pair.client.unanswered == 7
    assert pair.take_server_events() == commands
    receipts = [None, RECEIPT, None, RECEIPT, None, RECEIPT, None]
    for receipt in receipts:
        if receipt is None:
            pair.server.send_response()
        else:
            pair.server.send_receipt(receipt)
    assert pair.take_client_events() == [Published(receipt) for receipt in receipts]
    assert pair.client.unanswered == 0


def test_a_deferred_publish_is_answered_with_ok() -> None:
    pair = connected_pair()
    pair.client.send(Dpub("t", 1500, b"later"))
    assert pair.take_server_events() == [Dpub("t", 1500, b"later")]
    assert answer(pair, b"OK") == [Published()]


@pytest.mark.parametrize(
    ("command", "data"),
    [
        (Pub("t", b"x", 0), RECEIPT.encode()),
        (Mpub("t", [b"x"], 0), b"CLOSE_WAIT"),
        (PubTrace("t", 7, b"x", 0), b"OK"),
        (PubExt("t", b"{}", b"x", 0), b"OK!"),
        (Sub("t", "c", 0), b"KO"),
    ],
)
def test_an_answer_of_the_wrong_kind_is_an_error(command: Command, data: bytes) -> None:
    pair = connected_pair(dialect=REDESIGNED)
    pair.client.send(command)
    with pytest.raises(RemoteProtocolError, match=f"answer .* to {command.name}|receipt of"):
        answer(pair, data)


def test_an_answer_to_no_command_is_an_error() -> None:
    with pytest.raises(RemoteProtocolError, match="b'OK' without a command"):
        answer(connected_pair(), b"OK")


def test_auth_is_sent_where_it_is_asked_for_and_its_answer_read() -> None:
    pair = connected_pair(grants=IdentifyReply(auth_required=True))
    pair.client.send(Auth(b"secret"))
    assert pair.take_server_events() == [Auth(b"secret")]
    reply = AuthReply(identity="me", identity_url="http://me", permission_count=2)
    assert answer(pair, reply.encode()) == [Authenticated(reply)]


def test_subscribe_receive_finish_and_close() -> None:
    pair = connected_pair()
    pair.client.send(Sub("t", "c"))
    assert pair.client.state.value == "subscribing"
    assert answer(pair, b"OK") == [Subscribed()]
    assert pair.client.state.value == "subscribed"
    pair.client.send(Rdy(10))
    pair.pump()
    messages = [Message(i, 1, ID, b"%d" % i) for i in range(10)]
    pair.server.send_messages(messages)
    (batch,) = pair.take_client_events()
    assert isinstance(batch, MessageBatch)
    assert batch.messages() == messages
    pair.client.send(Cls())
    assert pair.client.state is ClientState.CLOSING
    pair.pump()
    # On its way when CLS arrived; and as a broker sends it.
    assert pair.server.send_plain_messages(messages[:1]) == 8 + 26 + 1
    pair.server.send_frames(encode_messages(messages[1:3]))
    assert [type(event) for event in pair.take_client_events()] == [MessageBatch]
    assert answer(pair, b"CLOSE_WAIT") == [CloseWait()]


def test_answers_to_many_messages_are_the_commands_one_by_one() -> None:
    pair = subscribed_pair(dialect=REDESIGNED)
    pair.client.finish([ID, RAW_ID])
    pair.client.finish_packed(RAW_ID + ID)
    pair.client.requeue([ID, RAW_ID], 1500)
    pair.client.touch([RAW_ID])
    pair.client.finish([])
    assert pair.take_server_events() == [
        *(Fin(ID), Fin(RAW_ID), Fin(RAW_ID), Fin(ID)),
        *(Req(ID, 1500), Req(RAW_ID, 1500), Touch(RAW_ID)),
    ]


@pytest.mark.parametrize("extended", [False, True])
@pytest.mark.parametrize("kind", SubscribeMode)
def test_messages_are_laid_out_as_the_subscription_says(
    extended: bool, kind: SubscribeMode
) -> None:
    asked = IdentifyRequest(extend_support=extended)
    pair = subscribed_pair(asked, dialect=REDESIGNED, kind=kind)
    message = Message(1, 65535, RAW_ID, b"body")
    if extended:
        message.ext_version, message.ext = 4, b'{"a":"b"}'
    if kind is not SubscribeMode.PLAIN:
        message.offset, message.size = 33, 45
    pair.server.send_messages([message])
    (batch,) = pair.take_client_events()
    assert isinstance(batch, MessageBatch)
    assert batch.messages() == [message]


@pytest.mark.parametrize(
    ("extended", "kind", "smallest"),
    [
        (False, SubscribeMode.PLAIN, 26),
        (False, SubscribeMode.ORDERED, 38),
        (True, SubscribeMode.PLAIN, 27),
        (True, SubscribeMode.ADVANCED, 39),
    ],
)
def test_a_message_too_short_for_its_layout_is_an_error(
    extended: bool, kind: SubscribeMode, smallest: int
) -> None:
    asked = IdentifyRequest(extend_support=extended)
    pair = subscribed_pair(asked, dialect=REDESIGNED, kind=kind)
    pair.client.receive_data(encode_frame(FrameType.MESSAGE, bytes(smallest)))
    (batch,) = pair.client.events()
    assert isinstance(batch, MessageBatch)
    assert batch.messages()[0].body == b""
    pair.client.receive_data(encode_frame(FrameType.MESSAGE, bytes(smallest - 1)))
    with pytest.raises(RemoteProtocolError, match=f"its header has {smallest}"):
        pair.client.events()


@pytest.mark.parametrize("subscribe", [False, True])
def test_a_message_without_a_subscription_is_an_error(subscribe: bool) -> None:
    pair = connected_pair()
    if subscribe:
        pair.client.send(Sub("t", "c"))
    pair.client.receive_data(encode_messages([Message(1, 1, ID, b"x")]))
    with pytest.raises(RemoteProtocolError, match=r"message while (connected|subscribing)"):
        pair.client.events()


def test_messages_before_a_broken_one_come_out_however_they_arrived() -> None:
    good = Message(1, 1, ID, b"x", ext_version=4, ext=b"{}")
    stream = encode_messages([good, good], Layout(extended=True))
    stream += encode_frame(FrameType.MESSAGE, bytes(26) + b"\x04\xff\xff")
    for pieces in ([stream], [stream[i : i + 1] for i in range(len(stream))]):
        pair = subscribed_pair(IdentifyRequest(extend_support=True), dialect=REDESIGNED)
        found: list[object] = []
        with pytest.raises(RemoteProtocolError, match="ends within its extended headers"):
            for piece in pieces:
                pair.client.receive_data(piece)
                while events := pair.client.events():
                    found += flatten(events)
        assert found == [good, good]


# Errors from the server.


def test_no_leader_on_a_subscribed_connection_closes_as_it_may_answer_a_fin() -> None:
    pair = subscribed_pair(dialect=REDESIGNED)
    pair.client.send(Pub("t", b"1", 0))
    (event,) = fail(pair, b"E_FAILED_ON_NOT_LEADER ")
    assert isinstance(event, CommandFailed)
    assert event.closes


def test_a_late_fin_is_an_event_with_the_id_and_the_connection_goes_on() -> None:
    pair = subscribed_pair()
    text = b"E_FIN_FAILED FIN 0123456789abcdef failed ID not in flight"
    (event,) = fail(pair, text)
    assert isinstance(event, AnswerFailed)
    assert (event.command, event.id) == ("FIN", ID)
    assert isinstance(event.error, FinishFailedError)
    assert event.error.text == "FIN 0123456789abcdef failed ID not in flight"
    assert pair.client.state is ClientState.SUBSCRIBED


@pytest.mark.parametrize(
    ("command", "text", "expected"),
    [
        ("FIN", b"E_FIN_FAILED FIN 0123456789abcdef failed ID not in flight", ID),
        ("REQ", b"E_REQ_FAILED REQ 0123456789abcdef failed ID not in flight", ID),
        ("TOUCH", b"E_TOUCH_FAILED TOUCH 0123456789abcdef failed client does not own", ID),
        ("FIN", b"E_FIN_FAILED FIN " + RAW_ID + b" failed ID not in flight", RAW_ID),
        (
            "FIN",
            b"E_FIN_FAILED FIN [0 0 0 0 0 15 66 63 0 0 0 0 0 0 1 255] failed Message ID not",
            bytes([0, 0, 0, 0, 0, 15, 66, 63, 0, 0, 0, 0, 0, 0, 1, 255]),
        ),
        ("FIN", b"E_FIN_FAILED FIN [0 0 0 0 0 15 66 63 0 0 0 0 0 0 1 256] failed", None),
        ("FIN", b"E_FIN_FAILED FIN 0123 failed ID not in flight", None),
        ("FIN", b"E_FIN_FAILED ", None),
        ("FIN", b"E_FIN_FAILED", None),
    ],
)
def test_the_id_is_read_from_the_error_text_of_either_dialect(
    command: str, text: bytes, expected: bytes | None
) -> None:
    assert failed_id(text, command) == expected


def test_an_error_that_closes_is_marked_and_nothing_after_it_counts() -> None:
    pair = connected_pair()
    pair.client.send(Pub("t", b"1"))
    pair.client.send(Pub("t", b"2"))
    pair.pump()
    pair.client.send(Nop())
    pair.client.receive_data(
        encode_frame(FrameType.ERROR, b"E_BAD_TOPIC PUB topic name is not valid")
        + encode_frame(FrameType.RESPONSE, b"OK")
    )
    (event,) = pair.client.events()
    assert isinstance(event, CommandFailed)
    assert (event.command, event.closes) == ("PUB", True)
    assert isinstance(event.error, BadTopicError)
    assert pair.client.events() == []
    assert pair.client.state is ClientState.FAILED
    assert pair.client.unanswered == 2
    assert pair.client.data_to_send() == b""
    pair.client.receive_data(encode_frame(FrameType.RESPONSE, b"OK"))
    assert pair.client.events() == []
    with pytest.raises(LocalProtocolError, match="cannot NOP while failed"):
        pair.client.send(Nop())


def test_what_came_before_a_closing_error_can_be_answered_as_if_it_had_not_come() -> None:
    pair = subscribed_pair()
    pair.client.receive_data(
        encode_messages([Message(1, 1, ID, b"x")])
        + encode_frame(FrameType.ERROR, b"E_INVALID RDY count 2501 out of range 0-2500")
    )
    batch, failed = pair.client.events()
    assert isinstance(batch, MessageBatch)
    assert isinstance(failed, CommandFailed)
    pair.client.finish(message.id for message in batch.messages())
    assert pair.client.events() == []
    assert pair.client.data_to_send() == b""


def test_a_command_sent_between_an_event_and_the_violation_after_it_is_not_an_error() -> None:
    client = ClientSession()
    client.receive_data(encode_frame(FrameType.RESPONSE, b"OK") + b"HTTP/1.1 ")
    (connected,) = client.events()
    assert isinstance(connected, Connected)
    client.send(Pub("t", b"x"))
    with pytest.raises(RemoteProtocolError, match="frame of 1213486160 bytes"):
        client.events()
    assert client.data_to_send() == b""
    with pytest.raises(LocalProtocolError, match="cannot PUB while failed"):
        client.send(Pub("t", b"x"))


def test_nothing_compressed_or_clear_goes_out_once_the_server_has_failed() -> None:
    client = ClientSession(IdentifyRequest(deflate=True))
    reply = encode_frame(FrameType.RESPONSE, b'{"deflate":true}')
    client.receive_data(reply + b"no deflate stream at all")
    with pytest.raises(RemoteProtocolError, match="deflate stream is damaged"):
        client.events()
    assert client.data_to_send() == b""


def test_an_error_that_does_not_close_answers_its_command_alone() -> None:
    pair = connected_pair(dialect=REDESIGNED)
    pair.client.send(Pub("t", b"1", 0))
    pair.client.send(Pub("t", b"2", 0))
    (event,) = fail(pair, b"E_FAILED_ON_NOT_LEADER ")
    assert isinstance(event, CommandFailed)
    assert (event.command, event.closes) == ("PUB", False)
    assert isinstance(event.error, NotLeaderError)
    assert answer(pair, b"OK") == [Published()]


def test_an_error_to_no_command_closes() -> None:
    pair = subscribed_pair()
    (event,) = fail(pair, b"E_INVALID RDY count 2501 out of range 0-2500")
    assert isinstance(event, CommandFailed)
    assert (event.command, event.closes) == (None, True)
    assert isinstance(event.error, InvalidCommandError)


def test_an_unknown_code_closes() -> None:
    pair = connected_pair(dialect=REDESIGNED)
    pair.client.send(Pub("t", b"1", 0))
    (event,) = fail(pair, b"E_NEW_IN_2030 so it is")
    assert isinstance(event, CommandFailed)
    assert event.closes
    assert type(event.error) is ServerError
    assert str(event.error) == "E_NEW_IN_2030 so it is"


# What it refuses to send.


@pytest.mark.parametrize(
    "command",
    [Auth(b"s"), Sub("t", "c"), Pub("t", b"x"), Rdy(1), Fin(ID), Req(ID), Touch(ID), Cls(), Nop()],
)
def test_no_command_is_sent_before_negotiation_is_over(command: Command) -> None:
    client = ClientSession()
    client.data_to_send()
    with pytest.raises(LocalProtocolError, match=f"cannot {command.name} while identifying"):
        client.send(command)
    assert client.data_to_send() == b""


@pytest.mark.parametrize("command", [Rdy(1), Fin(ID), Req(ID), Touch(ID), Cls(), Identify(b"{}")])
def test_what_needs_a_subscription_is_refused_without_one(command: Command) -> None:
    pair = connected_pair()
    with pytest.raises(LocalProtocolError, match=f"cannot {command.name} while connected"):
        pair.client.send(command)
    with pytest.raises(LocalProtocolError, match="cannot FIN while connected"):
        pair.client.finish([ID])
    with pytest.raises(LocalProtocolError, match="cannot FIN while connected"):
        pair.client.finish_packed(ID)
    with pytest.raises(LocalProtocolError, match="cannot REQ while connected"):
        pair.client.requeue([ID])
    with pytest.raises(LocalProtocolError, match="cannot TOUCH while connected"):
        pair.client.touch([ID])


def test_a_connection_subscribes_and_closes_only_once() -> None:
    pair = subscribed_pair()
    with pytest.raises(LocalProtocolError, match="cannot SUB while subscribed"):
        pair.client.send(Sub("t", "c"))
    pair.client.send(Cls())
    with pytest.raises(LocalProtocolError, match="cannot CLS while closing"):
        pair.client.send(Cls())
    pair.client.send(Rdy(0))  # ignored by nsqd, and harmless
    pair.client.finish([ID])


def test_publishing_on_a_subscribed_connection_works() -> None:
    pair = subscribed_pair()
    pair.client.send(Pub("t", b"x"))
    assert answer(pair, b"OK") == [Published()]


def test_ready_stays_within_what_the_server_allows() -> None:
    pair = subscribed_pair()
    pair.client.send(Rdy(2500))
    with pytest.raises(LocalProtocolError, match="RDY 2501: must be 0 to 2500"):
        pair.client.send(Rdy(2501))


def test_auth_is_not_sent_to_a_server_that_did_not_ask() -> None:
    with pytest.raises(LocalProtocolError, match="did not request it"):
        connected_pair().client.send(Auth(b"secret"))


def test_a_subscription_without_heartbeats_is_refused() -> None:
    pair = connected_pair(IdentifyRequest(heartbeat_interval=-1))
    with pytest.raises(LocalProtocolError, match="heartbeats disabled"):
        pair.client.send(Sub("t", "c"))


def test_an_ordered_subscription_with_a_sample_rate_is_refused() -> None:
    pair = connected_pair(IdentifyRequest(sample_rate=50), dialect=REDESIGNED)
    with pytest.raises(LocalProtocolError, match="sample rate"):
        pair.client.send(Sub("t", "c", 0, SubscribeMode.ORDERED))
    pair.client.send(Sub("t", "c", 0))


@pytest.mark.parametrize(
    ("dialect", "command"),
    [
        (Dialect.CLASSIC, Pub("t", b"x", 0)),
        (Dialect.CLASSIC, Mpub("t", [b"x"], 0)),
        (Dialect.CLASSIC, Sub("t", "c", 0)),
        (Dialect.CLASSIC, Sub("t", "c", kind=SubscribeMode.ORDERED)),
        (Dialect.CLASSIC, PubTrace("t", 1, b"x")),
        (Dialect.CLASSIC, MpubTrace("t", [(1, b"x")])),
        (Dialect.CLASSIC, PubExt("t", b"{}", b"x")),
        (Dialect.CLASSIC, MpubExt("t", [(b"{}", b"x")])),
        (Dialect.REDESIGNED, Dpub("t", 1, b"x")),
    ],
)
def test_a_command_of_the_other_dialect_is_refused(dialect: Dialect, command: Command) -> None:
    pair = connected_pair(dialect=dialect)
    with pytest.raises(LocalProtocolError, match=f"the {dialect.value} NSQ does not have"):
        pair.client.send(command)
    assert pair.client.unanswered == 0


def test_a_command_that_cannot_be_encoded_leaves_no_trace() -> None:
    pair = connected_pair()
    with pytest.raises(LocalProtocolError, match="empty message body"):
        pair.client.send(Pub("t", b""))
    assert pair.client.unanswered == 0
    assert pair.client.data_to_send() == b""
