"""Tells each nsqlookupd which topics and channels an nsqd has.

Each has a connection and a task of its own, so that one which hangs holds up nobody. When it
connects all is said, from then on what changes. After a failure it is tried again, ever more
slowly, for ever.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NoReturn

from nsqflow.broker.address import TcpAddress, parse_listen_address
from nsqflow.broker.nsqd.lookup_link import LookupLink
from nsqflow.broker.version import VERSION
from nsqflow.errors import NetworkError, NsqError
from nsqflow.http.client import HttpClient
from nsqflow.protocol import (
    Peer,
    PeerCommand,
    PeerIdentify,
    Ping,
    Register,
    Unregister,
    is_ephemeral,
    is_valid_name,
    parse_lookup,
)
from nsqflow.protocol.lookup import join_address

if TYPE_CHECKING:
    from nsqflow.broker.nsqd.daemon import Nsqd

_log = logging.getLogger("nsqflow.broker.nsqd")

PING_INTERVAL = 15.0  # seconds, as nsqd
TIMEOUT = 5.0  # seconds for a connection, and for an answer
MOST_CHANGES = 10_000  # that may wait; beyond them it is as cheap to say all anew

_FIRST_DELAY = 0.25  # seconds until it is tried again; then twice as many
_MOST_DELAY = 5.0
_FLUSH_TIMEOUT = 1.0  # seconds for the last changes to be answered
_MAX_ANSWER = 4 * 1024 * 1024  # bytes of a list of channels


class LookupPeers:
    """All the nsqlookupd that an nsqd registers with."""

    def __init__(
        self, nsqd: Nsqd, *, ping_interval: float = PING_INTERVAL, timeout: float = TIMEOUT
    ) -> None:
        self._nsqd = nsqd
        self._ping_interval = ping_interval
        self._timeout = timeout
        self._peers: dict[str, LookupPeer] = {}
        self._tasks: dict[LookupPeer, asyncio.Task[None]] = {}  # of those removed too

    @property
    def addresses(self) -> tuple[str, ...]:
        """Where they are."""
        return tuple(self._peers)

    @property
    def http_addresses(self) -> tuple[str, ...]:
        """Where those that have answered can be asked over HTTP, as they say themselves."""
        infos = (peer.info for peer in self._peers.values())
        return tuple(
            join_address(info.broadcast_address, info.http_port)
            for info in infos
            if info.broadcast_address
        )

    def start(self) -> None:
        """Connect to those that the options name; the topics and channels must be known."""
        self.set(self._nsqd.options.lookupd_tcp_address)

    def set(self, addresses: Iterable[str]) -> None:
        """Register with these from now on, and with no other."""
        wanted = dict.fromkeys(addresses)
        for address in [each for each in self._peers if each not in wanted]:
            _log.info("LOOKUP(%s): removing peer", address)
            self._tasks[self._peers.pop(address)].cancel()
        for address in [each for each in wanted if each not in self._peers]:
            _log.info("LOOKUP(%s): adding peer", address)
            self._add(LookupPeer(self._nsqd, address, self._ping_interval, self._timeout))

    def created(self, topic: str, channel: str | None) -> None:
        """Say that there is a topic, or a channel."""
        self._tell(Register(topic, channel or ""))

    def deleted(self, topic: str, channel: str | None) -> None:
        """Say that a topic, or a channel, is gone."""
        self._tell(Unregister(topic, channel or ""))

    async def registered(self) -> None:
        """Wait until each of them has heard of all topics and channels."""
        for peer in [*self._peers.values()]:
            await peer.registered.wait()

    async def channels_of(self, topic: str) -> list[str]:
        """Ask all of them which lasting channels a topic has, on whichever nsqd.

        A new topic begins with these, so that none misses what is published here first.
        """
        answers = await asyncio.gather(*(self._ask(each, topic) for each in self.http_addresses))
        names = dict.fromkeys(name for names in answers for name in names)
        return [name for name in names if is_valid_name(name) and not is_ephemeral(name)]

    async def flush(self) -> None:
        """Wait until those that are connected have answered to all changes, up to a second."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_FLUSH_TIMEOUT):
                for peer in [*self._peers.values()]:
                    await peer.informed.wait()

    async def close(self) -> None:
        """Drop all connections, by which nsqlookupd forgets us; wait until they are closed."""
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
        http = HttpClient(timeout=timeout, max_answer=_MAX_ANSWER)
        try:
            answer = parse_lookup(*await http.get(address, "/channels", {"topic": topic}))
        except NsqError as error:
            _log.warning(
                "failed to query nsqlookupd for channels to pre-create for topic %s - %s",
                *(topic, error),
            )
            return ()
        return answer.channels

    def _tell(self, command: Register) -> None:
        for peer in self._peers.values():
            peer.tell(command)


