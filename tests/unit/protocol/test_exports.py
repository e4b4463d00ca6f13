"""The names that ``nsqflow.protocol`` gives to the rest of the package."""

import inspect
import pkgutil
from dataclasses import is_dataclass
from importlib import import_module

import pytest

from nsqflow import protocol

# What only the protocol itself uses.
MACHINERY = {
    "BatchBody",
    "Bodies",
    "CommandDecoder",
    "Compressor",
    "Decompressor",
    "DeflateCompressor",
    "DeflateDecompressor",
    "Deliverable",
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


def test_the_names_are_sorted_constants_first_then_classes_then_functions() -> None:
    def rank(name: str) -> tuple[bool, bool, str]:
        return not name.isupper(), name.islower(), name

    assert sorted(set(protocol.__all__), key=rank) == protocol.__all__


@pytest.mark.parametrize("name", protocol.__all__)
def test_every_name_is_there(name: str) -> None:
    assert getattr(protocol, name) is not None


def test_every_public_class_is_exported_or_known_as_machinery() -> None:
    classes = {
        name
        for module in MODULES
        for name, value in inspect.getmembers(module, inspect.isclass)
        if value.__module__ == module.__name__ and not name.startswith("_")
    }
    assert classes - {*protocol.__all__} == MACHINERY


def test_what_goes_over_the_wire_does_not_change_but_for_a_message() -> None:
    changing = {
        name
        for name, value in vars(protocol).items()
        if is_dataclass(value) and "__setattr__" not in vars(value)  # what frozen=True adds
    }
    assert changing == {"Message"}  # what is made a million times must be made fast


def test_nothing_is_exported_by_accident() -> None:
    public = {
        name
        for name, value in vars(protocol).items()
        if not name.startswith("_") and not inspect.ismodule(value)
    }
    assert public == {*protocol.__all__}
