"""``nsqflow spool ls``, ``gc`` and ``release``: what the spools of Spark queries hold.

``recover`` has a module of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated

import typer

from nsqflow.cli.errors import FAILED, OK, CommandError
from nsqflow.cli.lists import JsonOption
from nsqflow.cli.manage import YesOption, confirm
from nsqflow.cli.spool_location import (
    CliSpool,
    GenerationsArgument,
    LocationArgument,
    ReadIdArgument,
    describe,
    list_names,
    open_spool,
    print_problems,
    show_bytes,
    show_generations,
)
from nsqflow.cli.terminal import count, print_err, print_json, show_name
from nsqflow.config.options import did_you_mean
from nsqflow.spark.spool.application import refusal_names
from nsqflow.spark.spool.generation import MAX_READ_AGE, GenerationKind, remove_generation
from nsqflow.spark.spool.inventory import Generation, SpoolInventory
from nsqflow.spark.spool.layout import LEASES
from nsqflow.spark.spool.owners import GenerationState

_REMOVABLE = (GenerationState.ABANDONED, GenerationState.ORPHANED)


def spool() -> None:
    """List and clean the spools of Spark queries, and recover rows.

    A spool has a generation for each checkpoint of its query, and for each batch read.

    Example:
      $ nsqflow spool ls orders/spool
      $ nsqflow spool gc orders/spool --dry-run
    """


def ls(
    location: LocationArgument,
    json: JsonOption = False,
) -> None:
    """List the generations of a spool, whose they are, and their sizes.

    A generation is abandoned once a query with another checkpoint has taken the spool: gc
    removes it. Uncommitted rows were read and are not known to be committed.

    Example:
      $ nsqflow spool ls orders/spool
      $ nsqflow spool ls orders/spool --json
    """
    with open_spool(location) as spool:
        inventory = spool.inventory()
    if json:
        for generation in inventory.generations:
            print_json(describe(generation))
    else:
        show_generations(inventory.generations)
    print_problems(inventory)
    for topic, channel in inventory.former_topics():
        names = f"{show_name(topic)} {show_name(channel)}"
        print_err(
            f"topic {show_name(topic)} is not read any more, and its channel "
            f"{show_name(channel)}, if it still exists, keeps filling: nsqflow delete {names} "
            "removes it"
        )


def gc(
    location: LocationArgument,
    generations: GenerationsArgument = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what it would remove, and remove nothing.")
    ] = False,
    yes: YesOption = False,
    force: Annotated[
        bool, typer.Option("--force", help="Remove rows that were read and never committed, too.")
    ] = False,
    json: JsonOption = False,
) -> int:
    """Remove abandoned generations, and old batch reads without a name.

    A batch read is old after a day. Files that crashed writers left are removed as well. The
    generation of the query that used the spool last always stays, and so do named reads; a
    generation whose query is unknown is only removed by its name.

    Example:
      $ nsqflow spool gc orders/spool --dry-run
      $ nsqflow spool gc orders/spool --yes
    """
    with open_spool(location) as spool:
        inventory = spool.inventory()
        if generations:
            plan = _plan_named(spool, inventory, generations, force=force)
        else:
            plan = spool.run(lambda: _plan_all(spool, inventory, force=force), "reading")
        _show_plan(plan, as_json=json)
        if plan.is_empty:
            if not json:
                print("nothing to remove")
            return OK
        if dry_run:
            _report(plan, plan.targets, "removable", as_json=json)
            return OK
        if not confirm(f"Remove {plan} from {spool.name}?", yes=yes):
            print_err("nothing was removed")
            return FAILED
        targets = plan.targets if yes else _still_removable(spool, plan.targets)
        spool.run(lambda: _remove(spool, plan, targets), "removing from")
        _report(plan, targets, "removed", as_json=json)
    return OK if len(targets) == len(plan.targets) else FAILED


def release(
    location: LocationArgument,
    read_id: ReadIdArgument,
    yes: YesOption = False,
) -> int:
    """Remove the rows of a named batch read.

    They were finished at nsqd: a read with this readId has new messages afterwards.

    Example:
      $ nsqflow spool release orders/spool nightly --yes
    """
    with open_spool(location) as spool:
        read = _find_read(spool.inventory(), read_id)
        about = f"of channel {show_name(read.marker.channel)}, {show_bytes(read.size)}"
        if not confirm(f"Remove the rows of read {read_id!r} {about}?", yes=yes):
            print_err("nothing was removed")
            return FAILED
        spool.run(lambda: remove_generation(spool.store, read.name), "removing from")
    print(f"released {show_name(read_id)}")
    return OK


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovalPlan:
    """What ``gc`` removes, and what it does not."""

    targets: Sequence[Generation] = ()
    leftovers: Sequence[str] = ()
    """Files of crashed writers and interrupted checks."""
    kept: dict[str, str] = field(default_factory=dict)
    """Why each of these generations stays."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing is removed."""
        return not self.targets and not self.leftovers

    def __str__(self) -> str:
        size = sum(target.size for target in self.targets)
        parts = [f"{count(len(self.targets), 'generation')} ({show_bytes(size)})"]
        left = [f"{count(len(self.leftovers), 'unfinished file')}"]
        return " and ".join(parts * bool(self.targets) + left * bool(self.leftovers))


