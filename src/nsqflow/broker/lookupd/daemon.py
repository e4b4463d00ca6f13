"""nsqlookupd: its listeners for nsqd and HTTP, and its registrations."""

from __future__ import annotations

import logging
import socket

from nsqflow.broker.daemon import Daemon
from nsqflow.broker.http_api import ApiRouter
from nsqflow.broker.lookupd.connection import LookupdSettings, NsqdConnection
from nsqflow.broker.lookupd.http import LookupdApi
from nsqflow.broker.lookupd.registration_db import RegistrationDb
from nsqflow.broker.options import LookupdOptions
from nsqflow.broker.version import VERSION, describe
from nsqflow.http.connection_limit import ConnectionLimiter
from nsqflow.protocol import Peer

logger = logging.getLogger("nsqflow.broker.lookupd")

_MAX_CONNECTIONS = 500  # per listener; both fit into the usual 1024 open files
_MAX_BODY = 64 * 1024  # of an HTTP request; none is expected
_IDENTIFY_TIMEOUT = 60.0
_SILENCE_TIMEOUT = 60.0  # at least; nsqd pings every 15 seconds


class Nsqlookupd(Daemon[LookupdOptions]):
    """An nsqlookupd."""

    def __init__(self, options: LookupdOptions) -> None:
        super().__init__(options, logger)
        self.db = RegistrationDb(
            inactive_timeout=round(options.inactive_producer_timeout * 1e9),
            tombstone_lifetime=round(options.tombstone_lifetime * 1e9),
        )
        self._limiter = ConnectionLimiter("TCP", _MAX_CONNECTIONS, logger)
        self._settings = LookupdSettings(
            db=self.db,
            answer=self._own_addresses,
            identify_timeout=_IDENTIFY_TIMEOUT,
            # An nsqd is not disconnected while it is still listed.
            silence_timeout=max(_SILENCE_TIMEOUT, options.inactive_producer_timeout),
            limiter=self._limiter,
        )

    async def start(self) -> None:
        """Listen; raise ``OSError`` on failure."""
        logger.info("%s", describe("nsqlookupd"))
        try:
            # HTTP first: the reply to IDENTIFY has both ports.
            await self._serve_http(
                *("HTTP", self.options.http_address),
                ApiRouter(LookupdApi(self.db).table(), logger),
                body_limit=lambda method, path: _MAX_BODY,
                max_connections=_MAX_CONNECTIONS,
            )
            await self._listen(
                "TCP", self.options.tcp_address, lambda: NsqdConnection(self._settings)
            )
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Close listeners and connections; wait until all are closed."""
        self._close_listeners()
        await self._limiter.close()
        await self._close_http()

    def _own_addresses(self) -> Peer:
        return Peer(
            broadcast_address=self.options.broadcast_address,
            tcp_port=self.tcp_port,
            http_port=self.http_port,
            version=VERSION,
            hostname=socket.gethostname(),
        )
