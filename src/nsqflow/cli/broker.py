"""``nsqflow broker``: nsqd and nsqlookupd in one process."""

from __future__ import annotations

import asyncio
import errno
import sys
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from nsqflow.address import join_address
from nsqflow.broker import process
from nsqflow.broker.lookupd.daemon import Nsqlookupd
from nsqflow.broker.nsqd.daemon import NsqdDaemon
from nsqflow.broker.nsqd.fault_injection import FaultInjector
from nsqflow.broker.options import LookupdOptions, NsqdOptions
from nsqflow.broker.redesigned.cluster import PartitionedCluster
from nsqflow.broker.redesigned.options import NSQD_DEFAULTS, ClusterOptions
from nsqflow.cli.errors import USAGE_ERROR, CommandError
from nsqflow.cli.terminal import print_json

_TAKEN = "another process listens there; stop it or choose another --port"
_REGISTER_TIMEOUT = 30.0  # seconds for nsqd to register
# Ports above the first.
_PORT_OFFSETS = {"tcp": 0, "http": 1, "lookupd_tcp": 10, "lookupd_http": 11}
_LOOKUPD_OFFSETS = (11, 13)  # of a redesigned cluster
_LAST_OFFSET = 13
_MAX_NODES = 5


def broker(
    host: Annotated[
        str, typer.Option("--host", metavar="ADDRESS", help="Where to listen.")
    ] = "127.0.0.1",
    port: Annotated[
        int,
        typer.Option(
            "--port",
            min=0,
            max=65535 - _LAST_OFFSET,
            help="That of nsqd; its HTTP API is at the next one, nsqlookupd 10 above, and its "
            "HTTP API 11 above. 0: any that are free.",
        ),
    ] = 4150,
    data_path: Annotated[
        Path | None,
        typer.Option(
            "--data-path",
            metavar="FOLDER",
            help="Where to store messages; without it they are kept in memory and lost at exit.",
        ),
    ] = None,
    redesigned: Annotated[
        bool,
        typer.Option(
            "--redesigned",
            help="Run a cluster of the redesigned NSQ: nodes with partitions and leaders, and two "
            "nsqlookupd, in memory. Node N is 2 x N above the first port, the HTTP APIs of "
            "the nsqlookupd are 11 and 13 above.",
        ),
    ] = False,
    nodes: Annotated[
        int, typer.Option("--nodes", min=1, max=_MAX_NODES, help="Of a redesigned cluster.")
    ] = 1,
    allowed_host: Annotated[
        list[str] | None,
        typer.Option(
            "--allowed-host",
            metavar="NAME",
            help="A name that HTTP requests may have in Host, besides localhost, IP addresses and "
            "this host's name; may be repeated. Without it, and not on loopback: any.",
        ),
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print the addresses as a JSON object.")
    ] = False,
) -> int:
    """Run nsqd and nsqlookupd in one process, for one machine, until Ctrl-C or SIGTERM.

    It accepts messages once it has printed its addresses. For more settings use the verbs nsqd and
    nsqlookupd, which have all flags of the real daemons.

    Example:
      $ nsqflow broker --port 0
      $ nsqflow broker --port 0 --data-path messages --json
      $ nsqflow broker --port 0 --redesigned --nodes 3
    """
    names = tuple(allowed_host or ())
    if redesigned:
        if data_path is not None:
            raise CommandError(
                "--data-path is not for --redesigned: its messages are in memory", code=USAGE_ERROR
            )
        return process.serve(
            lambda: LocalRedesignedCluster(host, port, nodes, names, json),
            hints={errno.EADDRINUSE: _TAKEN},
        )
    if nodes != 1:
        raise CommandError(
            f"--nodes {nodes} is for --redesigned: here there is one nsqd", code=USAGE_ERROR
        )
    ports = {listener: port + above if port else 0 for listener, above in _PORT_OFFSETS.items()}
    addresses = {listener: join_address(host, number) for listener, number in ports.items()}
    return process.serve(
        lambda: LocalCluster(addresses, data_path, names, json),
        hints={errno.EADDRINUSE: _TAKEN},
    )


