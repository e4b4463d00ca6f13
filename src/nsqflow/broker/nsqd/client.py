"""A client's connection to nsqd."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections import deque
from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Any, cast

from nsqflow.broker.engine.entry import Entry
from nsqflow.broker.engine.subscriber import Subscriber
from nsqflow.broker.nsqd.answers import Answers
from nsqflow.broker.nsqd.commands import Commands
from nsqflow.broker.nsqd.heartbeat import Heartbeat
from nsqflow.broker.nsqd.negotiation import Settings
from nsqflow.broker.nsqd.output import Output
from nsqflow.broker.nsqd.remote import Remote
from nsqflow.broker.nsqd.timers import Timers
from nsqflow.errors import RemoteProtocolError
from nsqflow.protocol import Command, IdentifyReply, ServerSession, ServerState, StartTls

if TYPE_CHECKING:
    from nsqflow.broker.authorization import AuthState
    from nsqflow.broker.nsqd.daemon import Nsqd

_log = logging.getLogger("nsqflow.broker.nsqd")

_TLS_TIMEOUT = 5.0  # seconds for the handshake
_CLOSE_TIMEOUT = 5.0  # seconds for a client to read what it is told last
_MOST_UNSENT = 1024 * 1024  # bytes that wait to be read by the client before it is heard again
_STATES = {ServerState.SUBSCRIBED: 3, ServerState.CLOSING: 4}  # as nsqd numbers them


class Client(asyncio.Protocol):
    """One connection: bytes in, commands carried out, answers and messages out."""

    def __init__(self, nsqd: Nsqd) -> None:
        self.nsqd = nsqd
        self.session = ServerSession(
            limits=nsqd.limits,
            tls_required=nsqd.options.tls_required != "",
            gather_fins=True,
        )
        self.settings = Settings.default(nsqd.options)
        self.answers = Answers()
        self.connect_time = nsqd.now() // 10**9
        self.pub_counts: dict[str, int] = {}
        self.authorization: AuthState | None = None
        self.secret = b""
        self.snappy = self.deflate = False
        self.remote: Remote
        self.reads = True
        """It reads what it is sent."""
        self._timers = Timers()
        self.output = Output(self.session, self.settings, self._timers, lambda: nsqd.faults.delay)
        self._heartbeat = Heartbeat(self._timers, self._beat, self._silent)
        self._commands = Commands(self)
        self._events: deque[Command | StartTls] = deque()
        self._transport: asyncio.Transport
        self._task: asyncio.Task[None] | None = None  # a command that waits for something
        self._early: list[bytes] | None = None  # what came while TLS was being set up
        self._identified = False
        self._eof = False  # it has nothing more to say
        self._ending = False  # and we have not
        self._gone = asyncio.Event()

    def __str__(self) -> str:
        return self.remote.address

    # What is known of the client.

    @property
    def subscriber(self) -> Subscriber | None:
        """What it has subscribed as."""
        return self._commands.subscriber

    @property
    def client_id(self) -> str:
        """What it calls itself, else where it is."""
        return self.session.identify.client_id if self._identified else self.remote.ip

    @property
    def hostname(self) -> str:
        """Where it says that it is."""
        return self.session.identify.hostname if self._identified else self.remote.ip

    @property
    def user_agent(self) -> str:
        """Which program it is."""
        return self.session.identify.user_agent

    @property
    def state(self) -> int:
        """How far it has come, in nsqd's numbers."""
        return _STATES.get(self.session.state, 0)

    # The connection.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._attach(transport)
        if self.nsqd.stopping:
            self.abort()
            return
        self.nsqd.clients.add(self)
        _log.info("TCP: new client(%s)", self)
        self._heartbeat.start(self.settings.heartbeat_interval)

    def data_received(self, data: bytes) -> None:
        """Do what the client says."""
        if self._early is not None:
            self._early.append(data)
        elif not self._ending:
            self.session.receive_data(data)
            self._work()

    def eof_received(self) -> bool:
        """Close, but answer first what has been asked."""
        self._eof = True
        if self._early is None:
            self.session.receive_eof()
            self._work()
        waits = self.answers or self._task or self.output.is_late
        return bool(waits) and not self.remote.tls  # (with TLS there is no half a connection)

    def connection_lost(self, error: Exception | None) -> None:
        """End."""
        if self._gone.is_set():
            return
        self._end()
        self.output.detach()
        self.answers.clear()
        self._timers.cancel_all()
        if self._task is not None:
            self._task.cancel()
        self._commands.leave()
        self.nsqd.clients.discard(self)
        self.nsqd.pump()
        self._gone.set()
        _log.info("PROTOCOL(V2): [%s] exiting ioloop%s", self, f": {error}" if error else "")

    def pause_writing(self) -> None:
        """Send no messages: the client does not read those it has."""
        self.reads = False
        self._commands.block(True)
        self._watch(self._transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        """Go on: it has read them."""
        self.reads = True
        self._timers.cancel("write")
        self._commands.block(False)
        self._work()

    def abort(self) -> None:
        """End at once."""
        self._end()
        self._transport.abort()

    def close(self) -> None:
        """End when all has been sent."""
        if self._ending:
            return
        self.output.flush()
        self._end()
        self._timers.cancel_all()
        self.output.when_written(self._hang_up)

    async def gone(self) -> None:
        """Wait until the connection has come to its end."""
        await self._gone.wait()

    # What commands need.

    def answer(self, data: bytes = b"OK") -> None:
        """Answer a command that was carried out."""
        self.answers.give(lambda: self.session.send_response(data))

    def answer_stored(self, command: str) -> None:
        """Answer a publish once it is stored."""
        ticket = self.answers.reserve()

        def stored(error: Exception | None) -> None:
            if error is None:
                self.answers.settle(ticket, self.session.send_response)
            else:
                text = f"{command} failed {error}"
                self.answers.settle(ticket, lambda: self._fail(f"E_{command}_FAILED", text))
            if len(self.answers) == 0:
                self._work()

        self.nsqd.when_stored(stored)

    def fail(self, code: str, text: str) -> None:
        """Answer with an error that ends the connection."""
        _log.error("[%s] - %s %s", self, code, text)
        self._events.clear()
        self.answers.give(lambda: self._fail(code, text))

    def send(self, entries: Sequence[Entry]) -> None:
        """Send messages."""
        assert self.subscriber is not None
        self.output.messages(entries, more=self.subscriber.room > 0)

    def identified(self, settings: Settings, reply: IdentifyReply) -> None:
        """Treat the client as was negotiated."""
        self._identified = True
        self.settings = self.output.settings = settings
        if self.session.identify.feature_negotiation:
            self.snappy, self.deflate = reply.snappy, reply.deflate
        self.answers.give(lambda: self.session.accept_identify(reply))
        self._heartbeat.start(settings.heartbeat_interval)

    async def start_tls(self, event: StartTls) -> None:
        """Do the handshake."""
        assert self.nsqd.tls is not None
        self.output.flush()
        if event.pending:
            # It did not wait to hear whether there will be TLS; nsqd loses these bytes too.
            self.abort()
            return
        self._early = []
        error: Exception | None = None
        transport = None
        try:
            transport = await asyncio.get_running_loop().start_tls(
                self._transport,
                self,
                self.nsqd.tls,
                server_side=True,
                ssl_handshake_timeout=_TLS_TIMEOUT,
            )
        except (OSError, ssl.SSLError) as failure:
            _log.error("[%s] - TLS handshake failed: %s", self, failure)
            error = failure
        if transport is None or transport.is_closing() or self._ending:
            # Of a connection that ends within a handshake the loop does not tell its protocol.
            self.abort()
            self.connection_lost(error)
            return
        self._attach(transport)
        self.answers.give(self.session.tls_started)
        early, self._early = self._early, None
        self.session.receive_data(b"".join(early))

    # Private methods

    def _attach(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self.remote = Remote(transport)
        self.output.attach(self._transport)

    def _work(self) -> None:
        """Carry out what has come, as far as that is possible now; send what came of it."""
        try:
            while self._task is None and not self._ending:
                # While answers wait no more is parsed: an error in it must not overtake them.
                if not self._events and not self.answers:
                    self._events.extend(self.session.events())
                if not self._events:
                    break
                self._heartbeat.heard()
                if (pending := self._commands.run(self._events)) is not None:
                    self._wait_for(pending)
        except RemoteProtocolError as error:
            _log.error("[%s] - %s", self, error)
        failed = self.session.state is ServerState.FAILED
        if not self.answers and (failed or (self._eof and self._task is None)):
            self.close()
        elif not self._ending:
            if self.answers.given:
                self.answers.given = False
                self.output.flush()
            self._listen()

    def _wait_for(self, pending: Coroutine[Any, Any, None]) -> None:
        async def wait() -> None:
            try:
                await pending
            finally:
                self._task = None
            self._work()

        self._task = asyncio.get_running_loop().create_task(wait())

    def _listen(self) -> None:
        """Read on, or not: what can't be dealt with now is better left to the network."""
        unsent = self._transport.get_write_buffer_size()
        deaf = bool(self._task or self.answers or unsent > _MOST_UNSENT)
        if deaf != self._heartbeat.excused:
            self._heartbeat.excuse(deaf)
            (self._transport.pause_reading if deaf else self._transport.resume_reading)()

    def _fail(self, code: str, text: str) -> None:
        self.session.fail(code, text)
        self.answers.clear()  # nothing follows an error that ends the connection

    def _hang_up(self) -> None:
        self._transport.close()
        # A client that never reads shall not keep us from closing.
        self._timers.set("close", _CLOSE_TIMEOUT, self.abort)

    def _end(self) -> None:
        self._ending = True
        self._commands.close()

    def _beat(self) -> None:
        if self._early is None:  # else it would be clear text within the handshake
            self.session.send_heartbeat()
            self.output.flush()

    def _silent(self) -> None:
        _log.error("client(%s) - failed to read command - i/o timeout", self)
        self.close()

    def _watch(self, unsent: int) -> None:
        """Cut off a client that reads nothing for the time of a heartbeat."""

        def check() -> None:
            left = self._transport.get_write_buffer_size()
            if left < unsent:
                self._watch(left)
            else:
                _log.error("client(%s) - failed to write - i/o timeout", self)
                self.abort()

        if interval := self.settings.heartbeat_interval:
            self._timers.set("write", interval, check)
