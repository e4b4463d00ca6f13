"""nsqd's options over HTTP: all can be read, two can be set while it runs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from nsqflow.broker.api import ApiError
from nsqflow.broker.options import LOG_LEVEL
from nsqflow.errors import ConfigError
from nsqflow.http.server import Request

if TYPE_CHECKING:
    from nsqflow.broker.nsqd.daemon import Nsqd


class ConfigRoutes:
    """What ``/config/NAME`` answers."""

    def __init__(self, nsqd: Nsqd) -> None:
        self._nsqd = nsqd

    def tell(self, _: Request, opt: str) -> object:
        """Tell an option."""
        # The ports that were left to nsqd are told as it chose them.
        chosen = {
            "broadcast_tcp_port": max(self._nsqd.tcp_port, 0),
            "broadcast_http_port": max(self._nsqd.http_port, 0),
        }
        try:
            value = self._nsqd.options.value(opt)
        except KeyError:
            raise ApiError(400, "INVALID_OPTION") from None
        return chosen[opt] if opt in chosen and not value else value

    def set(self, request: Request, opt: str) -> object:
        """Set an option, and tell it."""
        if not request.complete or not request.body:
            raise ApiError(413, "INVALID_VALUE")
        setters = {"nsqlookupd_tcp_addresses": self._set_lookupd, "log_level": self._set_log_level}
        if opt not in setters:
            raise ApiError(400, "INVALID_OPTION")
        try:
            setters[opt](request.body)
        except (ValueError, RecursionError):  # (a ConfigError is a ValueError)
            raise ApiError(400, "INVALID_VALUE") from None
        return self.tell(request, opt)

    def _set_lookupd(self, body: bytes) -> None:
        addresses = json.loads(body)
        if not isinstance(addresses, list):
            raise ConfigError(f"nsqlookupd_tcp_addresses {addresses!r}; allowed is a list")
        self._nsqd.set_lookupd_addresses(addresses)

    def _set_log_level(self, body: bytes) -> None:
        self._nsqd.set_log_level(LOG_LEVEL.parse(body.decode()))
