"""Rules of the source that ruff, mypy and import-linter do not know: ``./dev lint`` runs them.

- No module uses another module's private names; of Spark, asyncio and typer, only the modules
  that are named here.
- No module has more than 400 lines, none but those named here fewer than 60.
- No two classes have the same name.
- Prose, and the names and comments of tests, use plain words.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = "src/nsqflow"
MAX_LINES = 400
MIN_LINES = 60

# Modules that use private names of a library, each in one place.
FOREIGN_PRIVATE_NAMES = {
    "signals.py": "asyncio has no call that returns a loop's signal handlers",
    "spark/internals.py": "what pyspark has no public call for",
    "cli/completion_install.py": "typer has no public call for the shell's name",
}

# Modules that are short on purpose.
SHORT_MODULES = {
    "__main__.py": "python -m nsqflow",
    "broker/nsqd/fault_injection.py": "faults for tests, apart from what a daemon does",
    "broker/pytest_plugin.py": "imported by pytest for every user of the package",
    "broker/version.py": "one constant that both daemons report",
    "cli/doctor/finding.py": "what the checks of doctor return",
    "client/events.py": "the public event type and its callback, for both clients",
    "client/producer/retry.py": "the retry table, pure and apart from what acts on it",
    "config/go_regexp.py": "what differs between the regular expressions of Go and Python",
    "config/names.py": "keeps the protocol out of the daemons' flags",
    "extras.py": "imported by error paths only",
    "loopback.py": "keeps socket out of nsqflow.address, which the protocol imports",
    "transport/plaintext.py": "logs for both connections what the handshake, without I/O, must not",
    "pipelines/reachability.py": "the one part of pipelines that opens sockets",
}

# Classes that share a name on purpose.
SAME_NAMES = {
    "Consumer": "nsqflow.blocking has the same methods as nsqflow",
    "Producer": "nsqflow.blocking has the same methods as nsqflow",
    "Message": "what the consumer hands out, and what the protocol decodes",
}

PROSE = ("src", "docs", "examples", "benchmarks", "README.md", "CONTRIBUTING.md", "CHANGELOG.md")
WORDS = {
    r"whom": "the caller, the peer, the user",
    r"anew": "again",
    r"shall": "must, will",
    r"for ever": "forever",
    r"in hands?": "outstanding",
    r"so manieth": "number N",
    r"mend(?:s|ed|ing)?": "fix",
    r"parcels?": "batch",
    r"outlets?": "sender",
    r"despairs?": "unreachable",
    r"forsak(?:e|en|es)": "cancelled",
    r"be it that": "even if",
    r"nobody|somebody": "no task, another task, no user",
    r"everybody|whoever|whomever|himself": "the task, the user, every user",
    r"told|tells": "reported, printed, returned",
    r"so many|so much": "the parameter's name",
    r"all the same": "anyway",
    r"pass(?:es|ed)? over": "skip",
    r"of no use": "unusable, not needed",
    r"behead(?:ed|s)?": "remove the header",
    r"newsroom": "event emitter",
    r"shel(?:f|ves)": "queue",
}
# Words that only tests have used, in names and comments.
TEST_WORDS = {
    **WORDS,
    r"desk|books|crew|fleet|flood|hearsay": "subscription, ledger, workers, cluster, load",
    r"worn|bury|buried": "exhausted, dead-letter",
}
UNCHECKED = ("test_source_rules.py",)  # it has the words themselves
# The first word of a docstring says what the call does.
FIRST_WORDS = {
    "Tell": "Return, Report",
    "Tells": "Return, Report",
    "Gives": "Return",
    "Give": "Return",
}


def main() -> int:
    """Print what breaks a rule; return the exit code."""
    found = [
        *check_source(ROOT / SOURCE),
        *check_prose(files_of(ROOT, PROSE)),
        *check_prose(files_of(ROOT, ["tests"]), TEST_WORDS),
    ]
    for line in found:
        print(line)
    return 1 if found else 0


def files_of(root: Path, names: Iterable[str]) -> Iterator[Path]:
    """Yield the Python and Markdown files of folders, and single files."""
    for name in names:
        path = root / name
        found = sorted(path.rglob("*")) if path.is_dir() else [path]
        yield from (
            file for file in found if file.suffix in (".py", ".md") and file.name not in UNCHECKED
        )


def check_source(folder: Path) -> Iterator[str]:
    """Yield what breaks a rule in the modules of a package."""
    classes: dict[str, list[str]] = defaultdict(list)
    for path in sorted(folder.rglob("*.py")):
        name = path.relative_to(folder).as_posix()
        text = path.read_text()
        tree = ast.parse(text)
        yield from check_size(name, len(text.splitlines()))
        yield from check_private_names(name, tree)
        yield from check_docstrings(name, tree)
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                classes[node.name].append(name)
    for class_name, modules in sorted(classes.items()):
        if len(modules) > 1 and class_name not in SAME_NAMES:
            yield f"class {class_name} is defined in {', '.join(modules)}: one name, one class"


def check_size(name: str, lines: int) -> Iterator[str]:
    """Yield whether a module is too long or too short."""
    if lines > MAX_LINES:
        yield f"{name} has {lines} lines; at most {MAX_LINES}"
    if lines < MIN_LINES and not name.endswith("__init__.py") and name not in SHORT_MODULES:
        yield f"{name} has {lines} lines; at least {MIN_LINES}, or a reason in SHORT_MODULES"


def check_private_names(name: str, tree: ast.Module) -> Iterator[str]:
    """Yield private names that a module uses and does not define; those of ``self`` are its own."""
    if name in FOREIGN_PRIVATE_NAMES:
        return
    own = set(_defined_names(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if _is_private(alias.name):
                    yield f"{name}:{node.lineno} imports {alias.name} of {node.module}"
        elif isinstance(node, ast.Attribute) and _is_private(node.attr) and node.attr not in own:
            value = ast.unparse(node.value)
            if value not in ("self", "cls", "super()"):
                yield f"{name}:{node.lineno} uses {value}.{node.attr}, which is private elsewhere"


def check_docstrings(name: str, tree: ast.Module) -> Iterator[str]:
    """Yield docstrings that begin with a word that says nothing about the result."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            first = (ast.get_docstring(node) or "").partition(" ")[0]
            if first in FIRST_WORDS:
                yield f"{name}:{node.lineno} docstring begins with {first!r}: {FIRST_WORDS[first]}"


def check_prose(paths: Iterable[Path], words: Mapping[str, str] = WORDS) -> Iterator[str]:
    """Yield words for which there is a plainer one; those in names of Python count too."""
    pattern = re.compile(rf"\b(?:{'|'.join(f'({word})' for word in words)})\b", re.IGNORECASE)
    plainer = list(words.values())
    for path in paths:
        text = path.read_text()
        where = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path.name
        for match in pattern.finditer(text.replace("_", " ") if path.suffix == ".py" else text):
            number = text.count("\n", 0, match.start()) + 1
            assert match.lastindex is not None
            yield f"{where}:{number} says {match[0]!r}: {plainer[match.lastindex - 1]}"


def _defined_names(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value  # __slots__


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


if __name__ == "__main__":
    sys.exit(main())
