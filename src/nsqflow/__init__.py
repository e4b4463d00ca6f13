"""NSQ for Python and Spark.

Importing this package is cheap: a public name loads its module when it is first used, so the
client never pays for the broker, nor either of them for Spark.
"""

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0.dev0"  # the one place; the build reads it from here

__all__ = [
    "ConfigError",
    "DiscoveryError",
    "LocalProtocolError",
    "NetworkError",
    "NsqError",
    "OrderViolation",
    "ProtocolError",
    "PublishUncertain",
    "RemoteProtocolError",
    "RequestTimeout",
    "ServerError",
]

if TYPE_CHECKING:
    from nsqflow.errors import (
        ConfigError,
        DiscoveryError,
        LocalProtocolError,
        NetworkError,
        NsqError,
        OrderViolation,
        ProtocolError,
        PublishUncertain,
        RemoteProtocolError,
        RequestTimeout,
        ServerError,
    )
else:
    # Hidden from type checkers: to them a module with __getattr__ has every name one can mistype.

    _MODULE_OF = {
        "ConfigError": "nsqflow.errors",
        "DiscoveryError": "nsqflow.errors",
        "LocalProtocolError": "nsqflow.errors",
        "NetworkError": "nsqflow.errors",
        "NsqError": "nsqflow.errors",
        "OrderViolation": "nsqflow.errors",
        "ProtocolError": "nsqflow.errors",
        "PublishUncertain": "nsqflow.errors",
        "RemoteProtocolError": "nsqflow.errors",
        "RequestTimeout": "nsqflow.errors",
        "ServerError": "nsqflow.errors",
    }

    def __getattr__(name):
        if name not in _MODULE_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(_MODULE_OF[name]), name)
        globals()[name] = value  # from now on Python finds it without asking here
        return value

    def __dir__():
        return sorted({*globals(), *_MODULE_OF})
