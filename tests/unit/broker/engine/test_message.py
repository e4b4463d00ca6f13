"""Message ids: in nsqd's format, and always ascending."""

from __future__ import annotations

from itertools import chain, pairwise

from hypothesis import given
from hypothesis import strategies as st

from nsqflow.broker.engine.message import GuidFactory
from tests.unit.broker.engine.parts import NOW

MILLISECOND = 1 << 20  # nanoseconds, as nsqd counts

takes = st.lists(st.tuples(st.integers(0, 9000), st.integers(-3 * MILLISECOND, 3 * MILLISECOND)))


@given(node_id=st.integers(0, 1023), takes=takes, restart=st.integers(0, 5))
def test_ids_ascend_whatever_the_clock_does(
    node_id: int, takes: list[tuple[int, int]], restart: int
) -> None:
    now, ids = NOW, GuidFactory(node_id)
    taken: list[bytes] = []
    for number, (count, time) in enumerate(takes):
        now += time
        if number == restart and taken:
            ids = GuidFactory(node_id, taken[-1])
        batch = ids.take(count, now)
        assert len(batch) == count
        taken += chain(batch[:1], batch[-1:] if count > 1 else ())
        assert batch == sorted(set(batch))
    assert all(earlier < later for earlier, later in pairwise(taken))
    assert all(len(id) == 16 and (int(id, 16) >> 12) & 1023 == node_id for id in taken)


def test_an_id_has_a_millisecond_a_node_and_a_sequence_number() -> None:
    first, second = GuidFactory(0x155).take(2, NOW)
    assert int(first, 16) == (((NOW >> 20) - 1288834974288) << 22) | (0x155 << 12)
    assert int(second, 16) == int(first, 16) + 1
    assert first.islower() or first.isdigit()


def test_the_sequence_starts_at_0_in_each_millisecond() -> None:
    ids = GuidFactory(0)
    ids.take(3, NOW)
    [id] = ids.take(1, NOW + MILLISECOND)
    assert int(id, 16) & 0xFFF == 0


def test_more_ids_than_a_millisecond_has_continue_in_the_next() -> None:
    ids = GuidFactory(7).take(4097, NOW)
    assert int(ids[4095], 16) & 0xFFF == 0xFFF
    assert int(ids[4096], 16) == int(ids[0], 16) + (1 << 22)
