"""Shares: how much of what may be in flight each connection should have."""

from __future__ import annotations

from collections.abc import Sequence


def even_shares(capacity: int, limits: Sequence[int]) -> list[int]:
    """As equal parts of the capacity as the limits allow, all of it if they do.

    What can't be divided goes one by one to the first that can take it.
    """
    left = max(0, min(capacity, sum(limits)))
    takers = len(limits)
    for limit in sorted(limits):
        if limit * takers >= left:
            break
        left -= limit
        takers -= 1
    level, rest = divmod(left, takers) if takers else (0, 0)
    shares = []
    for limit in limits:
        extra = 1 if rest and limit > level else 0
        rest -= extra
        shares.append(min(limit, level + extra))
    return shares


def lent_shares(
    shares: Sequence[int], limits: Sequence[int], lenders: Sequence[int], borrowers: Sequence[int]
) -> list[int]:
    """The shares after the lenders lent what they have above 1, as far as borrowers can take it.

    Lenders and borrowers are indexes of shares.
    """
    spare = [max(0, shares[i] - 1) for i in lenders]
    loans = even_shares(sum(spare), [limits[i] - shares[i] for i in borrowers])
    kept = even_shares(sum(spare) - sum(loans), spare)
    lent = list(shares)
    for i, loan in zip(borrowers, loans, strict=True):
        lent[i] += loan
    for i, had, keeps in zip(lenders, spare, kept, strict=True):
        lent[i] -= had - keeps
    return lent
