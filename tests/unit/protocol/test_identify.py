"""IDENTIFY and AUTH: exact JSON out, whatever JSON in."""

import json
from collections.abc import Callable
from dataclasses import asdict, fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqflow.errors import LocalProtocolError, RemoteProtocolError
from nsqflow.protocol.dialect import Dialect
from nsqflow.protocol.identify import AuthReply, IdentifyReply, IdentifyRequest
from tests.unit.protocol.strategies import attempt, json_values

texts = st.text(max_size=10)
numbers = st.integers(-(2**63), 2**63)

requests = st.builds(
    IdentifyRequest,
    client_id=texts,
    hostname=texts,
    user_agent=texts,
    feature_negotiation=st.booleans(),
    heartbeat_interval=st.none() | numbers,
    output_buffer_size=st.none() | numbers,
    output_buffer_timeout=st.none() | numbers,
    tls_v1=st.booleans(),
    snappy=st.booleans(),
    deflate_level=st.none() | numbers,
    sample_rate=st.none() | numbers,
    msg_timeout=st.none() | numbers,
    desired_tag=st.none() | texts,
    extend_support=st.none() | st.booleans(),
    ext_filter=st.none() | st.dictionaries(texts, texts, max_size=3),
)

# The answer of nsqd 1.3.0 (its fields in nsqd/protocol_v2.go) and the one measured in
# As measured on 0.3.7-HA.1.13.0.
CLASSIC_REPLY = (
    b'{"max_rdy_count":2500,"version":"1.3.0","max_msg_timeout":900000,"msg_timeout":60000,'
    b'"tls_v1":true,"deflate":true,"deflate_level":6,"max_deflate_level":6,"snappy":false,'
    b'"sample_rate":10,"auth_required":true,"output_buffer_size":16384,'
    b'"output_buffer_timeout":250}'
)
REDESIGNED_REPLY = (
    b'{"max_rdy_count":2500,"version":"0.3.7-HA.1.13.0","max_msg_timeout":900000,'
    b'"msg_timeout":60000,"tls_v1":false,"deflate":false,"deflate_level":0,"max_deflate_level":6,'
    b'"snappy":false,"sample_rate":0,"auth_required":false,"output_buffer_size":100,'
    b'"output_buffer_timeout":50,"desired_tag":"tagA"}'
)

DECODERS: dict[str, Callable[[bytes], Any]] = {
    "IDENTIFY": IdentifyRequest.decode,
    "answer to IDENTIFY": IdentifyReply.decode,
    "answer to AUTH": AuthReply.decode,
}


def test_a_request_says_only_what_was_asked_for() -> None:
    assert IdentifyRequest(client_id="c", hostname="h", user_agent="u").encode() == (
        b'{"client_id":"c","hostname":"h","user_agent":"u","feature_negotiation":true,'
        b'"tls_v1":false,"snappy":false,"deflate":false,"short_id":"c","long_id":"h"}'
    )


def test_a_request_says_all_that_was_asked_for() -> None:
    request = IdentifyRequest(
        feature_negotiation=False,
        heartbeat_interval=-1,
        output_buffer_size=0,
        output_buffer_timeout=25,
        tls_v1=True,
        deflate=True,
        deflate_level=3,
        sample_rate=99,
        msg_timeout=1000,
        desired_tag="tagA",
        extend_support=True,
        ext_filter={"type": 1},
    )
    assert request.encode(Dialect.REDESIGNED) == (
        b'{"client_id":"","hostname":"","user_agent":"","feature_negotiation":false,'
        b'"heartbeat_interval":-1,"output_buffer_size":0,"output_buffer_timeout":25,'
        b'"tls_v1":true,"snappy":false,"deflate":true,"deflate_level":3,"sample_rate":99,'
        b'"msg_timeout":1000,"desired_tag":"tagA","extend_support":true,"ext_filter":{"type":1},'
        b'"short_id":"","long_id":""}'
    )


