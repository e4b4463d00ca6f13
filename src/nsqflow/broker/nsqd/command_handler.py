"""Executes the commands of a client, except those that publish or subscribe.

Each is executed at once, except those that ask an auth server: they return a coroutine, and later
commands wait for it.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from nsqflow.broker.engine.channel import NotInFlight
from nsqflow.broker.nsqd import identify
from nsqflow.errors import NsqError, RemoteProtocolError
from nsqflow.protocol import (
    Auth,
    AuthReply,
    Cls,
    Command,
    Fin,
    Fins,
    Identify,
    IdentifyReply,
    IdentifyRequest,
    Nop,
    Rdy,
    Req,
    StartTls,
    Touch,
)

if TYPE_CHECKING:
    from nsqflow.broker.nsqd.connection import ClientConnection

_log = logging.getLogger("nsqflow.broker.nsqd")

_MS = 10**6
Pending = Coroutine[Any, Any, None] | None
C = TypeVar("C", bound=Command)


class SubscribedClient(Protocol):
    """The subscriber of either dialect's engine."""

    owner: Any
    rdy: int
    closing: bool
    blocked: bool
    message_count: int
    finish_count: int
    requeue_count: int

    @property
    def in_flight_count(self) -> int:
        """The number of messages in flight."""

    @property
    def capacity(self) -> int:
        """The number of further messages that it accepts."""


class SubscribedChannel(Protocol):
    """The channel of either dialect's engine."""

    def remove(self, subscriber: Any, /) -> None:
        """Unsubscribe."""

    def finish(self, subscriber: Any, ids: Sequence[bytes], /) -> list[tuple[bytes, str]]:
        """Finish messages; return those that could not be finished, and why."""

    def requeue(self, subscriber: Any, id: bytes, delay: int, now: int, /) -> None:
        """Requeue a message, after a delay."""

    def touch(self, subscriber: Any, id: bytes, now: int, /) -> None:
        """Restart the timeout of a message."""

    def subscriber_changed(self) -> None:
        """Deliver soon: a subscriber has more capacity, or reads again."""


