"""``nsqflow --install-completion``: which files of the shell it changes, and how."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from typer._completion_shared import _get_shell_name, get_completion_script

from nsqflow.cli.errors import FAILED, OK, USAGE_ERROR, CommandError
from nsqflow.cli.manage import confirm
from nsqflow.cli.terminal import count, escape, print_err

SHELLS = ("bash", "zsh", "fish")

_USAGE = "nsqflow --install-completion [bash|zsh|fish] [--yes]"
_ZSH_LINE = "fpath+=~/.zfunc; autoload -Uz compinit; compinit"


@dataclass(frozen=True, slots=True)
class Edit:
    """A change to one file."""

    path: Path
    text: str
    appends: bool = False
    """Whether ``text`` is appended; otherwise it replaces the whole file."""

    @property
    def is_done(self) -> bool:
        """Whether the file already contains the change."""
        try:
            present = self.path.read_text()
        except (FileNotFoundError, NotADirectoryError, UnicodeDecodeError):
            return False
        if self.appends:
            return self.text in present.splitlines()
        return present == self.text

    def apply(self) -> None:
        """Write the change to the file."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if not self.appends:
            self.path.write_text(self.text)
            return
        with self.path.open("a+b") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(size - 1, 0))
            line_is_open = size > 0 and file.read() != b"\n"
            file.write((b"\n" if line_is_open else b"") + self.text.encode() + b"\n")

    def describe(self, home: Path) -> list[str]:
        """Describe the change in a few lines."""
        name = _short(self.path, home)
        if self.appends:
            return [f"  {name}: add the line", f"      {self.text}"]
        verb = "replace" if self.path.exists() else "create"
        return [f"  {name}: {verb} it, {count(len(self.text.splitlines()), 'line')}"]


def plan(shell: str, home: Path, environment: Mapping[str, str]) -> list[Edit]:
    """Return the changes that make a shell complete nsqflow."""
    script = get_completion_script(
        prog_name="nsqflow", complete_var="_NSQFLOW_COMPLETE", shell=shell
    )
    if shell == "bash":
        path = home / ".bash_completions" / "nsqflow.sh"
        line = f"source {_quote(path)}"
        return [Edit(path, f"{script}\n"), Edit(home / ".bashrc", line, appends=True)]
    if shell == "zsh":
        start = Path(environment.get("ZDOTDIR") or home) / ".zshrc"
        return [
            Edit(home / ".zfunc" / "_nsqflow", f"{script}\n"),
            Edit(start, _ZSH_LINE, appends=True),
        ]
    config = Path(environment.get("XDG_CONFIG_HOME") or home / ".config")
    return [Edit(config / "fish" / "completions" / "nsqflow.fish", f"{script}\n")]


def install(words: list[str]) -> int:
    """Show the changes, ask, and apply them; return the exit code."""
    yes = bool({"--yes", "-y"} & {*words})
    named = [word for word in words if word not in ("--yes", "-y")]
    if len(named) > 1 or any(word.startswith("-") for word in named):
        raise CommandError(f"unknown arguments: {' '.join(named)}", _USAGE, USAGE_ERROR)
    shell = named[0] if named else _get_shell_name()
    if shell not in SHELLS:
        what = f"no completion for the shell {shell!r}" if shell else "the shell is unknown"
        raise CommandError(what, _USAGE, USAGE_ERROR)
    home = Path.home()
    edits = [edit for edit in plan(shell, home, os.environ) if not edit.is_done]
    if not edits:
        print(f"{shell} completes nsqflow already; nothing to change")
        return OK
    print(f"For {shell} to complete nsqflow, this changes:")
    for edit in edits:
        for line in edit.describe(home):
            print(escape(line), flush=True)
    if not confirm("Change it?" if len(edits) == 1 else "Change these files?", yes=yes):
        print_err("nothing was changed")
        return FAILED
    for edit in edits:
        edit.apply()
        print(f"{'added to' if edit.appends else 'wrote'} {escape(str(edit.path))}")
    print(f"New {shell} sessions complete nsqflow.")
    return OK


def _quote(path: Path) -> str:
    # Quoted as typer wrote it, which did this before, so that the line is not added twice.
    return shlex.quote(str(path)) if "'" in str(path) else f"'{path}'"


def _short(path: Path, home: Path) -> str:
    return f"~/{path.relative_to(home)}" if path.is_relative_to(home) else str(path)
