"""The headers of messages as columns: whatever JSON a publisher has sent becomes text."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pytest

from nsqflow.client.body_compression import compress_body
from nsqflow.spark.source import headers
from nsqflow.spark.source.headers import header_columns
from nsqflow.spark.source.rows import RowConverter
from nsqflow.spark.spool.slot_format import STORED_POSITIONS
from tests.unit.spark.source.position_rows import rows_with_headers


def columns_of(*exts: bytes | None) -> tuple[list[object], list[str | None]]:
    headers, tags = header_columns(pa.array(exts, pa.binary()))
    headers.validate(full=True)
    return headers.to_pylist(), tags.to_pylist()


def test_what_is_not_text_is_json() -> None:
    headers, tags = columns_of(b'{"a":1,"b":"\\u00e9","##client_dispatch_tag":"x"}', None, b"[]")
    assert headers == [[("a", "1"), ("b", "é"), ("##client_dispatch_tag", "x")], None, None]
    assert tags == ["x", None, None]


@pytest.mark.parametrize(
    ("ext", "expected", "tag"),
    [
        (b'{"a":"x\\ud800"}', [("a", "x?")], None),
        (b'{"\\udfffname":"a"}', [("?name", "a")], None),
        (b'{"a":["\\ud800"]}', [("a", '["\\ud800"]')], None),
        (b'{"##client_dispatch_tag":"\\ud800t"}', [("##client_dispatch_tag", "?t")], "?t"),
        (b'{"a":"\\ud83d\\ude00"}', [("a", "\N{GRINNING FACE}")], None),
    ],
)
def test_half_a_surrogate_pair_is_replaced(
    ext: bytes, expected: list[tuple[str, str]], tag: str | None
) -> None:
    assert columns_of(ext) == ([expected], [tag])


# --- compressed bodies --------------------------------------------------------------------------


def stored_of(bodies: Sequence[bytes], *, packed: bool = True) -> pa.RecordBatch:
    """Return stored rows with headers, whose bodies are compressed by each codec in turn."""
    codecs, messages = ["gzip", "snappy", "lz4"], list[tuple[bytes, dict[str, str]]]()
    for number, body in enumerate(bodies):
        data, packing = compress_body(codecs[number % 3], body) if packed else (body, {})
        messages.append((data, packing | {"number": str(number)}))
    return rows_with_headers(messages)


def convert(stored: pa.RecordBatch, *, metadata: bool = True) -> list[pa.RecordBatch]:
    found = [*RowConverter("t|3", "c", metadata=metadata, positions=True).convert(stored, "n:1")]
    for rows in found:
        rows.validate(full=True)
    return found


@pytest.mark.parametrize("metadata", [True, False])
def test_bodies_that_unpack_to_too_much_are_several_batches(
    monkeypatch: pytest.MonkeyPatch, metadata: bool
) -> None:
    monkeypatch.setattr(headers, "_MAX_PART", 1000)
    bodies = [b"%d" % n * size for n, size in enumerate([400, 600, 1, 5000, 999, 1, 1])]
    parts = convert(stored_of(bodies), metadata=metadata)
    assert [len(rows) for rows in parts] == [2, 1, 1, 2, 1]
    assert [row["body"] for rows in parts for row in rows.to_pylist()] == bodies
    if metadata:
        rows = [row for part in parts for row in part.to_pylist()]
        assert [row["offset"] for row in rows] == [10 * n for n in range(7)]
        assert [row["internal_id"] for row in rows] == [*range(7)]
        assert [row["timestamp_ns"] for row in rows] == [1000 + n for n in range(7)]
        assert [dict(row["headers"])["number"] for row in rows] == [str(n) for n in range(7)]


def test_bodies_that_are_not_compressed_stay_one_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(headers, "_MAX_PART", 10)
    [rows] = convert(stored_of([b"x" * 100] * 3, packed=False))
    assert rows.column("body").to_pylist() == [b"x" * 100] * 3


def test_a_body_that_cannot_be_unpacked_is_left_as_it_is() -> None:
    stored = stored_of([b"x" * 100] * 2)
    damaged = pa.array([b"damaged", *stored.column("body").to_pylist()[1:]], pa.binary())
    [rows] = convert(
        pa.RecordBatch.from_arrays([damaged, *stored.columns[1:]], schema=STORED_POSITIONS)
    )
    assert rows.column("body").to_pylist() == [b"damaged", b"x" * 100]
