"""Which rows ``nsqflow spool recover`` is about, and what to know before they are used."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from nsqflow.cli.errors import USAGE_ERROR, CommandError
from nsqflow.cli.spool_location import CliSpool, list_names
from nsqflow.cli.terminal import count, print_err
from nsqflow.errors import ConfigError
from nsqflow.spark.spool.generation import GenerationKind
from nsqflow.spark.spool.inventory import Generation, SpooledPartition, SpoolInventory
from nsqflow.spark.spool.owners import GenerationState

if TYPE_CHECKING:
    from nsqflow.spark.spool.recovery import RecoveredSlot


@dataclass(kw_only=True)
class SpoolRecovery:
    """What is recovered from a spool."""

    spool: CliSpool
    generations: Sequence[Generation]
    committed: Mapping[str, int]
    """The last committed batch of a generation, where the checkpoint was given."""
    notes: list[str]
    unreadable: int = 0
    """Slots that are damaged or lost."""

    def topics(self) -> list[str]:
        """Return the topics that have rows to recover."""
        return sorted(
            {
                partition.topic
                for each in self.generations
                for partition in _uncommitted(each, self.committed)
            }
        )

    def slots(self, topic: str | None = None) -> Iterator[RecoveredSlot]:
        """Yield the slots, of one topic or of all; report those that can't be read."""
        # Imported late: it loads pyarrow.
        from nsqflow.spark.spool.recovery import read_uncommitted

        for each in self.generations:
            committed = self.committed.get(each.name)
            for slot in read_uncommitted(self.spool.store, each, committed, topic):
                if slot.problem:
                    self.unreadable += 1
                    print_err(slot.problem)
                else:
                    yield slot

    def check_publishable(self, *, named: bool) -> None:
        """Raise ``CommandError`` if a query may still read the rows, unless it was named."""
        for each in [] if named else self.generations:
            if each.state is not GenerationState.ABANDONED:
                raise CommandError(
                    f"generation {each.short_name} is {each.state.value}: started with its "
                    "checkpoint, its query reads these rows itself",
                    f"{self.spool.command('recover', each.short_name, '--publish')} publishes them "
                    "anyway",
                )

    def add_gc_note(self) -> None:
        """Add what removes the rows, which are now elsewhere."""
        names = [each.short_name for each in self.generations if each.state in _ABANDONED]
        if names:
            command = self.spool.command("gc", *names, "--force")
            self.notes.append(f"they are still in the spool: {command} removes them")

    def print_notes(self) -> None:
        """Print what else there is to know."""
        for note in self.notes:
            print_err(note)


def _uncommitted(generation: Generation, committed: Mapping[str, int]) -> list[SpooledPartition]:
    """Return the partitions that may have rows to recover."""
    after = generation.batches_after(committed.get(generation.name, generation.committed))
    return [partition for partitions in after.values() for partition in partitions]


def choose(
    spool: CliSpool, inventory: SpoolInventory, name: str | None, checkpoint: Path | None
) -> SpoolRecovery:
    """Return what to recover: of one generation, of a checkpoint, or of all that do not run."""
    # Imported late: it loads pyarrow.
    from nsqflow.spark.spool.recovery import committed_batches

    committed = {} if checkpoint is None else committed_batches(_local(checkpoint))
    if name is not None:
        chosen, notes = [spool.find(inventory, name)], list[str]()
        if committed and chosen[0].name not in committed:
            raise CommandError(
                f"the checkpoint is not that of generation {chosen[0].short_name}",
                f"it is that of {list_names(committed)}",
                USAGE_ERROR,
            )
    elif committed:
        chosen, notes = [each for each in inventory.generations if each.name in committed], []
        if not chosen:
            raise CommandError(
                f"{spool.name} has nothing of the checkpoint's generation {list_names(committed)}",
                "is it the spoolLocation of that query?",
                USAGE_ERROR,
            )
    else:
        chosen, notes = _choose_all(inventory)
    chosen = [each for each in chosen if _uncommitted(each, committed)]
    notes += [
        _describe_state(each)
        for each in chosen
        if each.state in _STATES
        and not (each.state is GenerationState.ABANDONED and each.name in committed)
    ]
    return SpoolRecovery(spool=spool, generations=chosen, committed=committed, notes=notes)


def _choose_all(inventory: SpoolInventory) -> tuple[list[Generation], list[str]]:
    """Return the streams that do not run, and notes on what is left out."""
    streams = [each for each in inventory.generations if each.kind is GenerationKind.STREAM]
    running = [each for each in streams if each.state is GenerationState.RUNNING]
    notes = [
        f"generation {each.short_name} is left out: its query runs, and may still commit what it "
        "has read"
        for each in running
        if each.uncommitted
    ]
    if reads := len(inventory.generations) - len(streams):
        notes.append(f"{count(reads, 'batch read')} left out: name one to recover its rows")
    return [each for each in streams if each not in running], notes


_ABANDONED = (GenerationState.ABANDONED, GenerationState.ORPHANED)
_STATES = {
    GenerationState.ABANDONED: "its last batch may have been committed; with its checkpoint, "
    "--checkpoint shows whether it was",
    GenerationState.RUNNING: "its query runs, and may still commit these rows",
    GenerationState.STOPPED: "started with its checkpoint, its query reads these rows itself",
    GenerationState.UNKNOWN: "its query may run, or be started again, and then reads these rows "
    "itself",
}


def _describe_state(generation: Generation) -> str:
    state = generation.state
    return f"generation {generation.short_name} is {state.value}: {_STATES[state]}"


def _local(checkpoint: Path) -> Path:
    text = str(checkpoint)
    if text.startswith("file:"):
        return Path("/" + text.removeprefix("file:").lstrip("/"))
    if ":" in text.partition("/")[0]:
        raise ConfigError(
            f"--checkpoint {text!r} is invalid: must be a local folder; copy the folders offsets "
            "and commits to one"
        )
    return checkpoint
