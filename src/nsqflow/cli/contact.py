"""The first contact: a verb that would wait for ever finds out whether anybody is there."""

from __future__ import annotations

import asyncio

from nsqflow.cli.cluster import Cluster, is_redesigned, no_nsqd, redesigned
from nsqflow.cli.errors import Failure, exit_code, hint_for, words
from nsqflow.cli.servers import Servers
from nsqflow.client.config import ClientConfig
from nsqflow.client.connection import Connection
from nsqflow.errors import ConfigError, NsqError
from nsqflow.protocol import AnswerFailed, CommandFailed, IdentifyReply, MessageBatch, Receipt


async def reach(servers: Servers) -> int:
    """Tell how many nsqd there are to talk to; raise if there are none, and why."""
    if servers.lookupd:
        return await _ask_lookupd(servers)
    answers = await asyncio.gather(
        *(_greet(servers, address) for address in servers.nsqd), return_exceptions=True
    )
    errors = [answer for answer in answers if answer is not None]
    if len(errors) == len(answers):
        raise errors[0]
    return len(answers) - len(errors)


async def probe(servers: Servers, address: str) -> IdentifyReply:
    """Connect to an nsqd as a client does, TLS and AUTH included; gives what it says of itself."""
    config = ClientConfig.of("nsqflow", address, (), servers.client_options())
    connection = Connection(address, config, _Nobody(), config.ssl_context())
    try:
        await connection.open()
    except ConfigError:
        # It says who it is before a client turns away from it.
        if not is_redesigned(connection.reply.version):
            raise
    finally:
        await connection.drop()
    return connection.reply


async def _ask_lookupd(servers: Servers) -> int:
    places = await Cluster(servers).places()
    if not places:
        raise no_nsqd(servers)
    versions = [place.node.version for place in places if place.node]
    classic = [version for version in versions if not is_redesigned(version)]
    if not classic:
        raise redesigned(str(servers), versions[0])
    return len(classic)


async def _greet(servers: Servers, address: str) -> None:
    """See whether there is an nsqd that will do; raise what is wrong with it, and where."""
    try:
        reply = await probe(servers, address)
    except NsqError as error:
        text = f"{address}: {words(error).removeprefix(f'{address}: ')}"
        raise Failure(text, hint_for(error), exit_code(error)) from error
    if is_redesigned(reply.version):
        raise redesigned(address, reply.version)


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