@dataclass(frozen=True, slots=True)
class LocalCluster:
    """An nsqlookupd and an nsqd that is registered with it."""

    addresses: dict[str, str]
    data_path: Path | None
    allowed_host: tuple[str, ...]
    json: bool
    running: AsyncExitStack = field(default_factory=AsyncExitStack)

    async def start(self) -> None:
        """Start both; print the addresses once nsqd is registered."""
        at = self.addresses
        if self.data_path is not None:
            self.data_path.mkdir(parents=True, exist_ok=True)
        async with AsyncExitStack() as stack:
            options = LookupdOptions(
                tcp_address=at["lookupd_tcp"],
                http_address=at["lookupd_http"],
                allowed_host=self.allowed_host,
            )
            lookupd = await stack.enter_async_context(Nsqlookupd(options))
            nsqd = await stack.enter_async_context(NsqdDaemon(self._nsqd_options(lookupd)))
            try:
                async with asyncio.timeout(_REGISTER_TIMEOUT):
                    await nsqd.lookup_peers.registered()
            except TimeoutError:
                raise CommandError("nsqd did not register with nsqlookupd") from None
            self._print_addresses(nsqd, lookupd)
            self.running.push_async_exit(stack.pop_all())

    async def stop(self) -> None:
        """Stop both; nsqd first, which stores its messages."""
        await self.running.aclose()

    def _nsqd_options(self, lookupd: Nsqlookupd) -> NsqdOptions:
        return NsqdOptions(
            tcp_address=self.addresses["tcp"],
            http_address=self.addresses["http"],
            https_address="",
            allowed_host=self.allowed_host,
            lookupd_tcp_address=(lookupd.tcp_address,),
            data_path=None if self.data_path is None else str(self.data_path),
        )

    def _print_addresses(self, nsqd: NsqdDaemon, lookupd: Nsqlookupd) -> None:
        stored = "only in memory" if not self.data_path else f"{self.data_path}"
        if self.json:
            print_json(
                {
                    "nsqd": nsqd.tcp_address,
                    "nsqd_http": nsqd.http_address,
                    "lookupd": lookupd.http_address,
                    "lookupd_tcp": lookupd.tcp_address,
                    "data_path": self.data_path and str(self.data_path),
                }
            )
        else:
            print(f"nsqd        {nsqd.tcp_address}, HTTP {nsqd.http_address}")
            print(f"nsqlookupd  {lookupd.tcp_address}, HTTP {lookupd.http_address}")
            print(f"messages    {stored}")
            print(f"Try: nsqflow pub orders hello --lookupd {lookupd.http_address}")
            print("Press Ctrl-C to stop.")
        sys.stdout.flush()


class LocalRedesignedCluster:
    """A redesigned cluster."""

    def __init__(
        self, host: str, port: int, nodes: int, allowed_host: tuple[str, ...], json: bool
    ) -> None:
        def address(offset: int) -> str:
            return join_address(host, port + offset if port else 0)

        options = [
            NsqdOptions(
                tcp_address=address(2 * number),
                http_address=address(2 * number + 1),
                https_address="",
                node_id=number,
                allowed_host=allowed_host,
                **NSQD_DEFAULTS,
            )
            for number in range(nodes)
        ]
        lookupds = [address(offset) for offset in _LOOKUPD_OFFSETS]
        self._cluster = PartitionedCluster(options, ClusterOptions(), FaultInjector(), lookupds)
        self._json = json

    async def start(self) -> None:
        """Start it and print the addresses."""
        cluster = self._cluster
        try:
            await cluster.start()
        except BaseException:
            await cluster.stop()
            raise
        if self._json:
            print_json(
                {
                    "nsqd": cluster.nsqd_addresses,
                    "nsqd_http": cluster.nsqd_http_addresses,
                    "lookupd": cluster.lookupd_addresses,
                }
            )
        else:
            for tcp, http in zip(cluster.nsqd_addresses, cluster.nsqd_http_addresses, strict=True):
                print(f"nsqd        {tcp}, HTTP {http}")
            for lookupd in cluster.lookupd_addresses:
                print(f"nsqlookupd  HTTP {lookupd}")
            print("messages    only in memory")
            print("Press Ctrl-C to stop.")
        sys.stdout.flush()

    async def stop(self) -> None:
        """Stop it."""
        await self._cluster.stop()
