"""``/stats`` of a redesigned nsqd: an entry per topic and partition, with nsqd's names and order.

A topic's ``depth`` is in bytes, a channel's in messages. The entries of a follower say little: its
channels lag behind those of the leader.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from nsqflow.broker.redesigned.engine.partition import Partition
from nsqflow.broker.version import REDESIGNED_VERSION
from nsqflow.protocol import ServerState

if TYPE_CHECKING:
    from nsqflow.broker.redesigned.engine.channel import PartitionChannel
    from nsqflow.broker.redesigned.engine.subscriber import PartitionSubscriber
    from nsqflow.broker.redesigned.nsqd import PartitionedConnection, PartitionedNsqd

Stats = dict[str, Any]

_LATENCY = {"count": 0, "percentiles": None}
_STATES = {ServerState.SUBSCRIBED: 3, ServerState.CLOSING: 4}  # nsqd's numbers
_LIMITED_RDY = 50_000  # a limit that operators may set; this is its default


def gather_partitions(
    nsqd: PartitionedNsqd,
    topic: str = "",
    partition: str = "",
    channel: str = "",
    *,
    leader_only: bool = False,
    clients: bool = True,
) -> Stats:
    """Return the stats, of one topic, partition or channel if it is given.

    As nsqd does, a channel that does not exist leaves in all channels, without their clients.
    """
    found = [
        each
        for each in nsqd.cluster.partitions()
        if nsqd.number in each.replicas
        and topic in ("", each.topic)
        and partition in ("", str(each.number))
        and (not leader_only or _is_leader(nsqd, each))
    ]
    found.sort(key=_full_name)
    return {
        "version": REDESIGNED_VERSION,
        "health": nsqd.health,
        "start_time": nsqd.started,
        "topics": [_topic(nsqd, each, channel, clients) for each in found],
    }


def render_partitions(stats: Stats) -> str:
    """Format the stats as text, without partitions, as nsqd does."""
    lines = [f"nsqd v{stats['version']}", f"Health: {stats['health']}", ""]
    for topic in stats["topics"]:
        lines.append(f"   [{topic['topic_name']:<15}] depth: {topic['depth']:<5}")
        lines += [
            f"      [{channel['channel_name']:<25}] depth: {channel['depth']:<5} "
            f"inflt: {channel['in_flight_count']:<4} def: {channel['deferred_count']:<4} "
            f"re-q: {channel['requeue_count']:<5} timeout: {channel['timeout_count']:<5}"
            for channel in topic["channels"]
        ]
    return "\n".join(lines) + "\n"


def _full_name(partition: Partition) -> str:
    return f"{partition.topic}-{partition.number}"


def _is_leader(nsqd: PartitionedNsqd, partition: Partition) -> bool:
    """Return what nsqd calls a leader: one that takes publishes."""
    return partition.leader == nsqd.number and partition.writable


def _topic(nsqd: PartitionedNsqd, partition: Partition, channel: str, clients: bool) -> Stats:
    log, meta = partition.log, partition.meta
    leads = partition.leader == nsqd.number
    channels = sorted(partition.channels.values(), key=lambda each: each.name)
    shown = [partition.channels[channel]] if channel in partition.channels else channels
    publishers = [*_publishers(nsqd, partition)]
    return {
        "topic_name": partition.topic,
        "topic_full_name": _full_name(partition),
        "topic_partition": str(partition.number),
        "channels": [
            _channel(each, leads, clients=clients and channel in ("", each.name)) for each in shown
        ],
        "channel_num": len(channels),
        "depth": log.end_offset,
        "backend_depth": log.end_offset,
        "backend_start": log.start_offset,
        "message_count": log.end,
        "is_leader": _is_leader(nsqd, partition),
        "hourly_pubsize": 0,
        "client_pub_stats": publishers if clients else None,
        "client_num": len(publishers),
        "msg_size_stats": [0] * 16,
        "msg_write_latency_stats": [0] * 16,
        "is_multi_ordered": meta.ordered,
        "is_multi_part": meta.multi_part,
        "is_ext": meta.extend_support,
        "is_channel_auto_create_disabled": meta.disable_channel_auto_create,
        "statsd_name": partition.topic,
        "pub_failed_cnt": partition.pub_failed_count if leads else 0,
        "e2e_processing_latency": _LATENCY,
    }


def _publishers(nsqd: PartitionedNsqd, partition: Partition) -> Iterator[Stats]:
    for client in nsqd.partition_clients():
        if (published := client.publish_stats.get(partition)) is not None:
            yield {
                "remote_address": client.peer.address,
                "user_agent": client.identify.user_agent if client.identify else "",
                "protocol": "tcp",
                "pub_count": published.count,
                "err_count": published.errors,
                "last_pub_ts": published.last,
            }


def _channel(channel: PartitionChannel, leads: bool, *, clients: bool) -> Stats:
    reader = channel.reader
    subscribers: Sequence[PartitionSubscriber] = [*channel.subscribers] if leads else []
    depth = reader.depth if leads else 0
    timestamp = reader.depth_timestamp if leads else 0
    deferred = len(reader.deferred)
    delayed = sorted(each.due for each in reader.delayed.values())
    recent = delayed[0] if delayed else 0
    return {
        "channel_name": channel.name,
        "backlogs": reader.unread + deferred if leads else 0,
        "depth": depth,
        "depth_size": reader.depth_bytes if leads else 0,
        "depth_ts": _time(timestamp),
        "depth_ts_nano": timestamp,
        "backend_depth": depth,
        "hourly_subsize": 0,
        "in_flight_count": channel.in_flight_count if leads else 0,
        "deferred_count": deferred if leads else 0,
        "deferred_from_delay_count": len(reader.due),
        "message_count": reader.log.end if leads else 0,
        "requeue_count": channel.requeue_count,
        "timeout_count": channel.timeout_count,
        "clients": [_client(each, each.owner) for each in subscribers] if clients else None,
        "client_num": len(subscribers),
        "paused": channel.paused,
        "skipped": False,
        "zan_test_skipped": False,
        "delayed_queue_count": len(delayed),
        "delayed_queue_recent": _time(recent),
        "delayed_queue_recent_nano": recent,
        "e2e_processing_latency": _LATENCY,
        "msg_consume_latency_stats": [0] * 12,
        "msg_delivery_latency_stats": [0] * 12,
    }


def _client(subscriber: PartitionSubscriber, client: PartitionedConnection) -> Stats:
    identify, settings, peer = client.identify, client.settings, client.peer
    name = identify.client_id if identify else peer.ip
    filter = identify.ext_filter if identify else None
    return {
        "name": name,
        "client_id": name,
        "hostname": identify.hostname if identify else peer.ip,
        "version": "V2",
        "remote_address": peer.address,
        "state": _STATES.get(client.session.state, 0),
        "ready_count": subscriber.rdy,
        "in_flight_count": subscriber.in_flight_count,
        "message_count": subscriber.message_count,
        "finish_count": subscriber.finish_count,
        "requeue_count": subscriber.requeue_count,
        "timeout_count": subscriber.timeout_count,
        "deferred_count": 0,
        "connect_ts": client.connect_time,
        "sample_rate": settings.sample_rate,
        "deflate": client.deflate,
        "snappy": client.snappy,
        "user_agent": identify.user_agent if identify else "",
        "desired_tag": subscriber.tag,
        "tls": peer.tls,
        "tls_cipher_suite": peer.tls_cipher,
        "tls_version": peer.tls_version,
        "tls_negotiated_protocol": "",
        "tls_negotiated_protocol_is_mutual": peer.tls,
        "output_buffer_size": settings.output_buffer_size,
        "output_buffer_timeout": round(settings.output_buffer_timeout * 1e9),
        "msg_timeout": subscriber.msg_timeout,
        "ext_filter": filter or {},
        "limited_rdy": _LIMITED_RDY,
    }


def _time(nanoseconds: int) -> str:
    """Format a time as Go prints it: without the zeros at the end of its fraction."""
    seconds, fraction = divmod(nanoseconds, 10**9)
    text = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")
    return text + f".{fraction:09}".rstrip("0").rstrip(".") + " +0000 UTC"
