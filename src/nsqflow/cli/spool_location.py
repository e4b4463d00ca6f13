"""The spool that a command line names, and the generations in it."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, TypeVar

import typer

from nsqflow.cli.coroutines import run_async, run_in_thread
from nsqflow.cli.errors import USAGE_ERROR, CommandError, without_internals
from nsqflow.cli.terminal import Cell, print_err, show_name, show_table
from nsqflow.config.options import did_you_mean
from nsqflow.errors import NsqError
from nsqflow.spark.spool.generation import GenerationKind
from nsqflow.spark.spool.inventory import Generation, SpoolInventory, read_inventory
from nsqflow.spark.spool.store import open_store

T = TypeVar("T")

HEADS = (
    *("generation", "kind", "state", "owner", "channel", "topics"),
    *("batches", "size", "uncommitted", "last used"),
)
_MAX_NAMED = 5  # names in a hint
_UNITS = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
_PERIODS = ((86_400, "d"), (3600, "h"), (60, "min"))


def _complete_generation(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the names that begin with ``incomplete``; none if there is no spool."""
    return _names(ctx, incomplete)


def _complete_read_id(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the named reads that begin with ``incomplete``, except what looks like an option."""
    return [name for name in _names(ctx, incomplete, named=True) if not name.startswith("-")]


def _names(ctx: typer.Context, incomplete: str, *, named: bool = False) -> list[str]:
    # Arguments before the one that has no value yet are not always parsed.
    location = ctx.params.get("location") or next(iter(ctx.args), "")
    try:
        # Other names are not those of generations, and a shell might expand them.
        found = open_store(_absolute(location)).names("")
    except Exception:  # whatever keeps it from being read, an error would only disturb the line
        return []
    kinds = {name: kind for name in found if (kind := GenerationKind.of(name)) is not None}
    if named:
        reads = [name for name, kind in kinds.items() if kind is GenerationKind.NAMED_READ]
        found = [Generation(name=name, kind=kinds[name]).read_id for name in reads]
    else:
        found = [*kinds]
    return [name for name in found if name.startswith(incomplete)]


LocationArgument = Annotated[
    str,
    typer.Argument(
        metavar="LOCATION",
        help="The spoolLocation of a query: a path, a file:// URL or s3://bucket/prefix.",
    ),
]
GenerationArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="[GENERATION]",
        help="One generation, by its name or the beginning of it.",
        autocompletion=_complete_generation,
        show_default=False,
    ),
]
GenerationsArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[GENERATION]...",
        help="Generations, by their names or the beginnings of them.",
        autocompletion=_complete_generation,
        show_default=False,
    ),
]
ReadIdArgument = Annotated[
    str,
    typer.Argument(
        metavar="READ_ID", help="The readId of the read.", autocompletion=_complete_read_id
    ),
]


class CliSpool:
    """A spool, as the command line names it."""

    def __init__(self, location: str) -> None:
        self.name = location
        self.store = open_store(_absolute(location))

    def inventory(self) -> SpoolInventory:
        """Return what it holds; raise ``CommandError`` if it is not a spool."""
        inventory = self.run(lambda: read_inventory(self.store), "reading")
        if not inventory.is_spool:
            hint = "is it the spoolLocation of a query that has started?"
            raise CommandError(f"{self.name} holds no spool", hint, USAGE_ERROR)
        return inventory

    def find(self, inventory: SpoolInventory, name: str) -> Generation:
        """Return the generation with this name; raise ``CommandError`` unless there is one."""
        found = inventory.find(name)
        if len(found) == 1:
            return found[0]
        if found:
            several = list_names(each.name for each in found)
            raise CommandError(f"generation {name!r} is ambiguous", f"there are {several}")
        hint = did_you_mean(name, (each.name for each in inventory.generations))
        hint = hint or f"{self.command('ls')} lists them"
        raise CommandError(f"there is no generation {name!r}", hint)

    def run(self, function: Callable[[], T], doing: str) -> T:
        """Call a function in a thread; ``doing`` and the spool are shown if it takes long."""
        return run_async(run_in_thread(function), f"{doing} {self.name}")

    def command(self, verb: str, *words: str) -> str:
        """Return a command for this spool, for a hint."""
        return shlex.join(["nsqflow", "spool", verb, self.name, *words])


@contextmanager
def open_spool(location: str) -> Iterator[CliSpool]:
    """Return the spool at a location; errors of S3 in the block name it."""
    try:
        yield CliSpool(location)
    except (NsqError, BrokenPipeError):
        raise
    except Exception as error:
        botocore = type(error).__module__.startswith("botocore.")
        if not location.lower().startswith("s3") or not (isinstance(error, OSError) or botocore):
            raise
        reason = " ".join(str(error).split()) or type(error).__name__
        raise CommandError(f"{location}: {without_internals(reason)}") from error


def _absolute(location: str) -> str:
    """Return a location with an absolute path; other kinds are left as they are."""
    if not location or location.startswith("/") or ":" in location.partition("/")[0]:
        return location
    return os.path.abspath(location)


def list_names(names: Iterable[str]) -> str:
    """Return names for a hint: the first ones."""
    listed = [*names]
    more = ", ..." if len(listed) > _MAX_NAMED else ""
    return ", ".join(listed[:_MAX_NAMED]) + more


def show_generations(generations: Iterable[Generation]) -> None:
    """Print a table of generations."""
    show_table(HEADS, [_row(generation) for generation in generations])


def _row(generation: Generation) -> list[Cell]:
    marker = generation.marker
    return [
        generation.short_name,
        generation.kind.value,
        generation.state.value,
        str(generation.owner) if generation.owner else None,
        show_name(marker.channel) if marker.channel else None,
        ", ".join(map(show_name, generation.topics)) or marker.pattern or None,
        len(generation.batches),
        show_bytes(generation.size),
        generation.uncommitted,
        None if generation.age is None else show_age(generation.age),
    ]


def describe(generation: Generation) -> dict[str, Any]:
    """Return a generation as an object of JSON."""
    owner, marker, age = generation.owner, generation.marker, generation.age
    used = None if age is None else datetime.now(UTC) - timedelta(seconds=age)
    return {
        "generation": generation.name,
        "kind": generation.kind.value,
        "state": generation.state.value,
        "owner": owner and {"host": owner.host, "pid": owner.pid, "since": owner.taken_at},
        "channel": marker.channel or None,
        "topics": list(generation.topics),
        "pattern": marker.pattern or None,
        "former_topics": list(marker.former_topics),
        "batches": len(generation.batches),
        "size": generation.size,
        "committed": generation.committed,
        "uncommitted": generation.uncommitted,
        "last_used": used and used.isoformat(timespec="seconds"),
    }


def print_problems(inventory: SpoolInventory) -> None:
    """Print what is damaged, and what is not of a spool, on stderr."""
    for generation in inventory.generations:
        for problem in generation.problems:
            print_err(problem)
    if inventory.foreign:
        print_err(f"not of a spool: {list_names(inventory.foreign)}")


def show_bytes(size: int) -> str:
    """Return a size for display, as in ``1.2 MB``."""
    for unit, name in _UNITS:
        if size >= unit:
            return f"{size / unit:,.1f} {name}"
    return f"{size} B"


def show_age(seconds: float) -> str:
    """Return how long ago something was, for display, as in ``3 h ago``."""
    for period, name in _PERIODS:
        if seconds >= period:
            return f"{seconds // period:,.0f} {name} ago"
    return f"{seconds:.0f} s ago"