@pytest.mark.parametrize(
    ("request_", "complaint"),
    [
        (IdentifyRequest(snappy=True, deflate=True), "snappy and deflate cannot be used together"),
        (IdentifyRequest(desired_tag=""), "desired_tag is only for the redesigned NSQ"),
        (IdentifyRequest(extend_support=False), "extend_support is only for the redesigned NSQ"),
        (IdentifyRequest(ext_filter={}), "ext_filter is only for the redesigned NSQ"),
    ],
)
def test_options_that_the_server_would_refuse_or_ignore_are_not_sent(
    request_: IdentifyRequest, complaint: str
) -> None:
    with pytest.raises(LocalProtocolError) as caught:
        request_.encode()
    assert str(caught.value) == complaint


@given(requests)
def test_a_request_comes_back_equal(request_: IdentifyRequest) -> None:
    encoded = request_.encode(Dialect.REDESIGNED)
    assert IdentifyRequest.decode(encoded, Dialect.REDESIGNED) == request_
    plain = replace(request_, desired_tag=None, extend_support=None, ext_filter=None)
    assert IdentifyRequest.decode(encoded) == plain


@pytest.mark.parametrize(
    ("body", "request_"),
    [
        # In Go what is missing is false: nsqd then just answers OK.
        (b"{}", IdentifyRequest(feature_negotiation=False)),
        (b'{"feature_negotiation":null}', IdentifyRequest(feature_negotiation=False)),
        (b'{"feature_negotiation":true}', IdentifyRequest()),
        (
            b'{"short_id":"old","long_id":"older","what":{}}',
            IdentifyRequest(client_id="old", hostname="older", feature_negotiation=False),
        ),
        (
            b'{"client_id":"c","hostname":"","short_id":"old","long_id":7}',
            IdentifyRequest(client_id="c", feature_negotiation=False),
        ),
        (b'{"long_id":7}', IdentifyRequest(feature_negotiation=False)),
        (b" null\n", IdentifyRequest(feature_negotiation=False)),
        (b'{"Client_ID":"c"}', IdentifyRequest(client_id="c", feature_negotiation=False)),
    ],
)
def test_a_request_is_read_as_nsqd_reads_it(body: bytes, request_: IdentifyRequest) -> None:
    assert IdentifyRequest.decode(body) == request_


@pytest.mark.parametrize(
    "body", [b"", b"no", b"[]", b"\xff", b'{"tls_v1":1}', b'{"msg_timeout":1.0}', b'{"hostname":1}']
)
def test_a_request_that_cannot_be_read_is_refused_in_nsqds_words(body: bytes) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        IdentifyRequest.decode(body)
    assert str(caught.value) == "E_BAD_BODY IDENTIFY failed to decode JSON body"


@pytest.mark.parametrize(
    ("data", "dialect", "values"),
    [
        (CLASSIC_REPLY, Dialect.CLASSIC, ("1.3.0", True, True, 6, 10, True, 16384, 250, None)),
        (
            REDESIGNED_REPLY,
            Dialect.REDESIGNED,
            ("0.3.7-HA.1.13.0", False, False, 0, 0, False, 100, 50, "tagA"),
        ),
    ],
)
def test_a_reply_is_read_and_written_as_the_servers_write_it(
    data: bytes, dialect: Dialect, values: tuple[Any, ...]
) -> None:
    reply = IdentifyReply.decode(data)
    assert reply.dialect is dialect
    assert values == (
        reply.version,
        reply.tls_v1,
        reply.deflate,
        reply.deflate_level,
        reply.sample_rate,
        reply.auth_required,
        reply.output_buffer_size,
        reply.output_buffer_timeout,
        reply.desired_tag,
    )
    assert reply.encode() == data


def test_a_server_that_negotiates_nothing_has_the_documented_values() -> None:
    assert IdentifyReply.decode(b"OK") == IdentifyReply.decode(b"{}") == IdentifyReply()
    assert asdict(IdentifyReply()) == {
        "max_rdy_count": 2500,
        "version": "",
        "max_msg_timeout": 900000,
        "msg_timeout": 60000,
        "tls_v1": False,
        "deflate": False,
        "deflate_level": 0,
        "max_deflate_level": 0,
        "snappy": False,
        "sample_rate": 0,
        "auth_required": False,
        "output_buffer_size": 16384,
        "output_buffer_timeout": 250,
        "desired_tag": None,
    }


