"""Registers the topics and channels of an nsqd with each nsqlookupd.

Each nsqlookupd has a connection and a task of its own, so that one that hangs delays no other.
After connecting everything is registered, later only changes. Failed connections are retried with
growing delays, forever.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NoReturn

from nsqflow.address import TcpAddress, join_address, parse_listen_address
from nsqflow.broker.version import VERSION
from nsqflow.errors import NetworkError, NsqError
from nsqflow.http.client import HttpClient
from nsqflow.protocol import (
    Peer,
    PeerCommand,
    PeerIdentify,
    PeerReply,
    PeerSession,
    Ping,
    Register,
    Unregister,
    is_ephemeral,
    is_valid_name,
    parse_lookup,
)

if TYPE_CHECKING:
    from nsqflow.broker.nsqd.daemon import NsqdDaemon


_log = logging.getLogger("nsqflow.broker.nsqd")

PING_INTERVAL = 15.0  # seconds, as nsqd
TIMEOUT = 5.0  # seconds, for a connection and for a response

_FIRST_DELAY = 0.25  # seconds until the first retry; doubled for each further one
_MAX_DELAY = 5.0
_FLUSH_TIMEOUT = 1.0  # seconds for the last changes to be acknowledged
_MAX_ANSWER = 4 * 1024 * 1024  # bytes of a list of channels
_READ_SIZE = 64 * 1024  # bytes


class LookupPeers:
    """All the nsqlookupd that an nsqd registers with."""

    def __init__(
        self, nsqd: NsqdDaemon, *, ping_interval: float = PING_INTERVAL, timeout: float = TIMEOUT
    ) -> None:
        self._nsqd = nsqd
        self._ping_interval = ping_interval
        self._timeout = timeout
        self._peers: dict[str, LookupPeer] = {}
        self._tasks: dict[LookupPeer, asyncio.Task[None]] = {}  # including removed peers

    @property
    def http_addresses(self) -> tuple[str, ...]:
        """The HTTP addresses of those that have responded, as they report them."""
        infos = (peer.info for peer in self._peers.values())
        return tuple(
            join_address(info.broadcast_address, info.http_port)
            for info in infos
            if info.broadcast_address
        )

    def start(self) -> None:
        """Connect to the nsqlookupd in the options; topics and channels must be restored."""
        self.set(self._nsqd.options.lookupd_tcp_address)

    def set(self, addresses: Iterable[str]) -> None:
        """Register with these nsqlookupd only."""
        wanted = dict.fromkeys(addresses)
        for address in [each for each in self._peers if each not in wanted]:
            _log.info("LOOKUP(%s): removing peer", address)
            self._tasks[self._peers.pop(address)].cancel()
        for address in [each for each in wanted if each not in self._peers]:
            _log.info("LOOKUP(%s): adding peer", address)
            self._add(LookupPeer(self._nsqd, address, self._ping_interval, self._timeout))

    def created(self, topic: str, channel: str | None) -> None:
        """Register a topic or channel."""
        self._notify_all(Register(topic, channel or ""))

    def deleted(self, topic: str, channel: str | None) -> None:
        """Unregister a topic or channel."""
        self._notify_all(Unregister(topic, channel or ""))

    async def registered(self) -> None:
        """Wait until all topics and channels are registered with each nsqlookupd."""
        for peer in [*self._peers.values()]:
            await peer.registered.wait()

    async def channels_of(self, topic: str) -> list[str]:
        """Ask all nsqlookupd for the channels of a topic that are not ephemeral.

        A new topic starts with these channels, so that they miss nothing published here.
        """
        answers = await asyncio.gather(*(self._ask(each, topic) for each in self.http_addresses))
        names = dict.fromkeys(name for names in answers for name in names)
        return [name for name in names if is_valid_name(name) and not is_ephemeral(name)]

    async def flush(self) -> None:
        """Wait until connected nsqlookupd have acknowledged all changes, at most a second."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_FLUSH_TIMEOUT):
                for peer in [*self._peers.values()]:
                    await peer.synced.wait()

    async def close(self) -> None:
        """Close all connections, by which nsqlookupd forgets this nsqd; wait for that."""
        _log.info("LOOKUP: closing")
        self._peers.clear()
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def _add(self, peer: LookupPeer) -> None:
        self._peers[peer.address] = peer
        task = self._tasks[peer] = asyncio.get_running_loop().create_task(peer.run())
        task.add_done_callback(lambda _: self._tasks.pop(peer))

    async def _ask(self, address: str, topic: str) -> Sequence[str]:
        options = self._nsqd.options
        timeout = options.http_client_connect_timeout + options.http_client_request_timeout
        http = HttpClient(timeout=timeout, max_response=_MAX_ANSWER)
        try:
            response = await http.get(address, "/channels", {"topic": topic})
            answer = parse_lookup(response.status, response.body)
        except NsqError as error:
            _log.warning(
                "failed to query nsqlookupd for channels to pre-create for topic %s - %s",
                *(topic, error),
            )
            return ()
        return answer.channels

    def _notify_all(self, command: Register) -> None:
        for peer in self._peers.values():
            peer.notify(command)


