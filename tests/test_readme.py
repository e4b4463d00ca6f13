"""What the README shows, done."""

import re
from pathlib import Path

from tests.fixtures.servers import Nsqd

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()


def test_the_example_publishes_a_message(nsqd: Nsqd) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    host, port = nsqd.tcp_address.split(":")
    assert example.count('"127.0.0.1", 4150') == 1
    exec(example.replace('"127.0.0.1", 4150', f'"{host}", {port}'), {})
    _, stats = nsqd.ask("/stats?format=json&topic=orders")
    assert b'"topic_name":"orders","channels":[],"depth":1' in stats


def test_every_path_it_names_is_there() -> None:
    paths = re.findall(r"^\| `([^`]+)` \|", README, re.MULTILINE)
    assert len(paths) > 5
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_it_fits_on_about_one_screen() -> None:
    assert len(README.splitlines()) < 75
