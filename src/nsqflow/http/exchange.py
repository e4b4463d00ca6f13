"""One HTTP/1.1 exchange over asyncio streams: connect, send a request, read the whole answer.

h11 speaks the protocol. Every exchange has a connection of its own: nsqlookupd is asked
once a minute, so a kept connection would mostly be a dead one, and a host's name is looked up
anew each time.
"""

from __future__ import annotations

import asyncio
import ssl

import h11

_READ_SIZE = 64 * 1024


class AnswerTooLarge(Exception):
    """The answer goes beyond what was allowed; never leaves ``nsqflow.http.client``."""


class Exchange:
    """A request and its answer."""

    def __init__(self, request: h11.Request, body: bytes, *, max_answer: int) -> None:
        self.sent = False
        """Something may have reached the server, so that it may have had an effect."""
        self._request = request
        self._body = body
        self._max_answer = max_answer
        self._http = h11.Connection(our_role=h11.CLIENT)

    async def run(self, host: str, port: int, tls: ssl.SSLContext | None) -> tuple[int, bytes]:
        """Do it; gives the answer's status and body."""
        reader, writer = await asyncio.open_connection(host, port, ssl=tls)
        try:
            self.sent = True
            # Not drained: a server that refuses a large body answers before it has read it,
            # and that answer must be read while it can be.
            writer.write(self._encode())
            return await self._answer(reader)
        finally:
            # At once, whatever happened: TLS would wait half a minute for the other's goodbye.
            writer.transport.abort()

    def _encode(self) -> bytes:
        events = (self._request, h11.Data(data=self._body), h11.EndOfMessage())
        return b"".join(self._http.send(event) or b"" for event in events)

    async def _answer(self, reader: asyncio.StreamReader) -> tuple[int, bytes]:
        status, size, pieces = 0, 0, list[bytes]()
        while True:
            event = await self._event(reader)
            if isinstance(event, h11.Response):
                status = event.status_code
            elif isinstance(event, h11.Data):
                pieces.append(bytes(event.data))
                size += len(event.data)
                if size > self._max_answer:
                    raise AnswerTooLarge
            elif isinstance(event, h11.EndOfMessage):
                return status, b"".join(pieces)

    async def _event(self, reader: asyncio.StreamReader) -> object:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            self._http.receive_data(await reader.read(_READ_SIZE))
        return event
