"""Where an embedded nsqd keeps its messages: one SQLite file in its data path.

    engine ──> Store ──> units ──> Writer ──> Database ──> nsqd.db
               (loop)              (its thread, one transaction for all that wait)

``ConfigError`` is about the data path: it is missing, can't be written to, or is in use.
``StorageError`` is about what is in it, and the disk: damaged, of another program, full.
"""

from nsqflow.broker.storage.database import Contents
from nsqflow.broker.storage.schema import StorageError
from nsqflow.broker.storage.store import Store

__all__ = ["Contents", "StorageError", "Store"]