class LookupPeer:
    """One nsqlookupd that an nsqd registers with."""

    def __init__(self, nsqd: Nsqd, address: str, ping_interval: float, timeout: float) -> None:
        target = parse_listen_address("lookupd_tcp_address", address)
        assert isinstance(target, TcpAddress)  # the options take no other
        self.address = address
        self.info = Peer()
        """Who it says that it is, once it has."""
        self.registered = asyncio.Event()
        """It has heard of all topics and channels at least once."""
        self.informed = asyncio.Event()
        """It has answered to every change, or is not connected."""
        self.informed.set()
        self._target = target
        self._nsqd = nsqd
        self._ping_interval = ping_interval
        self._timeout = timeout
        self._link: LookupLink | None = None  # once all has been said on it
        self._changes: list[PeerCommand] = []
        self._delay = _FIRST_DELAY
        self._news = asyncio.Event()  # a change, or the end of the connection

    async def run(self) -> None:
        """Keep it informed until cancelled."""
        while True:
            error = await self._inform()
            delay, self._delay = self._delay, min(2 * self._delay, _MOST_DELAY)
            _log.error("LOOKUPD(%s): %s - trying again in %g s", self.address, error, delay)
            await asyncio.sleep(delay)

    def tell(self, command: Register) -> None:
        """Tell it of a change; if it is not connected, it will hear of all at once."""
        if self._link is None:
            return
        what = "channel" if command.channel else "topic"
        _log.info("LOOKUPD(%s): %s %s", self.address, what, _text(command))
        self._changes.append(command)
        self.informed.clear()
        self._news.set()
        if len(self._changes) > MOST_CHANGES:
            self._link.end(NetworkError(f"more than {MOST_CHANGES} changes wait for an answer"))
            self._forget()

    # Private methods

    async def _inform(self) -> NsqError:
        """Connect, and stay connected as long as it lasts; return why it ended."""
        _log.info("LOOKUP connecting to %s", self.address)
        link = LookupLink(self._timeout, on_end=self._news.set)
        try:
            await link.open(*self._target)
            await self._identify(link)
            await self._register(link)
        except NsqError as error:
            return error
        finally:
            self._forget()
            await link.close()

    async def _identify(self, link: LookupLink) -> None:
        (reply,) = await link.ask([PeerIdentify(self._own_info())])
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
            # A socket's path is nothing that others could use; nsqlookupd refuses a 0.
            tcp_port=options.broadcast_tcp_port or max(self._nsqd.tcp_port, 0),
            http_port=options.broadcast_http_port or max(self._nsqd.http_port, 0),
            version=VERSION,
            hostname=socket.gethostname(),
        )

    async def _register(self, link: LookupLink) -> NoReturn:
        """Say all, then what changes and, at times, that we live; ends only by an error."""
        loop = asyncio.get_running_loop()
        commands = self._all()
        self._link = link
        ping_at = loop.time() + self._ping_interval
        while True:
            await link.ask(commands)
            self.registered.set()
            if not self._changes:
                self.informed.set()
            await self._wait_until(ping_at)
            commands, self._changes = self._changes, []
            # However much else is said: nsqlookupd takes only this for a sign of life.
            if loop.time() >= ping_at:
                _log.debug("LOOKUPD(%s): sending heartbeat", self.address)
                commands.append(Ping())
                self._delay = _FIRST_DELAY  # what has lasted comes back soon, too
                ping_at = loop.time() + self._ping_interval

    def _all(self) -> list[PeerCommand]:
        commands: list[PeerCommand] = []
        for topic in self._nsqd.engine.topics.values():
            # A channel's registration is one of its topic too.
            for channel in topic.channels or ("",):
                commands.append(command := Register(topic.name, channel))
                _log.info("LOOKUPD(%s): %s", self.address, _text(command))
        return commands

    async def _wait_until(self, when: float) -> None:
        try:
            async with asyncio.timeout_at(when):
                await self._news.wait()
        except TimeoutError:
            pass
        self._news.clear()

    def _forget(self) -> None:
        self._link = None
        self._changes.clear()
        self.informed.set()


def _text(command: Register) -> str:
    return command.encode().decode().strip()
