"""The names of all objects in the spool.

    _leases/00000003                                 which query owns the spool
    _leases/00000003.beat                            its last heartbeat
    _leases/refused-<application>                    a query of the application was refused
    <generation>/_gen                                the generation has started
    <generation>/_committed                          the last batch that is known to be committed
    <generation>/_refused                            a batch read found another reader
    <generation>/batches/00000007/_planned           the batch is in the spool
    <generation>/batches/00000007/<key>-0/000000     a slot of one partition
    <generation>/batches/00000007/<key>-0/fin-<id>   a writer's FINs are confirmed
    <generation>/batches/00000007/<key>-0/lost-000000  the query continues without this slot
    <generation>/batches/00000007/<key>-0.decided    how many slots the partition has at least
    <generation>/unfin/<key>/00000007-0              ids whose FIN is not confirmed
    <generation>/unfin/<key>/recent                  the ids that dedupe=always keeps

A generation is the life of one checkpoint: a new checkpoint gets a new generation and never sees
the rows of another. A key is ``topic|host:port``. Spools outlive releases: these names must not
change.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

LEASES = "_leases"
MAX_BATCH = 10**8 - 1
"""The highest number of a batch."""
PLANNED = "_planned"
RECENT = "recent"
REFUSED = "refused-"

_FIN = "fin-"
_LOST = "lost-"
_SLOT = re.compile(r"[0-9]{6}|[1-9][0-9]{6,8}")
_UNSAFE = re.compile(rb"[^0-9A-Za-z._-]")
_ESCAPED = re.compile(rb"%([0-9A-F]{2})")


def generation_marker(generation: str) -> str:
    """Return the object that exists from a generation's first batch on."""
    return f"{generation}/_gen"


def refused_marker(generation: str) -> str:
    """Return the object that says that a batch read found another reader of its channel."""
    return f"{generation}/_refused"


def committed_marker(generation: str) -> str:
    """Return the object with the number of the last batch that is known to be committed."""
    return f"{generation}/_committed"


def lease_name(number: int) -> str:
    """Return the object that says who owns the spool, for the owner with this number."""
    return f"{LEASES}/{number:08d}"


def heartbeat_name(number: int) -> str:
    """Return the object that the owner with this number replaces again and again."""
    return f"{lease_name(number)}.beat"


def lease_numbers(names: Iterable[str]) -> list[int]:
    """Return the numbers of the leases among the names of their folder, in order."""
    return sorted(int(name) for name in names if name.isdecimal())


def refusal_name(machine: str, jvm_pid: int, jvm_started: str) -> str:
    """Return the object that says that a query of a Spark application was refused."""
    return f"{LEASES}/{REFUSED}{quote(f'{machine} {jvm_pid} {jvm_started}')}"


def batches_folder(generation: str) -> str:
    """Return the folder of a generation's batches."""
    return f"{generation}/batches"


def batch_folder(generation: str, seq: int) -> str:
    """Return the folder of a batch; names sort like the numbers."""
    return f"{batches_folder(generation)}/{seq:08d}"


def batch_number(name: str) -> int | None:
    """Return the number of a batch by its folder's name; None for other names."""
    number = int(name) if name.isascii() and name.isdecimal() else -1
    return number if name == f"{number:08d}" else None


def planned_marker(generation: str, seq: int) -> str:
    """Return the object that exists from a batch's planning until it leaves the spool."""
    return f"{batch_folder(generation, seq)}/{PLANNED}"


def partition_folder(generation: str, seq: int, key: str, index: int) -> str:
    """Return the folder of a partition's slots."""
    return f"{batch_folder(generation, seq)}/{quote(key)}-{index}"


def parse_partition(name: str) -> tuple[str, int] | None:
    """Return key and index of a partition's folder within its batch; None for other names."""
    key, _, index = name.rpartition("-")
    return (unquote(key), int(index)) if key and index.isdecimal() else None


def slot_count_marker(partition_folder: str) -> str:
    """Return the object beside a partition's folder that exists once it has a slot."""
    return f"{partition_folder}.decided"


def slot_name(partition_folder: str, number: int) -> str:
    """Return the object of a slot."""
    return f"{partition_folder}/{number:06d}"


def slot_numbers(names: Iterable[str]) -> list[int]:
    """Return the numbers of the slots among a folder's names, in order."""
    return sorted(int(name) for name in names if _SLOT.fullmatch(name))


def fin_marker(partition_folder: str, writer: str) -> str:
    """Return the object that confirms the FINs of one writer."""
    return f"{partition_folder}/{_FIN}{writer}"


def fin_markers(names: Iterable[str]) -> list[str]:
    """Return the confirmations among a folder's names."""
    return [name for name in names if name.startswith(_FIN)]


def lost_marker(partition_folder: str, number: int) -> str:
    """Return the object that marks a slot as lost."""
    return f"{partition_folder}/{_LOST}{number:06d}"


def lost_numbers(names: Iterable[str]) -> dict[int, str]:
    """Return the markers of lost slots among a folder's names, by the slot's number."""
    lost = {name.removeprefix(_LOST): name for name in names if name.startswith(_LOST)}
    return {int(number): name for number, name in lost.items() if number.isdecimal()}


def unconfirmed_folder(generation: str, key: str) -> str:
    """Return the folder of a key's ids that may be delivered again."""
    return f"{generation}/unfin/{quote(key)}"


def unconfirmed_ids(generation: str, seq: int, key: str, index: int) -> str:
    """Return the object of one partition's ids that may be delivered again."""
    return f"{unconfirmed_folder(generation, key)}/{seq:08d}-{index}"


def recent_ids(generation: str, key: str) -> str:
    """Return the object of the ids that ``dedupe=always`` keeps of removed batches."""
    return f"{unconfirmed_folder(generation, key)}/{RECENT}"


def quote(key: str) -> str:
    """Return a key as the name of a folder."""
    return _UNSAFE.sub(lambda match: b"%%%02X" % ord(match[0]), key.encode()).decode()


def unquote(name: str) -> str:
    """Return the key that ``quote`` turned into a folder's name."""
    return _ESCAPED.sub(lambda match: bytes((int(match[1], 16),)), name.encode()).decode(
        errors="replace"
    )
