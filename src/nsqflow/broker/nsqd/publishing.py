"""The commands of a classic nsqd that name topics and channels: publishing and subscribing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from nsqflow.broker.engine.channel import Subscriber, TooManyConsumers
from nsqflow.broker.engine.topic import OutOfMemory
from nsqflow.broker.nsqd.command_handler import CommandHandler
from nsqflow.protocol import Dpub, Mpub, Pub, Sub

if TYPE_CHECKING:
    from nsqflow.broker.nsqd.connection import ClientConnection
    from nsqflow.broker.nsqd.daemon import NsqdDaemon

_MS = 10**6


class NsqdCommandHandler(CommandHandler):
    """Executes the commands of a client of a classic nsqd."""

    def __init__(self, client: ClientConnection, nsqd: NsqdDaemon) -> None:
        super().__init__(client)
        self._daemon = nsqd
        self._act |= {
            Sub: self._guarded(self._sub),
            Pub: self._guarded(self._pub),
            Mpub: self._guarded(self._mpub),
            Dpub: self._guarded(self._dpub),
        }

    def _pub(self, command: Pub) -> None:
        self._publish(command, (command.body,))

    def _dpub(self, command: Dpub) -> None:
        self._publish(command, (command.body,), command.delay_ms * _MS)

    def _mpub(self, command: Mpub) -> None:
        self._publish(command, command.bodies)

    def _publish(self, command: Pub | Mpub | Dpub, bodies: Sequence[bytes], delay: int = 0) -> None:
        client, nsqd = self._client, self._daemon
        now = nsqd.now()
        try:
            must_store = nsqd.engine.topic(command.topic, now).publish(bodies, now, delay)
        except OutOfMemory as error:
            client.fail(f"E_{command.name}_FAILED", f"{command.name} failed {error}")
            return
        counts = client.pub_counts
        counts[command.topic] = counts.get(command.topic, 0) + len(bodies)
        if must_store:
            self._respond_when_stored(command.name)
        else:
            client.respond()
        nsqd.pump()

    def _respond_when_stored(self, command: str) -> None:
        client = self._client
        respond = client.respond_later()

        def stored(error: Exception | None) -> None:
            if error is None:
                respond(client.session.send_response)
            else:
                text = f"{command} failed {error}"
                respond(lambda: client.fail_in_order(f"E_{command}_FAILED", text))

        self._daemon.when_stored(stored)

    def _sub(self, command: Sub) -> None:
        client, nsqd = self._client, self._daemon
        now = nsqd.now()
        settings = client.settings
        if not settings.heartbeat_interval:  # set by an IDENTIFY before the last one
            client.fail("E_INVALID", "cannot SUB with heartbeats disabled")
            return
        subscriber = Subscriber(client, round(settings.msg_timeout * 10**9), settings.sample_rate)
        subscriber.blocked = True
        channel = nsqd.engine.topic(command.topic, now).channel(command.channel, now)
        try:
            channel.add(subscriber)
        except TooManyConsumers as error:
            client.fail("E_SUB_FAILED", f"SUB failed {error}")
            return
        self._subscribe(channel, subscriber)
