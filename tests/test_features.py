"""docs/features.md: each row is there and has tests that exist."""

from tests.features import PAGE, proofs, rows

WISHES = [3, 5, 7, *range(9, 16), 17, 20, 21, 23, 24, 29, *range(31, 35)]


def test_every_row_of_the_guide_has_a_test() -> None:
    found = proofs()
    missing = [row for row in rows(PAGE.read_text()) if not found[row]]
    assert missing == []


def test_no_row_was_left_out() -> None:
    names = rows(PAGE.read_text())
    expected = [str(n) for n in range(1, 91)] + [f"D{n}" for n in range(1, 13)]
    assert names == expected + [f"W{n}" for n in WISHES]
