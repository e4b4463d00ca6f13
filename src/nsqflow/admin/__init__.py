"""The HTTP APIs of nsqd and nsqlookupd: inspect, create, delete, pause, empty, publish.

``Nsqd`` and ``Lookupd`` represent one server each, ``Cluster`` all of them.
``RedesignedCluster`` is one of the redesigned NSQ: partitions, leaders, positions.
"""

from __future__ import annotations

from nsqflow.admin.cluster import Cluster, NsqdNode
from nsqflow.admin.lookupd import Lookupd
from nsqflow.admin.nsqd import Nsqd
from nsqflow.admin.partition import BrowsedMessage, PartitionChannelStats, PartitionStats
from nsqflow.admin.redesigned import PartitionedTopic, RedesignedCluster
from nsqflow.admin.stats import ChannelStats, NsqdStats, TopicStats
from nsqflow.errors import AdminError

__all__ = [
    "AdminError",
    "BrowsedMessage",
    "ChannelStats",
    "Cluster",
    "Lookupd",
    "Nsqd",
    "NsqdNode",
    "NsqdStats",
    "PartitionChannelStats",
    "PartitionStats",
    "PartitionedTopic",
    "RedesignedCluster",
    "TopicStats",
]
