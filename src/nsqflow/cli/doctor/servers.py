"""Checks of the servers: reachable, version, dialect, clock."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Awaitable, Iterable
from contextlib import suppress
from dataclasses import replace
from email.utils import parsedate_to_datetime

from nsqflow.address import parse_http_address
from nsqflow.admin import Lookupd, NsqdNode
from nsqflow.cli.cluster import NEEDS_LOOKUPD, CliCluster, is_answer, is_redesigned
from nsqflow.cli.connect_check import identify
from nsqflow.cli.doctor.finding import Finding, note, ok, problem
from nsqflow.cli.doctor.redesigned import check_redesigned
from nsqflow.cli.errors import CommandError, error_message, hint_for
from nsqflow.cli.servers import CliServers
from nsqflow.errors import (
    ConfigError,
    NetworkError,
    NoResponseError,
    NsqError,
    RequestTimeout,
    ServerError,
    TlsNotGrantedError,
)
from nsqflow.http.client import HttpClient
from nsqflow.protocol.lookup import parse_listlookup

_MAX_SKEW = 2.0  # seconds

_UNREACHABLE_ADDRESS = (
    "nsqlookupd lists this address: start nsqd with a -broadcast-address that can be reached from "
    "here, or set address_map in the config file"
)
_DISK = "see nsqd's log; free space on its disk, or fix the permissions of its data path"
_NTP = "synchronize both clocks by NTP: nsqd sets the timestamps of messages"
_LOG = "see its log"
_HTTP_SIDE = "pass its HTTP address with --nsqd-http"


async def check_servers(servers: CliServers) -> list[Finding]:
    """Check the servers of the command line and those that they name."""
    findings = [_named(servers)]
    findings += await _all(_lookupd(servers, address) for address in servers.lookupd)
    try:
        nodes = await CliCluster(servers).nodes()
    except NsqError:
        return findings  # reported for each nsqlookupd already
    if not nodes:
        remedy = "start nsqd with -lookupd-tcp-address=HOST:PORT, the TCP address of nsqlookupd"
        findings.append(problem("nsqd", "no nsqd is registered with nsqlookupd", remedy))
    findings += await _all(_nsqd(servers, node) for node in nodes)
    return findings + await check_redesigned(servers)


def _named(servers: CliServers) -> Finding:
    """Report which servers are used, what names them, and which config files were read."""
    names = ", ".join(map(str, servers.files))
    kind = "config file" if len(servers.files) == 1 else "config files"
    text = f"{servers} ({servers.origin}); {f'{kind} {names}' if names else 'no config file'}"
    untrusted = servers.untrusted
    if untrusted is None:
        return ok("servers", text)
    text = f"{text}; ./{untrusted.file} is not trusted: it was found in this folder"
    return note("servers", text, untrusted.hint)


async def _all(examining: Iterable[Awaitable[list[Finding]]]) -> list[Finding]:
    return [finding for some in await asyncio.gather(*examining) for finding in some]


async def _lookupd(servers: CliServers, address: str) -> list[Finding]:
    lookupd = Lookupd(address, tls=servers.https, timeout=servers.timeout)
    subject = f"nsqlookupd {lookupd.address}"
    try:
        version = str((await lookupd.info()).get("version"))
        await lookupd.nodes()  # only nsqlookupd answers this
        http = HttpClient(tls=servers.https, timeout=servers.timeout)
        response = await http.get(address, "/listlookup")
        cluster = parse_listlookup(response.status, response.body)
    except NsqError as error:
        remedy = hint_for(servers.explain(error)) or _LOG
        return [problem(subject, _reason(error, lookupd.address), remedy)]
    # Only a redesigned nsqlookupd has this path.
    redesigned = cluster is not None or is_redesigned(version)
    found = ok(subject, f"version {version}, {'redesigned' if redesigned else 'classic'}")
    return [found, *await _clock(servers, address)]


async def _nsqd(servers: CliServers, node: NsqdNode) -> list[Finding]:
    errors: list[NsqError] = []
    findings = [await _tcp(servers, node, errors), await _http(servers, node, errors)]
    if len(errors) == 2 and all(map(_is_unreachable, errors)):  # it is stopped: one problem
        text = f"{findings[0].text}, and its HTTP API at {node.http.address} is not reachable"
        return [replace(findings[0], text=text)]
    return findings + await _clock(servers, node.http.address)


async def _tcp(servers: CliServers, node: NsqdNode, errors: list[NsqError]) -> Finding:
    subject = f"nsqd {node.address}"
    try:
        version = (await identify(servers, node.address)).version
    except NsqError as error:
        errors.append(error)
        remedy = _remedy(servers.explain(error), node)
        return problem(subject, _reason(error, node.address), remedy)
    if is_redesigned(version) and node.registration is None:
        return note(subject, f"version {version}, redesigned", NEEDS_LOOKUPD)
    if is_redesigned(version):
        return ok(subject, f"version {version}, redesigned")
    return ok(subject, f"version {version}, classic")


async def _http(servers: CliServers, node: NsqdNode, errors: list[NsqError]) -> Finding:
    subject = f"HTTP of {node.address}"
    try:
        if "tcp_port" not in await node.http.info():
            raise CommandError(f"{node.http.address}: not an nsqd")
    except NsqError as caught:
        errors.append(caught)
        error = servers.explain(caught)
        if error is not caught:
            return problem(subject, error_message(error), hint_for(error))
        if is_answer(error) or isinstance(error.__cause__, ssl.SSLError):
            return problem(subject, error_message(error), hint_for(error) or _LOG)
        return problem(
            subject, error_message(error), _UNREACHABLE_ADDRESS if node.registration else _HTTP_SIDE
        )
    try:
        await node.http.ping()
    except NsqError as error:
        return problem(subject, error_message(error), _DISK)
    return ok(subject, f"{node.http.address}, nsqd is healthy")


def _remedy(error: NsqError, node: NsqdNode) -> str:
    if isinstance(error, CommandError):
        return error.hint
    if isinstance(error, TlsNotGrantedError):
        return "start nsqd with -tls-cert and -tls-key, or don't use tls"
    if isinstance(error, ConfigError | ServerError):
        return "set NSQFLOW_TLS and NSQFLOW_AUTH_SECRET, or the config file, as this nsqd requires"
    if _is_unreachable(error) and node.registration:
        return _UNREACHABLE_ADDRESS
    return hint_for(error) or _LOG


def _is_unreachable(error: NsqError) -> bool:
    # If only the response is missing, the server was reachable.
    unreached = isinstance(error, NetworkError | RequestTimeout)
    return (
        unreached
        and not isinstance(error, NoResponseError)
        and not isinstance(error.__cause__, ssl.SSLError)
    )


def _reason(error: NsqError, address: str) -> str:
    return error_message(error).removeprefix(f"{address}: ").removeprefix(f"{address} ")


async def _clock(servers: CliServers, address: str) -> list[Finding]:
    """Compare a daemon's clock with ours; no finding if it sends no usable Date header."""
    skew = await _skew(servers, address)
    if skew is None:
        return []
    subject = f"clock of {parse_http_address(address)}"
    if abs(skew) <= _MAX_SKEW:
        return [ok(subject, "in sync with ours")]
    return [problem(subject, f"{abs(skew):,.0f} s {'ahead' if skew > 0 else 'behind'}", _NTP)]


async def _skew(servers: CliServers, address: str) -> float | None:
    """Return by how many seconds the Date of a response lies outside of its request's time."""
    before = time.time()
    with suppress(NsqError, ValueError, OverflowError):
        http = HttpClient(tls=servers.https, timeout=servers.timeout)
        date = (await http.get(address, "/ping")).headers.get("date")
        if date is not None:
            theirs = parsedate_to_datetime(date).timestamp()  # in whole seconds
            return min(theirs + 1 - before, 0.0) or max(theirs - time.time(), 0.0)
    return None
