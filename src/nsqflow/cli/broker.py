"""The verb broker: nsqd and nsqlookupd in one process, at addresses that it tells."""

from __future__ import annotations

import asyncio
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Annotated

import typer

from nsqflow.broker import process
from nsqflow.broker.lookupd.daemon import Nsqlookupd
from nsqflow.broker.nsqd.daemon import Nsqd
from nsqflow.broker.options import LookupdOptions, NsqdOptions
from nsqflow.cli.errors import Failure
from nsqflow.cli.screen import emit
from nsqflow.protocol.lookup import join_address

_PATIENCE = 30.0  # seconds for nsqlookupd, in the same process, to hear of nsqd
_DOORS = {"tcp": 0, "http": 1, "lookupd_tcp": 10, "lookupd_http": 11}  # ports above the first


def broker(
    host: Annotated[
        str, typer.Option("--host", metavar="ADDRESS", help="Where to listen.")
    ] = "127.0.0.1",
    port: Annotated[
        int,
        typer.Option(
            "--port",
            min=0,
            max=65535 - max(_DOORS.values()),
            help="That of nsqd; its HTTP API is at the next one, nsqlookupd 10 above, and its "
            "HTTP API 11 above. 0: any that are free.",
        ),
    ] = 4150,
    data_path: Annotated[
        Path | None,
        typer.Option(
            "--data-path",
            metavar="FOLDER",
            help="Where to store messages; without it they are in memory, and gone at the end.",
        ),
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Tell the addresses as a JSON object.")
    ] = False,
) -> int:
    """Run nsqd and nsqlookupd in one process, for one machine, until Ctrl-C or SIGTERM.

    It takes messages once it has told its addresses. Where more has to be set, the verbs nsqd and
    nsqlookupd have all flags of the real daemons.

    Example:
      $ nsqflow broker --port 0
      $ nsqflow broker --port 0 --data-path messages --json
    """
    ports = {door: port + above if port else 0 for door, above in _DOORS.items()}
    addresses = {door: join_address(host, number) for door, number in ports.items()}
    return process.serve(lambda: Pair(addresses, data_path, json=json))


class Pair:
    """An nsqlookupd, and an nsqd that is registered with it."""

    def __init__(self, addresses: dict[str, str], data_path: Path | None, *, json: bool) -> None:
        self._addresses = addresses
        self._data_path = data_path
        self._json = json
        self._running = AsyncExitStack()

    async def start(self) -> None:
        """Start both; tell where they are once nsqlookupd knows nsqd."""
        at = self._addresses
        if self._data_path is not None:
            self._data_path.mkdir(parents=True, exist_ok=True)
        async with AsyncExitStack() as stack:
            options = LookupdOptions(tcp_address=at["lookupd_tcp"], http_address=at["lookupd_http"])
            lookupd = await stack.enter_async_context(Nsqlookupd(options))
            nsqd = await stack.enter_async_context(Nsqd(self._nsqd_options(lookupd)))
            try:
                async with asyncio.timeout(_PATIENCE):
                    await nsqd.lookup_peers.registered()
            except TimeoutError:
                raise Failure("nsqlookupd has not heard of nsqd") from None
            self._tell(nsqd, lookupd)
            self._running = stack.pop_all()

    async def stop(self) -> None:
        """Stop both, nsqd first: what it has is stored then."""
        await self._running.aclose()

    def _nsqd_options(self, lookupd: Nsqlookupd) -> NsqdOptions:
        return NsqdOptions(
            tcp_address=self._addresses["tcp"],
            http_address=self._addresses["http"],
            https_address="",
            lookupd_tcp_address=(lookupd.tcp_address,),
            data_path=None if self._data_path is None else str(self._data_path),
        )

    def _tell(self, nsqd: Nsqd, lookupd: Nsqlookupd) -> None:
        stored = "in memory, and gone at the end" if not self._data_path else f"{self._data_path}"
        if self._json:
            emit(
                {
                    "nsqd": nsqd.tcp_address,
                    "nsqd_http": nsqd.http_address,
                    "lookupd": lookupd.http_address,
                    "lookupd_tcp": lookupd.tcp_address,
                    "data_path": self._data_path and str(self._data_path),
                }
            )
        else:
            print(f"nsqd        {nsqd.tcp_address}, HTTP {nsqd.http_address}")
            print(f"nsqlookupd  {lookupd.tcp_address}, HTTP {lookupd.http_address}")
            print(f"messages    {stored}")
            print(f"Try: nsqflow pub orders hello --lookupd {lookupd.http_address}")
            print("Ctrl-C ends it.")
        sys.stdout.flush()
