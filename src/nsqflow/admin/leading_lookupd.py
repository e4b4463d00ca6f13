"""The nsqlookupd of a redesigned cluster: one of them leads, and it alone takes changes."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

from nsqflow.address import AddressMap, map_address
from nsqflow.admin.http_api import HttpApi
from nsqflow.errors import AdminError, ConfigError, DiscoveryError, NoResponseError, NsqError
from nsqflow.protocol import parse_listlookup

T = TypeVar("T")

_NOT_LEADING = ("E_FAILED_ON_NOT_LEADER", "Not nsqlookup leader")
_RETRY = 0.2  # seconds until the leading one is looked for again


class UnansweredChangeError(NoResponseError):
    """A change was sent and not answered: it may have been made."""


class LeadingLookupd:
    """The leading nsqlookupd, found through those that are configured."""

    def __init__(
        self,
        lookupd: list[str],
        *,
        tls: ssl.SSLContext | None,
        address_map: AddressMap | None,
        timeout: float,
    ) -> None:
        self._lookupd = lookupd
        self._tls = tls
        self._address_map = address_map
        self._timeout = timeout

    async def change(self, path: str, query: Mapping[str, str]) -> None:
        """Have something changed; raise ``UnansweredChangeError`` if it may have been."""

        async def post(member: _Member) -> None:
            try:
                await member.post(path, query)
            except NoResponseError as error:
                raise UnansweredChangeError(f"{error}; the change may have been made") from error

        await self._call(post)

    async def is_stable(self) -> bool:
        """Return whether all nodes run and no partition is changing."""
        return await self._call(_Member.is_stable)

    # Private methods

    async def _call(self, call: Callable[[_Member], Awaitable[T]]) -> T:
        """Call the leading nsqlookupd; while another one is elected, try again."""
        deadline = time.monotonic() + self._timeout
        while True:
            error = await self._try_each(call)
            if not isinstance(error, NsqError):
                return error
            if _is_final(error) or time.monotonic() > deadline:
                raise error
            await asyncio.sleep(_RETRY)

    async def _try_each(self, call: Callable[[_Member], Awaitable[T]]) -> T | NsqError:
        """Return the result of the leading nsqlookupd, or why there is none."""
        failure: NsqError | None = None
        classic: ConfigError | None = None
        for configured in self._lookupd:
            try:
                async with self._member(configured) as lookupd:
                    members = await lookupd.members() or (configured,)
            except ConfigError as error:
                classic = error  # others may be of the redesigned NSQ
                continue
            except NsqError as error:
                failure = error
                continue
            for address in dict.fromkeys((*members, configured)):
                try:
                    async with self._member(address) as lookupd:
                        return await call(lookupd)
                except NsqError as error:
                    failure = error
                    if _is_final(error):
                        return error
        return failure or classic or DiscoveryError("no nsqlookupd is reachable")

    def _member(self, address: str) -> _Member:
        mapped = map_address(address, self._address_map)
        return _Member(mapped, tls=self._tls, timeout=self._timeout)


class _Member(HttpApi):
    """One nsqlookupd of the cluster."""

    async def post(self, path: str, query: Mapping[str, str]) -> None:
        await self._call("POST", path, query)

    async def members(self) -> tuple[str, ...]:
        """Return the HTTP addresses of all nsqlookupd of the cluster, the leading one first."""
        response = await self._http.get(self._address, "/listlookup")
        members = parse_listlookup(response.status, response.body)
        if members is None:
            raise ConfigError(f"nsqlookupd {self.address} is one of the classic NSQ")
        return tuple(each.address for each in sorted(members, key=lambda each: not each.leader))

    async def is_stable(self) -> bool:
        return (await self._object("/cluster/stats")).get("stable") is True


def _is_final(error: NsqError) -> bool:
    """Return whether another nsqlookupd must not be asked, or would say the same."""
    refused = isinstance(error, AdminError) and error.message not in _NOT_LEADING
    return refused or isinstance(error, ConfigError | UnansweredChangeError)
