"""The command ``nsqflow``: a verb and what belongs to it."""

from __future__ import annotations

import sys
from collections.abc import Sequence

_HELP = """\
Usage: nsqflow VERB ...

  nsqd         a broker, for one machine; takes the flags of nsqd
  nsqlookupd   its directory; takes the flags of nsqlookupd

  nsqflow VERB -help   tells the flags
  nsqflow --version    tells the version
"""
_VERBS = ("nsqd", "nsqlookupd")


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line says; gives the exit code."""
    verb, *rest = (sys.argv[1:] if arguments is None else arguments) or ["--help"]
    if verb in _VERBS:
        return _run(verb, rest)
    if verb in ("-h", "-help", "--help", "help"):
        print(_HELP, end="")
        return 0
    if verb in ("-version", "--version"):
        from nsqflow import __version__

        print(f"nsqflow {__version__}")
        return 0
    return _unknown(verb)


def _run(verb: str, arguments: Sequence[str]) -> int:
    try:
        from nsqflow.broker import process

        return (process.run_nsqd if verb == "nsqd" else process.run_nsqlookupd)(arguments)
    except KeyboardInterrupt:  # before it had begun to listen for signals
        return 130


def _unknown(verb: str) -> int:
    from difflib import get_close_matches

    near = get_close_matches(verb, _VERBS, 1)
    hint = f"did you mean {near[0]}?" if near else f"there are {' and '.join(_VERBS)}"
    print(f"nsqflow: no verb {verb!r}; {hint}", file=sys.stderr)
    return 2
