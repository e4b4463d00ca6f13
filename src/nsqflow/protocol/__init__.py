"""The NSQ protocol: decodes and encodes it, without sockets or a clock.

It has both sides of both dialects: ``ClientSession`` and ``ServerSession`` for the protocol between
clients and nsqd, ``PeerSession`` and ``LookupSession`` for the one between nsqd and
nsqlookupd, ``parse_lookup`` for the answers of nsqlookupd over HTTP.

The names below are all that other code imports from here.
"""

from nsqflow.protocol.body_decoder import Limits as Limits
from nsqflow.protocol.client_session import ClientSession as ClientSession
from nsqflow.protocol.client_session import ClientState as ClientState
from nsqflow.protocol.columns import Columns as Columns
from nsqflow.protocol.commands import MAGIC_V2 as MAGIC_V2
from nsqflow.protocol.commands import Auth as Auth
from nsqflow.protocol.commands import Cls as Cls
from nsqflow.protocol.commands import Command as Command
from nsqflow.protocol.commands import Fin as Fin
from nsqflow.protocol.commands import Fins as Fins
from nsqflow.protocol.commands import Identify as Identify
from nsqflow.protocol.commands import Nop as Nop
from nsqflow.protocol.commands import Rdy as Rdy
from nsqflow.protocol.commands import Req as Req
from nsqflow.protocol.commands import Sub as Sub
from nsqflow.protocol.commands import SubscribeMode as SubscribeMode
from nsqflow.protocol.commands import Touch as Touch
from nsqflow.protocol.dialect import Dialect as Dialect
from nsqflow.protocol.events import AnswerFailed as AnswerFailed
from nsqflow.protocol.events import Authenticated as Authenticated
from nsqflow.protocol.events import CloseWait as CloseWait
from nsqflow.protocol.events import CommandFailed as CommandFailed
from nsqflow.protocol.events import CompressionRefused as CompressionRefused
from nsqflow.protocol.events import CompressionStarted as CompressionStarted
from nsqflow.protocol.events import Connected as Connected
from nsqflow.protocol.events import Event as Event
from nsqflow.protocol.events import Heartbeat as Heartbeat
from nsqflow.protocol.events import Published as Published
from nsqflow.protocol.events import StartTls as StartTls
from nsqflow.protocol.events import Subscribed as Subscribed
from nsqflow.protocol.events import TlsStarted as TlsStarted
from nsqflow.protocol.frames import FrameType as FrameType
from nsqflow.protocol.frames import encode_frame as encode_frame
from nsqflow.protocol.identify import AuthReply as AuthReply
from nsqflow.protocol.identify import IdentifyReply as IdentifyReply
from nsqflow.protocol.identify import IdentifyRequest as IdentifyRequest
from nsqflow.protocol.lookup import ACCEPT_V1 as ACCEPT_V1
from nsqflow.protocol.lookup import LookupAnswer as LookupAnswer
from nsqflow.protocol.lookup import LookupdNode as LookupdNode
from nsqflow.protocol.lookup import Node as Node
from nsqflow.protocol.lookup import TopicMeta as TopicMeta
from nsqflow.protocol.lookup import parse_listlookup as parse_listlookup
from nsqflow.protocol.lookup import parse_lookup as parse_lookup
from nsqflow.protocol.messages import Layout as Layout
from nsqflow.protocol.messages import Message as Message
from nsqflow.protocol.messages import MessageBatch as MessageBatch
from nsqflow.protocol.messages import Receipt as Receipt
from nsqflow.protocol.messages import encode_fins as encode_fins
from nsqflow.protocol.messages import encode_messages as encode_messages
from nsqflow.protocol.messages import encode_packed_fins as encode_packed_fins
from nsqflow.protocol.messages import encode_reqs as encode_reqs
from nsqflow.protocol.messages import encode_touches as encode_touches
from nsqflow.protocol.messages import message_id as message_id
from nsqflow.protocol.names import check_channel as check_channel
from nsqflow.protocol.names import check_topic as check_topic
from nsqflow.protocol.names import is_ephemeral as is_ephemeral
from nsqflow.protocol.names import is_valid_name as is_valid_name
from nsqflow.protocol.publish import Dpub as Dpub
from nsqflow.protocol.publish import Mpub as Mpub
from nsqflow.protocol.publish import MpubExt as MpubExt
from nsqflow.protocol.publish import MpubTrace as MpubTrace
from nsqflow.protocol.publish import Pub as Pub
from nsqflow.protocol.publish import PubExt as PubExt
from nsqflow.protocol.publish import Publish as Publish
from nsqflow.protocol.publish import PubTrace as PubTrace
from nsqflow.protocol.registration import MAGIC_V1 as MAGIC_V1
from nsqflow.protocol.registration import LookupSession as LookupSession
from nsqflow.protocol.registration import Peer as Peer
from nsqflow.protocol.registration import PeerCommand as PeerCommand
from nsqflow.protocol.registration import PeerIdentify as PeerIdentify
from nsqflow.protocol.registration import PeerReply as PeerReply
from nsqflow.protocol.registration import PeerSession as PeerSession
from nsqflow.protocol.registration import Ping as Ping
from nsqflow.protocol.registration import Register as Register
from nsqflow.protocol.registration import Unregister as Unregister
from nsqflow.protocol.server_session import ServerSession as ServerSession
from nsqflow.protocol.server_session import ServerState as ServerState
