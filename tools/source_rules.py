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
from typing import TypeGuard

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

_SELF = ("self", "cls", "super()")
_BY_NAME = ("getattr", "setattr", "hasattr", "delattr", "attrgetter", "methodcaller")

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
    """Yield private names that a module uses and no class of it defines.

    Those of ``self`` are its own, or inherited. A module in ``FOREIGN_PRIVATE_NAMES`` may use those
    of a library, but import none of this package.
    """
    own = set(_defined_in_classes(tree))
    for node in ast.walk(tree):
        line = getattr(node, "lineno", 0)
        for module, private in _private_imports(node):
            if module.startswith("nsqflow.") or name not in FOREIGN_PRIVATE_NAMES:
                yield f"{name}:{line} imports {private} of {module}"
        if name in FOREIGN_PRIVATE_NAMES:
            continue
        for value, private in _private_uses(node):
            if private not in own and value not in _SELF:
                yield f"{name}:{line} uses {value}.{private}, which is private elsewhere"


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


def _defined_in_classes(tree: ast.Module) -> Iterator[str]:
    """Yield the names of methods and attributes that the classes of a module define."""
    for owner in ast.walk(tree):
        if not isinstance(owner, ast.ClassDef):
            continue
        for node in ast.walk(owner):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                yield node.name
            elif _is_stored(node) and ast.unparse(node.value) in _SELF:
                yield node.attr
        for statement in owner.body:
            targets = [n.id for n in ast.walk(statement) if _is_assigned(n)]
            yield from targets
            if targets == ["__slots__"]:
                constants = (n.value for n in ast.walk(statement) if isinstance(n, ast.Constant))
                yield from (value for value in constants if isinstance(value, str))


def _is_stored(node: ast.AST) -> TypeGuard[ast.Attribute]:
    return isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)


def _is_assigned(node: ast.AST) -> TypeGuard[ast.Name]:
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)


def _private_imports(node: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield the module and the name of each private name, or private module, that is imported."""
    if isinstance(node, ast.ImportFrom):
        module = "." * node.level + (node.module or "")
        names = [*module.split("."), *(alias.name for alias in node.names)]
        yield from ((module, name) for name in names if _is_private(name))
    elif isinstance(node, ast.Import):
        for alias in node.names:
            yield from ((alias.name, part) for part in alias.name.split(".") if _is_private(part))


def _private_uses(node: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield what a private attribute is read from, written to or matched on, and its name."""
    if isinstance(node, ast.Attribute) and _is_private(node.attr):
        yield ast.unparse(node.value), node.attr
    elif isinstance(node, ast.MatchClass):
        yield from ((ast.unparse(node.cls), n) for n in node.kwd_attrs if _is_private(n))
    elif isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in _BY_NAME:
        value = ast.unparse(node.args[0]) if len(node.args) > 1 else "..."
        texts = [n.value for n in node.args if isinstance(n, ast.Constant)]
        yield from ((value, n) for n in texts if isinstance(n, str) and _is_private(n))


def _is_private(name: str) -> bool:
    return name.startswith("_") and name.strip("_") != "" and not name.startswith("__")


if __name__ == "__main__":
    sys.exit(main())