def _plan_named(
    spool: CliSpool, inventory: SpoolInventory, names: Sequence[str], *, force: bool
) -> RemovalPlan:
    """Return the plan for these generations; raise ``CommandError`` if one of them must stay."""
    found = {each.name: each for each in (spool.find(inventory, name) for name in names)}
    for generation in found.values():
        why, remedy = _refusal(spool, generation, force=force)
        if why:
            raise CommandError(f"generation {generation.short_name} {why}", remedy)
    return RemovalPlan(targets=tuple(found.values()))


def _plan_all(spool: CliSpool, inventory: SpoolInventory, *, force: bool) -> RemovalPlan:
    targets, kept = list[Generation](), dict[str, str]()
    for generation in inventory.generations:
        if generation.state in _REMOVABLE:
            why, remedy = _refusal(spool, generation, force=force)
            if why:
                kept[generation.name] = f"{why}; {remedy}"
            else:
                targets.append(generation)
        elif generation.state is GenerationState.UNKNOWN and not generation.is_current:
            command = spool.command("gc", generation.short_name)
            kept[generation.name] = f"may be in use; if it is not, {command} removes it"
    folders = [LEASES, *(each.name for each in inventory.generations if each not in targets)]
    unfinished = [
        name for folder in folders for name in spool.store.unfinished(folder, MAX_READ_AGE)
    ]
    probes = [name for name in inventory.probes if _is_old(spool, name)]
    refusals = [name for name in refusal_names(spool.store) if _is_old_file(spool, name)]
    return RemovalPlan(targets=targets, leftovers=[*unfinished, *probes, *refusals], kept=kept)


def _refusal(spool: CliSpool, generation: Generation, *, force: bool) -> tuple[str, str]:
    """Return why a generation must stay, and what to do; empty texts if it need not."""
    name = generation.short_name
    if generation.kind is GenerationKind.NAMED_READ:
        return "is a named read", f"{spool.command('release', generation.read_id)} removes it"
    if generation.state is GenerationState.RUNNING:
        return f"is in use by {generation.owner}", "stop its query first"
    if generation.is_current:
        return (
            "belongs to the query that used the spool last, and which may be started again",
            "remove the whole spool together with its checkpoint",
        )
    if generation.state is GenerationState.KEPT and not force:
        return "is a read of the last 24 hours, and its job may still run", "--force removes it"
    if generation.uncommitted and not force:
        rows = count(generation.uncommitted, "row")
        return (
            f"has {rows} that {'was' if generation.uncommitted == 1 else 'were'} never committed",
            f"{spool.command('recover', name)} shows them, and --force removes them",
        )
    return "", ""


def _is_old(spool: CliSpool, folder: str) -> bool:
    return all(_is_old_file(spool, f"{folder}/{name}") for name in spool.store.tree(folder))


def _is_old_file(spool: CliSpool, name: str) -> bool:
    age = spool.store.age(name)
    return age is None or age > MAX_READ_AGE


def _show_plan(plan: RemovalPlan, *, as_json: bool) -> None:
    if plan.targets and not as_json:
        show_generations(plan.targets)
    for name, why in plan.kept.items():
        if as_json:
            print_json({"generation": name, "result": "kept", "reason": why})
        else:
            print_err(f"generation {name} stays: it {why}")


def _still_removable(spool: CliSpool, targets: Sequence[Generation]) -> list[Generation]:
    """Return those that are as they were before the question: it may have waited for long."""
    now = {each.name: each.state for each in spool.inventory().generations}
    for target in targets:
        if now.get(target.name) is not target.state:
            print_err(f"generation {target.name} has changed since, and stays")
    return [target for target in targets if now.get(target.name) is target.state]


def _remove(spool: CliSpool, plan: RemovalPlan, targets: Sequence[Generation]) -> None:
    for target in targets:
        remove_generation(spool.store, target.name)
    for name in plan.leftovers:
        spool.store.remove(name)


def _report(
    plan: RemovalPlan, targets: Sequence[Generation], result: str, *, as_json: bool
) -> None:
    if as_json:
        for target in targets:
            print_json(describe(target) | {"result": result})
        for name in plan.leftovers:
            print_json({"file": name, "result": result})
    elif result == "removed":
        print(f"removed {RemovalPlan(targets=targets, leftovers=plan.leftovers)}")
    else:
        print(f"would remove {plan}")


def _find_read(inventory: SpoolInventory, read_id: str) -> Generation:
    reads = {
        each.read_id: each
        for each in inventory.generations
        if each.kind is GenerationKind.NAMED_READ
    }
    if read_id in reads:
        return reads[read_id]
    hint = did_you_mean(read_id, reads)
    if not hint:
        hint = f"there are {list_names(reads)}" if reads else "no read of this spool has a name"
    raise CommandError(f"there is no read {read_id!r}", hint)
