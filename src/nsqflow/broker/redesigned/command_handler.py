"""The commands that reach a partition: publishing and subscribing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from nsqflow.broker.nsqd.command_handler import CommandHandler
from nsqflow.broker.nsqd.identify import ClientSettings, build_reply, negotiate
from nsqflow.broker.redesigned.engine.channel import PartitionChannel
from nsqflow.broker.redesigned.engine.headers import (
    InvalidHeaders,
    InvalidTraceId,
    make_filter,
    trace_id_of,
)
from nsqflow.broker.redesigned.engine.partition import (
    Partition,
    Publication,
    Refused,
    Writes,
)
from nsqflow.broker.redesigned.engine.position import (
    InvalidPosition,
    NoSuchPosition,
    find_position,
    parse_position,
)
from nsqflow.broker.redesigned.engine.subscriber import PartitionSubscriber
from nsqflow.broker.version import REDESIGNED_VERSION
from nsqflow.errors import RemoteProtocolError
from nsqflow.protocol import IdentifyReply, IdentifyRequest, Nop, Receipt, Sub, SubscribeMode
from nsqflow.protocol.publish import (
    Mpub,
    MpubExt,
    MpubTrace,
    Pub,
    PubExt,
    Publish,
    PubTrace,
)

if TYPE_CHECKING:
    from nsqflow.broker.redesigned.nsqd import PartitionedConnection, PartitionedNsqd

_MIN_BUFFER_TIMEOUT = 0.01  # seconds; nsqd raises a shorter output buffer timeout to it
_MAX_TAG = 100
_CLOSING = ("E_TOPIC_NOT_EXIST", "E_BAD_PARTITION")


class PartitionCommandHandler(CommandHandler):
    """Executes the commands of a client of a redesigned nsqd."""

    def __init__(self, client: PartitionedConnection, nsqd: PartitionedNsqd) -> None:
        super().__init__(client)
        self._publisher = client
        self._node = nsqd
        self._partition: Partition | None = None  # that it is subscribed to
        self._log_channel: PartitionChannel | None = None
        self._act |= {
            Sub: self._guarded(self._sub),
            Pub: self._guarded(self._pub),
            PubTrace: self._guarded(self._pub_trace),
            PubExt: self._guarded(self._pub_ext),
            Mpub: self._guarded(self._mpub),
            MpubTrace: self._guarded(self._mpub_trace),
            MpubExt: self._guarded(self._mpub_ext),
            Nop: self._nop,
        }

    def leave(self) -> None:
        """Unsubscribe; the last one deletes an ephemeral channel."""
        super().leave()
        channel, partition = self._log_channel, self._partition
        if channel is None or partition is None:
            return
        if channel.ephemeral and not channel.subscribers and not channel.deleted:
            self._node.cluster.delete_channel(partition, channel.name)

    def _negotiate(self, request: IdentifyRequest) -> tuple[ClientSettings, IdentifyReply]:
        options, tls = self._nsqd.options, self._nsqd.tls is not None
        if len(request.desired_tag or "") > _MAX_TAG:
            raise RemoteProtocolError(f"IDENTIFY tag is too long: {_MAX_TAG}", "E_BAD_BODY")
        settings = negotiate(request, self._client.settings, options)
        if 0 < settings.output_buffer_timeout < _MIN_BUFFER_TIMEOUT:
            settings = replace(settings, output_buffer_timeout=_MIN_BUFFER_TIMEOUT)
        reply = build_reply(request, settings, options, tls=tls)
        if not (reply.deflate and request.deflate_level):
            reply = replace(reply, deflate_level=0)
        tag = request.desired_tag or None
        return settings, replace(reply, version=REDESIGNED_VERSION, desired_tag=tag)

    # Publishing

    def _pub(self, command: Pub) -> None:
        self._publish(command, command.partition, Publication((command.body,)))

    def _pub_trace(self, command: PubTrace) -> None:
        publication = Publication((command.body,), (command.trace_id,))
        self._publish(command, command.partition, publication, receipt=True)

    def _mpub(self, command: Mpub) -> None:
        self._publish(command, command.partition, Publication(command.bodies, batch=True))

    def _mpub_trace(self, command: MpubTrace) -> None:
        traces, bodies = zip(*command.messages, strict=True)
        publication = Publication(bodies, traces, batch=True)
        self._publish(command, command.partition, publication, receipt=True)

    def _pub_ext(self, command: PubExt) -> None:
        try:
            partition = self._find(command, command.partition)
            trace = self._read_headers(partition, command.headers)
        except Refused as refused:
            self._refuse_publish(refused)
            return
        publication = Publication(
            (command.body,), None if trace is None else (trace,), (command.headers,)
        )
        self._publish_to(partition, command, publication, receipt=trace is not None)

    def _mpub_ext(self, command: MpubExt) -> None:
        headers, bodies = zip(*command.messages, strict=True)
        try:
            partition = self._find(command, command.partition)
            traces = [self._read_headers(partition, each) if each else None for each in headers]
        except Refused as refused:
            self._refuse_publish(refused)
            if refused.code not in _CLOSING:
                # nsqd leaves the rest of the body unread, and reads it as commands.
                self._act = dict.fromkeys(self._act, self._fail_unread)
            return
        ids = [each or 0 for each in traces] if any(traces) else None
        self._publish_to(partition, command, Publication(bodies, ids, headers, batch=True))

    def _publish(
        self,
        command: Publish,
        number: int | None,
        publication: Publication,
        *,
        receipt: bool = False,
    ) -> None:
        try:
            partition = self._find(command, number)
        except Refused as refused:
            self._refuse_publish(refused)
            return
        self._publish_to(partition, command, publication, receipt=receipt)

    def _publish_to(
        self,
        partition: Partition,
        command: Publish,
        publication: Publication,
        *,
        receipt: bool = False,
    ) -> None:
        """Publish and respond, at once or when the partition knows the result."""
        client, node = self._publisher, self._node
        if partition.writes is Writes.STALLED:
            publication = replace(publication, done=self._respond_later(command, receipt))
        now = node.now()
        try:
            stored = node.cluster.publish(node.number, partition, publication, now)
        except Refused as refused:
            client.count_publish(partition, 0, 1, now)
            self._refuse_publish(refused)
            return
        client.count_publish(partition, len(publication.bodies), 0, now)
        if stored is not None:
            answer = stored if receipt else None
            client.responses.send_in_order(lambda: self._send_stored(command, answer))
            node.pump()

    def _respond_later(
        self, command: Publish, receipt: bool
    ) -> Callable[[Receipt | Refused], None]:
        """Return what a partition calls when the follower that it waits for is back or given up."""
        client = self._client
        respond = client.respond_later()

        def done(result: Receipt | Refused) -> None:
            if isinstance(result, Refused):
                respond(lambda: client.session.send_error(result.code, result.text))
            else:
                respond(lambda: self._send_stored(command, result if receipt else None))

        return done

    def _send_stored(self, command: Publish, receipt: Receipt | None) -> None:
        session = self._client.session
        if receipt is None:
            session.send_response()
        elif isinstance(command, MpubTrace):
            # nsqd reports the first message, without its trace id, and the size of all.
            session.send_receipt(Receipt(receipt.internal_id, 0, receipt.offset, receipt.size))
        else:
            session.send_receipt(receipt)

    def _find(self, command: Publish, number: int | None) -> Partition:
        node = self._node
        partition = node.cluster.find(node.number, command.topic, number)
        if number is None and partition.meta.ordered:
            raise Refused("E_BAD_PARTITION", "topic partition is not valid for multi partition: -1")
        return partition

    @staticmethod
    def _read_headers(partition: Partition, headers: bytes) -> int | None:
        """Return the trace id; raise ``Refused`` for headers that nsqd does not take."""
        if partition.meta.extend_support:
            try:
                return trace_id_of(headers)
            except InvalidHeaders as error:
                text = f"fail to parse json header:{error}"
                raise Refused("E_INVALID_JSON_HEADER", text) from None
            except InvalidTraceId as error:
                raise Refused("INVALID_TRACE_ID", str(error)) from None
        text = f"ext content not supported in topic {partition.topic}"
        raise Refused("E_EXT_NOT_SUPPORT", text)

    def _refuse_publish(self, refused: Refused) -> None:
        client = self._client
        if refused.code in _CLOSING:
            client.fail(refused.code, refused.text)
        else:
            client.responses.send_in_order(
                lambda: client.session.send_error(refused.code, refused.text)
            )

    def _fail_unread(self, command: Any) -> None:
        self._client.fail("E_INVALID", "invalid command [[0]]")

    # Subscribing

    def _sub(self, command: Sub) -> None:
        client, node = self._client, self._node
        if not client.settings.heartbeat_interval:  # set by an IDENTIFY before the last one
            client.fail("E_INVALID", "cannot SUB with heartbeats disabled")
            return
        ordered = command.kind is SubscribeMode.ORDERED
        # With a start nsqd ignores the partition.
        number = None if command.start is not None else command.partition
        try:
            partition = node.cluster.find(node.number, command.topic, number)
            self._check_subscription(partition, command, ordered)
            # Checked before the channel exists, but a seek needs it to.
            start = None if command.start is None else _position(partition, command.start)
        except Refused as refused:
            client.fail(refused.code, refused.text)
            return
        existed = command.channel in partition.channels
        channel = partition.channel(command.channel)
        if start is not None and not channel.subscribers:
            channel.move(start)
        subscriber = self._make_subscriber(partition, command)
        channel.add(subscriber)
        if ordered:
            # nsqd has read the first message ahead, and reads it again.
            channel.order(True, repeats=int(existed and node.cluster.hazards.repeat_messages))
        self._partition, self._log_channel = partition, channel
        self._subscribe(channel, subscriber)

    def _check_subscription(self, partition: Partition, command: Sub, ordered: bool) -> None:
        node, meta = self._node, partition.meta
        extended = bool(self._client.session.identify.extend_support)
        if meta.ordered and not ordered:
            text = "this topic is configured only allow ordered sub"
            raise Refused("E_SUB_ORDER_IS_MUST", text)
        if meta.extend_support and not extended:
            text = "this topic is extended and should identify as extend support."
            raise Refused("E_SUB_EXTEND_NEED", text)
        if extended and not meta.extend_support:
            text = "this topic is not extended and should not identify as extend support."
            raise Refused("E_SUB_EXTEND_FORBIDDON", text)
        node.cluster.check_leader(node.number, partition)
        if meta.disable_channel_auto_create and command.channel not in partition.channels:
            text = "channel is not registered under topic."
            raise Refused("E_SUB_CHANNEL_NOT_REGISTERED", text)

    def _make_subscriber(self, partition: Partition, command: Sub) -> PartitionSubscriber:
        client, identify = self._client, self._client.session.identify
        extended = partition.meta.extend_support
        subscriber = PartitionSubscriber(
            client,
            round(client.settings.msg_timeout * 10**9),
            client_id=self._node.next_client_id(),
            sample_rate=client.settings.sample_rate,
            positioned=command.kind is not SubscribeMode.PLAIN,
            tag=identify.desired_tag or "" if extended else "",
            filter=make_filter(identify.ext_filter) if extended else None,
        )
        subscriber.blocked = True
        return subscriber

    def _nop(self, command: Nop) -> None:
        # nsqd tries to read on with each heartbeat.
        if self._log_channel is not None:
            self._log_channel.wake()
            self._node.pump()


def _position(partition: Partition, text: str) -> int:
    try:
        return find_position(partition.log, *parse_position(text))
    except (InvalidPosition, NoSuchPosition) as error:
        raise Refused("E_INVALID", str(error)) from None