def test_auth_is_answered_with_an_identity() -> None:
    data = b'{"identity":"joe","identity_url":"http://joe","permission_count":2}'
    reply = AuthReply(identity="joe", identity_url="http://joe", permission_count=2)
    assert AuthReply.decode(data) == reply
    assert reply.encode() == data
    assert AuthReply.decode(b'{"identity":null}') == AuthReply()


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"OKAY", "{what} is not JSON: b'OKAY'"),
        (b"\xff" * 200, "{what} is not JSON: " + repr(b"\xff" * 100)),
        (b"[" * 100000, "{what} is not JSON: " + repr(b"[" * 100)),
        (b"9" * 5000, "{what} is not JSON: " + repr(b"9" * 100)),  # Python refuses to read it
        (b"null", "{what} is not a JSON object: b'null'"),
        (b'["' + b"x" * 200 + b'"]', "{what} is not a JSON object: " + repr(b'["' + b"x" * 98)),
    ],
)
@pytest.mark.parametrize("what", ["answer to IDENTIFY", "answer to AUTH"])
def test_an_answer_that_is_not_an_object_is_refused(what: str, data: bytes, complaint: str) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        DECODERS[what](data)
    assert str(caught.value) == complaint.format(what=what)


@pytest.mark.parametrize("field", [field.name for field in fields(IdentifyReply)])
@pytest.mark.parametrize(
    ("value", "kind", "shown"),
    [(1, int, "1"), (True, bool, "True"), ("x", str, "'x'"), ([1], list, "[1]"), ({}, dict, "{}")],
)
def test_a_value_of_the_wrong_type_is_named(field: str, value: Any, kind: type, shown: str) -> None:
    expected = type(getattr(IdentifyReply(), field)) if field != "desired_tag" else str
    data = json.dumps({field: value}).encode()
    if kind is expected:
        assert getattr(IdentifyReply.decode(data), field) == value
        return
    with pytest.raises(RemoteProtocolError) as caught:
        IdentifyReply.decode(data)
    complaint = f"answer to IDENTIFY has {field} {shown}; expected {expected.__name__}"
    assert str(caught.value) == complaint


def test_a_wrong_value_is_shown_in_short_however_long_or_deep_it_is() -> None:
    for value in ("[" * 900 + "]" * 900, json.dumps(["x" * 1000] * 1000)):
        with pytest.raises(RemoteProtocolError, match=r"^answer to AUTH has identity ") as caught:
            AuthReply.decode(f'{{"identity":{value}}}'.encode())
        assert len(str(caught.value)) < 300


@pytest.mark.parametrize("decode", DECODERS.values())
@given(st.binary() | json_values.map(lambda value: json.dumps(value).encode()))
def test_arbitrary_bytes_raise_a_protocol_error_alone(
    decode: Callable[[bytes], Any], data: bytes
) -> None:
    found = attempt(RemoteProtocolError, decode, data)
    if isinstance(found, RemoteProtocolError):
        assert "IDENTIFY" in str(found) or "AUTH" in str(found)
    else:
        assert json.loads(found.encode())


@pytest.mark.parametrize("cls", [IdentifyRequest, IdentifyReply, AuthReply])
@given(st.data())
def test_any_field_may_be_anything(cls: Any, data: st.DataObject) -> None:
    names = st.sampled_from([field.name for field in fields(cls)])
    values = data.draw(st.dictionaries(names, json_values, max_size=4))
    known = [type(value) for value in values.values() if value is not None]
    arguments: list[object] = [json.dumps(values).encode()]
    if cls is IdentifyRequest:
        arguments.append(Dialect.REDESIGNED)
    found = attempt(RemoteProtocolError, cls.decode, *arguments)
    if isinstance(found, RemoteProtocolError):
        assert "; expected " in str(found) or found.code == "E_BAD_BODY"
    else:
        read = asdict(found)
        assert [type(read[name]) for name in values if values[name] is not None] == known
