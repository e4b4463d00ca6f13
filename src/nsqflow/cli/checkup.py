"""How the servers are: whether they can be reached, their versions, dialects and clocks."""

from __future__ import annotations

import asyncio
import base64
import ssl
import time
from collections.abc import Awaitable, Iterable
from contextlib import suppress
from email.utils import parsedate_to_datetime
from functools import partial
from http.client import HTTPConnection, HTTPException, HTTPSConnection

from nsqflow.admin import Lookupd
from nsqflow.cli.cluster import CLASSIC_ALONE, Cluster, Place, is_answer, is_redesigned
from nsqflow.cli.contact import probe
from nsqflow.cli.errors import Failure, hint_for, words
from nsqflow.cli.finding import Finding, remarkable, well, wrong
from nsqflow.cli.servers import Servers
from nsqflow.cli.signals import aside
from nsqflow.errors import ConfigError, NetworkError, NsqError, ServerError, TlsNotGrantedError
from nsqflow.http.client import HttpClient, parse_http_address
from nsqflow.protocol.lookup import parse_listlookup

_MAX_SKEW = 2.0  # seconds

_ELSEWHERE = (
    "nsqlookupd names it so: start nsqd with a -broadcast-address that can be reached from here, "
    "or set address_map in the config file"
)
_DISK = "see nsqd's log; make room on its disk, or mend the rights of its data path"
_NTP = "have NTP set both clocks: messages bear the time of nsqd"
_LOG = "its log may tell more"
_HTTP_SIDE = "say where its HTTP API is by --nsqd-http"


async def examine_servers(servers: Servers) -> list[Finding]:
    """Look at the servers that a command line means, and at those that they name."""
    file = f"config file {servers.config}" if servers.config else "no config file"
    findings = [well("servers", f"{servers} ({servers.origin}); {file}")]
    findings += await _all(_lookupd(servers, address) for address in servers.lookupd)
    try:
        places = await Cluster(servers).places()
    except NsqError:
        return findings  # each nsqlookupd has told what it has
    if not places:
        remedy = "start nsqd with -lookupd-tcp-address=HOST:PORT, that of nsqlookupd for TCP"
        findings.append(wrong("nsqd", "nsqlookupd knows none", remedy))
    return findings + await _all(_nsqd(servers, place) for place in places)


async def _all(examining: Iterable[Awaitable[list[Finding]]]) -> list[Finding]:
    return [finding for some in await asyncio.gather(*examining) for finding in some]


async def _lookupd(servers: Servers, address: str) -> list[Finding]:
    lookupd = Lookupd(address, tls=servers.https, timeout=servers.timeout)
    subject = f"nsqlookupd {lookupd.address}"
    try:
        version = str((await lookupd.info()).get("version"))
        await lookupd.nodes()  # which no other daemon would tell
        http = HttpClient(tls=servers.https, timeout=servers.timeout)
        cluster = parse_listlookup(*await http.get(address, "/listlookup"))
    except NsqError as error:
        return [wrong(subject, _reason(error, lookupd.address), hint_for(error) or _LOG)]
    # Only the redesigned one has others of its kind to tell of.
    if cluster is not None or is_redesigned(version):
        found = remarkable(subject, f"version {version}, redesigned", CLASSIC_ALONE)
    else:
        found = well(subject, f"version {version}, classic")
    return [found, *await _clock(servers, address)]


async def _nsqd(servers: Servers, place: Place) -> list[Finding]:
    findings = [await _tcp(servers, place), await _http(place)]
    return findings + await _clock(servers, place.http.address)


async def _tcp(servers: Servers, place: Place) -> Finding:
    subject = f"nsqd {place.address}"
    try:
        version = (await probe(servers, place.address)).version
    except NsqError as error:
        return wrong(subject, _reason(error, place.address), _remedy(error, place))
    if is_redesigned(version):
        # What that means, its nsqlookupd has told already.
        remedy = "" if place.node else CLASSIC_ALONE
        return remarkable(subject, f"version {version}, redesigned", remedy)
    return well(subject, f"version {version}, classic")


async def _http(place: Place) -> Finding:
    subject = f"HTTP of {place.address}"
    try:
        if "tcp_port" not in await place.http.info():
            raise Failure(f"{place.http.address}: what is there is not an nsqd")
    except NsqError as error:
        if is_answer(error) or isinstance(error.__cause__, ssl.SSLError):
            return wrong(subject, words(error), hint_for(error) or _LOG)
        return wrong(subject, words(error), _ELSEWHERE if place.node else _HTTP_SIDE)
    try:
        await place.http.ping()
    except NsqError as error:
        return wrong(subject, words(error), _DISK)
    return well(subject, f"{place.http.address}, and nsqd is well")


def _remedy(error: NsqError, place: Place) -> str:
    if isinstance(error, TlsNotGrantedError):
        return "give nsqd -tls-cert and -tls-key, or do without tls"
    if isinstance(error, ConfigError | ServerError):
        return "set NSQFLOW_TLS and NSQFLOW_AUTH_SECRET, or the config file, as this nsqd wants it"
    unreached = isinstance(error, NetworkError) and not isinstance(error.__cause__, ssl.SSLError)
    return _ELSEWHERE if unreached and place.node else hint_for(error) or _LOG


def _reason(error: NsqError, address: str) -> str:
    return words(error).removeprefix(f"{address}: ").removeprefix(address)


async def _clock(servers: Servers, address: str) -> list[Finding]:
    """Compare a daemon's clock with ours; nothing if it does not tell the time."""
    skew = None
    with suppress(OSError, HTTPException, ValueError):
        skew = await aside(partial(_skew, servers, address))
    if skew is None:
        return []
    subject = f"clock of {parse_http_address(address)}"
    if abs(skew) <= _MAX_SKEW:
        return [well(subject, "as ours")]
    return [wrong(subject, f"{abs(skew):,.0f} s {'ahead' if skew > 0 else 'behind'}", _NTP)]


def _skew(servers: Servers, text: str) -> float | None:
    """Ask for the time; by how many seconds it lies outside of what it can be, asked just now."""
    address = parse_http_address(text)
    connection = HTTPConnection(address.host, address.port, timeout=servers.timeout)
    if address.scheme == "https":
        connection = HTTPSConnection(
            address.host, address.port, timeout=servers.timeout, context=servers.https
        )
    headers = {}
    if address.credentials:
        credentials = base64.b64encode(address.credentials.encode()).decode()
        headers["Authorization"] = f"Basic {credentials}"
    before = time.time()
    try:
        connection.request("GET", f"{address.prefix}/ping", headers=headers)
        date = connection.getresponse().getheader("Date")
    finally:
        connection.close()
    if date is None:
        return None
    told = parsedate_to_datetime(date).timestamp()  # in whole seconds
    return min(told + 1 - before, 0.0) or max(told - time.time(), 0.0)
