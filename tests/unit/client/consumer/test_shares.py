"""Shares: equal as far as limits allow, and lent as far as they can be taken."""

from hypothesis import given
from hypothesis import strategies as st

from nsqflow.client.consumer.rdy_policy import even_shares, lent_shares

limits = st.lists(st.integers(0, 40), max_size=12)


def test_what_cannot_be_divided_goes_to_the_first() -> None:
    assert even_shares(11, [9, 9, 9]) == [4, 4, 3]


def test_what_one_cannot_take_goes_to_the_others() -> None:
    assert even_shares(30, [2, 100, 3, 100]) == [2, 13, 3, 12]


def test_there_may_be_more_than_all_can_take() -> None:
    assert even_shares(100, [5, 7]) == [5, 7]


def test_no_capacity_and_no_connections_are_possible() -> None:
    assert even_shares(10, []) == []
    assert even_shares(0, [5, 5]) == [0, 0]
    assert even_shares(-3, [5, 5]) == [0, 0]


@given(st.integers(-5, 300), limits)
def test_shares_are_even_and_use_all_there_is(capacity: int, limits: list[int]) -> None:
    shares = even_shares(capacity, limits)
    assert sum(shares) == max(0, min(capacity, sum(limits)))
    assert all(0 <= share <= limit for share, limit in zip(shares, limits, strict=True))
    cut_free = [share for share, limit in zip(shares, limits, strict=True) if share < limit]
    assert max(shares, default=0) <= min(cut_free, default=10**9) + 1


def test_lenders_keep_one_and_borrowers_share_the_rest() -> None:
    assert lent_shares([10, 10, 10, 10], [99] * 4, [0, 3], [1]) == [1, 28, 10, 1]
    assert lent_shares([10, 10, 10], [99] * 3, [2], [0, 1]) == [15, 14, 1]


def test_lenders_keep_what_no_borrower_can_take() -> None:
    assert lent_shares([10, 10, 10], [99, 14, 99], [0, 2], [1]) == [8, 14, 8]


def test_without_a_borrower_nothing_is_lent() -> None:
    assert lent_shares([10, 10], [99, 99], [0, 1], []) == [10, 10]


def test_a_connection_with_one_or_none_lends_nothing() -> None:
    assert lent_shares([1, 0, 1], [9, 9, 9], [0, 1], [2]) == [1, 0, 1]


@given(st.integers(0, 300), limits, st.data())
def test_lending_moves_shares_and_makes_none(
    capacity: int, limits: list[int], data: st.DataObject
) -> None:
    order = data.draw(st.permutations(range(len(limits))))
    cut = data.draw(st.integers(0, len(limits)))
    shares = even_shares(capacity, limits)
    lent = lent_shares(shares, limits, order[:cut], order[cut : cut + 3])
    assert sum(lent) == sum(shares)
    assert all(0 <= share <= limit for share, limit in zip(lent, limits, strict=True))
    assert all(min(1, shares[i]) <= lent[i] <= shares[i] for i in order[:cut])
    assert all(lent[i] >= shares[i] for i in order[cut:])
