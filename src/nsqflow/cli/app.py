"""The verbs as typer knows them: each is a function of its module, loaded when it is called."""

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
from nsqflow.cli.errors import MISUSED, guarded, plain
from nsqflow.cli.screen import clean, note

_MODULES = {
    **dict.fromkeys(("topics", "channels", "nodes"), "lists"),
    **dict.fromkeys(("create", "delete", "pause", "unpause", "empty"), "changes"),
}


def run(words: list[str]) -> int:
    """Run a command line, whose first word is the verb; gives the exit code."""
    words, debug = _take_debug(words)
    app = _make_app()
    _add(app, words[0], debug=debug)
    try:
        with _logging(debug):
            return get_command(app).main(words, prog_name="nsqflow", standalone_mode=False) or 0
    except typer.TyperException as error:
        note(_misuse(error, words[0]))
        return MISUSED


def complete(words: list[str]) -> int:
    """Do what the shell asks for: complete a command line, or install what asks for that."""
    if "COMP_WORDS" in os.environ:
        _rejoin_words()
    said = " ".join(os.environ.get(name, "") for name in ("COMP_WORDS", "_TYPER_COMPLETE_ARGS"))
    app = _make_app()
    for verb, text in VERBS.items():
        # Of a verb that is not on the line, its name is all that is needed.
        if verb in said.split() and verb not in DAEMONS:
            _add(app, verb, debug=False)
        else:
            app.command(verb, help=text)(_nothing)
    return get_command(app).main(words, prog_name="nsqflow", standalone_mode=False) or 0


def _rejoin_words() -> None:
    """Put together what bash takes apart: an address is three words to it, one of them a colon."""
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


def _make_app() -> typer.Typer:
    # No markup: loading rich for a page of help takes longer than all the rest.
    app = typer.Typer(
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_nothing)  # without it, an app of one verb would not have the verb's name
    return app


def _add(app: typer.Typer, verb: str, *, debug: bool) -> None:
    function = load(verb)
    app.command(verb, help=_help(function))(guarded(function, debug=debug))


def load(verb: str) -> Callable[..., int | None]:
    """Give the function of a verb."""
    module = import_module(f"nsqflow.cli.{_MODULES.get(verb, verb)}")
    function: Callable[..., int | None] = getattr(module, verb)
    return function


def _nothing() -> None:
    """Do nothing: what has to be there and is never run."""


def _help(function: Callable[..., Any]) -> str:
    # The mark that keeps typer from filling the lines of the examples into a paragraph.
    return inspect.cleandoc(function.__doc__ or "").replace("\nExample:\n", "\n\b\nExample:\n")


def _take_debug(words: list[str]) -> tuple[list[str], bool]:
    """Take --debug off, wherever it stands: it is thought of last, and belongs to every verb."""
    end = words.index("--") if "--" in words else len(words)
    kept = [word for word in words[:end] if word != "--debug"]
    return kept + words[end:], len(kept) < end


def _misuse(error: typer.TyperException, verb: str) -> str:
    text = error.format_message().strip().rstrip(".")
    return f"{text[:1].lower()}{text[1:]}; see nsqflow {verb} --help"


class _OneLine(logging.Formatter):
    """What servers say is in it: it must not begin a line of its own, nor talk to a terminal."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  (logging's name)
        return clean(plain(super().formatMessage(record)))


@contextmanager
def _logging(debug: bool) -> Iterator[None]:
    """Show warnings as what else we say; with --debug all there is."""
    root, handler = logging.getLogger(), logging.StreamHandler()
    form = "%(asctime)s %(levelname)s %(name)s: %(message)s" if debug else "nsqflow: %(message)s"
    handler.setFormatter(_OneLine(form))
    levels = {
        logging.getLogger("nsqflow"): logging.DEBUG if debug else logging.WARNING,
        # It warns of sockets that were written to once more; that is for programmers.
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
