"""What nsqd does with the commands of a client.

Each is carried out at once, but for those that have to ask an auth server: they return a
coroutine, and what follows waits for it.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from nsqflow.broker.engine.channel import Channel, NotInFlight, TooManyConsumers
from nsqflow.broker.engine.subscriber import Subscriber
from nsqflow.broker.engine.topic import Full
from nsqflow.broker.nsqd import negotiation
from nsqflow.errors import NsqError, RemoteProtocolError
from nsqflow.protocol import (
    Auth,
    AuthReply,
    Cls,
    Command,
    Dpub,
    Fin,
    Fins,
    Identify,
    Mpub,
    Nop,
    Pub,
    Rdy,
    Req,
    StartTls,
    Sub,
    Touch,
)

if TYPE_CHECKING:
    from nsqflow.broker.nsqd.client import Client

_log = logging.getLogger("nsqflow.broker.nsqd")

_MS = 10**6
Pending = Coroutine[Any, Any, None] | None
C = TypeVar("C", bound=Command)


class Commands:
    """Carries out the commands of one client."""

    def __init__(self, client: Client) -> None:
        self.channel: Channel | None = None
        self.subscriber: Subscriber | None = None
        self._client = client
        self._nsqd = client.nsqd
        self._act: dict[type, Callable[[Any], Pending]] = {
            StartTls: client.start_tls,
            Identify: self._identify,
            Auth: self._auth,
            Sub: self._guarded(self._sub),
            Pub: self._guarded(self._pub),
            Mpub: self._guarded(self._mpub),
            Dpub: self._guarded(self._dpub),
            Rdy: self._rdy,
            Fin: lambda command: self._fins(Fins((command.id,))),
            Fins: self._fins,
            Req: self._req,
            Touch: self._touch,
            Cls: self._cls,
            Nop: lambda command: None,
        }

    def run(self, events: deque[Command | StartTls]) -> Pending:
        """Carry out what has come, up to the first that has to wait for something."""
        while events:
            event = events.popleft()
            if self._nsqd.faults:
                if isinstance(event, Fins):  # only the next one shall fail
                    events.extendleft(map(Fin, reversed(event.ids)))
                    event = events.popleft()
                if self._fails(event):
                    continue
            if (pending := self._act[type(event)](event)) is not None:
                return pending
        return None

    def block(self, blocked: bool) -> None:
        """Give the client no messages, or give it some again."""
        if self.channel is not None and self.subscriber is not None:
            self.subscriber.blocked = blocked
            self.channel.changed()
            self._nsqd.pump()

    def close(self) -> None:
        """Give the client no messages any more."""
        if self.subscriber is not None:
            self.subscriber.closing = True

    def leave(self) -> None:
        """Unsubscribe."""
        if self.channel is not None and self.subscriber is not None:
            self.channel.remove(self.subscriber)
            # The engine may know the subscriber for as long as a message's time lasts.
            self.subscriber.owner = None

    # Who the client is.

    def _identify(self, command: Identify) -> None:
        client, options = self._client, self._nsqd.options
        request = client.session.identify
        try:
            settings = negotiation.settle(request, client.settings, options)
            reply = negotiation.grant(request, settings, options, tls=self._nsqd.tls is not None)
        except RemoteProtocolError as error:
            client.fail(error.code, error.text)
            return
        client.identified(settings, reply)

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
            client.answer(reply.encode())

    async def _ask(self, secret: bytes) -> bool:
        """Ask the auth server; what it says is kept, that it can't be asked is answered."""
        client, authorizer = self._client, self._nsqd.authorizer
        assert authorizer is not None
        client.secret = secret
        try:
            client.authorization = await authorizer.query(
                client.remote.ip, client.remote.tls, client.remote.common_name, secret
            )
        except NsqError as error:
            # Of the auth server's troubles an unknown client learns nothing.
            _log.warning("[%s] AUTH failed: %s", client, error)
            client.fail("E_AUTH_FAILED", "AUTH failed")
            return False
        return True

    def _guarded(self, act: Callable[[C], None]) -> Callable[[C], Pending]:
        """Let only those do it who may."""

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

    # Publishing.

    def _pub(self, command: Pub) -> None:
        self._publish(command, (command.body,))

    def _dpub(self, command: Dpub) -> None:
        self._publish(command, (command.body,), command.delay_ms * _MS)

    def _mpub(self, command: Mpub) -> None:
        self._publish(command, command.bodies)

    def _publish(self, command: Pub | Mpub | Dpub, bodies: Sequence[bytes], delay: int = 0) -> None:
        client, nsqd = self._client, self._nsqd
        now = nsqd.now()
        try:
            must_store = nsqd.engine.topic(command.topic, now).publish(bodies, now, delay)
        except Full as error:
            client.fail(f"E_{command.name}_FAILED", f"{command.name} failed {error}")
            return
        counts = client.pub_counts
        counts[command.topic] = counts.get(command.topic, 0) + len(bodies)
        if must_store:
            client.answer_stored(command.name)
        else:
            client.answer()
        nsqd.pump()

    # Consuming.

    def _sub(self, command: Sub) -> None:
        client, nsqd = self._client, self._nsqd
        now = nsqd.now()
        settings = client.settings
        if not settings.heartbeat_interval:  # an IDENTIFY before the last may have said so
            client.fail("E_INVALID", "cannot SUB with heartbeats disabled")
            return
        subscriber = Subscriber(client, round(settings.msg_timeout * 10**9), settings.sample_rate)
        subscriber.blocked = True  # until it has its answer
        channel = nsqd.engine.topic(command.topic, now).channel(command.channel, now)
        try:
            channel.add(subscriber)
        except TooManyConsumers as error:
            client.fail("E_SUB_FAILED", f"SUB failed {error}")
            return
        self.channel, self.subscriber = channel, subscriber
        client.answers.give(self._subscribed)

    def _subscribed(self) -> None:
        self._client.session.send_response()
        self.block(not self._client.reads)

    def _rdy(self, command: Rdy) -> None:
        channel, subscriber = self._subscription()
        subscriber.rdy = command.count
        channel.changed()
        if not subscriber.room:
            self._client.output.flush()
        self._nsqd.pump()

    def _fins(self, command: Fins) -> None:
        channel, subscriber = self._subscription()
        for id, reason in channel.finish(subscriber, command.ids):
            self._refuse(Fin(id), reason)
        self._nsqd.pump()

    def _req(self, command: Req) -> None:
        channel, subscriber = self._subscription()
        most = round(self._nsqd.options.max_req_timeout * 10**9)
        delay = min(command.delay_ms * _MS, most)
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
        self._client.answers.give(self._client.session.send_close_wait)

    def _subscription(self) -> tuple[Channel, Subscriber]:
        # The session lets these commands through only behind a SUB.
        assert self.channel is not None
        assert self.subscriber is not None
        return self.channel, self.subscriber

    def _refuse(self, command: Fin | Req | Touch, reason: str) -> None:
        send = self._client.session.send_answer_failed
        self._client.answers.give(lambda: send(command, reason))

    def _fails(self, event: Command | StartTls) -> bool:
        """Answer with the error that a test has asked for."""
        code = self._nsqd.faults.take(event.name) if isinstance(event, Command) else None
        if code is None or not isinstance(event, Command):
            return False
        if self._client.session.dialect.closes(code, event.name):
            self._client.fail(code, f"{event.name} failed on demand")
        elif isinstance(event, Fin | Req | Touch):
            self._refuse(event, "on demand")
        else:
            self._client.answers.give(lambda: self._client.session.send_error(code))
        return True