class CommandHandler:
    """Executes the commands of one client; a subclass adds those that publish or subscribe."""

    def __init__(self, client: ClientConnection) -> None:
        self.channel: SubscribedChannel | None = None
        self.subscriber: SubscribedClient | None = None
        self._client = client
        self._nsqd = client.nsqd
        self._act: dict[type, Callable[[Any], Pending]] = {
            StartTls: client.start_tls,
            Identify: self._identify,
            Auth: self._auth,
            Rdy: self._rdy,
            Fin: lambda command: self._fins(Fins((command.id,))),
            Fins: self._fins,
            Req: self._req,
            Touch: self._touch,
            Cls: self._cls,
            Nop: lambda command: None,
        }

    def run(self, events: deque[Command | StartTls]) -> Pending:
        """Execute commands, up to the first that has to wait."""
        while events:
            event = events.popleft()
            if self._nsqd.faults:
                if isinstance(event, Fins):  # only the next one may fail
                    events.extendleft(map(Fin, reversed(event.ids)))
                    event = events.popleft()
                if self._fails(event):
                    continue
            if (pending := self._act[type(event)](event)) is not None:
                return pending
        return None

    def block(self, blocked: bool) -> None:
        """Suspend or resume the delivery of messages to the client."""
        if self.channel is not None and self.subscriber is not None:
            self.subscriber.blocked = blocked
            self.channel.subscriber_changed()
            self._nsqd.pump()

    def close(self) -> None:
        """Stop the delivery of messages to the client."""
        if self.subscriber is not None:
            self.subscriber.closing = True

    def leave(self) -> None:
        """Unsubscribe."""
        if self.channel is not None and self.subscriber is not None:
            self.channel.remove(self.subscriber)
            # The engine may keep the subscriber until its messages time out.
            self.subscriber.owner = None

    # Identification

    def _identify(self, command: Identify) -> None:
        client = self._client
        try:
            settings, reply = self._negotiate(client.session.identify)
        except RemoteProtocolError as error:
            client.fail(error.code, error.text)
            return
        client.identified(settings, reply)

    def _negotiate(self, request: IdentifyRequest) -> tuple[identify.ClientSettings, IdentifyReply]:
        options = self._nsqd.options
        settings = identify.negotiate(request, self._client.settings, options)
        tls = self._nsqd.tls is not None
        return settings, identify.build_reply(request, settings, options, tls=tls)

    async def _auth(self, command: Auth) -> None:
        client, authorizer = self._client, self._nsqd.authorizer
        if client.authorization is not None and client.authorization.count:
            client.fail("E_INVALID", "AUTH already set")
        elif authorizer is None:
            client.fail("E_AUTH_DISABLED", "AUTH disabled")
        elif await self._ask(command.secret):
            state = client.authorization
            assert state is not None
            if not state.count:
                client.fail("E_UNAUTHORIZED", "AUTH no authorizations found")
                return
            reply = AuthReply(
                identity=state.identity,
                identity_url=state.identity_url,
                permission_count=state.count,
            )
            client.respond(reply.encode())

    async def _ask(self, secret: bytes) -> bool:
        """Query the auth server; if that fails, respond with an error and return False."""
        client, authorizer = self._client, self._nsqd.authorizer
        assert authorizer is not None
        client.secret = secret
        try:
            client.authorization = await authorizer.query(
                client.peer.ip, client.peer.tls, client.peer.common_name, secret
            )
        except NsqError as error:
            # A client that is not authorized learns nothing about the auth server's failures.
            _log.warning("[%s] AUTH failed: %s", client, error)
            client.fail("E_AUTH_FAILED", "AUTH failed")
            return False
        return True

    def _guarded(self, act: Callable[[C], None]) -> Callable[[C], Pending]:
        """Execute a command only if the client is authorized."""

        def guard(command: C) -> Pending:
            if self._nsqd.authorizer is not None:
                return self._permitted(command, act)
            act(command)
            return None

        return guard

    async def _permitted(self, command: C, act: Callable[[C], None]) -> None:
        client, name = self._client, command.name
        state = client.authorization
        topic = getattr(command, "topic", "")
        channel = getattr(command, "channel", "")
        if state is None or not state.count:
            client.fail("E_AUTH_FIRST", f"AUTH required before {name}")
            return
        if state.expired(self._nsqd.now()):
            if not await self._ask(client.secret):
                return
            state = client.authorization
        if state is None or not state.allows(topic, channel):
            text = f'AUTH failed for {name} on "{topic}" "{channel}"'
            client.fail("E_UNAUTHORIZED", text)
            return
        act(command)

    # Consuming

    def _subscribe(self, channel: SubscribedChannel, subscriber: SubscribedClient) -> None:
        """Start delivery once the response is sent; the subscriber is blocked until then."""
        self.channel, self.subscriber = channel, subscriber
        self._client.responses.send_in_order(self._subscribed)

    def _subscribed(self) -> None:
        self._client.session.send_response()
        self.block(not self._client.writable)

    def _rdy(self, command: Rdy) -> None:
        channel, subscriber = self._subscription()
        subscriber.rdy = command.count
        channel.subscriber_changed()
        if not subscriber.capacity:
            self._client.output.flush()
        self._nsqd.pump()

    def _fins(self, command: Fins) -> None:
        channel, subscriber = self._subscription()
        for id, reason in channel.finish(subscriber, command.ids):
            self._refuse(Fin(id), reason)
        self._nsqd.pump()

    def _req(self, command: Req) -> None:
        channel, subscriber = self._subscription()
        max_delay = round(self._nsqd.options.max_req_timeout * 10**9)
        delay = min(command.delay_ms * _MS, max_delay)
        try:
            channel.requeue(subscriber, command.id, delay, self._nsqd.now())
        except NotInFlight as error:
            self._refuse(command, str(error))
        self._nsqd.pump()

    def _touch(self, command: Touch) -> None:
        channel, subscriber = self._subscription()
        try:
            channel.touch(subscriber, command.id, self._nsqd.now())
        except NotInFlight as error:
            self._refuse(command, str(error))
        self._nsqd.pump()

    def _cls(self, command: Cls) -> None:
        _, subscriber = self._subscription()
        subscriber.rdy = 0
        subscriber.closing = True
        self._client.responses.send_in_order(self._client.session.send_close_wait)

    def _subscription(self) -> tuple[SubscribedChannel, SubscribedClient]:
        # The session accepts these commands only after a SUB.
        assert self.channel is not None
        assert self.subscriber is not None
        return self.channel, self.subscriber

    def _refuse(self, command: Fin | Req | Touch, reason: str) -> None:
        send = self._client.session.send_answer_failed
        self._client.responses.send_in_order(lambda: send(command, reason))

    def _fails(self, event: Command | StartTls) -> bool:
        """Respond with an error that was injected for this command."""
        code = self._nsqd.faults.take(event.name) if isinstance(event, Command) else None
        if code is None or not isinstance(event, Command):
            return False
        if self._client.session.dialect.closes(code, event.name):
            self._client.fail(code, f"{event.name} failed on demand")
        elif isinstance(event, Fin | Req | Touch):
            self._refuse(event, "on demand")
        else:
            self._client.responses.send_in_order(lambda: self._client.session.send_error(code))
        return True
