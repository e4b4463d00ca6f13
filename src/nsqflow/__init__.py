"""NSQ for Python and Spark.

Importing this package is cheap: a public name loads its module when it is first used, so the
client never pays for the broker, nor either of them for Spark.
"""

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0.dev0"  # the one place; the build reads it from here

__all__ = [
    "AdminError",
    "AuthDisabledError",
    "AuthError",
    "AuthFailedError",
    "AuthFirstError",
    "BadBodyError",
    "BadChannelError",
    "BadMessageError",
    "BadPartitionError",
    "BadProtocolError",
    "BadTopicError",
    "Batch",
    "BlockedMessageError",
    "BufferFullError",
    "ChannelNotRegisteredError",
    "ClientEvent",
    "ConfigError",
    "Consumer",
    "ConsumerStats",
    "DataLossError",
    "DeferredPublishFailedError",
    "DiscoveryError",
    "DrainResult",
    "ExtNotSupportedError",
    "ExtendForbiddenError",
    "ExtendNeededError",
    "FinishFailedError",
    "HeaderFilter",
    "IdentifyFailedError",
    "InvalidCommandError",
    "InvalidHeaderError",
    "InvalidTraceIdError",
    "JavaStartError",
    "LocalProtocolError",
    "Message",
    "MultiPublishFailedError",
    "NetworkError",
    "NoResponseError",
    "NotLeaderError",
    "NotWritableError",
    "NsqError",
    "OrderViolation",
    "OrderedSubscribeRequiredError",
    "PipelineFailed",
    "PrecedingPublishFailed",
    "Producer",
    "ProtocolError",
    "PublishFailedError",
    "PublishUncertain",
    "Ranges",
    "Receipt",
    "RemoteProtocolError",
    "RequestTimeout",
    "RequeueFailedError",
    "ServerError",
    "SourceInUseError",
    "SparkError",
    "SparkExitedError",
    "SpoolError",
    "StorageError",
    "SubscribeFailedError",
    "TlsNotGrantedError",
    "TooMuchWaitingError",
    "TopicNotExistError",
    "TouchFailedError",
    "UnauthorizedError",
    "run",
]

if TYPE_CHECKING:
    from nsqflow.client.consumer.batch import Batch
    from nsqflow.client.consumer.consumer import Consumer
    from nsqflow.client.consumer.stats import ConsumerStats, DrainResult
    from nsqflow.client.events import ClientEvent
    from nsqflow.client.header_filter import HeaderFilter
    from nsqflow.client.message import Message
    from nsqflow.client.producer.producer import Producer
    from nsqflow.client.run import run
    from nsqflow.errors import *
    from nsqflow.protocol.messages import Receipt
else:
    # Hidden from type checkers: to them a module with __getattr__ has every name one can mistype.

    _MODULE_OF = dict.fromkeys(__all__, "nsqflow.errors") | {
        "Batch": "nsqflow.client.consumer.batch",
        "Consumer": "nsqflow.client.consumer.consumer",
        "ConsumerStats": "nsqflow.client.consumer.stats",
        "DrainResult": "nsqflow.client.consumer.stats",
        "Message": "nsqflow.client.message",
        "ClientEvent": "nsqflow.client.events",
        "HeaderFilter": "nsqflow.client.header_filter",
        "Producer": "nsqflow.client.producer.producer",
        "Receipt": "nsqflow.protocol.messages",
        "run": "nsqflow.client.run",
    }

    def __getattr__(name):
        if name not in _MODULE_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(_MODULE_OF[name]), name)
        globals()[name] = value  # from now on Python finds it without asking here
        return value

    def __dir__():
        return sorted({*globals(), *_MODULE_OF})
