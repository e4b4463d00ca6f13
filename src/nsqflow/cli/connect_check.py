"""Single connections to nsqd: checks that it is reachable, or subscribes once."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from nsqflow.cli.cluster import CliCluster, is_redesigned, no_nsqd, redesigned
from nsqflow.cli.errors import CommandError, error_message, exit_code, hint_for
from nsqflow.cli.servers import CliServers
from nsqflow.client.config import ClientConfig
from nsqflow.errors import ConfigError, NsqError
from nsqflow.protocol import Dialect, IdentifyReply, Sub
from nsqflow.transport.connection import Connection
from nsqflow.transport.handler import ConnectionHandler


async def check_reachable(servers: CliServers) -> int:
    """Return how many nsqd are reachable; raise the reason if none is."""
    if servers.lookupd:
        return await _count_nodes(servers)
    answers = await asyncio.gather(
        *(_check_nsqd(servers, address) for address in servers.nsqd), return_exceptions=True
    )
    errors = [answer for answer in answers if answer is not None]
    if len(errors) == len(answers):
        raise errors[0]
    return len(answers) - len(errors)


async def identify(servers: CliServers, address: str) -> IdentifyReply:
    """Connect to an nsqd as a client does, with TLS and AUTH; return its answer to IDENTIFY."""
    config = ClientConfig.of("nsqflow", address, (), servers.client_options())
    connection = Connection(address, config.connection_settings(), ConnectionHandler())
    try:
        await connection.open()
    except ConfigError:
        # The answer arrived before the client closed the connection.
        if not is_redesigned(connection.reply.version):
            raise
    finally:
        await connection.drop()
    return connection.reply


async def subscribe(servers: CliServers, address: str, sub: Sub, *, extended: bool) -> None:
    """Subscribe at an nsqd of the redesigned NSQ, and leave: that creates the channel.

    ``extended`` is that of the topic. No message is asked for.
    """
    config = ClientConfig.of("nsqflow", address, (), servers.client_options())
    settings = config.connection_settings(Dialect.REDESIGNED)
    identify = replace(settings.identify, extend_support=extended or None)
    settings = replace(settings, identify=identify)
    connection = Connection(address, settings, ConnectionHandler())
    try:
        await connection.open(sub)
    finally:
        await connection.drop()


async def _count_nodes(servers: CliServers) -> int:
    nodes = await CliCluster(servers).nodes()
    if not nodes:
        raise no_nsqd(servers)
    return len(nodes)


async def _check_nsqd(servers: CliServers, address: str) -> None:
    """Raise an error that names the address unless a classic nsqd answers there."""
    try:
        reply = await identify(servers, address)
    except NsqError as caught:
        error = servers.explain(caught)
        reason = error_message(error).removeprefix(f"{address}: ").removeprefix(f"{address} ")
        text = f"{address}: {reason}"
        raise CommandError(text, hint_for(error), exit_code(error)) from caught
    if is_redesigned(reply.version):
        raise redesigned(address, reply.version)
