"""Where our servers differ from the real ones on purpose, and why.

A key is a test's name without file and kind: all its cases, or one of them. The test must fail with
each kind of ours; if it passes, its line must be removed.
"""

import re

JSON = "Go's JSON: null, and the width of numbers"
QUOTES = "Go's quoting of text that is not printable"

DIFFERENCES = {
    "test_an_option_that_only_go_has_a_use_for_can_be_read": "ours has no such options",
    "test_identify[a sample rate beyond 32 bits]": JSON,
    "test_identify[a value beyond 64 bits]": JSON,
    "test_nsqlookupd_answers[IDENTIFY with null]": JSON,
    "test_lines_are_understood_as_nsqd_does[a command of bytes that are no text]": QUOTES,
    "test_sub[a topic in UTF-8]": QUOTES,
    "test_nsqlookupd_answers[REGISTER of a topic that is no text]": QUOTES,
    "test_nsqlookupd_answers[UNREGISTER of a topic that is no text]": QUOTES,
    "test_rdy[a number of 64 bits is taken for a negative one]": "an overflow of Go's integers",
    "test_mpub[bodies that are larger than the largest body, with a smaller size before them]": (
        "ours limits the memory that a client can use"
    ),
    "test_an_mpub_that_is_refused_for_its_body_creates_its_topic_anyway": (
        "ours creates no topic for a refused message"
    ),
}

_OURS = re.compile(r"(?P<test>\w+)\[(?:ours|memory)(?:-(?P<case>.*))?\]")


def difference_in(name: str) -> str | None:
    """Return the key of the table for a test, named as pytest does without the file."""
    if match := _OURS.fullmatch(name):
        for line in (match["test"], f"{match['test']}[{match['case']}]"):
            if line in DIFFERENCES:
                return line
    return None
