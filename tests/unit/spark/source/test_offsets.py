"""Offsets: the same batch is the same text, and every name leads back to what it names."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqflow.errors import ConfigError
from nsqflow.spark.source.offsets import Offset, PartitionId, make_key, split_key
from nsqflow.spark.spool.layout import (
    batch_folder,
    batches_folder,
    generation_marker,
    planned_marker,
    quote,
    unconfirmed_folder,
    unquote,
)

counts = st.integers(0, 10**12)
plans = st.dictionaries(st.text(max_size=20), st.lists(counts, min_size=1, max_size=4), max_size=5)
offsets = st.builds(Offset, generation=st.text(max_size=40), seq=counts, total=counts, plan=plans)
sequences = st.integers(0, 10**8 - 1)


@given(offsets)
def test_an_offset_survives_the_log(offset: Offset) -> None:
    text = json.dumps(offset.encode())
    again = Offset.decode(json.loads(text))
    assert again == offset
    assert json.dumps(again.encode()) == text


@given(plans, st.randoms())
def test_the_same_plan_is_the_same_text_in_whatever_order_it_was_made(
    plan: dict[str, list[int]], random: Any
) -> None:
    items = [*plan.items()]
    random.shuffle(items)
    texts = {json.dumps(Offset().next("gen", each).encode()) for each in (plan, dict(items))}
    assert len(texts) == 1


@given(st.lists(plans, max_size=5))
def test_offsets_follow_one_another_in_one_generation(steps: list[dict[str, list[int]]]) -> None:
    offset = Offset()
    for number, plan in enumerate(steps, 1):
        offset = offset.next(f"generation-{number}", plan)
        assert (offset.generation, offset.seq) == ("generation-1", number)
        assert offset.planned == sum(sum(shares) for shares in plan.values())
    assert offset.total == sum(sum(shares) for plan in steps for shares in plan.values())


@given(plans)
def test_there_is_a_partition_for_each_number_of_the_plan(plan: dict[str, list[int]]) -> None:
    shares = Offset().next("gen", plan).partition_ids()
    assert [(share.key, share.number) for share in shares] == [
        (key, part) for key in sorted(plan) for part in range(len(plan[key]))
    ]
    assert len({share.folder for share in shares}) == len(shares)


@given(st.text())
def test_a_key_is_a_safe_name_that_leads_back_to_it(key: str) -> None:
    name = quote(key)
    assert re.fullmatch(r"[0-9A-Za-z._%-]*", name)
    assert unquote(name) == key


@given(st.from_regex(r"[.a-zA-Z0-9_-]{1,64}(#ephemeral)?", fullmatch=True), st.text())
def test_a_key_is_a_topic_and_an_address(topic: str, nsqd: str) -> None:
    assert split_key(make_key(topic, nsqd)) == (topic, nsqd)


@given(sequences, sequences)
def test_the_names_of_batches_sort_as_their_numbers_do(one: int, other: int) -> None:
    assert (batch_folder("gen", one) < batch_folder("gen", other)) == (one < other)


def test_all_that_belongs_to_a_generation_lies_below_it() -> None:
    share = PartitionId("gen", 7, "orders|[::1]:4150", 2)
    assert share.folder == "gen/batches/00000007/orders%7C%5B%3A%3A1%5D%3A4150-2"
    assert batch_folder("gen", 7).startswith(f"{batches_folder('gen')}/")
    assert planned_marker("gen", 7) == "gen/batches/00000007/_planned"
    assert generation_marker("gen") == "gen/_gen"
    assert unconfirmed_folder("gen", "a|b:1") == "gen/unfin/a%7Cb%3A1"


@pytest.mark.parametrize("version", [None, 0, 2, "1"])
def test_an_offset_of_another_version_is_refused(version: object) -> None:
    with pytest.raises(ConfigError, match=rf"offset of version {version!r}; this nsqflow reads 1"):
        Offset.decode(Offset().encode() | {"v": version})


@pytest.mark.parametrize(
    "change",
    [{"plan": None}, {"plan": {"a": 1}}, {"plan": {"a": ["x"]}}, {"seq": "x"}, {"total": None}],
)
def test_an_offset_that_makes_no_sense_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="can't be read"):
        Offset.decode(Offset().encode() | change)


def test_an_offset_without_its_parts_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"offset \{'v': 1\} can't be read"):
        Offset.decode({"v": 1})
