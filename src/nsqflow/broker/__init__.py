"""NSQ in your process: for first steps, development and tests."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

__all__ = ["BackgroundBroker", "Broker"]

if TYPE_CHECKING:
    from nsqflow.broker.background import BackgroundBroker
    from nsqflow.broker.embedded import Broker
else:
    # Imported lazily: every pytest run loads the plugin in this package.
    _MODULE_OF = {
        "BackgroundBroker": "nsqflow.broker.background",
        "Broker": "nsqflow.broker.embedded",
    }

    def __getattr__(name):
        if name not in _MODULE_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(_MODULE_OF[name]), name)
