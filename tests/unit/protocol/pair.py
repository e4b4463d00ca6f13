"""A client and a server session joined without a network, in the manner of h11's tests.

TLS is played by telling both sides that it has started: what it does to the bytes is
not the sessions' business.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from nsqflow.protocol import (
    ClientSession,
    Command,
    Connected,
    Dialect,
    Event,
    Identify,
    IdentifyReply,
    IdentifyRequest,
    MessageBatch,
    ServerSession,
    StartTls,
    Sub,
    SubscribeMode,
)

VERSIONS = {Dialect.CLASSIC: "1.3.0", Dialect.REDESIGNED: "0.3.7-HA.1.13.0"}


@dataclass
class Pair:
    """Both ends of one connection."""

    client: ClientSession
    server: ServerSession
    grants: IdentifyReply
    client_events: list[Event] = field(default_factory=list)
    server_events: list[Command | StartTls] = field(default_factory=list)

    def pump(self) -> None:
        """Carry bytes to and fro until both sides have nothing more to say."""
        busy = True
        while busy:
            busy = self._carry_to_server()
            busy = self._carry_to_client() or busy

    def take_client_events(self) -> list[Event]:
        """Carry all there is; return what the client got to know since it was asked last."""
        self.pump()
        events, self.client_events = self.client_events, []
        return events

    def take_server_events(self) -> list[Command | StartTls]:
        """Carry all there is; return what the server got to know since it was asked last."""
        self.pump()
        events, self.server_events = self.server_events, []
        return events

    def _carry_to_server(self) -> bool:
        data = self.client.data_to_send()
        self.server.receive_data(data)
        while events := self.server.events():
            self.server_events += events
            for event in events:
                if isinstance(event, Identify):
                    self.server.accept_identify(self._answer())
        return bool(data)

    def _answer(self) -> IdentifyReply:
        asked, grants = self.server.identify, self.grants
        return replace(
            grants,
            tls_v1=asked.tls_v1 and grants.tls_v1,
            snappy=asked.snappy and grants.snappy,
            deflate=asked.deflate and grants.deflate,
        )

    def _carry_to_client(self) -> bool:
        data = self.server.data_to_send()
        self.client.receive_data(data)
        while events := self.client.events():
            self.client_events += events
            if any(isinstance(event, StartTls) for event in events):
                self.client.tls_started()
                self.server.tls_started()
        return bool(data)


GRANT_ALL = IdentifyReply(
    version="1.3.0", tls_v1=True, snappy=True, deflate=True, deflate_level=6, max_deflate_level=6
)


def make_pair(
    identify: IdentifyRequest | None = None,
    *,
    dialect: Dialect = Dialect.CLASSIC,
    grants: IdentifyReply = GRANT_ALL,
) -> Pair:
    """Return a pair that has not exchanged a byte yet."""
    return Pair(
        ClientSession(identify, dialect=dialect),
        ServerSession(dialect=dialect),
        replace(grants, version=VERSIONS[dialect]),
    )


def connected_pair(
    identify: IdentifyRequest | None = None,
    *,
    dialect: Dialect = Dialect.CLASSIC,
    grants: IdentifyReply = GRANT_ALL,
) -> Pair:
    """Return a pair whose negotiation is over."""
    pair = make_pair(identify, dialect=dialect, grants=grants)
    assert any(isinstance(event, Connected) for event in pair.take_client_events())
    pair.server_events.clear()
    return pair


def subscribed_pair(
    identify: IdentifyRequest | None = None,
    *,
    dialect: Dialect = Dialect.CLASSIC,
    kind: SubscribeMode = SubscribeMode.PLAIN,
) -> Pair:
    """Return a pair whose client has subscribed."""
    pair = connected_pair(identify, dialect=dialect)
    partition = None if dialect is Dialect.CLASSIC else 0
    pair.client.send(Sub("orders", "billing", partition, kind))
    pair.pump()
    pair.server.send_response()
    pair.take_client_events()
    pair.server_events.clear()
    return pair


def flatten(events: list[Event]) -> list[object]:
    """Take message batches apart: where one ends depends on how the stream was cut."""
    flat: list[object] = []
    for event in events:
        flat += event.messages() if isinstance(event, MessageBatch) else [event]
    return flat
