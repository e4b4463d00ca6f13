"""The version that the broker reports: that of the nsqd it emulates, with a suffix."""

import sys

VERSION = "1.3.0+nsqflow"
"""For peers and clients, which compare versions: semver orders it like 1.3.0."""

REDESIGNED_VERSION = "0.3.7-HA.1.13.0+nsqflow"
"""Of a redesigned broker: clients recognize the dialect by its ``-HA``."""

# For programs that parse the output of -version: a suffix as in nsqd's own builds (1.3.1-alpha).
_PRINTED = "1.3.0-nsqflow"


def describe(program: str) -> str:
    """Return a daemon's version line, formatted like that of the real one."""
    return f"{program} v{_PRINTED} (built w/python{sys.version.split()[0]})"
