"""TLS with nsqd, for tasks that come and go: what it takes is read once, not by each of them."""

from __future__ import annotations

import os
from functools import lru_cache
from typing import TYPE_CHECKING

from nsqflow.spark.access import Access

if TYPE_CHECKING:
    import ssl


def tls_context(access: Access) -> ssl.SSLContext:
    """Give the context for TLS; a new one only where a file has changed since the last."""
    files = (access.tls_ca_file, access.tls_cert_file, access.tls_key_file)
    return _made_context(access, tuple(_changed(file) for file in files))


@lru_cache(maxsize=8)
def _made_context(access: Access, _changes: tuple[int, ...]) -> ssl.SSLContext:
    # Reading all authorities that a system trusts takes longer than a small batch.
    context = access.ssl_context()
    assert context is not None
    return context


def _changed(file: str | None) -> int:
    try:
        return 0 if file is None else os.stat(file).st_mtime_ns
    except OSError:
        return 0  # making the context fails, with the right words
