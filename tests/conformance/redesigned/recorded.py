"""Answers of the real servers, version 0.3.7-HA.1.13.0: what ours must have the keys of.

Ids, ports, addresses and times are theirs. ``LOOKUP`` and the others are in the bare form. Ours
says in its version that it is another program.
"""

from __future__ import annotations

from typing import Any

VERSION = "0.3.7-HA.1.13.0+nsqflow"

Recorded = dict[str, Any]

LOOKUPD_INFO: Recorded = {"version": VERSION, "ha_support": True}

_LOOKUPD: Recorded = {
    "ID": "127.0.0.1:24260:24160:nsqlookup",
    "NodeIP": "127.0.0.1",
    "TcpPort": "24160",
    "HttpPort": "24161",
    "RpcPort": "24260",
    "Epoch": 0,
}
LIST_LOOKUP: Recorded = {"lookupdleader": _LOOKUPD, "lookupdnodes": [_LOOKUPD, _LOOKUPD]}

_NODE: Recorded = {
    "id": "127.0.0.1:49316",
    "remote_address": "127.0.0.1:49316",
    "hostname": "vm",
    "broadcast_address": "127.0.0.1",
    "tcp_port": 24150,
    "http_port": 24151,
    "version": VERSION,
    "distributed_id": "127.0.0.1:24250:24150:101",
}
META: Recorded = {
    "disable_channel_auto_create": False,
    "extend_support": False,
    "multi_part": False,
    "ordered": False,
    "partition_num": 2,
    "replica": 1,
}
# Of a topic with two partitions on two nodes.
LOOKUP: Recorded = {
    "channels": [],
    "meta": META,
    "partitions": {"0": _NODE, "1": _NODE},
    "producers": [_NODE, _NODE],
}

# The topic's name is the one that the tests use.
TOPICS: Recorded = {
    "topics": ["orders"],
    "meta_info": [
        {
            "topic_name": "orders",
            "extend_support": True,
            "ordered": False,
            "multi_part": False,
            "disable_channel_auto_create": False,
            "registered_channels": None,
        }
    ],
}
NODES: Recorded = {
    "producers": [
        {
            "remote_address": "127.0.0.1:33408",
            "hostname": "vm",
            "broadcast_address": "127.0.0.1",
            "tcp_port": 24150,
            "http_port": 24151,
            "version": VERSION,
            "tombstones": [False],
            "topics": ["orders"],
            "partitions": {"orders": ["0"]},
        }
    ]
}
CLUSTER_STATS: Recorded = {
    "stable": True,
    "node_stat_list": [
        {
            "hostname": "vm",
            "broadcast_address": "127.0.0.1",
            "tcp_port": 24150,
            "http_port": 24151,
            "leader_load_factor": 0,
            "node_load_factor": 0,
        }
    ],
    "topn_topics": [],
}

NSQD_INFO: Recorded = {
    "version": VERSION,
    "broadcast_address": "127.0.0.1",
    "hostname": "vm",
    "http_port": 24151,
    "tcp_port": 24150,
    "start_time": 1794830820,
    "ha_support": True,
}
PUB_TRACE: Recorded = {
    "status": "OK",
    "id": 6,
    "trace_id": "77",
    "queue_offset": 127,
    "rawsize": 31,
}
TOPIC_COORD_STATS: Recorded = {
    "name": "orders",
    "partition": 0,
    "isr_stats": [
        {"node_id": "127.0.0.1:24250:24150:101"},
        {"node_id": "127.0.0.1:24450:24350:102"},
    ],
}

