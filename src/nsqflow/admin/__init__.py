"""The HTTP side of nsqd and nsqlookupd as a library: look, create, delete, pause, empty, publish.

``Nsqd`` and ``Lookupd`` are each one daemon, by its HTTP address.
"""

from __future__ import annotations

from nsqflow.admin.daemon import AdminError
from nsqflow.admin.lookupd import Lookupd
from nsqflow.admin.nsqd import Nsqd
from nsqflow.admin.stats import ChannelStats, NsqdStats, TopicStats

__all__ = ["AdminError", "ChannelStats", "Lookupd", "Nsqd", "NsqdStats", "TopicStats"]
