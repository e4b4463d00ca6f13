"""The names that ``nsqflow.protocol`` gives to the rest of the package."""

import inspect
import pkgutil
from dataclasses import is_dataclass
from importlib import import_module

from nsqflow import protocol

# What only the protocol itself uses.
MACHINERY = {
    "BatchBody",
    "Bodies",
    "CommandDecoder",
    "DeflateCompressor",
    "DeflateDecompressor",
    "MessageLike",
    "Frame",
    "FrameDecoder",
    "MessageRun",
    "ReceiveBuffer",
    "Session",
    "SingleBody",
    "SnappyCompressor",
    "SnappyDecompressor",
}

MODULES = [
    import_module(f"nsqflow.protocol.{module.name}")
    for module in pkgutil.iter_modules(protocol.__path__)
]


EXPORTED = {
    name
    for name, value in vars(protocol).items()
    if not name.startswith("_") and not inspect.ismodule(value)
}


def test_every_public_class_is_exported_or_known_as_machinery() -> None:
    classes = {
        name
        for module in MODULES
        for name, value in inspect.getmembers(module, inspect.isclass)
        if value.__module__ == module.__name__ and not name.startswith("_")
    }
    assert classes - EXPORTED == MACHINERY


def test_what_goes_over_the_wire_does_not_change_but_for_a_message() -> None:
    changing = {
        name
        for name, value in vars(protocol).items()
        if is_dataclass(value) and "__setattr__" not in vars(value)  # what frozen=True adds
    }
    assert changing == {"Message"}  # what is made a million times must be made fast
