"""Which nsqd there are to publish to."""

from __future__ import annotations

import asyncio
import logging

from nsqflow.client.poller import list_nodes
from nsqflow.errors import DiscoveryError, NsqError
from nsqflow.http.client import HttpClient, parse_http_address
from nsqflow.protocol import LookupAnswer
from nsqflow.spark.access import Access

logger = logging.getLogger(__name__)


def find_nodes(lookupd: tuple[str, ...], access: Access, timeout: float = 5.0) -> list[str]:
    """Return the addresses of all nsqd that these nsqlookupd know; there is one at least."""
    answers = asyncio.run(_ask(lookupd, access, timeout))
    known = [answer for answer in answers if isinstance(answer, LookupAnswer)]
    for answer in answers:
        if not isinstance(answer, LookupAnswer | NsqError):
            raise answer
        if isinstance(answer, NsqError):
            logger.warning("nsqlookupd can't be asked: %s", answer)
    if not known:
        raise DiscoveryError(f"no nsqlookupd can be asked: {'; '.join(map(str, answers))}")
    nodes = sorted({node.address for answer in known for node in answer.producers})
    if not nodes:
        names = ", ".join(str(parse_http_address(address)) for address in lookupd)
        raise DiscoveryError(f"nsqlookupd at {names}: no nsqd is known there")
    return nodes


async def _ask(
    lookupd: tuple[str, ...], access: Access, timeout: float
) -> list[LookupAnswer | BaseException]:
    secure = any(parse_http_address(address).scheme == "https" for address in lookupd)
    http = HttpClient(tls=access.http_context() if secure else None, timeout=timeout)
    asking = (list_nodes(http, address) for address in lookupd)
    return await asyncio.gather(*asking, return_exceptions=True)
