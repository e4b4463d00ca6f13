"""nsqlookupd: tracks which nsqd has which topic."""

from nsqflow.broker.lookupd.daemon import Nsqlookupd

__all__ = ["Nsqlookupd"]
