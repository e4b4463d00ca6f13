"""What the daemons print of their version: tools read it."""

from __future__ import annotations

import re
import subprocess
from typing import Literal

import pytest

from tests.fixtures.servers import PATIENCE, Kind, command_of

FORM = r"{} v(\d+)\.(\d+)\.(\d+)(-\w+)? \(built w/[a-z]+[\d.]+\)\n"


@pytest.mark.parametrize("flag", ["-version", "--version"])
@pytest.mark.parametrize("program", ["nsqd", "nsqlookupd"])
def test_a_daemon_prints_its_version(
    server_kind: Kind, program: Literal["nsqd", "nsqlookupd"], flag: str
) -> None:
    command = [*command_of(program, server_kind), flag]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    match = re.fullmatch(FORM.format(program), done.stdout)
    assert match is not None, done.stdout
    assert match.groups()[:3] == ("1", "3", "0")
