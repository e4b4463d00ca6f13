"""The requirements of the package's extras, for errors about missing packages."""

from __future__ import annotations

import re
from importlib import metadata

_OF_EXTRA = re.compile(r"""(?P<requirement>.*?)\s*;.*\bextra\s*==\s*['"](?P<extra>\w+)['"]""")


def install_hint(extra: str) -> str:
    """Return the command that installs what an extra needs, whichever way nsqflow was installed."""
    requirements = _requirements(extra)
    if not requirements:  # run from a source tree that was never installed
        return f"install nsqflow with its extra '{extra}'"
    return "pip install " + " ".join(f"'{each}'" for each in requirements)


def _requirements(extra: str) -> list[str]:
    try:
        required = metadata.requires("nsqflow") or []
    except metadata.PackageNotFoundError:
        return []
    matches = map(_OF_EXTRA.fullmatch, required)
    return [match["requirement"] for match in matches if match and match["extra"] == extra]
