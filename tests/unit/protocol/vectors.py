"""Reads the data files of tests/vectors, and puts our objects into the same words as they do."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from nsqflow.protocol import (
    AnswerFailed,
    Auth,
    Authenticated,
    CloseWait,
    Cls,
    Command,
    CommandFailed,
    CompressionRefused,
    CompressionStarted,
    Connected,
    Dialect,
    Dpub,
    Event,
    Fin,
    Heartbeat,
    Identify,
    LookupAnswer,
    Message,
    MessageBatch,
    Mpub,
    MpubExt,
    MpubTrace,
    Node,
    Nop,
    Peer,
    PeerCommand,
    PeerIdentify,
    PeerReply,
    Ping,
    Pub,
    PubExt,
    Published,
    PubTrace,
    Rdy,
    Register,
    Req,
    StartTls,
    Sub,
    Subscribed,
    SubscribeMode,
    TlsStarted,
    Touch,
    Unregister,
)

FOLDER = Path(__file__).resolve().parents[2] / "vectors"

Vector = dict[str, Any]

# What a vector of each kind has to say beside its name and its source, and what else it may say.
KINDS: dict[str, tuple[str, str]] = {
    "magic": ("server wire", "answer"),
    "command": ("dialects wire meaning", ""),
    "accepted": ("dialects wire", "meaning state"),
    "refused": ("dialect state wire code", "answer"),
    "unsendable": ("dialects meaning reason", "identify"),
    "frame": ("dialect after wire events", "answer"),
    "message": ("dialect subscription wire meaning", "extend_support"),
    "broken": ("dialect after wire reason", "identify"),
    "identify_request": ("dialect json fields", ""),
    "identify_reply": ("dialect wire grants events exact", "identify"),
    "exchange": ("identify grants step", ""),
    "lookup": ("status body", "answer speaks error"),
    "listlookup": ("status body", "nodes error"),
    "peer_command": ("wire meaning", ""),
    "peer_reply": ("after wire meaning", ""),
    "peer_refused": ("identified wire answer", ""),
}

# These hold bytes, as lists of pieces. (What nsqlookupd says over HTTP is text.)
_BYTES = {"wire", "answer", "body", "id", "headers", "secret", "ext"}


def load(paths: Iterable[Path]) -> dict[str, list[Vector]]:
    """Read vectors, by their kind; raise ``ValueError`` for what is not as it should be."""
    vectors: dict[str, list[Vector]] = {kind: [] for kind in KINDS}
    for path in paths:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
        if not any(tables.values()):
            raise ValueError(f"{path.name}: no vectors")
        for kind, found in tables.items():
            if kind not in KINDS:
                raise ValueError(f"{path.name}: unknown kind {kind!r}")
            vectors[kind] += [_vector(f"{path.name}, {kind}", kind, each) for each in found]
    for kind, found in vectors.items():
        names = [vector["name"] for vector in found]
        if len(set(names)) < len(names):
            raise ValueError(f"{kind}: two vectors of one name among {names}")
    return vectors


def _vector(where: str, kind: str, found: Vector) -> Vector:
    required, optional = KINDS[kind]
    needed = {"name", "source", *required.split()}
    if missing := needed - found.keys():
        raise ValueError(f"{where} {found.get('name')!r}: without {sorted(missing)}")
    if unknown := found.keys() - needed - set(optional.split()):
        raise ValueError(f"{where} {found['name']!r}: unknown {sorted(unknown)}")
    vector: Vector = _read(found)
    return vector


def _read(value: Any, key: str = "") -> Any:
    """Put bytes where the files have pieces."""
    if isinstance(value, dict):
        return {key: _read(each, key) for key, each in value.items()}
    if isinstance(value, list):
        if key in _BYTES:
            return b"".join(map(_piece, value))
        return [_read(each, "body" if key == "bodies" else "") for each in value]
    return value


def _piece(piece: Any) -> bytes:
    match piece:
        case {"text": str(text), **rest} if not rest:
            return text.encode()
        case {"hex": str(digits), **rest} if not rest:
            return bytes.fromhex(digits)
    raise ValueError(f"neither text nor hex: {piece!r}")


# From their words to our objects. An unknown word is an error of the constructor's.

_COMMANDS: dict[str, type[Command]] = {
    each.name: each
    for each in (
        *(Identify, Auth, Rdy, Fin, Req, Touch, Cls, Nop),
        *(Pub, Mpub, Dpub, PubTrace, MpubTrace, PubExt, MpubExt),
    )
}


def build(meaning: Vector) -> Command:
    """The command that a vector describes."""
    fields = {**meaning}
    word = fields.pop("command")
    if "trace_id" in fields:
        fields["trace_id"] = int(fields["trace_id"], 16)
    if "messages" in fields:
        fields["messages"] = [*map(_item, fields["messages"])]
    if word.startswith("SUB"):
        return Sub(**fields, kind=SubscribeMode(word))
    return _COMMANDS[word](**fields)


def _item(item: Vector) -> tuple[int | bytes, bytes]:
    match item:
        case {"trace_id": trace_id, "body": body, **rest} if not rest:
            return int(trace_id, 16), body
        case {"headers": headers, "body": body, **rest} if not rest:
            return headers, body
    raise ValueError(f"neither traced nor extended: {item!r}")


def build_peer(meaning: Vector) -> PeerCommand:
    """The command to nsqlookupd that a vector describes."""
    fields = {**meaning}
    match fields.pop("command"):
        case "IDENTIFY":
            return PeerIdentify(Peer(**fields.pop("peer"), **fields))
        case "REGISTER":
            return Register(**fields)
        case "UNREGISTER":
            return Unregister(**fields)
        case "PING":
            return Ping(**fields)
    raise ValueError(f"no such command: {meaning!r}")


def build_message(meaning: Vector) -> Message:
    """The message that a vector describes."""
    halves = ("internal_id", "trace_id")
    return Message(**{name: value for name, value in meaning.items() if name not in halves})


# From our objects to their words.


def describe(events: Iterable[Event], dialect: Dialect) -> list[Vector]:
    """Events in the vectors' words; messages one by one, however they were batched."""
    words: list[Vector] = []
    for event in events:
        if isinstance(event, MessageBatch):
            messages: list[Message] = event.messages()
            words += [{"event": "message", **_message(each, dialect)} for each in messages]
        else:
            words.append(_event(event))
    return words


