"""Persistence of an embedded nsqd: one SQLite file in its data path.

    engine ──> Store ──> CommitQueue ──> GroupCommitWriter ──> Database ──> nsqd.db
               (loop)                    (a thread; one transaction for all requests that wait)

``ConfigError`` is about the data path: it does not exist, is not writable, or is in use.
``StorageError`` is about the file and the disk: damaged, of another program, disk full.
"""

from nsqflow.broker.storage.database import StoredState
from nsqflow.broker.storage.store import Store
from nsqflow.errors import StorageError

__all__ = ["StorageError", "Store", "StoredState"]
