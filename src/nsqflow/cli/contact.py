"""The first contact: a verb that would wait for ever finds out whether anybody is there."""

from __future__ import annotations

import asyncio

from nsqflow.cli.cluster import Cluster
from nsqflow.cli.errors import Failure
from nsqflow.cli.servers import Servers
from nsqflow.client.config import ClientConfig
from nsqflow.client.connection import Connection
from nsqflow.errors import NsqError
from nsqflow.protocol import AnswerFailed, CommandFailed, IdentifyReply, MessageBatch, Receipt


async def reach(servers: Servers) -> int:
    """Tell how many nsqd there are to talk to; raise if there are none, and why."""
    if servers.lookupd:
        places = await Cluster(servers).places()
        if not places:
            raise Failure(f"{servers} knows no nsqd", "nsqd's -lookupd-tcp-address names it")
        return len(places)
    answers = await asyncio.gather(
        *(probe(servers, address) for address in servers.nsqd), return_exceptions=True
    )
    errors = [answer for answer in answers if isinstance(answer, BaseException)]
    if len(errors) == len(answers):
        raise errors[0]
    return len(answers) - len(errors)


async def probe(servers: Servers, address: str) -> IdentifyReply:
    """Connect to an nsqd as a client does, TLS and AUTH included; gives what it says of itself."""
    config = ClientConfig.of("nsqflow", address, (), servers.client_options())
    connection = Connection(address, config, _Nobody(), config.ssl_context())
    try:
        await connection.open()
        return connection.reply
    finally:
        await connection.drop()


class _Nobody:
    """The owner of a connection on which nothing is expected."""

    def messages_received(self, batch: MessageBatch) -> None:
        """Not without a subscription."""

    def published(self, receipt: Receipt | None) -> None:
        """Nothing is published."""

    def command_failed(self, event: CommandFailed) -> None:
        """Nothing is commanded."""

    def answer_failed(self, event: AnswerFailed) -> None:
        """Nothing is answered."""

    def writable(self) -> None:
        """Nothing waits to be written."""

    def connection_lost(self, error: NsqError) -> None:
        """It has served its purpose."""