_PLAIN_EVENTS: dict[type[object], str] = {
    StartTls: "start_tls",
    TlsStarted: "tls_started",
    Connected: "connected",
    Subscribed: "subscribed",
    Heartbeat: "heartbeat",
    CloseWait: "close_wait",
}


def _event(event: Event) -> Vector:
    match event:
        case Published(None):
            return {"event": "published"}
        case Published(receipt) if receipt:
            values = receipt._asdict()
            ids = {name: f"{values[name]:016x}" for name in ("internal_id", "trace_id")}
            return {"event": "published", "receipt": {**values, **ids}}
        case Authenticated(reply):
            return {"event": "authenticated", **asdict(reply)}
        case CompressionStarted(method):
            return {"event": "compression_started", "method": method}
        case CompressionRefused(method):
            return {"event": "compression_refused", "method": method}
        case AnswerFailed(command, id, error):
            said: Vector = {"command": command, "id": id, "code": error.code, "text": error.text}
            return {"event": "answer_failed", **_without(None, said)}
        case CommandFailed(error, command, closes):
            said = {"command": command, "code": error.code, "text": error.text, "closes": closes}
            return {"event": "command_failed", **_without(None, said)}
    return {"event": _PLAIN_EVENTS[type(event)]}


def _message(message: Message, dialect: Dialect) -> Vector:
    halves = {}
    if dialect is Dialect.REDESIGNED:
        halves["internal_id"] = f"{message.internal_id:016x}"
        halves["trace_id"] = f"{message.trace_id:016x}"
    return {**_without(None, asdict(message)), **halves}


def describe_lookup(answer: LookupAnswer) -> Vector:
    """What nsqlookupd answered, without what is empty in it."""
    said = {
        "channels": [*answer.channels],
        "producers": [*map(_node, answer.producers)],
        "partitions": {str(number): _node(node) for number, node in answer.partitions.items()},
        "meta": asdict(answer.meta) if answer.meta else {},
    }
    return {name: value for name, value in said.items() if value}


def _node(node: Node) -> Vector:
    return _without("", asdict(node))


def describe_reply(reply: PeerReply) -> Vector:
    """What nsqlookupd answered an nsqd."""
    said: Vector = {"peer": asdict(reply.peer)} if reply.peer else {}
    if reply.error:
        said |= {"code": reply.error.code, "text": reply.error.text}
    return said


def _without(nothing: object, values: Vector) -> Vector:
    return {name: value for name, value in values.items() if value != nothing}
