"""Command lines and config files, as the real daemons read them."""

import re
import subprocess
from typing import Any

import pytest

from nsqflow.broker.flags import Flags, nsqd_flags, nsqlookupd_flags
from tests.fixtures.servers import PATIENCE, find_server


def usage_of(text: str) -> dict[str, str]:
    """Return the flags in a usage text, with the kind of each value."""
    return dict(re.findall(r"^  -(\S+)(?: (\w+))?$", text, re.MULTILINE))


@pytest.mark.parametrize("flags", [nsqd_flags(), nsqlookupd_flags()], ids=lambda f: f.program)
def test_every_flag_of_the_real_daemon_is_known_and_of_the_same_kind(flags: Flags[Any]) -> None:
    command = [str(find_server(flags.program)), "-help"]
    text = subprocess.run(
        command, capture_output=True, text=True, timeout=PATIENCE, check=True
    ).stderr
    real, ours = usage_of(text), usage_of(flags.usage())
    assert "tcp-address" in real
    unlike = {name: (kind, ours.get(name)) for name, kind in real.items() if ours.get(name) != kind}
    # Flags without effect take any value, and a choice is called a value too.
    assert {name for name, kinds in unlike.items() if kinds[1] != "value"} == set()
    assert set(ours) - set(real) <= {"help", "max-memory", "allowed-host"}
