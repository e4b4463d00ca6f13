"""What the broker says it is: the nsqd it behaves as, and that it is not that one."""

import sys

VERSION = "1.3.0+nsqflow"
"""For peers and clients, which compare it: in semver its precedence is that of 1.3.0."""

# For what reads the output of -version: a suffix that nsqd's own builds have (1.3.1-alpha).
_PRINTED = "1.3.0-nsqflow"


def describe(program: str) -> str:
    """Return what a daemon prints of itself, in the form of the real ones."""
    return f"{program} v{_PRINTED} (built w/python{sys.version.split()[0]})"
