"""The command ``nsqflow``: parses the verb and runs it.

Help, the version and the daemons are handled here without loading typer; app.py has the rest.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

SECTIONS = {
    "Messages": {
        "pub": "publish arguments, or the lines of a file or stdin",
        "tail": "show the messages of topics as they arrive",
        "browse": "show the messages that a topic keeps (redesigned NSQ)",
    },
    "The cluster": {
        "stat": "depth, in flight, deferred, rates and clients of every channel, live",
        "topics": "list the topics",
        "channels": "list the channels of a topic",
        "nodes": "list the nsqd, and the partitions that they lead",
        "create": "create a topic or a channel",
        "delete": "delete a topic or a channel, with all its messages",
        "pause": "stop delivery from a topic or a channel",
        "unpause": "resume delivery",
        "empty": "drop the messages of a topic or a channel",
        "move-leader": "let another nsqd lead a partition (redesigned NSQ)",
        "seek": "move a channel back or forward in time (redesigned NSQ)",
        "unblock": "skip the message that blocks an ordered channel (redesigned NSQ)",
        "doctor": "diagnose servers, Java and Spark, and suggest fixes",
    },
    "Pipelines on Spark": {
        "run": "run a pipeline file",
        "spool": "list and clean the spools of queries, and recover rows",
        "demo": "run everything on this machine and account for every message",
    },
    "NSQ on this machine": {
        "broker": "nsqd and nsqlookupd in one process",
        "nsqd": "nsqd alone; takes the flags of the original",
        "nsqlookupd": "nsqlookupd alone; takes the flags of the original",
    },
}
VERBS = {verb: text for section in SECTIONS.values() for verb, text in section.items()}
DAEMONS = ("nsqd", "nsqlookupd")
COMPLETION = ("--install-completion", "--show-completion")

_FOOT = """
  nsqflow VERB --help             shows the options of a verb, with examples
  nsqflow VERB ... --debug        shows tracebacks and logs
  nsqflow --version               shows the version
  nsqflow --install-completion    makes the shell complete verbs, options and topics
"""
_EXAMPLES = {
    "nsqd": "nsqflow nsqd --lookupd-tcp-address=127.0.0.1:4160 --data-path=.",
    "nsqlookupd": "nsqflow nsqlookupd --http-address=127.0.0.1:4161",
}
_HELP = ("-h", "-help", "--help")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    _replace_closed_streams()
    words = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    if words[0] == "--debug":
        words = [*words[1:2], "--debug", *words[2:]]
    if words[0] == "help" and words[1:2]:
        words = [words[1], "--help"]
    verb = words[0]
    if "_NSQFLOW_COMPLETE" in os.environ or verb in COMPLETION:
        return _app(words, completing=True)
    if verb in DAEMONS:
        return _daemon(verb, words[1:])
    if verb in VERBS:
        return _app(words)
    if verb in (*_HELP, "help"):
        print(_help(), end="")
        return 0
    if verb in ("-version", "--version"):
        from nsqflow import __version__

        print(f"nsqflow {__version__}")
        return 0
    return _unknown(verb, words[1:])


def _replace_closed_streams() -> None:
    """Replace a missing stdin, stdout or stderr by /dev/null, as under cron.

    Otherwise the first file or socket that is opened would take its descriptor.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115  (as long as we run)


def _help() -> str:
    lines = ["Usage: nsqflow VERB ...\n"]
    for title, verbs in SECTIONS.items():
        lines += [f"\n{title}:\n", *(f"  {verb:<12} {text}\n" for verb, text in verbs.items())]
    return "".join(lines) + _FOOT


def _app(words: list[str], *, completing: bool = False) -> int:
    try:
        from nsqflow.cli import app

        return app.complete(words) if completing else app.run(words)
    except KeyboardInterrupt:  # before the verb had begun
        return 130
    except ModuleNotFoundError as error:
        if error.name != "typer":
            raise
        from nsqflow.extras import install_hint

        print(f"nsqflow: {words[0]} needs typer: {install_hint('cli')}", file=sys.stderr)
        return 1


def _daemon(verb: str, arguments: list[str]) -> int:
    try:
        from nsqflow.broker import process

        code = (process.run_nsqd if verb == "nsqd" else process.run_nsqlookupd)(arguments)
    except KeyboardInterrupt:  # before it had begun to listen for signals
        return 130
    if code == 0 and not {*_HELP}.isdisjoint(arguments):
        print(f"\nExample:\n  $ {_EXAMPLES[verb]}")
    return code


def _unknown(verb: str, following: list[str]) -> int:
    from nsqflow.config.options import did_you_mean

    meant = next((word for word in following if word in VERBS), None)
    if verb.startswith("-") and meant:
        hint = f"options follow the verb: nsqflow {meant} ... {verb} ..."
    else:
        known = (*VERBS, "--help", "--version", *COMPLETION)
        hint = did_you_mean(verb, known) or "nsqflow --help lists all"
    kind = "option" if verb.startswith("-") else "verb"
    print(f"nsqflow: unknown {kind} {verb!r}; {hint}", file=sys.stderr)
    return 2