_CLIENT: Recorded = {
    "name": "probe",
    "client_id": "probe",
    "hostname": "probe",
    "version": "V2",
    "remote_address": "127.0.0.1:43768",
    "state": 3,
    "ready_count": 2,
    "in_flight_count": 2,
    "message_count": 3,
    "finish_count": 1,
    "requeue_count": 0,
    "timeout_count": 0,
    "deferred_count": 0,
    "connect_ts": 1794831101,
    "sample_rate": 0,
    "deflate": False,
    "snappy": False,
    "user_agent": "probe/0",
    "desired_tag": "",
    "tls": False,
    "tls_cipher_suite": "",
    "tls_version": "",
    "tls_negotiated_protocol": "",
    "tls_negotiated_protocol_is_mutual": False,
    "output_buffer_size": 4096,
    "output_buffer_timeout": 50000000,
    "msg_timeout": 60000000000,
    "ext_filter": {},
    "limited_rdy": 50000,
}
_LATENCY: Recorded = {"count": 0, "percentiles": None}
_CHANNEL: Recorded = {
    "channel_name": "billing",
    "backlogs": 1,
    "depth": 4,
    "depth_size": 144,
    "depth_ts": "2026-11-16 12:11:41.222881896 +0000 UTC",
    "depth_ts_nano": 1794831101222881896,
    "backend_depth": 4,
    "hourly_subsize": 0,
    "in_flight_count": 2,
    "deferred_count": 0,
    "deferred_from_delay_count": 0,
    "message_count": 5,
    "requeue_count": 0,
    "timeout_count": 0,
    "clients": [_CLIENT],
    "client_num": 1,
    "paused": False,
    "skipped": False,
    "zan_test_skipped": False,
    "delayed_queue_count": 0,
    "delayed_queue_recent": "1970-01-01 00:00:00 +0000 UTC",
    "delayed_queue_recent_nano": 0,
    "e2e_processing_latency": _LATENCY,
    "msg_consume_latency_stats": [0] * 12,
    "msg_delivery_latency_stats": [0] * 12,
}
_TOPIC: Recorded = {
    "topic_name": "orders",
    "topic_full_name": "orders-0",
    "topic_partition": "0",
    "channels": [_CHANNEL],
    "channel_num": 1,
    "depth": 180,
    "backend_depth": 180,
    "backend_start": 0,
    "message_count": 5,
    "is_leader": True,
    "hourly_pubsize": 0,
    "client_pub_stats": [
        {
            "remote_address": "127.0.0.1:43776",
            "user_agent": "probe/0",
            "protocol": "tcp",
            "pub_count": 5,
            "err_count": 0,
            "last_pub_ts": 1794831101,
        }
    ],
    "client_num": 1,
    "msg_size_stats": [0] * 16,
    "msg_write_latency_stats": [0] * 16,
    "is_multi_ordered": False,
    "is_multi_part": False,
    "is_ext": False,
    "is_channel_auto_create_disabled": False,
    "statsd_name": "orders",
    "pub_failed_cnt": 0,
    "e2e_processing_latency": _LATENCY,
}
# After five messages of 36 bytes, one finished, two in flight.
STATS: Recorded = {
    "version": VERSION,
    "health": "OK",
    "start_time": 1794830820,
    "topics": [_TOPIC],
}

# What differs from run to run, or between hosts.
CHANGING = frozenset(
    {
        *("ID", "TcpPort", "HttpPort", "RpcPort", "id", "remote_address", "hostname", "node_id"),
        *("tcp_port", "http_port", "distributed_id", "start_time", "connect_ts", "last_pub_ts"),
        *("depth_ts", "depth_ts_nano", "msg_size_stats", "msg_write_latency_stats"),
        *("msg_consume_latency_stats", "msg_delivery_latency_stats"),
    }
)


def mask_changing(value: Any) -> Any:
    """Return JSON with the type in place of each value that is not the same every time."""
    match value:
        case dict():
            return {
                key: _type_of(each) if key in CHANGING else mask_changing(each)
                for key, each in value.items()
            }
        case list():
            return [mask_changing(each) for each in value]
        case _:
            return value


def _type_of(value: Any) -> Any:
    if isinstance(value, list):
        return [type(each) for each in value]
    return type(value)
