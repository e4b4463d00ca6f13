"""The typer app; each verb is a function in its own module, imported when the verb is run."""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import typer
from typer.main import get_command

from nsqflow.cli import DAEMONS, VERBS
from nsqflow.cli.errors import USAGE_ERROR, handle_errors, without_internals
from nsqflow.cli.terminal import escape, print_err, quote_lines

_MODULES = {
    **dict.fromkeys(("topics", "channels", "nodes"), "lists"),
    **dict.fromkeys(("delete", "pause", "unpause", "empty"), "manage"),
    "move-leader": "move_leader",
    "recover": "spool_recover",
}
_GROUPS = {"spool": ("ls", "gc", "release", "recover")}
"""Verbs with verbs of their own, in the same module unless ``_MODULES`` says otherwise."""


def run(words: list[str]) -> int:
    """Run a command line that starts with the verb; return the exit code."""
    words, debug = _take_debug(words)
    app = _make_app()
    _add(app, words[0], debug=debug)
    try:
        with _logging(debug):
            return get_command(app).main(words, prog_name="nsqflow", standalone_mode=False) or 0
    except typer.TyperException as error:
        print_err(_misuse(error, words))
        return USAGE_ERROR


def complete(words: list[str]) -> int:
    """Complete a command line for the shell, or install the completion."""
    if words[0] == "--install-completion" and "_NSQFLOW_COMPLETE" not in os.environ:
        return _install(words[1:])
    if "COMP_WORDS" in os.environ:
        _rejoin_words()
    line = " ".join(os.environ.get(name, "") for name in ("COMP_WORDS", "_TYPER_COMPLETE_ARGS"))
    app = _make_app()
    for verb, text in VERBS.items():
        # Other verbs are only listed by name.
        if verb in line.split() and verb not in DAEMONS:
            _add(app, verb, debug=False)
        else:
            app.command(verb, help=text)(_nothing)
    return get_command(app).main(words, prog_name="nsqflow", standalone_mode=False) or 0


def _install(words: list[str]) -> int:
    # Imported late: completion has to be fast.
    from nsqflow.cli.completion_install import install

    rest, debug = _take_debug(words)
    return handle_errors(install, debug=debug)(rest)


def _rejoin_words() -> None:
    """Rejoin words that bash has split at colons and equals signs, as in host:port."""
    words, number = os.environ["COMP_WORDS"].split("\n"), int(os.environ.get("COMP_CWORD", 0))
    joined, position, open_ended = words[:1], number, False
    for index, word in enumerate(words[1:], 1):
        sign = word != "" and set(word) <= {":", "="}
        if sign or open_ended:
            joined[-1] += word
            position -= index <= number
        else:
            joined.append(word)
        open_ended = sign
    os.environ |= {"COMP_WORDS": "\n".join(joined), "COMP_CWORD": str(position)}


def _make_app(group: Callable[..., int | None] | None = None) -> typer.Typer:
    # No markup: importing rich would take longer than everything else.
    app = typer.Typer(
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    # Without it, an app of one verb would not have the verb's name.
    app.callback(help=group and _help(group))(_nothing)
    return app


def _add(app: typer.Typer, verb: str, *, debug: bool) -> None:
    # Imported late: completion has to be fast.
    from nsqflow.cli.cluster import with_server_options

    if verb in _GROUPS:
        group = _make_app(load(verb))
        for word in _GROUPS[verb]:
            _add_command(group, word, load(word, verb), debug=debug)
        app.add_typer(group, name=verb)
    else:
        _add_command(app, verb, with_server_options(load(verb)), debug=debug)


def _add_command(
    app: typer.Typer, name: str, verb: Callable[..., int | None], *, debug: bool
) -> None:
    function = handle_errors(verb, debug=debug)
    app.command(name, help=_help(function))(function)


def load(verb: str, group: str = "") -> Callable[..., int | None]:
    """Return the function of a verb, or of a verb of a group."""
    module = import_module(f"nsqflow.cli.{_MODULES.get(verb, group or verb)}")
    function: Callable[..., int | None] = getattr(module, verb.replace("-", "_"))
    return function


def _nothing() -> None:
    """Do nothing; typer needs a function that is never called."""


def _help(function: Callable[..., Any]) -> str:
    # The \b keeps typer from rewrapping the lines of the examples.
    return inspect.cleandoc(function.__doc__ or "").replace("\nExample:\n", "\n\b\nExample:\n")


def _take_debug(words: list[str]) -> tuple[list[str], bool]:
    """Remove --debug from anywhere on the command line; every verb accepts it."""
    end = words.index("--") if "--" in words else len(words)
    kept = [word for word in words[:end] if word != "--debug"]
    return kept + words[end:], len(kept) < end


def _misuse(error: typer.TyperException, words: list[str]) -> str:
    text = error.format_message().strip().rstrip(".")
    verb = " ".join(words[: 2 if words[1:2] and words[1] in _GROUPS.get(words[0], ()) else 1])
    return f"{text[:1].lower()}{text[1:]}; see nsqflow {verb} --help"


class _OneLine(logging.Formatter):
    """Escapes control characters: records quote what servers say."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  (logging's name)
        return escape(without_internals(super().formatMessage(record)))

    def formatException(self, ei: Any) -> str:  # noqa: N802  (logging's name)
        return quote_lines(super().formatException(ei))


@contextmanager
def _logging(debug: bool) -> Iterator[None]:
    """Print warnings like other messages; with debug, print everything."""
    root, handler = logging.getLogger(), logging.StreamHandler()
    form = "%(asctime)s %(levelname)s %(name)s: %(message)s" if debug else "nsqflow: %(message)s"
    handler.setFormatter(_OneLine(form))
    levels = {
        logging.getLogger("nsqflow"): logging.DEBUG if debug else logging.WARNING,
        # Its warnings about writes to closed sockets mean nothing to users.
        logging.getLogger("asyncio"): logging.WARNING if debug else logging.ERROR,
    }
    before = {logger: logger.level for logger in levels}
    for logger, level in levels.items():
        logger.setLevel(level)
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)
        for logger, level in before.items():
            logger.setLevel(level)