class LookupPeer:
    """One nsqlookupd that an nsqd registers with."""

    def __init__(
        self, nsqd: NsqdDaemon, address: str, ping_interval: float, timeout: float
    ) -> None:
        target = parse_listen_address("lookupd_tcp_address", address)
        assert isinstance(target, TcpAddress)  # the only kind that the options accept
        self.address = address
        self.info = Peer()
        """What nsqlookupd reports about itself."""
        self.registered = asyncio.Event()
        """Set once all topics and channels have been registered."""
        self.synced = asyncio.Event()
        """Set while every change is acknowledged, or there is no connection."""
        self.synced.set()
        self._target = target
        self._nsqd = nsqd
        self._ping_interval = ping_interval
        self._timeout = timeout
        self._connected = False  # changes are sent, the rest is registered
        self._changes: list[PeerCommand] = []
        self._changed = asyncio.Event()
        self._delay = _FIRST_DELAY

    async def run(self) -> None:
        """Keep nsqlookupd up to date until cancelled."""
        while True:
            error = await self._connect_and_sync()
            delay, self._delay = self._delay, min(2 * self._delay, _MAX_DELAY)
            _log.error("LOOKUPD(%s): %s - trying again in %g s", self.address, error, delay)
            await asyncio.sleep(delay)

    def notify(self, command: Register) -> None:
        """Send a change; without a connection, everything is registered on connecting."""
        if not self._connected:
            return
        what = "channel" if command.channel else "topic"
        _log.info("LOOKUPD(%s): %s %s", self.address, what, _text(command))
        self._changes.append(command)
        self.synced.clear()
        self._changed.set()

    # Private methods

    async def _connect_and_sync(self) -> NsqError:
        """Connect and stay connected as long as possible; return why it ended."""
        _log.info("LOOKUP connecting to %s", self.address)
        link = LookupConnection(self._timeout)
        try:
            await link.open(*self._target)
            await self._identify(link)
            await self._register(link)
        except NsqError as error:
            return error
        finally:
            self._connected = False
            self._changes.clear()
            self.synced.set()
            await link.close()

    async def _identify(self, link: LookupConnection) -> None:
        (reply,) = await link.request([PeerIdentify(self._own_info())])
        self.info = info = reply.peer or Peer()
        _log.info(
            "LOOKUPD(%s): peer info {TCPPort:%d HTTPPort:%d Version:%s BroadcastAddress:%s}",
            *(self.address, info.tcp_port, info.http_port, info.version, info.broadcast_address),
        )
        if not info.broadcast_address:
            _log.error("LOOKUPD(%s): no broadcast address", self.address)

    def _own_info(self) -> Peer:
        options = self._nsqd.options
        return Peer(
            broadcast_address=options.broadcast_address,
            # 0 for a unix socket, which is useless to others; nsqlookupd refuses it.
            tcp_port=options.broadcast_tcp_port or max(self._nsqd.tcp_port, 0),
            http_port=options.broadcast_http_port or max(self._nsqd.http_port, 0),
            version=VERSION,
            hostname=socket.gethostname(),
        )

    async def _register(self, link: LookupConnection) -> NoReturn:
        """Register everything, then send changes and pings; ends only with an error."""
        loop = asyncio.get_running_loop()
        commands = self._all()
        self._connected = True
        ping_at = loop.time() + self._ping_interval
        while True:
            await link.request(commands)
            self.registered.set()
            if not self._changes:
                self.synced.set()
            await self._wait_for_change(link, ping_at)
            commands, self._changes = self._changes, []
            # nsqlookupd counts nothing else as a sign of life.
            if loop.time() >= ping_at:
                _log.debug("LOOKUPD(%s): sending heartbeat", self.address)
                commands.append(Ping())
                self._delay = _FIRST_DELAY  # a connection that lasted is retried soon
                ping_at = loop.time() + self._ping_interval

    def _all(self) -> list[PeerCommand]:
        commands: list[PeerCommand] = []
        for topic in self._nsqd.engine.topics.values():
            # Registering a channel registers its topic too.
            for channel in topic.channels or ("",):
                commands.append(command := Register(topic.name, channel))
                _log.info("LOOKUPD(%s): %s", self.address, _text(command))
        return commands

    async def _wait_for_change(self, link: LookupConnection, until: float) -> None:
        """Wait for a change or the time ``until``; raise if the connection ends."""
        tasks = [asyncio.ensure_future(each) for each in (link.receive(), self._changed.wait())]
        left = max(until - asyncio.get_running_loop().time(), 0)
        try:
            await asyncio.wait(tasks, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            received, _ = await asyncio.gather(*tasks, return_exceptions=True)
        if isinstance(received, Exception):
            raise received
        self._changed.clear()


def _text(command: Register) -> str:
    return command.encode().decode().strip()


class LookupConnection:
    """A connection to nsqlookupd; each attempt creates a new one."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._session = PeerSession()
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter | None = None

    async def open(self, host: str, port: int) -> None:
        """Connect; raise ``NetworkError`` on failure."""
        try:
            async with asyncio.timeout(self._timeout):
                self._reader, self._writer = await asyncio.open_connection(host, port)
        except TimeoutError:
            raise NetworkError(f"no connection within {self._timeout:g} s") from None
        except (OSError, UnicodeError) as error:  # UnicodeError: a name that DNS can't have
            raise NetworkError(str(error)) from error

    async def request(self, commands: Sequence[PeerCommand]) -> list[PeerReply]:
        """Send commands and wait for all replies; raise if one is an error."""
        assert self._writer is not None
        for command in commands:
            self._session.send(command)
        self._writer.write(self._session.data_to_send())
        replies: list[PeerReply] = []
        while len(replies) < len(commands):
            try:
                async with asyncio.timeout(self._timeout):
                    replies += await self.receive()
            except TimeoutError:
                raise NetworkError(f"no answer within {self._timeout:g} s") from None
        for reply in replies:
            if reply.error is not None:
                raise reply.error
        return replies

    async def receive(self) -> list[PeerReply]:
        """Wait for data and return the replies in it; raise at the end of the connection."""
        try:
            data = await self._reader.read(_READ_SIZE)
        except OSError as error:
            raise NetworkError(f"connection lost: {error}") from error
        if not data:
            raise NetworkError("connection lost: closed by nsqlookupd")
        self._session.receive_data(data)
        replies: list[PeerReply] = []
        while more := self._session.events():
            replies += more
        return replies

    async def close(self) -> None:
        """Abort the connection and wait until its socket is closed."""
        if self._writer is not None:
            self._writer.transport.abort()
            with contextlib.suppress(OSError):
                await self._writer.wait_closed()
