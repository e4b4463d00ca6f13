"""IDENTIFY: the client's identity and options, and what the server grants.

Both are JSON objects. Times are milliseconds here, as on the wire. A field that is None is not
sent; the server then uses its default.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from reprlib import repr as shorten  # limits the depth too: a peer's JSON may be deeply nested
from typing import Any

from nsqflow.errors import LocalProtocolError, RemoteProtocolError
from nsqflow.protocol.dialect import Dialect, dialect_of_version

_REDESIGNED_FIELDS = ("desired_tag", "extend_support", "ext_filter")


@dataclass(frozen=True, slots=True, kw_only=True)
class IdentifyRequest:
    """A client's identity and the options it requests."""

    client_id: str = ""
    hostname: str = ""
    user_agent: str = ""
    feature_negotiation: bool = True
    heartbeat_interval: int | None = None
    """-1: no heartbeats, but then SUB is refused."""
    output_buffer_size: int | None = None
    """-1: no buffer."""
    output_buffer_timeout: int | None = None
    """-1: no timeout."""
    tls_v1: bool = False
    snappy: bool = False
    deflate: bool = False
    deflate_level: int | None = None
    sample_rate: int | None = None
    msg_timeout: int | None = None
    desired_tag: str | None = None
    """Redesigned: deliver only messages with this tag."""
    extend_support: bool | None = None
    """Redesigned: must be true for topics with headers, and only for them."""
    ext_filter: dict[str, Any] | None = None
    """Redesigned: deliver only messages whose headers match."""

    def encode(self, dialect: Dialect = Dialect.CLASSIC) -> bytes:
        """Return the JSON body of IDENTIFY."""
        if self.snappy and self.deflate:
            raise LocalProtocolError("snappy and deflate cannot be used together")
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        if dialect is Dialect.CLASSIC:
            for name in _REDESIGNED_FIELDS:
                if values.pop(name) is not None:
                    raise LocalProtocolError(f"{name} is only for the redesigned NSQ")
        # The first servers used these names for the two; later ones ignore them.
        values |= {"short_id": self.client_id, "long_id": self.hostname}
        return encode_json({name: v for name, v in values.items() if v is not None})

    @staticmethod
    def decode(body: bytes, dialect: Dialect = Dialect.CLASSIC) -> IdentifyRequest:
        """Decode a client's request; unknown names are ignored."""
        try:
            # Go reads null as an object without keys, and ignores the case of keys.
            values = {} if body.strip() == b"null" else decode_object(body, "IDENTIFY")
            values = {key.lower(): value for key, value in values.items()}
            if dialect is Dialect.CLASSIC:
                values = {k: v for k, v in values.items() if k not in _REDESIGNED_FIELDS}
            known = read_fields(IdentifyRequest, values, "IDENTIFY")
        except RemoteProtocolError:
            raise RemoteProtocolError("IDENTIFY failed to decode JSON body", "E_BAD_BODY") from None
        known.setdefault("feature_negotiation", False)  # missing features are not requested
        # The names before client_id and hostname.
        known.setdefault("client_id", _text(values.get("short_id")))
        known.setdefault("hostname", _text(values.get("long_id")))
        return IdentifyRequest(**known)


@dataclass(frozen=True, slots=True, kw_only=True)
class IdentifyReply:
    """What a server grants, with the documented defaults for fields that old servers omit."""

    max_rdy_count: int = 2500
    version: str = ""
    max_msg_timeout: int = 900_000
    msg_timeout: int = 60_000
    tls_v1: bool = False
    deflate: bool = False
    deflate_level: int = 0
    max_deflate_level: int = 0
    snappy: bool = False
    sample_rate: int = 0
    auth_required: bool = False
    output_buffer_size: int = 16 * 1024
    output_buffer_timeout: int = 250
    desired_tag: str | None = None

    @property
    def dialect(self) -> Dialect:
        """The server's dialect, by its version."""
        return dialect_of_version(self.version)

    def unasked(self, request: IdentifyRequest) -> str | None:
        """Return the name of a feature that is granted but was not requested, if there is one."""
        for feature in ("tls_v1", "snappy", "deflate"):
            if getattr(self, feature) and not getattr(request, feature):
                return feature
        return None

    def encode(self) -> bytes:
        """Return the server's reply as JSON."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        if self.desired_tag is None:
            del values["desired_tag"]
        return encode_json(values)

    @staticmethod
    def decode(data: bytes) -> IdentifyReply:
        """Decode the reply; ``OK`` comes from a server that does not negotiate."""
        if data == b"OK":
            return IdentifyReply()
        values = decode_object(data, "answer to IDENTIFY")
        return IdentifyReply(**read_fields(IdentifyReply, values, "answer to IDENTIFY"))


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthReply:
    """The client as the server identified it."""

    identity: str = ""
    identity_url: str = ""
    permission_count: int = 0

    def encode(self) -> bytes:
        """Return the server's reply as JSON."""
        return encode_json({f.name: getattr(self, f.name) for f in fields(self)})

    @staticmethod
    def decode(data: bytes) -> AuthReply:
        """Decode the reply to AUTH."""
        values = decode_object(data, "answer to AUTH")
        return AuthReply(**read_fields(AuthReply, values, "answer to AUTH"))


def encode_json(values: Any) -> bytes:
    """Encode JSON as the servers do, without spaces."""
    return json.dumps(values, separators=(",", ":")).encode()


def decode_object(data: bytes, what: str) -> dict[str, Any]:
    """Decode a JSON object from the peer."""
    try:
        values = json.loads(data)
    except (ValueError, RecursionError):
        raise RemoteProtocolError(f"{what} is not JSON: {data[:100]!r}") from None
    if not isinstance(values, dict):
        raise RemoteProtocolError(f"{what} is not a JSON object: {data[:100]!r}")
    return values


def read_fields(cls: type[Any], values: dict[str, Any], what: str) -> dict[str, Any]:
    """Return the fields of ``cls``; null counts as missing, a wrong type is an error."""
    known: dict[str, Any] = {}
    for f in fields(cls):
        value = values.get(f.name)
        if value is None:
            continue
        expected = _TYPES[str(f.type).removesuffix(" | None")]
        # In Python a bool is an int, in JSON it is not.
        if type(value) is not expected:
            raise RemoteProtocolError(
                f"{what} has {f.name} {shorten(value)}; expected {expected.__name__}"
            )
        known[f.name] = value
    return known


_TYPES: dict[str, type] = {"str": str, "int": int, "bool": bool, "dict[str, Any]": dict}


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
