"""The warning about AUTH on a connection without TLS, for both kinds of connection."""

from __future__ import annotations

import logging

from nsqflow.loopback import is_loopback

logger = logging.getLogger(__name__)

_MAX_WARNED = 1000  # addresses; nsqlookupd may name any number of them
_warned: set[str] = set()


def is_local(peer: object) -> bool:
    """Return whether a socket's peer is on this machine: loopback, or a unix socket.

    ``peer`` is what ``getpeername`` returns: a tuple that starts with an IP address for TCP, the
    path as str or bytes for a unix socket.
    """
    if not isinstance(peer, tuple):
        return isinstance(peer, str | bytes)
    return bool(peer) and is_loopback(str(peer[0]))


def warn_of_plaintext_auth(address: str, peer: object) -> None:
    """Warn that AUTH is sent without TLS to another machine; once for each address."""
    if is_local(peer) or address in _warned:
        return
    if len(_warned) >= _MAX_WARNED:
        _warned.clear()
    _warned.add(address)
    logger.warning("%s: AUTH without TLS: the secret travels in clear text; use tls", address)
