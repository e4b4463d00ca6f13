"""Looking at what there is without making anything, and the error where a name is unknown."""

from __future__ import annotations

from nsqflow.spark.source.topic_lookup import unknown_name


def test_invalid_names_are_not_suggested() -> None:
    known = {"orders\x1b[2J": {"spark"}, "orders": {"spark"}}
    error = unknown_name("orders\x20", "", "spark", known, ["nsqd a:1"], {})
    assert str(error) == (
        "topic 'orders ' is unknown to nsqd a:1; did you mean 'orders'? mode=peek creates nothing"
    )
    nothing = unknown_name("t", "", "c", {}, [], {})
    assert str(nothing) == (
        "topic 't' is unknown to any server; there are no topics; mode=peek creates nothing"
    )
    many = unknown_name("t", "", "c", dict.fromkeys(map(str, range(20)), ()), ["nsqd a:1"], {})
    assert "there are the topics '0', '1', '10', " in str(many)
    assert "'17', ..." in str(many)
