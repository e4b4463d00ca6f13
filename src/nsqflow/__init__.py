"""NSQ for Python and Spark.

Importing this package is cheap: a public name loads its module when it is first used, so the
client never pays for the broker, nor either of them for Spark.
"""

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0.dev0"  # the one place; the build reads it from here

__all__ = [
    "Batch",
    "ConfigError",
    "Consumer",
    "ConsumerStats",
    "DiscoveryError",
    "Drained",
    "LocalProtocolError",
    "Message",
    "NetworkError",
    "News",
    "NsqError",
    "OrderViolation",
    "Producer",
    "ProtocolError",
    "PublishUncertain",
    "Ranges",
    "RemoteProtocolError",
    "RequestTimeout",
    "ServerError",
    "run",
]

if TYPE_CHECKING:
    from nsqflow.client.batch import Batch
    from nsqflow.client.consumer import Consumer
    from nsqflow.client.message import Message
    from nsqflow.client.news import News
    from nsqflow.client.producer import Producer
    from nsqflow.client.running import run
    from nsqflow.client.stats import ConsumerStats, Drained
    from nsqflow.errors import (
        ConfigError,
        DiscoveryError,
        LocalProtocolError,
        NetworkError,
        NsqError,
        OrderViolation,
        ProtocolError,
        PublishUncertain,
        Ranges,
        RemoteProtocolError,
        RequestTimeout,
        ServerError,
    )
else:
    # Hidden from type checkers: to them a module with __getattr__ has every name one can mistype.

    _MODULE_OF = {
        "Batch": "nsqflow.client.batch",
        "ConfigError": "nsqflow.errors",
        "Consumer": "nsqflow.client.consumer",
        "ConsumerStats": "nsqflow.client.stats",
        "DiscoveryError": "nsqflow.errors",
        "Drained": "nsqflow.client.stats",
        "LocalProtocolError": "nsqflow.errors",
        "Message": "nsqflow.client.message",
        "NetworkError": "nsqflow.errors",
        "News": "nsqflow.client.news",
        "NsqError": "nsqflow.errors",
        "OrderViolation": "nsqflow.errors",
        "Producer": "nsqflow.client.producer",
        "ProtocolError": "nsqflow.errors",
        "PublishUncertain": "nsqflow.errors",
        "Ranges": "nsqflow.errors",
        "RemoteProtocolError": "nsqflow.errors",
        "RequestTimeout": "nsqflow.errors",
        "ServerError": "nsqflow.errors",
        "run": "nsqflow.client.running",
    }

    def __getattr__(name):
        if name not in _MODULE_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(_MODULE_OF[name]), name)
        globals()[name] = value  # from now on Python finds it without asking here
        return value

    def __dir__():
        return sorted({*globals(), *_MODULE_OF})
