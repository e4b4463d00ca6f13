"""Checks that nsqd is reachable, for verbs that would otherwise wait forever."""

from __future__ import annotations

import asyncio

from nsqflow.cli.cluster import CliCluster, is_redesigned, no_nsqd, redesigned
from nsqflow.cli.errors import CommandError, error_message, exit_code, hint_for
from nsqflow.cli.servers import CliServers
from nsqflow.client.config import ClientConfig
from nsqflow.errors import ConfigError, NsqError
from nsqflow.protocol import IdentifyReply
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


async def _count_nodes(servers: CliServers) -> int:
    nodes = await CliCluster(servers).nodes()
    if not nodes:
        raise no_nsqd(servers)
    versions = [node.registration.version for node in nodes if node.registration]
    classic = [version for version in versions if not is_redesigned(version)]
    if not classic:
        raise redesigned(str(servers), versions[0])
    return len(classic)


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
